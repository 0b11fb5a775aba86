"""Episodes replayed in plain gymnasium: the environment of a receipt, and one segment in it."""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Collection
from typing import Any

import numpy as np
from google.protobuf import json_format

from rollserve._codec.columns import leaves_of
from rollserve._formats.gymnasium_spaces import space_of_gymnasium, space_values, value_leaves
from rollserve._formats.sources import EXTRA
from rollserve.bridges.loading import load
from rollserve.environments import EnvSpec, Wrapper, env_spec_from_proto
from rollserve.errors import mismatch
from rollserve.v1 import environment_pb2

__all__ = ["env_spec_of", "first_difference", "make_env"]

_ALE = "ALE/"
_TASK_METHOD = "set_task"
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
        env = named(**spec.kwargs) if named is not None else gymnasium.make(spec.id, **spec.kwargs)
        for wrapper in spec.wrappers:
            env = _wrapped(env, wrapper)
        if spec.task is not None:
            env.get_wrapper_attr(_TASK_METHOD)(copy.deepcopy(spec.task.argument))
    except (gymnasium.error.Error, AttributeError, ImportError, TypeError, ValueError) as error:
        text = mismatch(f"an environment {spec.id}", " ".join(str(error).split()))
        raise ValueError(f"receipt.environment: {text}") from None
    return env


def first_difference(env: Any, segment: Any, options: dict[str, Any] | None, *, observations: bool) -> str:
    """Replay a batch of one whole episode, and return where it first differs; empty if it does not.

    Observations are compared bit by bit, rewards after casting to the column's dtype. A limit of the call may have
    ended the episode before the environment did.

    Args:
        env: the environment.
        segment: the batch.
        options: options of the reset.
        observations: whether to compare observations, which transforms may have changed.
    """
    space, action_space = space_of_gymnasium(env.observation_space), space_of_gymnasium(env.action_space)
    rewards = segment.rewards if segment.raw_rewards is None else segment.raw_rewards
    actions = leaves_of(segment.actions if segment.env_actions is None else segment.env_actions)
    recorded, last = leaves_of(segment.observations), leaves_of(segment.last_observations)
    observation, _ = env.reset(seed=int(segment.env_seeds[0]), options=copy.deepcopy(options))
    num_steps = len(rewards)
    for step in range(num_steps):
        expected = {name: array[step] for name, array in recorded.items()}
        if observations and (leaf := _different(value_leaves(observation, space), expected)) is not None:
            return f"observations{leaf} before step {step}"
        action = space_values({name: array[step] for name, array in actions.items()}, action_space)
        observation, reward, terminated, truncated, _ = env.step(action)
        if not _same_bits(np.asarray(reward).astype(rewards.dtype), rewards[step]):
            return f"rewards: {rewards[step]} at step {step}, replayed {reward}"
        is_last = step == num_steps - 1
        ends = bool(terminated), bool(truncated)
        recorded_ends = bool(is_last and segment.terminated[0]), bool(is_last and segment.truncated[0])
        if ends[0] != recorded_ends[0] or ends[1] > recorded_ends[1]:
            return f"terminated, truncated: {recorded_ends} at step {step}, replayed {ends}"
    expected = {name: array[0] for name, array in last.items()}
    if observations and (leaf := _different(value_leaves(observation, space), expected)) is not None:
        return f"last_observations{leaf}"
    return ""


def _different(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> str | None:
    """Return the first leaf that differs, behind a slash; None if none does."""
    if found.keys() != expected.keys():
        return f" with the leaves {sorted(expected)}, replayed {sorted(found)}"
    for name, array in expected.items():
        if found[name].shape != array.shape or not _same_bits(found[name].astype(array.dtype), array):
            return f"/{name}" if name else ""
    return None


def _same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    return np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(other).tobytes()


def _member(name: str) -> Any:
    """Return the class that `module:Class` names; None for ids, also those whose module registers them."""
    module, colon, member = name.partition(":")
    return getattr(importlib.import_module(module), member, None) if colon else None


def _wrapped(env: Any, wrapper: Wrapper) -> Any:
    """Wrap an environment; arrays of JSON become what the wrapper's annotations ask for."""
    cls = _member(wrapper.name) or getattr(load("gymnasium.wrappers", EXTRA), wrapper.name)
    parameters = inspect.signature(cls).parameters
    kwargs = dict(wrapper.kwargs)
    for name, value in kwargs.items():
        annotation = str(parameters[name].annotation) if name in parameters else ""
        if isinstance(value, list) and "tuple" in annotation:
            kwargs[name] = tuple(value)
        elif isinstance(value, list) and "ndarray" in annotation:
            kwargs[name] = np.array(value)
    return cls(env, **kwargs)
