"""Placement of workers on the machines of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollserve_server.settings import WorkerPlacement

__all__ = ["position_of"]


def position_of(worker_index: int, capacities: Sequence[float], placement: WorkerPlacement) -> int | None:
    """Return the position of the machine for a worker; None if the workers before it take all the room.

    Args:
        worker_index: index of the worker.
        capacities: number of workers that each machine has room for; can be infinite.
        placement: `pack` fills one machine after the other; `spread` gives each machine a worker before any gets
            another.
    """
    if placement == "pack":
        for position, capacity in enumerate(capacities):
            if worker_index < capacity:
                return position
            worker_index -= int(capacity)
        return None
    filled = 0.0
    for level in sorted(set(capacities)):
        # Up to this level, the machines that are not full take turns.
        positions = [position for position, capacity in enumerate(capacities) if capacity > filled]
        num_workers = (level - filled) * len(positions) if positions else 0
        if worker_index < num_workers:
            return positions[worker_index % len(positions)]
        worker_index -= int(num_workers)
        filled = level
    return None
