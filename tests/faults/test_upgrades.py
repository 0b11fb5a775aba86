"""Servers that take a sampler over from another version, and replace its workers while calls run."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import hashlib
import inspect
import json
from typing import Any

import pytest
from faults.test_journal import LastingBackend, pool_on
from pools import CARTPOLE, sample, until
from support import equal

from rollserve_server.agents import RandomSpec
from rollserve_server.agents import specs as agent_specs
from rollserve_server.pool import AtLeast, Fragments, Pool
from rollserve_server.pool.backends.ray import line
from rollserve_server.pool.workers import workers
from rollserve_server.sampling import ORDERS_FORMAT, Worker, protocol
from rollserve_server.settings import WorkerSettings
from rollserve_wire import environments

FORMATS = {1: "ed466c1ed1cf81dd"}
"""Digests of what a server and its workers exchange, by the format of orders."""


class UpgradedBackend(LastingBackend):
    """Workers that count as another version's as soon as another pool takes them over.

    Attributes:
        has_spare_room: whether a new worker can start beside the others.
    """

    def __init__(self) -> None:
        super().__init__()
        self.has_spare_room = True

    def find_worker(self, worker_index: int) -> Any:
        worker = super().find_worker(worker_index)
        if worker is not None:
            worker.is_outdated = True
        return worker

    def has_room(self) -> bool:
        return self.has_spare_room


def results(pool: Pool, clock: int) -> list[Any]:
    """Begin a call of each kind; the fragments go on at a step of their rows."""
    targets = (AtLeast(200), {"seed": 3}), (Fragments(8 * 50, row_step_count=clock), {"seed": 4})
    return [sample(pool, target, **options) for target, options in targets]


async def until_renewed(pool: Pool, left: set[int], backend: LastingBackend) -> None:
    await until(lambda: not left & {id(handle) for handle in backend.handles.values()})
    await until(lambda: all(worker.healthy for worker in pool.status().workers))


@pytest.mark.parametrize("has_room", [True, False])
async def test_workers_of_another_version_are_replaced_between_calls(has_room: bool) -> None:
    backend = UpgradedBackend()
    backend.has_spare_room = has_room
    async with pool_on(backend) as pool:
        await pool.update_agent([RandomSpec()])
        expected = [await each for clock in (0, 50) for each in results(pool, clock)]
    left = dict(backend.handles)
    async with pool_on(backend, keep=False) as pool:
        first = [await each for each in results(pool, 0)]
        await until_renewed(pool, {id(handle) for handle in left.values()}, backend)
        batches = first + [await each for each in results(pool, 50)]
        assert all(map(equal, batches, expected))
        status = pool.status()
        assert [worker.num_restarts for worker in status.workers] == [0 if has_room else 1] * len(left)
        assert (status.policy_version, status.env_specs) == (1, [CARTPOLE])


async def test_worker_is_replaced_in_the_middle_of_a_call_that_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "BORDER_SECONDS", 0.05)
    backend = UpgradedBackend()
    async with pool_on(backend) as pool:
        await pool.update_agent([RandomSpec()])
        expected = await sample(pool, AtLeast(60_000), seed=3)
    left = dict(backend.handles)
    async with pool_on(backend, keep=False) as pool:
        call = asyncio.ensure_future(sample(pool, AtLeast(60_000), seed=3))
        await until_renewed(pool, {id(handle) for handle in left.values()}, backend)
        assert not call.done()
        assert equal(await call, expected)


def test_format_of_orders_rises_with_what_is_exchanged() -> None:
    """Compare what workers get and answer with what the format of orders stood for.

    A new digest needs a new format, unless workers and servers of before understand what has changed; a format that was
    never released keeps its number.
    """
    assert FORMATS[max(FORMATS)] == _digest()
    assert max(FORMATS) == ORDERS_FORMAT


def _digest() -> str:
    """Return a digest of the fields of all plain values, the methods of workers, and the messages of lines."""
    described: dict[str, Any] = {
        f"{module.__name__}.{name}": _fields(value)
        for module in (protocol, agent_specs, environments, line)
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__
    }
    described["WorkerSettings"] = sorted(WorkerSettings.model_fields)
    described["Worker"] = {  # without signatures, because Ray adds parameters to them when it starts a worker
        name: inspect.get_annotations(method)
        for name, method in vars(Worker).items()
        if inspect.isfunction(method) and not name.startswith("_")
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]


def _fields(value: type) -> list[str]:
    if dataclasses.is_dataclass(value):
        return [f"{field.name}: {field.type}" for field in dataclasses.fields(value)]
    if issubclass(value, enum.Enum):
        return [f"{member.name} = {member.value}" for member in value]
    return [f"{name}: {kind}" for name, kind in inspect.get_annotations(value).items()]
