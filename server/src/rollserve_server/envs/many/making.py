"""Environments with many agents: found by their ids, made with their arguments and wrappers, and closed."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from rollserve_server.activity import Phase, current_activity
from rollserve_server.envs.making import call_with_arguments, close_env
from rollserve_server.envs.many.envpool_players import EnvPoolPlayers
from rollserve_server.envs.many.turns import AecTurns, ParallelTurns, TurnEnv
from rollserve_server.envs.registry import forbidden_wrapper, imported_member, module_of, suggestion
from rollserve_server.errors import InvalidValueError, NotFoundError, show, within
from rollserve_wire.python_arguments import python_arguments
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from rollserve_wire.environments import EnvSpec, MultiAgentApi, Wrapper

__all__ = ["find_turn_env", "find_turn_wrapper", "make_turn_env"]

_MPE_ID = re.compile(r"mpe/(\w+)[-_]v(\d+)")
"""Ids of the package mpe2, which has no registry: `mpe/simple_spread-v3` is its module `simple_spread_v3`."""

_FACTORIES: dict[MultiAgentApi, str] = {"parallel": "parallel_env", "aec": "env"}
"""Name of the function of a module of PettingZoo's that makes an environment of each interface."""

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


def make_turn_env(spec: EnvSpec) -> TurnEnv:
    """Make an environment with many agents. The caller has checked that the spec is allowed.

    Raises:
        NotFoundError: a module, id or factory does not exist, or a package is not installed.
        InvalidValueError: the spec asks for what environments with many agents do not have, the environment refused
            its arguments, is of the other interface, or has no agents or no spaces.
    """
    api = spec.multi_agent
    assert api is not None  # noqa: S101  # the caller makes others elsewhere
    _check_spec(spec)
    current_activity().begin(Phase.MAKING)
    if spec.vectorization == "envpool":
        return _checked(spec, EnvPoolPlayers(spec))
    make = find_turn_env(spec.id, api)
    env = call_with_arguments(spec, lambda: make(**python_arguments(make, spec.kwargs)))
    try:
        env_class = _checked_class(api, env)
        for position, wrapper in enumerate(spec.wrappers):
            with within(f"wrappers[{position}]"):
                env = _wrap(env, wrapper, env_class)
        turns = AecTurns if api == "aec" else ParallelTurns
        return _checked(spec, call_with_arguments(spec, lambda: turns(env)))
    except BaseException:
        close_env(env)
        raise


def find_turn_env(env_id: str, api: MultiAgentApi) -> Callable[..., Any]:
    """Return the function that makes the environment of an id. Imports the id's module, if it has one.

    Raises:
        NotFoundError: there is no such module, id or function, or its package is not installed; the field is `id`.
    """
    module_name, name = module_of(env_id), env_id.rpartition(":")[2]
    if module_name is not None:
        return _found(module_name, name, env_id)
    if importlib.util.find_spec("pettingzoo") is None:
        text = "PettingZoo is not installed on the server (extra `pettingzoo`)"
        raise NotFoundError(text, reason=Reason.PACKAGE_NOT_FOUND, field="id")
    mpe = _MPE_ID.fullmatch(env_id)
    if mpe is not None:
        return _found(f"mpe2.{mpe[1]}_v{mpe[2]}", _FACTORIES[api], env_id)
    return _registered(env_id, api)


def find_turn_wrapper(name: str) -> Callable[..., Any]:
    """Return the class or function of a wrapper, and import its module.

    Raises:
        NotFoundError: there is no such wrapper, or its package is not installed; the field is `name`.
        NotAllowedError: the wrapper is a forbidden one of PettingZoo's; the field is `name`.
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


def _check_spec(spec: EnvSpec) -> None:
    """Raise InvalidValueError if the spec has what only environments with one agent have."""
    for field, value in (
        ("task", spec.task),
        ("transforms", spec.transforms),
        ("episodes_per_row", spec.num_episodes_per_row),
    ):
        if value:
            expected = "none for an environment with many agents"
            raise InvalidValueError.of(field, expected=expected, got=show(value))
    if spec.vectorization not in (None, "rows", "envpool"):
        expected = "'rows' or 'envpool', because environments with many agents are stepped one by one"
        raise InvalidValueError.of("vectorization", expected=expected, got=repr(spec.vectorization))


def _registered(env_id: str, api: MultiAgentApi) -> Callable[..., Any]:
    """Return the function of PettingZoo's registry that makes an environment, with its id bound."""
    from pettingzoo.env_registry import registration  # an extra of the server

    known = registration.aec_registry if api == "aec" else registration.parallel_registry
    try:
        found = registration.spec(api, env_id)
    except BaseException as error:
        hint = suggestion(env_id, known) or show(error, str)
        expected = f"a registered id of PettingZoo's {api} environments, or `mpe/NAME-vN`"
        raise NotFoundError.of(
            "id", expected=expected, got=repr(env_id), hint=hint, reason=Reason.ENV_NOT_FOUND
        ) from None
    return lambda **kwargs: registration.make(api, found, **kwargs)


def _found(module_name: str, name: str, env_id: str) -> Callable[..., Any]:
    """Return a function or a class of a module."""
    module, found = imported_member(module_name, name, "id")
    if not callable(found):
        expected = f"a function of module {module_name!r} that makes an environment"
        hint = suggestion(name, (each for each, value in vars(module).items() if callable(value)))
        raise NotFoundError.of("id", expected=expected, got=repr(env_id), hint=hint, reason=Reason.ENV_NOT_FOUND)
    return found  # type: ignore[no-any-return]  # what it returns is checked


def _checked_class(api: MultiAgentApi, env: Any) -> type:
    """Return PettingZoo's class of environments of an interface, after a look at whether this is one."""
    import pettingzoo  # an extra of the server

    expected_class = pettingzoo.AECEnv if api == "aec" else pettingzoo.ParallelEnv
    if not isinstance(env, expected_class):
        expected = f"an environment of PettingZoo's class {expected_class.__name__}, for multi_agent={api!r}"
        raise InvalidValueError.of("id", expected=expected, got=show(env), reason=Reason.ENV_REFUSED)
    return expected_class  # type: ignore[no-any-return]  # PettingZoo is not typed everywhere


def _checked(spec: EnvSpec, turn_env: TurnEnv) -> TurnEnv:
    """Return an environment, after a look at whether its agents have names and spaces."""
    if not turn_env.agents or not all(isinstance(agent, str) and agent for agent in turn_env.agents):
        expected = "an environment whose possible_agents are names"
        raise InvalidValueError.of("id", expected=expected, got=show(turn_env.agents), reason=Reason.ENV_REFUSED)
    if len(set(turn_env.agents)) < len(turn_env.agents):
        expected = "an environment whose possible_agents differ"
        raise InvalidValueError.of("id", expected=expected, got=show(turn_env.agents), reason=Reason.ENV_REFUSED)
    spaces: list[Any] = [*turn_env.observation_spaces, *turn_env.action_spaces]
    for space in spaces:
        if not isinstance(space, gymnasium.Space):
            expected = "an environment whose agents have spaces of gymnasium"
            raise InvalidValueError.of("id", expected=expected, got=show(space), reason=Reason.ENV_REFUSED)
    if spec.global_state and not isinstance(turn_env.state_space, gymnasium.Space):
        expected = "false for an environment that has no global state: no `state_space` of gymnasium"
        raise InvalidValueError.of("global_state", expected=expected, got="true", reason=Reason.ENV_REFUSED)
    return turn_env


def _wrap(env: Any, wrapper: Wrapper, expected_class: type) -> Any:
    """Return an environment in a wrapper. The caller has checked that the wrapper's module is allowed.

    Args:
        env: the environment.
        wrapper: the wrapper.
        expected_class: PettingZoo's class of environments of this interface.

    Raises:
        NotFoundError: there is no such wrapper, or its package is not installed; the field is `name`.
        NotAllowedError: the wrapper is a forbidden one of PettingZoo's; the field is `name`.
        InvalidValueError: the wrapper refused its arguments or the environment, or is not one of this interface.
    """
    make = find_turn_wrapper(wrapper.name)
    wrapped = call_with_arguments(wrapper, lambda: make(env, **_wrapper_arguments(wrapper.kwargs)))
    if not isinstance(wrapped, expected_class):
        expected = f"a wrapper that returns an environment of PettingZoo's class {expected_class.__name__}"
        raise InvalidValueError.of("name", expected=expected, got=show(wrapped), reason=Reason.ENV_REFUSED)
    return wrapped


def _wrapper_arguments(kwargs: Mapping[str, object]) -> dict[str, object]:
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
