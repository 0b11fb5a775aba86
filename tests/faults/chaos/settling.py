"""Whether a server takes as much at the end as at the beginning."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from faults.chaos.processes import Usage

__all__ = ["MOST_GROWTH_BYTES", "Growth", "growth_until_settled"]

MOST_GROWTH_BYTES = {"gateway": 160 << 20, "worker": 640 << 20}
"""What a process may take more than after its first calls. Freed memory is held for the next data (`--hold-memory`), so
this is what was once needed at a time. Of the gateway: 2 MiB of each call on its way to its client, 32 MiB of shared
memory for each of two calls, and what was resident of Ray's object store. Of a worker: for each call, and for each
stream and sequence that is kept for the next, 15 in all, 30 MiB that its rows write into and 8 MiB that are finished.
Whether that comes to an end is what `make soak` looks at.
"""
_MORE_THREADS, _MORE_FILES = 24, 48
"""Ray's and gRPC's own pools of them come and go."""
_IDLE = "ray::IDLE"
"""Processes that Ray has ready; more and fewer of them."""
_SETTLING_SECONDS = 30.0


@dataclass(frozen=True)
class Growth:
    """What one kind of processes takes, before and after.

    Attributes:
        name: which kind.
        count: how many there were, and are.
        rss_bytes: the most that one of them had resident, and has.
        num_threads: the most threads.
        num_files: the most open files.
    """

    name: str
    count: tuple[int, int]
    rss_bytes: tuple[int, int]
    num_threads: tuple[int, int]
    num_files: tuple[int, int]

    def problems(self) -> Iterator[str]:
        """What is more than it should be."""
        before, after = self.count
        if (self.name == "worker" and after != before) or (after > before and self.name != _IDLE):
            yield f"{self.name}: {before} processes before, {after} after"
        for what, (first, last), most in (
            ("resident bytes", self.rss_bytes, MOST_GROWTH_BYTES.get(self.name)),
            ("threads", self.num_threads, _MORE_THREADS),
            ("open files", self.num_files, _MORE_FILES),
        ):
            if most is not None and self.name in MOST_GROWTH_BYTES and last > first + most:
                yield f"{self.name}: {what}: {first} before, {last} after: more than {most} more"


def growth_until_settled(look: Callable[[], Mapping[int, Usage]], before: Mapping[int, Usage]) -> list[Growth]:
    """How a server has grown, once all is well, or has not become so for a while.

    Args:
        look: tells what its processes take.
        before: what it told at the beginning.
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

    def most(name: str, attribute: str) -> tuple[int, int]:
        first, last = (
            max((getattr(usage, attribute) for usage in usages.values() if usage.name == name), default=0)
            for usages in (before, after)
        )
        return first, last

    return [
        Growth(
            name,
            (counts[0][name], counts[1][name]),
            most(name, "rss_bytes"),
            most(name, "num_threads"),
            most(name, "num_files"),
        )
        for name in names
    ]
