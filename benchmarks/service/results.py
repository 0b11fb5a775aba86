"""What comes of a measurement."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["CheckError", "Options", "Result", "check"]


class CheckError(Exception):
    """What was moved is not what it should be, so that its speed does not count."""


def check(holds: object, text: str) -> None:
    """Raises CheckError with the text unless it holds."""
    if not holds:
        raise CheckError(text)


@dataclass(frozen=True)
class Options:
    """How all workloads are measured.

    Attributes:
        num_workers: how many workers, and plain processes beside them.
        num_rounds: how often each measurement is repeated, in turns with what it is compared to.
        scale: what the sizes of all workloads are multiplied by.
        worker_counts: how many workers the workload that grows has.
        log: called with a line for each thing that begins.
    """

    num_workers: int
    num_rounds: int
    scale: float
    worker_counts: Sequence[int]
    log: Callable[[str], None]

    def scaled(self, size: int, multiple_of: int = 1) -> int:
        """A workload's size: at least 1, and a multiple of a number."""
        return max(round(size * self.scale / multiple_of), 1) * multiple_of


@dataclass
class Result:
    """The figures of one workload.

    Attributes:
        workload: its name.
        title: what it is, in a few words.
        settings: what it was measured with.
        rounds: of each round the figures, whose names end with their units.
        checks: what was found to hold for the data that was moved.
    """

    workload: str
    title: str
    settings: Mapping[str, Any]
    rounds: list[dict[str, float]] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)

    @property
    def medians(self) -> dict[str, float]:
        """Of each figure the median of the rounds."""
        return {name: statistics.median(round_[name] for round_ in self.rounds) for name in self.rounds[0]}

    def to_json(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        return {
            "workload": self.workload,
            "title": self.title,
            "settings": dict(self.settings),
            "medians": self.medians,
            "rounds": self.rounds,
            "checks": self.checks,
        }
