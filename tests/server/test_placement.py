"""Placement of workers on machines: the plan alone; test_two_machines.py has real ones."""

from __future__ import annotations

import math

import pytest

from rollserve_server.pool.backends.ray.placement import position_of
from rollserve_server.settings import WorkerPlacement

PLANS: dict[str, tuple[WorkerPlacement, list[float], list[int | None]]] = {
    "spread over equal machines": ("spread", [2, 2], [0, 1, 0, 1, None]),
    "spread until one is full": ("spread", [1, 3, 2], [0, 1, 2, 1, 2, 1, None]),
    "spread past machines without room": ("spread", [0, 2], [1, 1, None]),
    "spread where workers need nothing": ("spread", [math.inf, math.inf], [0, 1, 0, 1]),
    "spread where one machine has no limit": ("spread", [1, math.inf], [0, 1, 1, 1]),
    "pack": ("pack", [2, 0, 1], [0, 0, 2, None]),
    "pack where workers need nothing": ("pack", [math.inf, 2], [0, 0, 0]),
    "no room anywhere": ("spread", [0, 0], [None]),
    "no machine": ("pack", [], [None]),
}


@pytest.mark.parametrize(("placement", "capacities", "expected"), PLANS.values(), ids=PLANS)
def test_position_of_each_worker(
    placement: WorkerPlacement, capacities: list[float], expected: list[int | None]
) -> None:
    assert [position_of(index, capacities, placement) for index in range(len(expected))] == expected
