"""Urgent calls of workers: orders before them make no more than a step, and later orders are as long as ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import rollserve
from rollserve_server.activity import Phase
from rollserve_server.agents import Exploration, RandomSpec
from rollserve_server.errors import InvalidValueError
from rollserve_server.pool import Backend, InProcessBackend, WorkerHandle
from rollserve_server.sampling import (
    PLAIN,
    EpisodeRange,
    FragmentAssignment,
    FragmentOrder,
    Order,
    RowSequenceSpec,
    RowState,
    SequenceSpec,
    Worker,
    WorkOrder,
)
from rollserve_server.settings import WorkerSettings

SLOW = rollserve.EnvSpec("sample_envs:Slow", {"step_seconds": 0.02, "length": 10**6}, num_rows=1)
HOUR, HALF_SECOND = 3600.0, 0.5


def fragments(seconds: float) -> FragmentOrder:
    sequence = RowSequenceSpec(1, 5, 1, None, soft_horizon=False, stride=1)
    assignment = FragmentAssignment(1, 1, Exploration(), 10**6, 0, 1 << 22, True, PLAIN)
    return FragmentOrder(sequence, assignment, [RowState(0, 0, 0, 0, ())], 1 << 22, seconds=seconds)


def episodes(seconds: float) -> Order:
    return Order(SequenceSpec(1, 0, 1, 1), (EpisodeRange(range(1), 0),), (), None, (), 1 << 22, seconds=seconds)


@pytest.fixture(params=[InProcessBackend, "ray"], ids=["threads", "ray"])
async def handle(request: pytest.FixtureRequest) -> AsyncIterator[WorkerHandle]:
    backend: Backend = request.getfixturevalue("ray_backend") if request.param == "ray" else request.param()
    worker = backend.create_worker(0, WorkerSettings(vectorization="rows"))
    await worker.call(Worker.add_env, 1, SLOW)
    await worker.call(Worker.add_agent, 1, RandomSpec())
    yield worker
    worker.kill()


async def stepping(worker: WorkerHandle) -> None:
    """Wait until a worker steps."""
    phase = None
    while phase is not Phase.STEP:
        await asyncio.sleep(0.01)
        phase = (await worker.heartbeat()).phase


@pytest.mark.parametrize("order", [fragments, episodes])
async def test_orders_before_an_urgent_call_end_early(handle: WorkerHandle, order: Any) -> None:
    first, second = (handle.work(each)[0] for each in (order(HOUR), _again(order(HOUR))))
    await stepping(handle)
    async with asyncio.timeout(60):
        await handle.call_urgently(Worker.add_agent, 2, RandomSpec())
        assert await handle.call(Worker.installed_versions) == ({1}, {1, 2})
        assert first.done()
        assert (await second).num_simulated_steps == 1
    later, _ = handle.work(_again(order(HALF_SECOND)))
    assert (await later).num_simulated_steps > 2


async def test_urgent_call_of_an_idle_worker_shortens_nothing(handle: WorkerHandle) -> None:
    await handle.call_urgently(Worker.add_agent, 2, RandomSpec())
    report, _ = handle.work(fragments(HALF_SECOND))
    assert (await report).num_simulated_steps > 2


async def test_urgent_call_raises_as_another_call(handle: WorkerHandle) -> None:
    with pytest.raises(InvalidValueError) as urgent:
        await handle.call_urgently(Worker.add_env, 2, rollserve.EnvSpec("sample_envs:Slow", {"unknown": 1}, num_rows=1))
    with pytest.raises(InvalidValueError) as usual:
        await handle.call(Worker.add_env, 2, rollserve.EnvSpec("sample_envs:Slow", {"unknown": 1}, num_rows=1))
    assert urgent.value.text == usual.value.text


def _again(order: Any) -> WorkOrder[Any]:
    """Return an order to go on with the work of another one."""
    if isinstance(order, Order):
        return Order(order.sequence, (), (), None, (), 1 << 22, seconds=order.seconds)
    return FragmentOrder(order.sequence, order.assignment, None, 1 << 22, seconds=order.seconds)
