"""Placement of workers on the machines of a cluster."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

if TYPE_CHECKING:
    from rollserve_server.settings import RaySettings, WorkerPlacement

__all__ = ["position_of", "scheduling_strategy"]


def scheduling_strategy(worker_index: int, settings: RaySettings) -> NodeAffinitySchedulingStrategy | None:
    """Return Ray's strategy for the worker of a slot; None for Ray's own choice.

    A slot has the same machine whenever its worker is replaced, as long as the machines stay the same. The strategy is
    a preference: where the machine has no room, because something else uses it, Ray takes another one.

    Args:
        worker_index: index of the worker.
        settings: the cluster, and what each worker takes of it.
    """
    if settings.ray_address is None or settings.worker_placement == "any":
        return None
    own: str = ray.get_runtime_context().get_node_id()
    alive = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    # One order for all servers, except that each begins with its own machine, which needs no network.
    nodes = sorted(alive, key=lambda node: (node["NodeID"] != own, node["NodeID"]))
    position = position_of(
        worker_index, [_capacity(node["Resources"], settings) for node in nodes], settings.worker_placement
    )
    if position is None:
        return None
    strategy: Any = NodeAffinitySchedulingStrategy(nodes[position]["NodeID"], soft=True, _spill_on_unavailable=True)
    return strategy  # type: ignore[no-any-return]


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


def _capacity(resources: Mapping[str, float], settings: RaySettings) -> float:
    """Return the number of workers that a machine with these resources has room for."""
    needs = {
        "CPU": settings.worker_num_cpus,
        "GPU": settings.worker_num_gpus,
        "memory": settings.worker_memory_bytes or 0,
        **settings.worker_resources,
    }
    rooms = [resources.get(name, 0.0) / amount for name, amount in needs.items() if amount]
    return min((float(math.floor(room + 1e-6)) for room in rooms), default=math.inf)
