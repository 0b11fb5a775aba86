"""Regular measurements of processes, and which of them grow."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from faults.chaos.processes import Usage

__all__ = ["MAX_GROWTH", "Track", "Watch"]

MAX_GROWTH = {"own_bytes": 16 << 20, "num_threads": 6, "num_files": 12}
"""Largest growth of a process from the second to the last quarter, each measured at the rest with the least usage.

Memory of running calls does not count, and memory that is never freed does.
"""


@dataclass
class Track:
    """Measurements of a process.

    Attributes:
        name: role and process id.
        seconds: times since the start.
        usages: usage at these times.
        at_rest: whether all clients rested at these times.
    """

    name: str
    seconds: list[float] = field(default_factory=list)
    usages: list[Usage] = field(default_factory=list)
    at_rest: list[bool] = field(default_factory=list)

    def values(self, attribute: str) -> np.ndarray:
        """Return a field of `Usage` at all times."""
        return np.array([getattr(usage, attribute) for usage in self.usages], np.float64)

    def growth(self, attribute: str, whole: float) -> float:
        """Return the growth of a field's least value at rest, from the second to the last quarter of `whole` seconds.

        0 if the process did not rest in both quarters.
        """
        seconds, values, at_rest = np.array(self.seconds), self.values(attribute), np.array(self.at_rest)
        quarters = (seconds / whole * 4).astype(int)
        second, last = values[at_rest & (quarters == 1)], values[at_rest & (quarters >= 3)]
        return float(last.min() - second.min()) if min(len(second), len(last)) else 0.0

    def problems(self, whole: float) -> Iterable[str]:
        """Yield the fields that grew too much in `whole` seconds."""
        for attribute, limit in MAX_GROWTH.items():
            growth = self.growth(attribute, whole)
            if growth > limit:
                yield f"{self.name}: {attribute} rose by {growth:.0f} from quarter 2 to 4, expected at most {limit}"


class Watch:
    """A thread that measures processes.

    Attributes:
        tracks: measurements by process id.
    """

    def __init__(self, measure: Callable[[], dict[int, Usage]], every_seconds: float) -> None:
        self.tracks: dict[int, Track] = {}
        self._measure = measure
        self._every_seconds = every_seconds
        self._measuring = threading.Lock()
        self._over = threading.Event()
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="watch")
        self._thread.start()

    def end(self) -> Sequence[Track]:
        """Stop, and return all measurements."""
        self._over.set()
        self._thread.join()
        return list(self.tracks.values())

    def measure_at_rest(self) -> None:
        """Measure now, while all clients rest."""
        self._add_usages(at_rest=True)

    def _run(self) -> None:
        while not self._over.wait(self._every_seconds):
            with contextlib.suppress(OSError):
                self._add_usages(at_rest=False)

    def _add_usages(self, *, at_rest: bool) -> None:
        with self._measuring:
            for pid, usage in self._measure().items():
                track = self.tracks.setdefault(pid, Track(f"{usage.name} {pid}"))
                track.seconds.append(time.monotonic() - self._began)
                track.usages.append(usage)
                track.at_rest.append(at_rest)
