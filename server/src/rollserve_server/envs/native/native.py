"""Native vector environments: which environments offer one, and how it is made."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.vector import AutoresetMode

from rollserve_server.envs.envpool.environment import make_envpool
from rollserve_server.envs.making import close_env, find_env, refusing
from rollserve_server.envs.native.same_step import same_step_spec
from rollserve_server.errors import InvalidValueError

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv

    from rollserve import EnvSpec

__all__ = ["check_step_limit", "make_vector_env", "offers_rows", "why_not_native"]

_MODES = (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP)
_MOST_SHOWN = 200


def why_not_native(spec: EnvSpec) -> str | None:
    """Why the environment's rows cannot be stepped by code of its own for many, or None if they can.

    Raises:
        NotFoundError: there is no such module, class or id.
    """
    named = find_env(spec.id)
    if not isinstance(named, str) or gymnasium.spec(named).vector_entry_point is None:
        return f"{spec.id} offers no code for that"
    if spec.wrappers or gymnasium.spec(named).additional_wrappers:
        return "wrappers are around each row"
    if spec.task is not None:
        return "a task is set in each row"
    return None


def offers_rows(spec: EnvSpec) -> bool:
    """Whether the environment, which is there, has code for single rows, too."""
    named = find_env(spec.id)
    return not isinstance(named, str) or gymnasium.spec(named).entry_point is not None


def check_step_limit(spec: EnvSpec) -> None:
    """Sees to it that the argument `max_episode_steps` is a limit: not all native code would find that out.

    Raises:
        InvalidValueError: it is no whole number, or below 1.
    """
    limit = spec.kwargs.get("max_episode_steps")
    if limit is not None and (type(limit) is not int or limit < 1):
        text = f"max_episode_steps: {json.dumps(limit)[:_MOST_SHOWN]} came, a whole number of at least 1 was expected"
        raise InvalidValueError(text, field="kwargs_json")


def make_vector_env(
    spec: EnvSpec, num_rows: int, max_episode_length: int | None, *, same_step: bool
) -> VectorEnv[Any, Any, Any]:
    """A new vector environment, native or EnvPool's. The caller has checked that the spec is allowed.

    Args:
        spec: how to make it.
        num_rows: how many rows it is to have.
        max_episode_length: how many steps an episode may have; None for what the environment allows.
        same_step: whether rows are to begin anew with the step that ends an episode, where that can be had.

    Raises:
        NotFoundError: there is no such module or id, or a package that it needs is not installed.
        InvalidValueError: there is none, it refuses its arguments or the call's limit, or it does not begin its rows
            anew in a way that is known.
    """
    if spec.vectorization == "envpool":
        return make_envpool(spec, num_rows, max_episode_length)
    why_not = why_not_native(spec)
    if why_not is not None:
        raise InvalidValueError(f"'native' came, but {why_not}: 'rows' was expected", field="vectorization")
    check_step_limit(spec)
    name = spec.id.rpartition(":")[2]
    arguments: dict[str, Any] = dict(spec.kwargs)
    own_limit = arguments.pop("max_episode_steps", None)
    limit = own_limit or gymnasium.spec(name).max_episode_steps
    if max_episode_length is not None:
        limit = min(max_episode_length, limit or max_episode_length)
    if (own_limit, max_episode_length) != (None, None):
        arguments["max_episode_steps"] = limit
    # The name is bound here: as an argument of the request it could be that of a module that is not allowed.
    named = (same_step_spec(name) if same_step else None) or name
    make = functools.partial(gymnasium.make_vec, named, num_rows, "vector_entry_point")
    env: VectorEnv[Any, Any, Any]
    try:
        env = refusing(spec.id, lambda: make(**arguments))
    except InvalidValueError as error:
        if max_episode_length is None:
            raise
        # Without a limit it has been made before.
        text = (
            f"{max_episode_length} came, but the native code of {spec.id} takes no limit, as 'rows' would: {error.text}"
        )
        raise InvalidValueError(text, field="options.max_episode_length") from error
    if env.metadata.get("autoreset_mode") not in _MODES:
        close_env(env)
        text = f"the native vector environment of {spec.id} does not say how its rows begin anew: 'rows' was expected"
        raise InvalidValueError(text, field="vectorization")
    return env
