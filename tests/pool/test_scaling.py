"""A sampler whose number of workers follows its load: episodes, accounts and updates do not notice."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from pools import CARTPOLE, RecordingBackend, adds_up, cartpole_agent, pool_of, sample, settings, until
from support import equal, raises

import rollserve
from rollserve import Reason
from rollserve_server.errors import InvalidValueError, OverLimitError, WorkerLostError
from rollserve_server.pool import AtLeast, Backend, Exactly, Fragments, InProcessBackend, Pool
from rollserve_server.samplers import SamplerRequest, Samplers
from rollserve_server.sampling import Worker
from rollserve_server.settings import PoolSettings, SamplerSettings

SCALED: dict[str, Any] = {"workers": 1, "min_workers": 1, "max_workers": 3, "scale_down_seconds": 0.5}
"""Settings of pools that follow their load of the last half second."""
TARGET = AtLeast(600)


@contextlib.asynccontextmanager
async def scaled_pool(backend: Backend | None = None, **changes: Any) -> AsyncIterator[Pool]:
    """Run a pool that follows its load, with an agent."""
    async with pool_of(backend or InProcessBackend(), **SCALED | changes) as pool:
        await pool.update_agent([cartpole_agent()])
        pool.scale_within(contextlib.nullcontext)
        yield pool


@contextlib.asynccontextmanager
async def load_of(pool: Pool) -> AsyncIterator[list[rollserve.EpisodeBatch]]:
    """Sample from the pool for the duration of the block; yield the batches so far, of the pool's own sequence."""
    batches: list[rollserve.EpisodeBatch] = []

    async def keep_sampling() -> None:
        while True:
            batches.append(await sample(pool, TARGET))

    sampling = asyncio.create_task(keep_sampling())
    try:
        yield batches
    finally:
        sampling.cancel()
        outcomes = await asyncio.gather(sampling, return_exceptions=True)
        assert isinstance(outcomes[0], asyncio.CancelledError)


def held_by(pool: Pool) -> str:
    scaling = pool.status().scaling
    assert scaling is not None
    return scaling.held_by


def num_wanted(pool: Pool) -> int:
    scaling = pool.status().scaling
    assert scaling is not None
    return scaling.num_wanted


async def test_workers_come_with_load_and_go_without_and_episodes_stay_the_same() -> None:
    async with scaled_pool() as pool:
        async with load_of(pool) as batches:
            await until(lambda: pool.num_workers == 3)
            num_before = len(batches)
            await until(lambda: len(batches) > num_before + 1)
        growing = batches[: num_before + 2]
        assert len(growing[-1].account.workers) == 3
        await until(lambda: pool.num_workers == 1)
        await until(lambda: len(pool.status().workers) == 1)
        scaling = pool.status().scaling
        assert scaling is not None
        assert (scaling.num_grown > 0, scaling.num_shrunk > 0, scaling.num_wanted) == (True, True, 1)
    async with pool_of(InProcessBackend(), workers=2) as pool:
        await pool.update_agent([cartpole_agent()])
        for batch in growing:
            assert equal(await sample(pool, TARGET), batch)
            assert adds_up(batch.account)
            # Added workers go on with what others have begun for later calls.
            assert batch.account.num_superseded_steps == 0
            assert batch.account.num_retried_episodes == 0


async def test_without_least_number_the_number_stays() -> None:
    async with scaled_pool(min_workers=None) as pool, load_of(pool) as batches:
        await until(lambda: len(batches) > 20)
        assert pool.status().scaling is None
        assert pool.num_workers == 1
        with raises(InvalidValueError, field="worker_count", match="--min-workers"):
            await pool.follow_load()


async def use_fragments(pool: Pool) -> None:
    await sample(pool, Fragments(4 * 10))


async def use_exact_episodes(pool: Pool) -> None:
    await sample(pool, Exactly(2))


async def use_the_number(pool: Pool) -> None:
    await sample(pool, TARGET, num_workers=1)


async def resize(pool: Pool) -> None:
    assert await pool.resize(1) == 1


@pytest.mark.parametrize(
    ("use", "reason"),
    [
        (use_fragments, "fragments"),
        (use_exact_episodes, "calls that depend on the number of workers"),
        (use_the_number, "calls that depend on the number of workers"),
        (resize, "a resize by a client"),
    ],
)
async def test_number_is_held_while_results_depend_on_it(use: Callable[[Pool], Any], reason: str) -> None:
    async with scaled_pool(scale_down_seconds=2.0) as pool:
        assert held_by(pool) == ""
        async with load_of(pool):
            while num_wanted(pool) == 1:
                await use(pool)
                assert held_by(pool) == reason
                await asyncio.sleep(0.01)  # a resize to the present number waits for nothing
            for _ in range(5):
                await use(pool)
        assert pool.num_workers == 1


async def test_fragments_go_on_under_load() -> None:
    target = Fragments(4 * 50)
    async with pool_of(InProcessBackend(), workers=1) as pool:
        await pool.update_agent([cartpole_agent()])
        expected = [await sample(pool, target) for _ in range(4)]
    async with scaled_pool() as pool:
        got = [await sample(pool, target)]
        async with load_of(pool):
            await until(lambda: num_wanted(pool) > 1)
        got += [await sample(pool, target) for _ in range(3)]
        assert all(map(equal, got, expected))


async def test_agents_of_single_workers_hold_the_number() -> None:
    async with scaled_pool(workers=2, scale_down_seconds=0.2) as pool:
        await pool.update_agent([cartpole_agent(1), cartpole_agent(2)], per_worker=True)
        assert held_by(pool) == "agents or environments of single workers"
        await until(lambda: num_wanted(pool) == 1)
        assert pool.num_workers == 2
        await pool.update_agent([cartpole_agent()])
        await until(lambda: pool.num_workers == 1)


async def test_a_new_environment_ends_the_hold_of_fragments() -> None:
    async with scaled_pool() as pool:
        await use_fragments(pool)
        assert held_by(pool) == "fragments"
        await pool.update_env([rollserve.EnvSpec("CartPole-v1", {"sutton_barto_reward": True})])
        await until(lambda: held_by(pool) == "")


async def test_a_client_sets_the_number_until_it_hands_it_back() -> None:
    async with scaled_pool() as pool:
        assert await pool.resize(2) == 1
        await use_fragments(pool)
        await until(lambda: num_wanted(pool) == 1)
        assert (pool.num_workers, held_by(pool)) == (2, "a resize by a client")
        saved = await pool.save()
        assert await pool.follow_load() == 2
        await until(lambda: pool.num_workers == 1)
    restored = await Pool.start(InProcessBackend(), settings(**SCALED), CARTPOLE, saved)
    try:
        restored.scale_within(contextlib.nullcontext)
        assert (restored.num_workers, held_by(restored)) == (2, "a resize by a client")
        await restored.reset()
        assert held_by(restored) == ""
    finally:
        await restored.close()


class PendingBackend(RecordingBackend):
    """A backend whose workers but the first start when an event is set, as on a cluster without room."""

    def __init__(self) -> None:
        super().__init__(InProcessBackend())
        self.has_room = asyncio.Event()

    def create_worker(self, worker_index: int, config: Any) -> Any:
        handle: Any = super().create_worker(worker_index, config)
        call = handle.call

        async def call_later(method: Any, *arguments: Any, **options: Any) -> Any:
            if worker_index and method is Worker.identity:
                await self.has_room.wait()
            return await call(method, *arguments, **options)

        handle.call = call_later
        return handle


async def test_workers_that_wait_for_room_hold_up_neither_calls_nor_updates() -> None:
    backend = PendingBackend()
    async with scaled_pool(backend) as pool, load_of(pool) as batches:
        await until(lambda: 1 in backend.handles)
        num_before = len(batches)
        for seed in range(3):
            await pool.update_agent([cartpole_agent(seed)])
        await pool.update_env([CARTPOLE])
        await pool.update_agent([cartpole_agent(4)])
        await until(lambda: len(batches) > num_before + 2)
        expected = await sample(pool, TARGET, seed=5)
        assert pool.num_workers == 1
        assert num_wanted(pool) > 1
        backend.has_room.set()
        await until(lambda: pool.num_workers == 3)
        batch = await sample(pool, TARGET, seed=5)
        assert equal(batch, expected)
        assert len(batch.account.workers) == 3
        assert [worker.healthy for worker in pool.status().workers] == [True] * 3


async def test_workers_that_wait_for_room_are_given_up_with_the_load() -> None:
    backend = PendingBackend()
    async with scaled_pool(backend) as pool:
        async with load_of(pool):
            await until(lambda: 1 in backend.handles)
        await until(lambda: num_wanted(pool) == 1)

        async def is_gone() -> None:
            with raises(WorkerLostError):
                while True:
                    await backend.handles[1].heartbeat()
                    await asyncio.sleep(0.01)

        await is_gone()
        assert pool.num_workers == 1


async def test_growth_that_fails_leaves_the_workers_that_have_joined(caplog: pytest.LogCaptureFixture) -> None:
    class LimitedBackend(RecordingBackend):
        def create_worker(self, worker_index: int, config: Any) -> Any:
            handle: Any = super().create_worker(worker_index, config)
            if worker_index == 2:
                handle.kill(WorkerLostError("lost by design", 2))
            return handle

    async with scaled_pool(LimitedBackend(InProcessBackend())) as pool, load_of(pool) as batches:
        await until(lambda: "number of workers not changed" in caplog.text)
        num_before = len(batches)
        await until(lambda: len(batches) > num_before + 1)
        assert pool.num_workers == 2
        assert len(batches[-1].account.workers) == 2


async def test_samplers_share_the_greatest_number(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    limits = SamplerSettings(max_samplers=2)
    pool_settings: PoolSettings = settings(**SCALED)
    samplers = await Samplers.start(InProcessBackend(), limits, pool_settings, CARTPOLE, adopt=False)
    try:
        pool = samplers.default.pool
        await pool.update_agent([cartpole_agent()])
        other, _ = await samplers.create(SamplerRequest("other", CARTPOLE, 2), "", exist_ok=False)
        async with load_of(pool):
            await until(lambda: "other samplers have workers" in caplog.text)
            # The other one has nothing to do, and so gives one up.
            await until(lambda: (pool.num_workers, other.pool.num_workers) == (2, 1))
            with raises(OverLimitError, reason=Reason.TOO_MANY_WORKERS):
                await samplers.resize(other, 2)
            await samplers.delete("other")
            await until(lambda: pool.num_workers == 3)
    finally:
        await samplers.close(keep=False)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"min_workers": 2}, "max_workers"),
        ({"min_workers": 4, "max_workers": 3}, "at most 3"),
        ({"workers": 1, "min_workers": 2, "max_workers": 3}, "at most 1"),
    ],
)
def test_bounds_that_do_not_fit_are_refused(given: dict[str, int], field: str) -> None:
    with pytest.raises(ValueError, match=field.replace("_", "[-_]")):
        PoolSettings.from_flat(given)
