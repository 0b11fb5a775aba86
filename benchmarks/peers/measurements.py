"""What came of one who was measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ROLLSERVE", "SPEED", "Line", "best_of", "ratio"]

ROLLSERVE = "Rollserve"
SPEED = "steps_per_second"


@dataclass
class Line:
    """The figures of one way to do a workload.

    Attributes:
        workload: what was done.
        who: the peer, or ROLLSERVE.
        kind: `Kind` of the peer, or "service".
        title: which way, in a few words.
        settings: what it was measured with.
        versions: of the packages that matter.
        rounds: of each round the figures, whose names end with their units.
        failure: why there are no figures; empty if there are.
    """

    workload: str
    who: str
    kind: str
    title: str
    settings: Mapping[str, Any]
    versions: Mapping[str, str] = field(default_factory=dict)
    rounds: list[Mapping[str, float]] = field(default_factory=list)
    failure: str = ""

    @property
    def medians(self) -> dict[str, float]:
        """Of each figure the median of the rounds."""
        return {name: statistics.median(round_[name] for round_ in self.rounds) for name in self.rounds[0]}

    @property
    def speed(self) -> float:
        """The median of the steps per second; 0 of those that failed."""
        return 0.0 if self.failure or not self.rounds else self.medians[SPEED]

    def to_json(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        return {
            "workload": self.workload,
            "who": self.who,
            "kind": self.kind,
            "title": self.title,
            "settings": dict(self.settings),
            "versions": dict(self.versions),
            "medians": self.medians if self.speed else {},
            "rounds": self.rounds,
            "failure": self.failure,
        }


def best_of(lines: Iterable[Line], kinds: Sequence[str]) -> Line | None:
    """The fastest of some kinds, if any has figures."""
    having = [line for line in lines if line.kind in kinds and line.speed]
    return max(having, key=lambda line: line.speed, default=None)


def ratio(line: Line, to: Line) -> float:
    """How many times as fast as another one it is: the median of the rounds' ratios."""
    return statistics.median(one[SPEED] / other[SPEED] for one, other in zip(line.rounds, to.rounds, strict=False))
