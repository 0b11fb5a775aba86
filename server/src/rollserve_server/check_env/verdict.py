"""The result of a check: differences between runs of the same episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollserve_wire.environments import Reproducibility

if TYPE_CHECKING:
    from rollserve_server.envs import Difference

__all__ = ["Finding", "Verdict"]


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
