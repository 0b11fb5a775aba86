"""Measurements of Rollserve and of its peers."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.shared.report import medians

__all__ = ["ROLLSERVE", "SPEED", "Measurement", "best_of", "ratio"]

ROLLSERVE = "Rollserve"
"""Name of the service itself, beside the titles of the peers."""
SPEED = "steps_per_second"
"""Name of the figure that measurements are ranked by."""


@dataclass
class Measurement:
    """Figures of one way to do a workload.

    Attributes:
        workload: name of the workload.
        who: title of the peer, or ROLLSERVE.
        kind: `Kind` of the peer, or "service" for Rollserve.
        title: the way in a few words.
        settings: sizes and options of the measurement.
        versions: versions of the packages involved.
        rounds: figures of each round; the end of a figure's name is its unit.
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
        """Median of each figure over the rounds."""
        return medians(self.rounds)

    @property
    def speed(self) -> float:
        """Median of the steps per second; 0 after a failure."""
        return 0.0 if self.failure or not self.rounds else self.medians[SPEED]

    def to_json(self) -> dict[str, Any]:
        """Return the measurement as a JSON object."""
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


def best_of(measurements: Iterable[Measurement], kinds: Sequence[str]) -> Measurement | None:
    """Return the fastest measurement of some kinds, or None if none of them has figures."""
    candidates = [each for each in measurements if each.kind in kinds and each.speed]
    return max(candidates, key=lambda each: each.speed, default=None)


def ratio(measurement: Measurement, reference: Measurement) -> float:
    """Return how many times as fast as the reference a measurement is: the median of the rounds' ratios."""
    rounds = zip(measurement.rounds, reference.rounds, strict=False)
    return statistics.median(figures[SPEED] / reference_figures[SPEED] for figures, reference_figures in rounds)
