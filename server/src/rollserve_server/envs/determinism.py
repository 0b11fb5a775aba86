"""Checks whether an environment's episodes are functions of the seed of their reset and of the actions alone.

This is not so for environments that remember earlier episodes (running normalizers, curricula), draw from generators
that no reset seeds, or read the clock.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_server.activity import current_activity
from rollserve_server.envs.legal_actions import legal_action, random_value
from rollserve_server.envs.row_specs import identity_of
from rollserve_wire.environments import EnvSpec, Reproducibility

if TYPE_CHECKING:
    import gymnasium

__all__ = [
    "QUICK_SECONDS",
    "QUICK_STEPS",
    "Difference",
    "Trace",
    "Traces",
    "agree",
    "classify",
    "differences",
    "digest",
    "numbers_in",
    "trace_episode",
    "trace_name",
]

_QUICK_ORDERS = ((0, 1, 0), (1, 0))
"""Seeds of the episodes that the first and the second environment run."""

Traces = Mapping[str, bytes]
"""Digests of the first episodes of environments, by `trace_name`, which `agree` compares across processes."""

_DIGEST_BYTES = 8

QUICK_STEPS = 32
"""Maximum number of steps of an episode in a quick check."""

QUICK_SECONDS = 1.0
"""Maximum duration of a quick check: a busy machine takes five times as long, and has to find the same class."""


@dataclass(frozen=True)
class Trace:
    """The course of an episode.

    Attributes:
        seed: seed of the reset and of the actions.
        steps: for the reset and for each step, all numbers that the environment returned, by name.
    """

    seed: int
    steps: Sequence[Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Difference:
    """The first difference of a value between two traces that should be equal.

    Attributes:
        name: name of the value, such as `observations` or `environment_infos/x`.
        seed: seed of the episode.
        step: number of steps before the difference.
        values: the value in both traces; empty where a trace lacks it.
    """

    name: str
    seed: int
    step: int
    values: tuple[str, str]

    @property
    def counts(self) -> bool:
        """Whether the episodes differ. Differences of infos do not count: they may hold the time."""
        return _counts(self.name)


def trace_episode(
    env: gymnasium.Env[Any, Any],
    seed: int,
    max_steps: int,
    reset_options: Mapping[str, object],
    until: float | None = None,
) -> Trace:
    """Run an episode with random actions, legal ones if the environment shows a mask (see `legal_action`).

    Args:
        env: environment.
        seed: seed of the reset and of the actions.
        max_steps: maximum number of steps.
        reset_options: options of the reset.
        until: time to stop, by `time.perf_counter`; None for no limit.
    """
    actions, activity = copy.deepcopy(env.action_space), current_activity()
    actions.seed(seed)
    activity.count += 1  # shows that the environment does not hang
    observation, info = env.reset(seed=seed, options=copy.deepcopy(dict(reset_options)) or None)
    steps = [numbers_in({"observations": observation, "episode_infos": info})]
    for _ in range(max_steps):
        activity.count += 1
        action = legal_action(actions, random_value(actions), observation, info)
        observation, reward, terminated, truncated, info = env.step(action)
        results = {"observations": observation, "rewards": reward, "terminated": terminated, "truncated": truncated}
        steps.append(numbers_in({**results, "environment_infos": info}))
        if terminated or truncated or (until is not None and time.perf_counter() > until):
            break
    return Trace(seed, steps)


def differences(one: Trace, other: Trace) -> list[Difference]:
    """Return the first difference of each value, within the steps that both traces have."""
    found: dict[str, Difference] = {}
    for step, (first, second) in enumerate(zip(one.steps, other.steps, strict=False)):
        for name in sorted(first.keys() | second.keys()):
            values = first.get(name), second.get(name)
            if name not in found and not _same(*values):
                texts = ["" if value is None else np.array2string(value, threshold=8) for value in values]
                found[name] = Difference(name, one.seed, step, (texts[0], texts[1]))
    return list(found.values())


def digest(trace: Trace) -> bytes:
    """Return a digest of the episode up to each step, but for infos: 8 bytes for the reset and for each step."""
    state = hashlib.sha1(usedforsecurity=False)  # twice as fast as others
    found = []
    for step in trace.steps:
        for name in filter(_counts, sorted(step)):
            state.update(f"{name} {step[name].dtype} {step[name].shape} ".encode())
            state.update(step[name].tobytes())
        found.append(state.digest()[:_DIGEST_BYTES])
    return b"".join(found)


def agree(one: Traces, other: Traces) -> bool:
    """Return whether the same episodes are equal in both, within the steps that both have."""
    for name in one.keys() & other.keys():
        end = min(len(one[name]), len(other[name]))
        if one[name][:end] != other[name][:end]:
            return False
    return True


def trace_name(spec: EnvSpec) -> str:
    """Return the name of a trace of an environment, whatever the rows are."""
    plain = dataclasses.replace(spec, vectorization=None, num_rows=None, num_episodes_per_row=None)
    return hashlib.blake2b(identity_of(plain), digest_size=16).hexdigest()


def classify(
    envs: Sequence[gymnasium.Env[Any, Any]], reset_options: Mapping[str, object], seconds: float = QUICK_SECONDS
) -> tuple[Reproducibility, bytes]:
    """Return the reproducibility class of environments, as far as a quick check can find out, and a digest.

    Args:
        envs: one or two environments, made alike.
        reset_options: options of resets.
        seconds: maximum duration of the check.

    Returns:
        The class, and the digest of the first episode, with seed 0; empty if there is none.
    """
    if any(env.spec is not None and env.spec.nondeterministic for env in envs):
        return Reproducibility.WORKER, b""
    until = time.perf_counter() + seconds
    traces: dict[int, Trace] = {}
    found = Reproducibility.EPISODE
    try:
        for env, order in zip(envs, _QUICK_ORDERS, strict=False):
            for seed in order:
                trace = trace_episode(env, seed, QUICK_STEPS, reset_options, until)
                known = traces.setdefault(seed, trace)
                if any(difference.counts for difference in differences(known, trace)):
                    found = Reproducibility.WORKER
                    break
    except BaseException:  # noqa: S110  # sampling reports what is wrong
        pass
    return found, digest(traces[0]) if 0 in traces else b""


def numbers_in(value: Mapping[str, Any]) -> Mapping[str, np.ndarray]:
    """Return copies of all numbers and arrays of numbers within a value, by name."""
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
        except BaseException:  # ragged, or an object that cannot be converted
            return
        if array.dtype.kind in "biufU":
            yield name, array.copy()  # environments may reuse their arrays


def _counts(name: str) -> bool:
    return not name.startswith(("environment_infos", "episode_infos"))


def _same(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    if one is None or other is None:
        return one is other
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
