"""What goes wrong, and when: a pure function of a seed."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass

__all__ = ["DEFAULT_KINDS", "KINDS", "Fault", "Kind", "schedule"]


@dataclass(frozen=True)
class Kind:
    """A kind of faults.

    Attributes:
        mean_seconds: how far apart they are.
        longest_seconds: how long one may last, if it lasts; each is drawn.
    """

    mean_seconds: float
    longest_seconds: float = 0.0


KINDS: Mapping[str, Kind] = {
    "worker killed": Kind(7.0),
    "worker paused": Kind(12.0, 3.0),
    "gateway killed": Kind(75.0),
    "gateway ended": Kind(150.0),
    "gateway paused": Kind(40.0, 3.0),
    "client killed": Kind(8.0),
    "client paused": Kind(12.0, 4.0),
    "agent updated": Kind(4.0),
    "parameters updated": Kind(6.0),
    "env updated": Kind(12.0),
    "pool resized": Kind(20.0),
    "journal killed": Kind(50.0),
}
"""Each a function of `injection`. Without a cluster there is no journal, and that kind changes nothing."""
DEFAULT_KINDS = tuple(KINDS)


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong, or changes.

    Attributes:
        at_seconds: when, from the beginning.
        kind: one of `KINDS`.
        draw: from 0 to 1, which of those that it may happen to it happens to.
        lasts_seconds: how long, if it is a kind that lasts.
    """

    at_seconds: float
    kind: str
    draw: float
    lasts_seconds: float


def schedule(seed: int, seconds: float, kinds: Collection[str] = DEFAULT_KINDS) -> tuple[Fault, ...]:
    """What happens in so many seconds. Each kind has at least one, and none depends on which other kinds there are."""
    faults = []
    for name in sorted(kinds):
        kind, source = KINDS[name], random.Random(f"{seed} {name}")
        at = source.uniform(0.1, 0.6) * min(kind.mean_seconds, seconds)
        while at < seconds:
            lasts = source.uniform(0.2, 1.0) * kind.longest_seconds
            faults.append(Fault(round(at, 3), name, source.random(), round(lasts, 3)))
            at += source.expovariate(1 / kind.mean_seconds)
    return tuple(sorted(faults, key=lambda fault: fault.at_seconds))
