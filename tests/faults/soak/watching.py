"""Looks at processes every now and then, and tells which of them grow."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from faults.chaos.processes import Usage

__all__ = ["MOST_MORE", "Track", "Watch"]

MOST_MORE = {"own_bytes": 16 << 20, "num_threads": 6, "num_files": 12}
"""How much more a process may have, at the least of the rests in the last quarter, than at the least in the second one.

What comes and goes with the calls of the moment does not count so, and what is never given back does.
"""


@dataclass
class Track:
    """What a process took, look by look.

    Attributes:
        name: what it does, and its number.
        seconds: when, from the beginning.
        usages: what it took.
        at_rest: whether everybody rested then.
    """

    name: str
    seconds: list[float] = field(default_factory=list)
    usages: list[Usage] = field(default_factory=list)
    at_rest: list[bool] = field(default_factory=list)

    def values(self, attribute: str) -> np.ndarray:
        """One of the figures of `Usage`, look by look."""
        return np.array([getattr(usage, attribute) for usage in self.usages], np.float64)

    def growth(self, attribute: str, whole: float) -> float:
        """By how much a figure's least value at rest rose from the second quarter of so many seconds to the last one.

        0 if it was not there in both.
        """
        seconds, values, at_rest = np.array(self.seconds), self.values(attribute), np.array(self.at_rest)
        quarters = (seconds / whole * 4).astype(int)
        second, last = values[at_rest & (quarters == 1)], values[at_rest & (quarters >= 3)]
        return float(last.min() - second.min()) if min(len(second), len(last)) else 0.0

    def problems(self, whole: float) -> Iterable[str]:
        """Which figures rose by more than they may in so many seconds."""
        for attribute, most in MOST_MORE.items():
            growth = self.growth(attribute, whole)
            if growth > most:
                yield f"{self.name}: {attribute} rose by {growth:.0f} from quarter 2 to 4, at most {most} was expected"


class Watch:
    """Looks at processes from a thread of its own.

    Attributes:
        tracks: by process.
    """

    def __init__(self, look: Callable[[], dict[int, Usage]], every_seconds: float) -> None:
        self.tracks: dict[int, Track] = {}
        self._look = look
        self._every_seconds = every_seconds
        self._looking = threading.Lock()
        self._over = threading.Event()
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="watch")
        self._thread.start()

    def end(self) -> Sequence[Track]:
        """Looks no more, and returns what was seen."""
        self._over.set()
        self._thread.join()
        return list(self.tracks.values())

    def look_at_rest(self) -> None:
        """Looks now, while everybody rests."""
        self._take_look(at_rest=True)

    def _run(self) -> None:
        while not self._over.wait(self._every_seconds):
            with contextlib.suppress(OSError):
                self._take_look(at_rest=False)

    def _take_look(self, *, at_rest: bool) -> None:
        with self._looking:
            for pid, usage in self._look().items():
                track = self.tracks.setdefault(pid, Track(f"{usage.name} {pid}"))
                track.seconds.append(time.monotonic() - self._began)
                track.usages.append(usage)
                track.at_rest.append(at_rest)
