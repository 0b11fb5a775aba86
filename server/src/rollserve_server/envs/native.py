"""Native vector environments: which environments have one, its arguments, and how it is made."""

from __future__ import annotations

import copy
import functools
import inspect
import json
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from rollserve_server.envs.making import call_with_arguments, close_env
from rollserve_server.envs.registry import find_env
from rollserve_server.errors import InvalidValueError, shorten
from rollserve_server.machine import num_cores
from rollserve_wire.python_arguments import python_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from rollserve_wire.environments import EnvSpec

__all__ = ["check_native_arguments", "make_native", "same_step_spec", "why_not_native"]

_MODES = (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP)

_MODE_ARGUMENT = "autoreset_mode"
"""Argument of native vector environments that can reset rows in more than one way, as ALE's."""

_ALE = "ale_py.vector_env:AtariVectorEnv"
_ALE_POOL_ARGUMENTS = ("batch_size", "thread_affinity_offset")
"""Arguments of ALE's pool of rows, not of the environment: a worker steps all of its rows at once, on any core."""

_MAX_SHOWN = 200  # characters of an argument in the text of an error


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
    check_native_arguments(spec)
    name = spec.id.rpartition(":")[2]
    variant = same_step_spec(name) if same_step else None
    registered = gymnasium.spec(name)
    arguments = call_with_arguments(
        spec, lambda: python_arguments(registered.vector_entry_point, spec.kwargs, registered.kwargs)
    )
    arguments = _limited_arguments(arguments, registered.max_episode_steps, max_episode_length)
    # Bind the id here: as an argument of the request it could name a module that is not allowed.
    make = functools.partial(gymnasium.make_vec, variant or name, num_rows, "vector_entry_point")
    try:
        if same_step and variant is None and call_with_arguments(spec, lambda: _takes_mode(name)):
            arguments[_MODE_ARGUMENT] = AutoresetMode.SAME_STEP
            return _WithFinalInfos(_made(spec, lambda: make(**arguments)))
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


def check_native_arguments(spec: EnvSpec) -> None:
    """Check the arguments of an environment that native code may step.

    Raises:
        NotFoundError: there is no such module, class or id.
        InvalidValueError: `max_episode_steps` is no step limit; or ALE's rows would not all be stepped at once, or by
            more threads than the machine has cores.
    """
    limit = spec.kwargs.get("max_episode_steps")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise _refused("a whole number of at least 1 as max_episode_steps", limit)
    named = find_env(spec.id)
    if isinstance(named, str) and gymnasium.spec(named).vector_entry_point == _ALE:
        for name in _ALE_POOL_ARGUMENTS:
            if name in spec.kwargs:
                raise _refused(f"no {name}, which belongs to the pool of rows", spec.kwargs[name])
        num_threads = spec.kwargs.get("num_threads", 0)
        if type(num_threads) is not int or not 0 <= num_threads <= num_cores():
            raise _refused(f"a whole number from 0 to {num_cores()}, the server's cores, as num_threads", num_threads)


def same_step_spec(name: str) -> Any:
    """Return the gymnasium spec of a variant with same-step reset.

    With gymnasium's next-step reset, rows that reset make fewer steps than the others. So the rows cannot all make
    exactly the same number of steps, as fragments require.

    Args:
        name: registered id of an environment.

    Returns:
        The spec, or None if the environment itself has same-step reset or this module has no variant of it.
    """
    spec: Any = copy.copy(gymnasium.spec(name))
    entry_point = spec.vector_entry_point
    if not isinstance(entry_point, str) or entry_point not in _SAME_STEP:
        return None
    spec.vector_entry_point = _SAME_STEP[entry_point]
    return spec


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


def _limited_arguments(
    kwargs: Mapping[str, Any], registered_limit: int | None, max_episode_length: int | None
) -> dict[str, Any]:
    """Return the arguments, with the environment's step limit or the call's, whichever is lower.

    Without a limit in either, `max_episode_steps` is left out: gymnasium then applies the registered one.
    """
    arguments = dict(kwargs)
    own_limit = arguments.pop("max_episode_steps", None)
    limit = own_limit or registered_limit
    if max_episode_length is not None:
        limit = min(max_episode_length, limit or max_episode_length)
    if (own_limit, max_episode_length) != (None, None):
        arguments["max_episode_steps"] = limit
    return arguments


class _SameStepCartPole(CartPoleVectorEnv):
    """CartPole with the same dynamics, whose rows draw their next initial states as soon as they end."""

    state: Any

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.metadata = {**self.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}

    def step(
        self, action: NDArray[np.integer[Any]]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Step all rows, and reset those whose episodes end."""
        observations, rewards, terminated, truncated, infos = super().step(action)
        (ended,) = self.prev_done.nonzero()
        if len(ended):
            infos["final_obs"] = observations
            drawn = self.np_random.uniform(low=self.low, high=self.high, size=(len(self.state), len(ended)))
            self.state[:, ended] = drawn
            self.steps[ended] = 0
            self.prev_done[:] = False
            observations = observations.copy()
            observations[ended] = drawn.T
        return observations, rewards, terminated, truncated, infos


# Before 1.4, gymnasium's VectorWrapper was not generic.
if TYPE_CHECKING:
    _VectorWrapper = VectorWrapper[Any, Any, Any, Any, Any]
else:
    _VectorWrapper = VectorWrapper


class _WithFinalInfos(_VectorWrapper):
    """A vector environment with same-step reset that says which infos belong to which episode.

    Where an episode ends, gymnasium's convention has the infos of the next one, and the infos of the last step under
    `final_info`. ALE leaves `final_info` out: the last step of an episode then has no infos.
    """

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all rows; add an empty `final_info` where an episode has ended without one."""
        *results, infos = self.env.step(actions)
        if "final_obs" in infos and "final_info" not in infos:
            infos = {**infos, "final_info": {}}
        return *results, infos


_SAME_STEP: Mapping[str, Callable[..., VectorEnv[Any, Any, Any]]] = {
    "gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv": _SameStepCartPole
}
"""Vector environments with same-step reset, by the entry points of those with next-step reset."""


def _takes_mode(name: str) -> bool:
    """Whether the native vector environment of a registered id has an argument for its autoreset mode."""
    entry_point: Any = gymnasium.spec(name).vector_entry_point
    creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    return _MODE_ARGUMENT in inspect.signature(creator).parameters


def _refused(expected: str, got: object) -> InvalidValueError:
    return InvalidValueError.of("kwargs_json", expected=expected, got=shorten(json.dumps(got), _MAX_SHOWN))
