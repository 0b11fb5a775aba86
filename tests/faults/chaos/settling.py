"""Growth of a server from the start to the end of a run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from faults.chaos.processes import Usage

__all__ = ["MAX_GROWTH_BYTES", "Growth", "growth_until_settled"]

MAX_GROWTH_BYTES = {"gateway": 160 << 20, "worker": 640 << 20}
"""Largest growth of a process since its first calls. Freed memory is held for the next data (`--hold-memory`), so the
peak counts. The gateway: 2 MiB of each call on its way to the client, 32 MiB of shared memory for each of two calls,
and resident pages of Ray's object store. A worker: for each of 15 calls, streams and sequences, 30 MiB of column
buffers and 8 MiB of finished messages. `make soak` checks that growth ends.
"""
_MORE_THREADS, _MORE_FILES = 24, 48  # thread pools of Ray and gRPC grow and shrink
_IDLE = "ray::IDLE"  # Ray keeps a varying number of idle processes
_SETTLING_SECONDS = 30.0


@dataclass(frozen=True)
class Growth:
    """Usage of one kind of processes before and after.

    Attributes:
        name: kind of the processes.
        count: number of processes.
        rss_bytes: largest resident memory of a process.
        num_threads: largest number of threads of a process.
        num_files: largest number of open files of a process.
    """

    name: str
    count: tuple[int, int]
    rss_bytes: tuple[int, int]
    num_threads: tuple[int, int]
    num_files: tuple[int, int]

    def problems(self) -> Iterator[str]:
        """Yield what has grown too much."""
        before, after = self.count
        if (self.name == "worker" and after != before) or (after > before and self.name != _IDLE):
            yield f"{self.name}: {before} processes before, {after} after"
        for what, (first, last), limit in (
            ("resident bytes", self.rss_bytes, MAX_GROWTH_BYTES.get(self.name)),
            ("threads", self.num_threads, _MORE_THREADS),
            ("open files", self.num_files, _MORE_FILES),
        ):
            if limit is not None and self.name in MAX_GROWTH_BYTES and last > first + limit:
                yield f"{self.name}: {what}: {first} before, {last} after, expected a growth of at most {limit}"


def growth_until_settled(look: Callable[[], Mapping[int, Usage]], before: Mapping[int, Usage]) -> list[Growth]:
    """Return the growth of a server once it is small enough, or after 30 s.

    Args:
        look: returns the usage of its processes.
        before: usage at the start.
    """
    deadline = time.monotonic() + _SETTLING_SECONDS
    while True:
        growths = _growths(before, look())
        if time.monotonic() > deadline or not any(list(growth.problems()) for growth in growths):
            return growths
        time.sleep(1)


def _growths(before: Mapping[int, Usage], after: Mapping[int, Usage]) -> list[Growth]:
    names = sorted({usage.name for usage in (*before.values(), *after.values())} - {""})
    counts = [Counter(usage.name for usage in usages.values()) for usages in (before, after)]

    def largest(name: str, attribute: str) -> tuple[int, int]:
        first, last = (
            max((getattr(usage, attribute) for usage in usages.values() if usage.name == name), default=0)
            for usages in (before, after)
        )
        return first, last

    return [
        Growth(
            name,
            (counts[0][name], counts[1][name]),
            largest(name, "rss_bytes"),
            largest(name, "num_threads"),
            largest(name, "num_files"),
        )
        for name in names
    ]
