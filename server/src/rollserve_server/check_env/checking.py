"""The check: the same episodes, run again in four ways and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from rollserve_server.check_env.episodes import (
    make_checked_rows,
    run_in_another_process,
    run_on_fresh_envs,
    run_on_one_env,
)
from rollserve_server.check_env.verdict import Finding, Verdict
from rollserve_server.envs import VectorEnvs, differences

if TYPE_CHECKING:
    from rollserve_server.envs import Difference, Trace
    from rollserve_wire.environments import EnvSpec

__all__ = ["check_env"]

_UNSEEDED = "something that no seed governs: a generator of its own, or the time"
_MEMORY = "something that it remembers of earlier episodes"


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
    first = run_on_fresh_envs(spec, seeds, max_steps)
    ways: list[tuple[str, str, Callable[[], Sequence[Trace]]]] = [
        ("on fresh environments again", _UNSEEDED, lambda: run_on_fresh_envs(spec, seeds, max_steps)),
        ("in another process", _UNSEEDED, lambda: run_in_another_process(spec, num_episodes, max_steps)),
        ("on one that ran the others before", _MEMORY, lambda: run_on_one_env(spec, seeds, max_steps)),
        ("on one that ran them in another order", _MEMORY, lambda: run_on_one_env(spec, seeds[::-1], max_steps)),
    ]
    findings = []
    for way, cause, run in ways:
        again = {trace.seed: trace for trace in run()}
        findings.append(Finding(way, cause, list(_first_differences(first, again))))
    rows = make_checked_rows(spec)
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
