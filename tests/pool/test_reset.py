"""Resets: a pool begins a new run, in which everything is as after a fresh start."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from pathlib import Path
from typing import Any

import pytest
from pools import RecordingBackend, cartpole_agent, evaluate, pool_of, run_of, sample, sample_request, until
from support import equal, raises

import rollserve
from rollserve import Reason
from rollserve_server.agents import RandomSpec
from rollserve_server.errors import NotReadyError, WorkerLostError
from rollserve_server.pool import AtLeast, Backend, Exactly, Fragments, InProcessBackend, Pool
from rollserve_server.sampling import Worker

TARGETS = (AtLeast(200), AtLeast(100), Exactly(3), Fragments(160), Fragments(160))


async def use(pool: Pool) -> list[rollserve.EpisodeBatch]:
    """Return what a pool without an agent delivers in calls one after the other."""
    assert (await pool.update_agent([cartpole_agent()])).version == 1
    return [await sample(pool, target) for target in TARGETS]


async def test_reset_pool_is_as_after_a_fresh_start(backend: Backend) -> None:
    async with pool_of(backend) as pool:
        fresh, run, status = await use(pool), run_of(pool), pool.status()
        await pool.update_env([rollserve.EnvSpec("Acrobot-v1")])
        await pool.update_agent([RandomSpec()])
        await sample(pool, AtLeast(10), prefetch=True)
        await pool.resize(3)
        await pool.reset()
        assert not any(dataclasses.astuple(pool.status().counters))
        assert run_of(pool) != run
        with raises(NotReadyError, reason=Reason.NO_AGENT):
            await sample(pool, AtLeast(1))
        with raises(NotReadyError, field="options.sampler_run", reason=Reason.SAMPLER_RUN):
            await sample(pool, AtLeast(1), run=run)
        batches = await use(pool)
        assert all(map(equal, batches, fresh))
        account = batches[0].account
        assert (account.num_carried_steps, account.num_dropped_steps) == (0, 0)
        again = pool.status()
        assert (again.env_version, again.policy_version, len(again.workers)) == (1, 1, 2)
        assert (again.seed, again.next_index, again.num_worker_restarts) == (status.seed, status.next_index, 0)


async def test_reset_keeps_a_random_seed() -> None:
    async with pool_of(InProcessBackend(), seed=None) as pool:
        fresh = await use(pool)
        await pool.reset()
        assert all(map(equal, await use(pool), fresh))


async def test_reset_ends_calls_that_run_or_wait() -> None:
    async with pool_of(InProcessBackend(), max_calls=1) as pool:
        await pool.update_agent([RandomSpec()])
        async with contextlib.aclosing(pool.sample(sample_request(AtLeast(10**9)))) as items:
            await anext(items)
            waiting = asyncio.create_task(sample(pool, AtLeast(1)))
            await until(lambda: bool(pool._samplings.admission._queue))
            await pool.reset()
            with raises(WorkerLostError, reason=Reason.WORKER_LOST):
                async for _ in items:
                    pass
        with raises(NotReadyError, reason=Reason.SAMPLER_RUN):
            await waiting
        await use(pool)


async def test_reset_that_fails_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pool_of(InProcessBackend()) as pool:
        (expected, *_), run = await use(pool), run_of(pool)

        def fail(*_: Any) -> Any:
            raise WorkerLostError("no room, by design", 0)

        with monkeypatch.context() as patch:
            patch.setattr(InProcessBackend, "create_worker", fail)
            with raises(WorkerLostError, match="no room, by design"):
                await pool.reset()
        assert run_of(pool) == run
        assert equal(await sample(pool, AtLeast(200), seed=7), expected)


async def test_resets_at_the_same_time_leave_the_workers_of_the_last_one() -> None:
    others = worker_threads()
    async with pool_of(InProcessBackend()) as pool:
        await asyncio.gather(pool.reset(), pool.reset(), pool.reset())
        await until(lambda: len(worker_threads() - others) == 2)
        await use(pool)


async def test_updates_that_wait_for_a_reset_fail_with_it() -> None:
    others = worker_threads()
    async with pool_of(InProcessBackend()) as pool:
        resetting = asyncio.create_task(pool.reset())
        await asyncio.sleep(0)  # it starts the workers of the new run
        waiting = pool.resize(3), pool.update_agent([RandomSpec()]), pool.update_env([rollserve.EnvSpec("CartPole-v1")])
        for error in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(error, NotReadyError)
            assert error.reason is Reason.SAMPLER_RUN
        await resetting
        await until(lambda: len(worker_threads() - others) == 2)
        await use(pool)


async def test_cancelled_reset_ends_the_workers_of_the_run_before() -> None:
    others = worker_threads()
    slow, allowed = rollserve.EnvSpec("sample_envs:Slow", {"step_seconds": 0.3}), ("sample_envs",)
    async with pool_of(InProcessBackend(), slow, rows=1, allow_module=allowed) as pool:
        await pool.update_agent([RandomSpec()])
        async with contextlib.aclosing(pool.sample(sample_request(AtLeast(10**9)))) as items:
            await anext(items)
            run, resetting = run_of(pool), asyncio.create_task(pool.reset())
            await asyncio.sleep(0)
            waiting = asyncio.create_task(evaluate(pool, 1, env=rollserve.EnvSpec("CartPole-v1")))
            await until(lambda: run_of(pool) != run)  # the workers are busy, so that they do not close at once
            resetting.cancel()
            with raises(NotReadyError, reason=Reason.SAMPLER_RUN):
                await waiting
            with pytest.raises(asyncio.CancelledError):
                await resetting
            with raises(WorkerLostError, reason=Reason.WORKER_LOST):
                async for _ in items:
                    pass
        await until(lambda: len(worker_threads() - others) == 2)


async def test_reset_ends_a_call_in_which_one_worker_waits_for_another(tmp_path: Path) -> None:
    places = tmp_path / "places"
    places.write_text("worker-0")
    env = rollserve.EnvSpec("sample_envs:SlowInPlaces", {"path": str(places), "step_seconds": 1.0, "most_steps": 99})
    async with pool_of(InProcessBackend(), env, rows=1, allow_module=("sample_envs",)) as pool:
        await pool.update_agent([RandomSpec()])
        calling = asyncio.create_task(sample(pool, AtLeast(1)))
        await asyncio.sleep(0.5)  # worker 1 has done what the call needs of it
        assert not calling.done()
        await pool.reset()
        async with asyncio.timeout(10):
            with raises(WorkerLostError, reason=Reason.WORKER_LOST):
                await calling


async def test_call_loses_a_closed_worker(caplog: pytest.LogCaptureFixture) -> None:
    backend = RecordingBackend(InProcessBackend())
    async with pool_of(backend) as pool:
        expected, *_ = await use(pool)
        await backend.handles[0].call(Worker.close)
        assert equal(await sample(pool, AtLeast(200), seed=7), expected)
    assert "worker 0 is lost: it was closed" in [getattr(record, "error", "") for record in caplog.records]


def worker_threads() -> set[threading.Thread]:
    """Return the threads that are workers of an in-process pool."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("worker-")}
