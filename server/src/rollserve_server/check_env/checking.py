"""The check: the same episodes with random actions, run again in four ways and compared.

Where a worker would step rows together, each episode is a block of 8 rows.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rollserve_server.children import Lifeline, launching_module
from rollserve_server.envs import Difference, ManyEnvs, RowEnvs, Trace, VectorEnvs, differences, make_rows
from rollserve_server.settings import RowSettings
from rollserve_wire.environments import EnvSpec, Reproducibility, env_spec_from_proto, env_spec_to_proto
from rollserve_wire.receipts import HASH_SEED, HASH_SEED_NAME
from rollserve_wire.v1 import environment_pb2

__all__ = ["Finding", "Verdict", "check_env"]


@dataclass(frozen=True)
class Finding:
    """A way to run the episodes again, and its differences from the first run.

    Attributes:
        way: how the episodes run again, such as `in another process`.
        cause: likely cause of differences.
        differences: differences from the first run.
    """

    way: str
    cause: str
    differences: Sequence[Difference]

    @property
    def counts(self) -> bool:
        """Whether the episodes differ."""
        return any(difference.counts for difference in self.differences)


@dataclass(frozen=True)
class Verdict:
    """The result of a check.

    Attributes:
        findings: a finding for each way to run the episodes again.
        declared: whether the environment's registration declares it nondeterministic.
        num_rows: number of rows that are stepped together in blocks; None if rows are stepped one by one.
        num_episodes: number of episodes, or blocks, in each run.
        num_steps: number of steps in each run, of each row.
    """

    findings: Sequence[Finding]
    declared: bool
    num_rows: int | None
    num_episodes: int
    num_steps: int

    @property
    def reproducibility(self) -> Reproducibility:
        """Reproducibility class of the environment."""
        if self.declared or any(finding.counts for finding in self.findings):
            return Reproducibility.WORKER
        return Reproducibility.EPISODE if self.num_rows is None else Reproducibility.BLOCK


_UNSEEDED = "something that no seed governs: a generator of its own, or the time"
_MEMORY = "something that it remembers of earlier episodes"
_SETTINGS = RowSettings(rows=1, native_rows=8)


def check_env(spec: EnvSpec, num_episodes: int, max_steps: int) -> Verdict:
    """Run episodes on a fresh environment each, then again in four other ways, and compare them.

    Args:
        spec: environment.
        num_episodes: number of episodes, or of blocks where a worker would step rows together.
        max_steps: maximum number of steps of each.

    Raises:
        NotFoundError, InvalidValueError: the environment cannot be made, see `make_env`.
    """
    seeds = range(num_episodes)
    first = _run_on_fresh_envs(spec, seeds, max_steps)
    ways: list[tuple[str, str, Callable[[], Sequence[Trace]]]] = [
        ("on fresh environments again", _UNSEEDED, lambda: _run_on_fresh_envs(spec, seeds, max_steps)),
        ("in another process", _UNSEEDED, lambda: _run_in_another_process(spec, num_episodes, max_steps)),
        ("on one that ran the others before", _MEMORY, lambda: _run_on_one_env(spec, seeds, max_steps)),
        ("on one that ran them in another order", _MEMORY, lambda: _run_on_one_env(spec, seeds[::-1], max_steps)),
    ]
    findings = []
    for way, cause, run in ways:
        again = {trace.seed: trace for trace in run()}
        findings.append(Finding(way, cause, list(_first_differences(first, again))))
    rows = _make_checked_rows(spec)
    num_rows = rows.num_rows if isinstance(rows, VectorEnvs) else None
    declared = rows.is_declared_nondeterministic
    rows.close()
    return Verdict(findings, declared, num_rows, num_episodes, sum(len(trace.steps) - 1 for trace in first))


def _first_differences(traces: Sequence[Trace], again: dict[int, Trace]) -> Iterator[Difference]:
    """Yield the first difference of each value over all episodes."""
    names: set[str] = set()
    for trace in traces:
        found = differences(trace, again[trace.seed])
        yield from (difference for difference in found if difference.name not in names)
        names.update(difference.name for difference in found)


def _make_checked_rows(spec: EnvSpec) -> RowEnvs | VectorEnvs:
    """Make one row, or 8 that are stepped together."""
    rows = make_rows(spec, _SETTINGS)
    assert not isinstance(rows, ManyEnvs)  # noqa: S101  # the command names environments with one agent
    return rows


def _run_on_fresh_envs(spec: EnvSpec, seeds: Sequence[int], max_steps: int) -> list[Trace]:
    """Run each episode on an environment of its own."""
    return [trace for seed in seeds for trace in _run_on_one_env(spec, [seed], max_steps)]


def _run_on_one_env(spec: EnvSpec, seeds: Sequence[int], max_steps: int) -> list[Trace]:
    """Run all episodes on the same environment, in the order of the seeds."""
    rows = _make_checked_rows(spec)
    try:
        return [rows.trace(seed, max_steps) for seed in seeds]
    finally:
        rows.close()


def _run_in_another_process(spec: EnvSpec, num_episodes: int, max_steps: int) -> list[Trace]:
    """Run `_run_on_fresh_envs` in a child process, with the seeds from 0."""
    request = json.dumps([env_spec_to_proto(spec).SerializeToString().hex(), num_episodes, max_steps])
    with contextlib.closing(Lifeline()) as lifeline, lifeline.end() as end:
        answer = subprocess.run(  # noqa: S603
            launching_module(end, "rollserve_server.check_env.checking", request),
            pass_fds=[end],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            process_group=0,  # the group that the lifeline ends; Ctrl-C ends it with this process
            # With all variables: the other episodes ran in this process, and had them.
            env={**os.environ, HASH_SEED_NAME: HASH_SEED},
            check=True,
        ).stdout
    traces: list[Trace] = pickle.loads(answer)  # noqa: S301  # from our own child process
    return traces


def _answer() -> None:
    """Run the episodes of the request in `sys.argv[1]`, and write their traces to standard output as a pickle."""
    encoded, num_episodes, max_steps = json.loads(sys.argv[1])
    spec = env_spec_from_proto(environment_pb2.Environment.FromString(bytes.fromhex(encoded)))
    with os.fdopen(os.dup(1), "wb") as answer:
        os.dup2(2, 1)  # output that environments print must not reach the answer
        answer.write(pickle.dumps(_run_on_fresh_envs(spec, range(num_episodes), max_steps)))


if __name__ == "__main__":
    _answer()
