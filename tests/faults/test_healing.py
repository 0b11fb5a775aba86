"""Pools heal: lost workers come back within a budget, and those that are there deliver meanwhile."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from charges import lay
from pools import CARTPOLE, adds_up, evaluate, kill_one, lose_worker, num_running, pool_of, sample, slot_of, until
from support import equal, raises, server_environment
from unreliable import Places

import rollserve
from rollserve import Reason
from rollserve_server.agents import ConstantSpec, RandomSpec
from rollserve_server.errors import InvalidValueError, SamplerLostError, TooFewWorkersError, WorkerLostError
from rollserve_server.local import local_server
from rollserve_server.pool import AtLeast, Backend, Exactly, Fragments, InProcessBackend, Pool, Target, WorkerHandle
from rollserve_server.pool.backends.ray.backend import RayBackend
from rollserve_server.pool.journal.journal import NoJournal
from rollserve_server.pool.workers import restarts as restarts_module
from rollserve_server.pool.workers.restarts import Restarts
from rollserve_server.sampling import Worker
from rollserve_server.settings import WorkerSettings

MODULES: dict[str, Any] = {"allow_module": ("sample_envs",)}


def licensed(folder: Path, length: int = 3) -> rollserve.EnvSpec:
    return rollserve.EnvSpec("sample_envs:Licensed", {"folder": str(folder), "length": length})


@asynccontextmanager
async def short_of_one(backend: Backend, folder: Path, **changes: Any) -> AsyncIterator[Pool]:
    """A pool of two workers, of which one cannot have its environments before another license lies there."""
    lay(folder, "license")
    async with pool_of(backend, licensed(folder), **{"start_seconds": 30.0, **MODULES, **changes}) as pool:
        assert pool.status().env_version == 1
        yield pool


def num_healthy(pool: Pool) -> int:
    return sum(worker.healthy for worker in pool.status().workers)


def test_restarts_are_delayed_and_limited() -> None:
    restarts, now, pauses = Restarts(per_hour=20), 0.0, []
    while not restarts.forbidden_seconds(now):
        pauses.append(restarts.pause_seconds(now))
        now += pauses[-1]
        restarts.begin(now)
    assert pauses[:5] == [0, 0.25, 0.5, 1, 2]
    assert max(pauses) == 30
    assert len(pauses) == restarts.count == 20
    assert restarts.forbidden_seconds(now) == 3600 - now
    assert restarts.forbidden_seconds(3599) == 1
    assert restarts.forbidden_seconds(3600) == 0
    assert restarts.pause_seconds(now + 300) == 0


async def test_an_idle_worker_that_is_killed_is_replaced_unasked(ray_backend: RayBackend) -> None:
    async with pool_of(ray_backend, step_seconds=0.4) as pool:
        before = pool.status().workers[0].identity
        os.kill(before.process_id, signal.SIGKILL)
        await until(lambda: num_healthy(pool) == 1)
        await until(lambda: num_healthy(pool) == 2)
        worker = pool.status().workers[0]
        assert worker.identity.process_id != before.process_id
        assert worker.num_restarts == 1
        assert worker.last_failure.startswith("worker 0 ")


async def test_a_storm_of_kills(ray_backend: RayBackend) -> None:
    async with pool_of(ray_backend, workers=3, unit_retries=1000) as pool:
        await pool.update_agent([RandomSpec()])
        expected = await sample(pool, AtLeast(60_000), seed=1)
        source, num_kills = random.Random(1), 0
        running = asyncio.create_task(sample(pool, AtLeast(60_000), seed=1))
        while not running.done() and num_kills < 4:
            await asyncio.sleep(0.1)
            if num_healthy(pool):
                kill_one(pool, source)
                num_kills += 1
        batch = await running
        assert equal(batch, expected)
        assert batch.account is not None
        assert adds_up(batch.account)
        assert batch.account.retry_reasons == {"worker_lost": batch.account.num_retried_episodes}
        assert batch.account.num_retried_episodes > 0
        await until(lambda: num_healthy(pool) == 3)
        assert 0 < sum(worker.num_restarts for worker in pool.status().workers) <= num_kills


async def test_a_worker_that_is_lost_too_often_is_given_up_for_an_hour(
    ray_backend: RayBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pool_of(ray_backend, step_seconds=0.4, worker_restarts_per_hour=1) as pool:
        await pool.update_agent([RandomSpec()])
        expected = await sample(pool, AtLeast(2000), seed=1)
        for health in (2, 1):
            os.kill(pool.status().workers[1].identity.process_id, signal.SIGKILL)
            await until(lambda: num_healthy(pool) == 1)
            await until(lambda health=health: num_healthy(pool) == health)
        await until(lambda: pool.status().workers[1].given_up)
        assert equal(await sample(pool, AtLeast(2000), seed=1), expected)
        await pool.update_agent([RandomSpec()])
        with raises(WorkerLostError, reason=Reason.WORKER_LOST, match="worker 1 "):
            await sample(pool, Exactly(2), seed=1)
        assert num_healthy(pool) == 1


async def test_a_worker_that_was_given_up_comes_back(ray_backend: RayBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts_module, "_HOUR_SECONDS", 8.0)
    async with pool_of(ray_backend, step_seconds=0.4, worker_restarts_per_hour=1, workers=1) as pool:
        await pool.update_agent([RandomSpec()])
        for _ in range(2):
            os.kill(pool.status().workers[0].identity.process_id, signal.SIGKILL)
            await until(lambda: num_healthy(pool) == 0)
            await until(lambda: num_healthy(pool) == 1 or pool.status().workers[0].given_up)
        assert pool.status().workers[0].given_up
        await until(lambda: num_healthy(pool) == 1)
        assert len(await sample(pool, Exactly(2), seed=1)) == 2
        assert not pool.status().workers[0].given_up


async def test_an_environment_that_cannot_be_made_on_one_worker(backend: Backend, tmp_path: Path) -> None:
    """The others deliver, have updates, and the same bytes come; it has all of that once it can be had."""
    async with short_of_one(backend, tmp_path) as pool:
        await pool.update_agent([RandomSpec()])
        (missing,) = (worker for worker in pool.status().workers if not worker.healthy)
        assert "FileNotFoundError: no license on this machine" in missing.last_failure
        batch = await sample(pool, AtLeast(500), seed=1)
        assert (await pool.update_env([licensed(tmp_path, length=7)])).version == 2
        await pool.update_agent([RandomSpec()])
        longer = await sample(pool, AtLeast(500), seed=1)
        assert set(longer.lengths.tolist()) == {7}
        waiting = asyncio.create_task(sample(pool, Exactly(20), seed=1))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        lay(tmp_path, "license")
        assert len(await waiting) == 40
        assert num_healthy(pool) == 2
        assert equal(await sample(pool, AtLeast(500), seed=1), longer)
        assert equal(await sample(pool, AtLeast(500), seed=1, env_version=1, policy_version=1), batch)


async def test_an_environment_that_cannot_be_made_anywhere(backend: Backend, tmp_path: Path) -> None:
    with raises(InvalidValueError, reason=Reason.ENV_REFUSED, match="no license on this machine"):
        async with pool_of(backend, licensed(tmp_path), **MODULES):
            pass


async def test_an_update_that_one_worker_cannot_take_is_an_error_and_changes_nothing(
    backend: Backend, tmp_path: Path
) -> None:
    lay(tmp_path, "license")
    async with pool_of(backend, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        with raises(InvalidValueError, reason=Reason.ENV_REFUSED, match="no license on this machine"):
            await pool.update_env([licensed(tmp_path)])
        assert pool.status().env_version == 1
        assert num_healthy(pool) == 2
        assert len(await sample(pool, Exactly(2))) == 4


@pytest.mark.parametrize("target", [AtLeast(200), Fragments(240)], ids=["at least", "fragments"])
async def test_an_environment_that_takes_every_worker_with_it_costs_others_only_time(
    ray_backend: RayBackend, target: Target
) -> None:
    slow, deadly = (rollserve.EnvSpec(f"sample_envs:{name}") for name in ("Slow", "Deadly"))
    async with pool_of(ray_backend, slow, workers=3, unit_retries=1, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        expected = await sample(pool, target, seed=1)
        running = asyncio.create_task(sample(pool, target, seed=1))
        with raises(WorkerLostError, reason=Reason.WORKER_LOST_AGAIN):
            await pool.update_env([dataclasses.replace(deadly, kwargs={"num_steps": 0})])
        assert not running.done()
        batch = await running
        assert equal(batch, expected)
        assert batch.account is not None
        assert adds_up(batch.account)
        assert batch.account.retry_reasons["worker_lost"] > 0
        await until(lambda: num_healthy(pool) == 3)
        # Each was lost once, and then one of them three times more.
        assert sum(worker.num_restarts for worker in pool.status().workers) <= 3 + 3
        assert pool.status().env_version == 1


async def test_calls_that_are_bound_to_a_missing_worker_say_so(backend: Backend, tmp_path: Path) -> None:
    async with short_of_one(backend, tmp_path, start_seconds=8.0) as pool:
        await pool.update_agent([RandomSpec()])
        (index,) = (index for index, worker in enumerate(pool.status().workers) if not worker.healthy)
        results = await asyncio.gather(
            sample(pool, Exactly(2)), pool.update_agent([RandomSpec()] * 2, per_worker=True), return_exceptions=True
        )
        for result in results:
            with raises(WorkerLostError, reason=Reason.WORKER_LOST, match=rf"worker {index} .*\b8 s\b.*no license"):
                raise result if isinstance(result, BaseException) else AssertionError
        assert pool.status().policy_version == 1


async def test_fewer_workers_than_the_operator_wants(tmp_path: Path) -> None:
    async with short_of_one(InProcessBackend(), tmp_path, min_healthy_workers=2) as pool:
        asked = (
            lambda: sample(pool, AtLeast(1)),
            lambda: evaluate(pool, 1),
            lambda: pool.update_agent([RandomSpec()]),
            lambda: pool.update_env([CARTPOLE]),
        )
        for ask in asked:
            with raises(TooFewWorkersError, reason=Reason.TOO_FEW_WORKERS, match=r"\b1\b.*\b2\b.*no license"):
                await ask()
        lay(tmp_path, "license")
        await until(lambda: num_healthy(pool) == 2)
        await pool.update_agent([RandomSpec()])
        assert (await sample(pool, AtLeast(1))).num_steps


async def test_more_workers_wanted_than_there_are() -> None:
    with raises(InvalidValueError, field="min_healthy_workers", reason=Reason.INVALID_VALUE):
        async with pool_of(InProcessBackend(), min_healthy_workers=3):
            pass


def test_clients_are_told(tmp_path: Path) -> None:
    lay(tmp_path, "license")
    options = ["--env", "sample_envs:Licensed", "--env-kwargs", f'{{"folder": "{tmp_path}"}}', "--rows", "2"]
    options += ["--workers", "2", "--backend", "in-process", "--min-healthy-workers", "2"]
    log = tmp_path / "server.log"
    with (
        local_server(*options, log=log, environment=server_environment()) as server,
        rollserve.connect(server.address) as sampler,
    ):
        with raises(rollserve.UnavailableError, reason=Reason.TOO_FEW_WORKERS, match=r"\b1\b.*\b2\b") as info:
            sampler.update_agent(rollserve.RandomAgent())
        assert info.value.code is grpc.StatusCode.UNAVAILABLE
        status = sampler.status()
        assert status.min_healthy_workers == 2
        assert status.counters.num_worker_restarts == sum(worker.num_restarts for worker in status.workers)
        (missing,) = (worker for worker in status.workers if not worker.healthy)
        assert "no license on this machine" in missing.last_failure
        assert not missing.has_failed
    assert "no license on this machine" in log.read_text()


class SlowJournal(NoJournal):
    """Takes down nothing before it is let go on; and then refuses to, where that is to be."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = asyncio.Event()
        self.may_go_on = asyncio.Event()
        self.refuses = False

    async def write(self, **_: Any) -> None:
        self.waits.set()
        await self.may_go_on.wait()
        if self.refuses:
            raise SamplerLostError("journal broken by design", reason=Reason.JOURNAL_LOST)


class WithSlowJournal(InProcessBackend):
    def __init__(self) -> None:
        self.journal = SlowJournal()

    async def open_journal(self) -> SlowJournal:
        return self.journal


@pytest.mark.parametrize("kind", ["agent", "env"])
async def test_a_worker_that_comes_while_an_update_is_taken_down_has_it(kind: str) -> None:
    backend = WithSlowJournal()
    backend.journal.may_go_on.set()
    async with pool_of(backend) as pool:
        await pool.update_agent([RandomSpec()])
        backend.journal.waits.clear()
        backend.journal.may_go_on.clear()
        update = pool.update_agent([RandomSpec()]) if kind == "agent" else pool.update_env([CARTPOLE])
        updating = asyncio.create_task(update)  # type: ignore[arg-type]
        await backend.journal.waits.wait()
        slot = slot_of(pool, 1)
        lose_worker(pool, 1)
        await until(lambda: slot.healthy)
        backend.journal.may_go_on.set()
        await updating
        batch = await sample(pool, Exactly(2))
        assert len(batch) == 4


async def test_a_worker_that_comes_has_the_version_that_the_others_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was given that of an update which has failed since, and another one has come under the same number."""
    backend = WithSlowJournal()
    backend.journal.may_go_on.set()
    async with pool_of(backend) as pool:
        for handed in (backend.journal.waits, backend.journal.may_go_on):
            handed.clear()
        failing = asyncio.create_task(pool.update_agent([ConstantSpec({"": np.array(0)})]))
        await backend.journal.waits.wait()
        has_agent, may_make_env = asyncio.Event(), asyncio.Event()
        slot = slot_of(pool, 1)
        create_worker = backend.create_worker

        def create_gated_worker(index: int, config: WorkerSettings) -> WorkerHandle:
            handle: Any = create_worker(index, config)
            call = handle.call

            async def gated_call(method: Any, *arguments: Any) -> Any:
                if method is Worker.add_env:
                    has_agent.set()
                    await may_make_env.wait()
                return await call(method, *arguments)

            handle.call = gated_call
            return handle  # type: ignore[no-any-return]

        monkeypatch.setattr(backend, "create_worker", create_gated_worker)
        lose_worker(pool, 1)
        await has_agent.wait()
        backend.journal.refuses = True
        backend.journal.may_go_on.set()
        with raises(SamplerLostError, match="journal broken by design"):
            await failing
        backend.journal.refuses = False
        assert await pool.update_agent([ConstantSpec({"": np.array(1)})]) == 1
        may_make_env.set()
        await until(lambda: slot.healthy)
        batch = await sample(pool, Exactly(1))
        assert isinstance(batch.actions, np.ndarray)
        assert batch.actions.min() == 1


async def test_one_call_at_a_time_is_sampled_ahead_of() -> None:
    """Although several end at the same time, and wait for what they have counted to be taken down."""
    backend = WithSlowJournal()
    backend.journal.may_go_on.set()
    async with pool_of(backend, rows=2) as pool:
        await pool.update_agent([RandomSpec()])
        backend.journal.waits.clear()
        backend.journal.may_go_on.clear()
        calls = [asyncio.create_task(sample(pool, AtLeast(100), prefetch=True)) for _ in range(2)]
        await until(lambda: num_running(pool) == 0 and backend.journal.waits.is_set())
        await asyncio.sleep(0.2)
        backend.journal.may_go_on.set()
        await asyncio.gather(*calls)
        drivers = [task for task in asyncio.all_tasks() if "_keep_driving" in repr(task)]
        assert len(drivers) == len(pool.status().workers)


async def test_fragments_wait_for_no_worker_of_whom_they_have_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places, backend = Places(tmp_path / "slow"), InProcessBackend()
    async with pool_of(backend, places.env(step_seconds=0.1), rows=1, start_seconds=1.0, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        with places.slow(pool, 1):
            running = asyncio.create_task(sample(pool, Fragments(100)))
            await asyncio.sleep(1)  # all that is missing is of the slow one, which takes longer
            assert not running.done()
            monkeypatch.setattr(backend, "create_worker", no_worker)
            lose_worker(pool, 0)
            assert (await running).num_steps == 100


def no_worker(index: int, _: WorkerSettings) -> WorkerHandle:
    raise WorkerLostError("there is no room", index)
