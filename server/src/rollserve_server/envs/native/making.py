"""Native vector environments: which environments have one, and how it is made."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.vector import AutoresetMode, VectorEnv

from rollserve_server.envs.making import close_env
from rollserve_server.envs.native.arguments import check_arguments
from rollserve_server.envs.native.same_step import MODE_ARGUMENT, WithFinalInfos, same_step_spec, takes_mode
from rollserve_server.envs.refusals import call_with_arguments
from rollserve_server.envs.registry import find_env
from rollserve_server.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollserve_wire.environments import EnvSpec

__all__ = ["make_native", "why_not_native"]

_MODES = (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP)


def why_not_native(spec: EnvSpec) -> str | None:
    """Return why native code cannot step the environment's rows, or None if it can.

    Raises:
        NotFoundError: there is no such module, class or id.
    """
    named = find_env(spec.id)
    if not isinstance(named, str) or gymnasium.spec(named).vector_entry_point is None:
        return f"{spec.id} has no native vector environment"
    if spec.wrappers or gymnasium.spec(named).additional_wrappers:
        return "wrappers apply to single rows"
    if spec.task is not None:
        return "a task applies to single rows"
    return None


def make_native(
    spec: EnvSpec, num_rows: int, max_episode_length: int | None, *, same_step: bool
) -> VectorEnv[Any, Any, Any]:
    """Make a native vector environment. The caller has checked that the spec is allowed.

    Args:
        spec: environment.
        num_rows: number of rows.
        max_episode_length: step limit of episodes; None for the environment's own.
        same_step: whether to reset rows in the step that ends an episode, where the environment can.

    Raises:
        NotFoundError: a module or id does not exist, or a package is not installed.
        InvalidValueError: the environment has no native code, or refuses its arguments or the limit, or its autoreset
            mode is unknown.
    """
    why_not = why_not_native(spec)
    if why_not is not None:
        raise InvalidValueError.of("vectorization", expected=f"'rows', because {why_not}", got="'native'")
    check_arguments(spec)
    name = spec.id.rpartition(":")[2]
    variant = same_step_spec(name) if same_step else None
    arguments = _limited_arguments(spec, gymnasium.spec(name).max_episode_steps, max_episode_length)
    # Bind the id here: as an argument of the request it could name a module that is not allowed.
    make = functools.partial(gymnasium.make_vec, variant or name, num_rows, "vector_entry_point")
    try:
        if same_step and variant is None and call_with_arguments(spec, lambda: takes_mode(name)):
            arguments[MODE_ARGUMENT] = AutoresetMode.SAME_STEP
            return WithFinalInfos(_made(spec, lambda: make(**arguments)))
        return _made(spec, lambda: make(**arguments))
    except InvalidValueError as error:
        if max_episode_length is None:
            raise
        # The environment was made before without a limit, so the limit is at fault.
        expected = f"none, because the native code of {spec.id} takes no step limit"
        hint = f"use vectorization 'rows' ({error.text})"
        raise InvalidValueError.of(
            "options.max_episode_length", expected=expected, got=max_episode_length, hint=hint
        ) from error


def _made(spec: EnvSpec, make: Callable[[], Any]) -> VectorEnv[Any, Any, Any]:
    """Return what `make` makes, with an autoreset mode in its own metadata."""
    env: VectorEnv[Any, Any, Any] = call_with_arguments(spec, make)
    # ALE writes its mode into the metadata that gymnasium's base class has for all vector environments.
    own = {} if env.metadata is VectorEnv.metadata else env.metadata
    mode = own.get("autoreset_mode", getattr(env, "autoreset_mode", None))
    env.metadata = {**own, "autoreset_mode": mode}
    if mode not in _MODES:
        close_env(env)
        expected = f"'rows', because the native vector environment of {spec.id} does not declare its autoreset mode"
        raise InvalidValueError.of("vectorization", expected=expected, got="'native'")
    return env


def _limited_arguments(spec: EnvSpec, registered_limit: int | None, max_episode_length: int | None) -> dict[str, Any]:
    """Return the arguments, with the environment's step limit or the call's, whichever is lower.

    Without a limit in the spec or the call, `max_episode_steps` is left out: gymnasium then applies the registered one.
    """
    arguments: dict[str, Any] = dict(spec.kwargs)
    own_limit = arguments.pop("max_episode_steps", None)
    limit = own_limit or registered_limit
    if max_episode_length is not None:
        limit = min(max_episode_length, limit or max_episode_length)
    if (own_limit, max_episode_length) != (None, None):
        arguments["max_episode_steps"] = limit
    return arguments
