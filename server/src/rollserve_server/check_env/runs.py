"""Finds out what comes again when an environment's episodes are asked for again, and what does not."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollserve import Reproducibility
from rollserve.environments import env_spec_from_proto, env_spec_to_proto
from rollserve.v1 import environment_pb2
from rollserve_server.envs import VectorEnvs, differences, make_rows
from rollserve_server.settings import RowSettings

if TYPE_CHECKING:
    from rollserve import EnvSpec
    from rollserve_server.envs import Difference, Trace

__all__ = ["Finding", "Verdict", "check_env"]

_ROWS = RowSettings(rows=1, native_rows=8)


@dataclass(frozen=True)
class Finding:
    """A way to run the same episodes again, and what differed from the first time."""

    way: str
    cause: str
    differences: Sequence[Difference]

    @property
    def counts(self) -> bool:
        """Whether the episodes were others."""
        return any(difference.counts for difference in self.differences)


@dataclass(frozen=True)
class Verdict:
    """What was found.

    Attributes:
        findings: for each way to run the episodes again.
        declared: whether the environment's registration says itself that it is not deterministic.
        num_rows: how many rows were stepped together, each an episode after the other; None if they were not.
        num_episodes: how many episodes were run each time, or blocks of so many rows.
        num_steps: how many steps they had together, of each row.
    """

    findings: Sequence[Finding]
    declared: bool
    num_rows: int | None
    num_episodes: int
    num_steps: int

    @property
    def reproducibility(self) -> Reproducibility:
        """The class."""
        impure = self.declared or any(finding.counts for finding in self.findings)
        if impure:
            return Reproducibility.WORKER
        return Reproducibility.EPISODE if self.num_rows is None else Reproducibility.BLOCK


def check_env(spec: EnvSpec, num_episodes: int, max_steps: int) -> Verdict:
    """Runs episodes with random actions on a fresh environment each, and again in four other ways.

    Where rows are stepped together, as a worker would do it, these are blocks of them.

    Args:
        spec: the environment.
        num_episodes: how many episodes, or blocks.
        max_steps: after how many steps to leave each.

    Raises:
        NotFoundError, InvalidValueError: see `make_env`.
    """
    seeds = range(num_episodes)
    first = _each_on_a_fresh_one(spec, seeds, max_steps)
    unseeded = "something that no seed governs: a generator of its own, or the time"
    memory = "something that it remembers of earlier episodes"
    ways: list[tuple[str, str, Callable[[], Sequence[Trace]]]] = [
        ("on fresh environments again", unseeded, lambda: _each_on_a_fresh_one(spec, seeds, max_steps)),
        ("in another process", unseeded, lambda: _in_another_process(spec, num_episodes, max_steps)),
        ("on one that ran the others before", memory, lambda: _all_on_one(spec, seeds, max_steps)),
        ("on one that ran them in another order", memory, lambda: _all_on_one(spec, seeds[::-1], max_steps)),
    ]
    findings = []
    for way, cause, run in ways:
        again = {trace.seed: trace for trace in run()}
        findings.append(Finding(way, cause, list(_first_of_each(first, again))))
    rows = make_rows(spec, _ROWS)
    num_rows = rows.num_rows if isinstance(rows, VectorEnvs) else None
    declared = rows.is_declared_impure
    rows.close()
    return Verdict(findings, declared, num_rows, num_episodes, sum(len(trace.steps) - 1 for trace in first))


def _first_of_each(traces: Sequence[Trace], again: dict[int, Trace]) -> Iterator[Difference]:
    """Of each value that differs in any episode, the first difference."""
    names: set[str] = set()
    for trace in traces:
        other = again[trace.seed]
        found = differences(trace, other)
        yield from (difference for difference in found if difference.name not in names)
        names.update(difference.name for difference in found)


def _each_on_a_fresh_one(spec: EnvSpec, seeds: Sequence[int], max_steps: int) -> list[Trace]:
    return [trace for seed in seeds for trace in _all_on_one(spec, [seed], max_steps)]


def _all_on_one(spec: EnvSpec, seeds: Sequence[int], max_steps: int) -> list[Trace]:
    rows = make_rows(spec, _ROWS)
    try:
        return [rows.trace(seed, max_steps) for seed in seeds]
    finally:
        rows.close()


def _in_another_process(spec: EnvSpec, num_episodes: int, max_steps: int) -> list[Trace]:
    request = json.dumps([env_spec_to_proto(spec).SerializeToString().hex(), num_episodes, max_steps])
    command = [sys.executable, "-m", "rollserve_server.check_env.runs", request]
    # Another order of sets and of dicts that come from them, too.
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    answer = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=True).stdout  # noqa: S603
    traces: list[Trace] = pickle.loads(answer)  # noqa: S301  # from a process of our own
    return traces


def _answer() -> None:
    """What the other process does."""
    encoded, num_episodes, max_steps = json.loads(sys.argv[1])
    spec = env_spec_from_proto(environment_pb2.Environment.FromString(bytes.fromhex(encoded)))
    with os.fdopen(os.dup(1), "wb") as answer:
        os.dup2(2, 1)  # what environments print is no part of it
        answer.write(pickle.dumps(_each_on_a_fresh_one(spec, range(num_episodes), max_steps)))


if __name__ == "__main__":
    _answer()
