"""Episodes replayed in plain gymnasium: the environment of a receipt, and one segment in it."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from google.protobuf import json_format

from rollserve._formats.sources import EXTRA
from rollserve_wire.environments import EnvSpec, Wrapper, env_spec_from_proto
from rollserve_wire.errors import mismatch
from rollserve_wire.extras import load
from rollserve_wire.python_arguments import python_arguments
from rollserve_wire.replays import recorded_episode, replayed
from rollserve_wire.representations import briefly
from rollserve_wire.v1 import environment_pb2

__all__ = ["Replay", "env_spec_of", "make_env", "replay"]

_ALE = "ALE/"
_TASK_METHOD = "set_task"
_RENDER_MODES = (None, "ansi", "depth_array", "depth_array_list", "rgb_array", "rgb_array_list")
"""Render modes of gymnasium that open no window."""
_WRITING = ("HumanRendering", "RecordVideo")
"""Wrappers of gymnasium that write files or open windows."""


def env_spec_of(message: Any) -> EnvSpec:
    """Return the specification in a receipt; raise ValueError for one that plain gymnasium cannot replay."""
    try:
        spec = env_spec_from_proto(json_format.ParseDict(message, environment_pb2.Environment()))
    except (json_format.ParseError, ValueError) as error:
        raise ValueError(f"receipt.environment: {mismatch('a specification of an environment', error)}") from None
    if spec.id.startswith("profile:"):
        hint = "`env` names the environment that the operator has declared"
        raise ValueError(f"receipt.environment: {mismatch('an environment of gymnasium', spec.id, hint)}")
    if spec.vectorization == "envpool":
        raise ValueError(f"receipt.environment: {mismatch('an environment of gymnasium', f'{spec.id} of EnvPool')}")
    mode = spec.kwargs.get("render_mode")
    if not (mode is None or mode in _RENDER_MODES):
        expected = "a render mode that opens no window"
        raise ValueError(f"receipt.environment.kwargs.render_mode: {mismatch(expected, repr(mode))}")
    return spec


def make_env(spec: EnvSpec, allowed_modules: Collection[str]) -> Any:
    """Make an environment with its wrappers and task.

    Args:
        spec: the specification.
        allowed_modules: modules that the specification may name: importing one runs its code.

    Raises:
        ImportError: gymnasium is not installed.
        ValueError: a module that is not allowed, another task method than `set_task`, or what the environment refuses.
    """
    gymnasium = load("gymnasium", EXTRA)
    for named in (spec.id, *(wrapper.name for wrapper in spec.wrappers)):
        module, colon, _ = named.partition(":")
        if colon and module not in allowed_modules:
            hint = f"importing it runs its code; `--allow-module {module}` allows that"
            raise ValueError(f"receipt.environment: {mismatch('a module that is allowed', module, hint)}")
    for wrapper in spec.wrappers:
        if wrapper.name in _WRITING:
            raise ValueError(f"receipt.environment: {mismatch('a wrapper that writes no files', wrapper.name)}")
    if spec.task is not None and spec.task.method != _TASK_METHOD:
        raise ValueError(f"receipt.environment: {mismatch(f'the method {_TASK_METHOD}', spec.task.method)}")
    if spec.id.startswith(_ALE):
        load("ale_py", EXTRA)  # registers the games
    named = _member(spec.id)
    try:
        if named is not None:
            env = named(**python_arguments(named, spec.kwargs))
        else:
            registered = gymnasium.registry.get(spec.id.rpartition(":")[2])
            known = (None, {}) if registered is None else (registered.entry_point, registered.kwargs)
            env = gymnasium.make(spec.id, **python_arguments(known[0], spec.kwargs, known[1]))
        for wrapper in spec.wrappers:
            env = _wrapped(env, wrapper)
        if spec.task is not None:
            env.get_wrapper_attr(_TASK_METHOD)(copy.deepcopy(spec.task.argument))
    except (gymnasium.error.Error, AttributeError, ImportError, TypeError, ValueError) as error:
        text = mismatch(f"an environment {spec.id}", " ".join(str(error).split()))
        raise ValueError(f"receipt.environment: {text}") from None
    return env


@briefly
@dataclass(frozen=True)
class Replay:
    """Result of a replay.

    Attributes:
        difference: where the episode first differs from the recorded one; empty if it does not.
        truncated: whether the environment truncated the episode itself.
    """

    difference: str
    truncated: bool


def replay(env: Any, segment: Any, options: dict[str, Any] | None, *, observations: bool) -> Replay:
    """Replay a batch of one whole episode, and return where it first differs.

    See `recorded_episode` and `replayed` for the arguments. An error that the environment raises is a difference, too.
    """
    noted = _NotedEnd(env)
    steps = replayed(noted, recorded_episode(segment, observations=observations), options)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return Replay(str(end.value), noted.truncated)
        except Exception as error:  # environments can raise anything, such as for an action outside their space
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"
            return Replay(f"the environment failed at step {noted.num_steps}: {text}", noted.truncated)


class _NotedEnd:
    """Environment that notes whether its last step truncated the episode, and how many steps it took."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.truncated, self.num_steps = False, 0

    def reset(self, **options: Any) -> Any:
        return self._env.reset(**options)

    def step(self, action: Any) -> Any:
        result = self._env.step(action)
        self.truncated, self.num_steps = bool(result[3]), self.num_steps + 1
        return result


def _member(name: str) -> Any:
    """Return the class that `module:Class` names; None for ids, also those whose module registers them."""
    module, colon, member = name.partition(":")
    return getattr(importlib.import_module(module), member, None) if colon else None


def _own_wrapper(name: str) -> Any:
    """Return the wrapper of this name that gymnasium does not have; None for others."""
    return load("rollserve_wire.fixed_shapes", EXTRA).FixedShapes if name == "FixedShapes" else None


def _wrapped(env: Any, wrapper: Wrapper) -> Any:
    cls = (
        _member(wrapper.name) or _own_wrapper(wrapper.name) or getattr(load("gymnasium.wrappers", EXTRA), wrapper.name)
    )
    return cls(env, **python_arguments(cls, wrapper.kwargs))
