"""Options and results of a measurement, and checks of the data that calls deliver."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.shared.report import medians

__all__ = ["CheckError", "Options", "Result", "check", "check_num_steps"]


class CheckError(Exception):
    """Delivered data is wrong, so that its speed does not count."""


def check(condition: object, message: str) -> None:
    """Raise a CheckError with the message unless the condition holds."""
    if not condition:
        raise CheckError(message)


def check_num_steps(got: int, requested: int, *, exact: bool = True) -> str:
    """Compare the number of delivered steps with the request; return what holds.

    Raises:
        CheckError: a call delivered fewer steps than requested, or more although `exact` is set.
    """
    bound = "exactly" if exact else "at least"
    check(got == requested if exact else got >= requested, f"num_steps: expected {bound} {requested}, got {got}")
    return f"{bound} as many steps as requested"


@dataclass(frozen=True)
class Options:
    """Sizes that hold for all workloads.

    Attributes:
        num_workers: number of workers, and of the bare loop's processes.
        num_rounds: number of rounds; in each, the service and what it is compared with are measured in turns.
        scale: factor of all sizes.
        worker_counts: numbers of workers of w6-workers.
        log: called with a line for each thing that begins.
    """

    num_workers: int
    num_rounds: int
    scale: float
    worker_counts: Sequence[int]
    log: Callable[[str], None]

    def scaled(self, size: int, multiple_of: int = 1) -> int:
        """Return a size times `scale`, rounded to a multiple of a number; at least that number."""
        return max(round(size * self.scale / multiple_of), 1) * multiple_of


@dataclass
class Result:
    """Figures of one workload.

    Attributes:
        workload: name of the workload.
        title: the workload in a few words.
        settings: sizes and options of the measurement.
        rounds: figures of each round; the end of a figure's name is its unit.
        checks: properties that were found to hold for the delivered data.
    """

    workload: str
    title: str
    settings: Mapping[str, Any]
    rounds: list[dict[str, float]] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)

    @property
    def medians(self) -> dict[str, float]:
        """Median of each figure over the rounds."""
        return medians(self.rounds)

    def to_json(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        return {
            "workload": self.workload,
            "title": self.title,
            "settings": dict(self.settings),
            "medians": self.medians,
            "rounds": self.rounds,
            "checks": self.checks,
        }
