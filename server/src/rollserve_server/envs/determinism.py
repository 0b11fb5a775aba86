"""Whether an environment's episodes are functions of the seed of their reset and of the actions alone.

Not those of environments that remember earlier episodes (running normalisers, curricula), draw from generators that no
reset seeds, or look at the clock.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve import Reproducibility
from rollserve_server.activity import current_activity

if TYPE_CHECKING:
    import gymnasium

__all__ = ["QUICK_SECONDS", "Difference", "Trace", "classify", "differences", "numbers_in", "trace_episode"]

_QUICK_ORDERS = ((0, 1, 0), (1, 0))
"""The seeds of the episodes that the first and the second environment run."""
_QUICK_STEPS = 32
QUICK_SECONDS = 0.2
"""How long a quick look takes at most."""


@dataclass(frozen=True)
class Trace:
    """An episode as it went: for its reset and each step, all that the environment said, by name."""

    seed: int
    steps: Sequence[Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Difference:
    """Where two traces of what should be one episode differ first in a value.

    Attributes:
        name: of the value, such as `observations` or `environment_infos/x`.
        seed: of the episode.
        step: how many steps were made before.
        values: what the two say; empty where one says nothing.
    """

    name: str
    seed: int
    step: int
    values: tuple[str, str]

    @property
    def counts(self) -> bool:
        """Whether it makes another episode: infos may tell the time."""
        return not self.name.startswith(("environment_infos", "episode_infos"))


def trace_episode(
    env: gymnasium.Env[Any, Any],
    seed: int,
    max_steps: int,
    reset_options: Mapping[str, object],
    until: float | None = None,
) -> Trace:
    """Runs an episode with random actions, which are a function of the seed.

    Args:
        env: the environment.
        seed: of its reset, and of the actions.
        max_steps: how many steps at most.
        reset_options: what the reset gets as its options.
        until: when to stop, as `time.perf_counter` tells it; None for never.
    """
    actions, activity = copy.deepcopy(env.action_space), current_activity()
    actions.seed(seed)
    activity.count += 1  # none of this takes long in all, but for what hangs
    observation, info = env.reset(seed=seed, options=copy.deepcopy(dict(reset_options)) or None)
    steps = [numbers_in({"observations": observation, "episode_infos": info})]
    for _ in range(max_steps):
        activity.count += 1
        observation, reward, terminated, truncated, info = env.step(actions.sample())
        said = {"observations": observation, "rewards": reward, "terminated": terminated, "truncated": truncated}
        steps.append(numbers_in({**said, "environment_infos": info}))
        if terminated or truncated or (until is not None and time.perf_counter() > until):
            break
    return Trace(seed, steps)


def differences(one: Trace, other: Trace) -> list[Difference]:
    """Of each value that the traces do not agree on, the first place, as far as both go."""
    found: dict[str, Difference] = {}
    for step, (first, second) in enumerate(zip(one.steps, other.steps, strict=False)):
        for name in sorted(first.keys() | second.keys()):
            values = first.get(name), second.get(name)
            if name not in found and not _same(*values):
                texts = ["" if value is None else np.array2string(value, threshold=8) for value in values]
                found[name] = Difference(name, one.seed, step, (texts[0], texts[1]))
    return list(found.values())


def classify(
    envs: Sequence[gymnasium.Env[Any, Any]], reset_options: Mapping[str, object], seconds: float = QUICK_SECONDS
) -> Reproducibility:
    """What can be told in a fraction of a second.

    Args:
        envs: one or two environments made alike.
        reset_options: what resets get as their options.
        seconds: how long to look at most.
    """
    if any(env.spec is not None and env.spec.nondeterministic for env in envs):
        return Reproducibility.WORKER
    until = time.perf_counter() + seconds
    try:
        traces: dict[int, Trace] = {}
        for env, order in zip(envs, _QUICK_ORDERS, strict=False):
            for seed in order:
                trace = trace_episode(env, seed, _QUICK_STEPS, reset_options, until)
                known = traces.setdefault(seed, trace)
                if any(difference.counts for difference in differences(known, trace)):
                    return Reproducibility.WORKER
    except BaseException:  # what is wrong with it is told when it is sampled
        return Reproducibility.EPISODE
    return Reproducibility.EPISODE


def numbers_in(value: Mapping[str, Any]) -> Mapping[str, np.ndarray]:
    """All numbers and arrays of numbers within a value, by name, copied."""
    return dict(_leaves(value))


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _leaves(part, "/".join(part_name for part_name in (name, str(key)) if part_name))
    elif isinstance(value, tuple):
        for position, part in enumerate(value):
            yield from _leaves(part, f"{name}/{position}")
    else:
        try:
            array = np.asarray(value)
        except BaseException:  # ragged, or an object that refuses
            return
        if array.dtype.kind in "biuf":
            # Environments may change what they have given.
            yield name, array.copy()


def _same(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    if one is None or other is None:
        return one is other
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
