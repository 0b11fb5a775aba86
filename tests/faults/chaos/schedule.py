"""The schedule of faults, a pure function of a seed."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass

__all__ = ["DEFAULT_KINDS", "KINDS", "Fault", "Kind", "schedule"]


@dataclass(frozen=True)
class Kind:
    """A kind of faults.

    Attributes:
        mean_seconds: mean time between two faults.
        longest_seconds: longest duration of a fault, or 0 if faults have none.
    """

    mean_seconds: float
    longest_seconds: float = 0.0


KINDS: Mapping[str, Kind] = {
    "worker killed": Kind(7.0),
    "worker paused": Kind(12.0, 3.0),
    "host killed": Kind(5.0),
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
    "gateway upgraded": Kind(30.0),
}
"""Kinds of faults, by name. Without a cluster there is no journal to kill, and no other version to go on."""
DEFAULT_KINDS = tuple(KINDS)


@dataclass(frozen=True)
class Fault:
    """A fault or an update.

    Attributes:
        at_seconds: time since the start.
        kind: key in `KINDS`.
        draw: random number from 0 to 1 that selects the victim.
        lasts_seconds: duration, if the kind has one.
    """

    at_seconds: float
    kind: str
    draw: float
    lasts_seconds: float


def schedule(seed: int, seconds: float, kinds: Collection[str] = DEFAULT_KINDS) -> tuple[Fault, ...]:
    """Draw the faults of a run. Each kind has at least one fault, and does not depend on the other kinds."""
    faults = []
    for name in sorted(kinds):
        kind, source = KINDS[name], random.Random(f"{seed} {name}")
        at = source.uniform(0.1, 0.6) * min(kind.mean_seconds, seconds)
        while at < seconds:
            lasts = source.uniform(0.2, 1.0) * kind.longest_seconds
            faults.append(Fault(round(at, 3), name, source.random(), round(lasts, 3)))
            at += source.expovariate(1 / kind.mean_seconds)
    return tuple(sorted(faults, key=lambda fault: fault.at_seconds))
