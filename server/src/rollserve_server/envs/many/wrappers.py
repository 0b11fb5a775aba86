"""Wrappers of environments with many agents: PettingZoo's and SuperSuit's by name, and those of allowed modules."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_server.envs.refusals import call_with_arguments
from rollserve_server.envs.registry import forbidden_wrapper, imported_member, module_of, suggestion
from rollserve_server.errors import InvalidValueError, NotFoundError, show
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rollserve_wire.environments import Wrapper

__all__ = ["find_turn_wrapper", "wrap"]

_PETTINGZOO = (
    "AssertOutOfBoundsWrapper",
    "ClipOutOfBoundsWrapper",
    "MultiEpisodeEnv",
    "MultiEpisodeParallelEnv",
    "OrderEnforcingWrapper",
    "TerminateIllegalWrapper",
)
"""Wrappers of `pettingzoo.utils.wrappers` that requests may name."""

_SUPERSUIT = (
    "agent_indicator_v0",
    "black_death_v3",
    "clip_actions_v0",
    "clip_reward_v0",
    "color_reduction_v0",
    "delay_observations_v0",
    "dtype_v0",
    "flatten_v0",
    "frame_skip_v0",
    "frame_stack_v1",
    "frame_stack_v2",
    "max_observation_v0",
    "nan_noop_v0",
    "nan_random_v0",
    "nan_zeros_v0",
    "normalize_obs_v0",
    "pad_action_space_v0",
    "pad_observations_v0",
    "reshape_v0",
    "resize_v1",
    "scale_actions_v0",
    "sticky_actions_v0",
)
"""Functions of SuperSuit that requests may name: all that take no functions and return one environment."""

_FORBIDDEN = {
    "CaptureStdoutWrapper": "it takes what the server's process prints",
    "RecordVideo": "it writes files on the server",
    "RecordVideoParallel": "it writes files on the server",
}
"""Wrappers of PettingZoo that requests may not name, and why."""


def wrap(env: Any, wrapper: Wrapper, expected_class: type) -> Any:
    """Return an environment in a wrapper. The caller has checked that the wrapper's module is allowed.

    Args:
        env: the environment.
        wrapper: the wrapper.
        expected_class: PettingZoo's class of environments of this interface.

    Raises:
        NotFoundError: there is no such wrapper, or its package is not installed; the field is `name`.
        NotAllowedError: the wrapper is one of PettingZoo's that are forbidden; the field is `name`.
        InvalidValueError: the wrapper refused its arguments or the environment, or is not one of this interface.
    """
    make = find_turn_wrapper(wrapper.name)
    wrapped = call_with_arguments(wrapper, lambda: make(env, **_python_arguments(wrapper.kwargs)))
    if not isinstance(wrapped, expected_class):
        expected = f"a wrapper that returns an environment of PettingZoo's class {expected_class.__name__}"
        raise InvalidValueError.of("name", expected=expected, got=show(wrapped), reason=Reason.ENV_REFUSED)
    return wrapped


def find_turn_wrapper(name: str) -> Callable[..., Any]:
    """Return the class or function of a wrapper, and import its module.

    Raises:
        NotFoundError: there is no such wrapper, or its package is not installed; the field is `name`.
        NotAllowedError: the wrapper is one of PettingZoo's that are forbidden; the field is `name`.
    """
    module_name, short_name = module_of(name), name.rpartition(":")[2]
    if module_name is None:
        module_name = "supersuit" if name in _SUPERSUIT else "pettingzoo.utils.wrappers"
        if name not in (*_SUPERSUIT, *_PETTINGZOO, *_FORBIDDEN):
            raise NotFoundError.of(
                "name",
                expected="a wrapper of PettingZoo or SuperSuit, or `module:name`",
                got=repr(name),
                hint=suggestion(name, (*_SUPERSUIT, *_PETTINGZOO)),
                reason=Reason.WRAPPER_NOT_FOUND,
            )
        if importlib.util.find_spec(module_name.partition(".")[0]) is None:
            text = f"{module_name} is not installed on the server (extra `pettingzoo`)"
            raise NotFoundError(text, reason=Reason.PACKAGE_NOT_FOUND, field="name")
    _, found = imported_member(module_name, short_name, "name")
    if not callable(found):
        expected = f"a class or function of module {module_name!r}"
        raise NotFoundError.of("name", expected=expected, got=repr(name), reason=Reason.WRAPPER_NOT_FOUND)
    if str(found.__module__).startswith("pettingzoo.") and short_name in _FORBIDDEN:
        raise forbidden_wrapper(name, _FORBIDDEN[short_name])
    return found  # type: ignore[no-any-return]  # what it returns is checked


def _python_arguments(kwargs: Mapping[str, object]) -> dict[str, object]:
    """Return the arguments with JSON arrays as tuples, and the name of a dtype as a type of numpy."""
    arguments = {name: tuple(value) if isinstance(value, list) else value for name, value in kwargs.items()}
    if isinstance(dtype := arguments.get("dtype"), str):
        try:
            arguments["dtype"] = np.dtype(dtype).type
        except TypeError:
            raise InvalidValueError.of(
                "kwargs_json", expected="the name of a dtype of numpy", got=repr(dtype)
            ) from None
    return arguments
