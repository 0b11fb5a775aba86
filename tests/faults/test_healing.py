"""Replacement of lost workers within a budget of restarts, while the healthy workers deliver."""

from __future__ import annotations

import asyncio
import contextlib
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
from faults.backends import SLOW_ON_RAY
from faults.killable import NOTICE_SECONDS, KillableBackend, kill_worker
from pools import CARTPOLE, adds_up, evaluate, kill_one, pool_of, sample, until
from support import equal, raises, server_environment
from unreliable import Places

import rollserve
from rollserve import Reason
from rollserve_server.agents import ConstantSpec, RandomSpec
from rollserve_server.errors import InvalidValueError, SamplerLostError, TooFewWorkersError, WorkerLostError
from rollserve_server.local import local_server
from rollserve_server.pool import AtLeast, Backend, Exactly, Fragments, InProcessBackend, Pool, Target, WorkerHandle
from rollserve_server.pool.workers.restarts import Restarts
from rollserve_server.sampling import Worker
from rollserve_server.settings import WorkerSettings

MODULES: dict[str, Any] = {"allow_module": ("sample_envs",)}


def licensed(folder: Path, length: int = 3) -> rollserve.EnvSpec:
    return rollserve.EnvSpec("sample_envs:Licensed", {"folder": str(folder), "length": length})


@asynccontextmanager
async def short_of_one(backend: Backend, folder: Path, **changes: Any) -> AsyncIterator[Pool]:
    """A pool of two workers with one license: one of them cannot make its environments until a test adds another."""
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


def test_excused_restarts_are_delayed_but_not_limited() -> None:
    restarts = Restarts(per_hour=2)
    restarts.begin(0)
    restarts.excuse(2)  # the second has not begun yet
    restarts.begin(1)
    restarts.begin(2)
    assert not restarts.forbidden_seconds(2)
    assert restarts.pause_seconds(2) == 1
    restarts.begin(3)
    assert restarts.forbidden_seconds(3) == 3599
    restarts.excuse(1)
    assert not restarts.forbidden_seconds(3)
    assert restarts.count == 4


async def test_killed_idle_worker_is_replaced(ray_backend: Backend) -> None:
    async with pool_of(ray_backend, step_seconds=0.4) as pool:
        before = pool.status().workers[0].identity
        os.kill(before.process_id, signal.SIGKILL)
        await until(lambda: num_healthy(pool) == 1)
        await until(lambda: num_healthy(pool) == 2)
        worker = pool.status().workers[0]
        assert worker.identity.process_id != before.process_id
        assert worker.num_restarts == 1
        assert worker.last_failure.startswith("worker 0 ")


@pytest.mark.slow
async def test_call_delivers_the_same_while_workers_are_killed(ray_backend: Backend) -> None:
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
        assert adds_up(batch.account)
        assert batch.account.retry_reasons == {"worker_lost": batch.account.num_retried_episodes}
        assert batch.account.num_retried_episodes > 0
        await until(lambda: num_healthy(pool) == 3)
        assert 0 < sum(worker.num_restarts for worker in pool.status().workers) <= num_kills


async def test_worker_is_given_up_when_its_restarts_are_used_up() -> None:
    backend = KillableBackend()
    async with pool_of(backend, worker_restarts_per_hour=1, **NOTICE_SECONDS) as pool:
        await pool.update_agent([RandomSpec()])
        expected = await sample(pool, AtLeast(2000), seed=1)
        for _ in range(2):
            await kill_worker(pool, backend, 1)
        assert pool.status().workers[1].given_up
        assert equal(await sample(pool, AtLeast(2000), seed=1), expected)
        await pool.update_agent([RandomSpec()])
        with raises(WorkerLostError, reason=Reason.WORKER_LOST, match="worker 1 "):
            await sample(pool, Fragments(80), seed=1)
        assert num_healthy(pool) == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["evaluation", "update"])
async def test_calls_and_updates_that_cost_workers_do_not_use_up_their_restarts(
    ray_backend: Backend, kind: str
) -> None:
    settings = {"worker_restarts_per_hour": 3, "unit_retries": 0, **MODULES}
    deadly = rollserve.EnvSpec("sample_envs:Deadly", {"num_steps": 20 if kind == "evaluation" else 0})
    async with pool_of(ray_backend, **settings) as pool:
        await pool.update_agent([RandomSpec()])
        before = await sample(pool, AtLeast(50), seed=1)
        for _ in range(3):
            with raises(WorkerLostError, reason=Reason.WORKER_LOST_AGAIN):
                await (evaluate(pool, 4, env=deadly) if kind == "evaluation" else pool.update_env([deadly]))
        assert sum(worker.num_restarts for worker in pool.status().workers) > 6
        assert not any(worker.given_up for worker in pool.status().workers)
        assert equal(await sample(pool, AtLeast(50), seed=1), before)


async def test_given_up_worker_is_replaced_after_the_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = KillableBackend()
    async with pool_of(backend, worker_restarts_per_hour=1, workers=1, **NOTICE_SECONDS) as pool:
        await pool.update_agent([RandomSpec()])
        for _ in range(2):
            await kill_worker(pool, backend, 0)
        assert pool.status().workers[0].given_up
        monkeypatch.setattr(Restarts, "forbidden_seconds", lambda *_: 0.0)  # as an hour later
        await until(lambda: num_healthy(pool) == 1)
        assert len(await sample(pool, Exactly(2), seed=1)) == 2
        assert not pool.status().workers[0].given_up


@SLOW_ON_RAY
async def test_pool_delivers_the_same_while_one_worker_cannot_make_its_environment(
    backend: Backend, tmp_path: Path
) -> None:
    """The other worker takes updates meanwhile, and the missing one gets them when its environment can be made."""
    async with short_of_one(backend, tmp_path) as pool:
        await pool.update_agent([RandomSpec()])
        (missing,) = (worker for worker in pool.status().workers if not worker.healthy)
        assert "FileNotFoundError: no license on this machine" in missing.last_failure
        batch = await sample(pool, AtLeast(500), seed=1)
        assert (await pool.update_env([licensed(tmp_path, length=7)])).version == 2
        await pool.update_agent([RandomSpec()])
        longer = await sample(pool, AtLeast(500), seed=1)
        assert set(longer.lengths.tolist()) == {7}
        waiting = asyncio.create_task(sample(pool, Fragments(80), seed=1))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        lay(tmp_path, "license")
        assert (await waiting).num_steps == 80
        assert num_healthy(pool) == 2
        assert equal(await sample(pool, AtLeast(500), seed=1), longer)
        assert equal(await sample(pool, AtLeast(500), seed=1, env_version=1, policy_version=1), batch)


async def test_pool_does_not_start_if_no_worker_can_make_the_environment(backend: Backend, tmp_path: Path) -> None:
    with raises(InvalidValueError, reason=Reason.ENV_REFUSED, match="no license on this machine"):
        async with pool_of(backend, licensed(tmp_path), **MODULES):
            pass


@SLOW_ON_RAY
async def test_env_update_that_one_worker_rejects_changes_nothing(backend: Backend, tmp_path: Path) -> None:
    lay(tmp_path, "license")
    async with pool_of(backend, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        with raises(InvalidValueError, reason=Reason.ENV_REFUSED, match="no license on this machine"):
            await pool.update_env([licensed(tmp_path)])
        assert pool.status().env_version == 1
        assert num_healthy(pool) == 2
        assert len(await sample(pool, Exactly(2))) == 4


class DeadlyUpdateBackend(KillableBackend):
    """Workers that die when they are to make `Deadly`."""

    def create_worker(self, worker_index: int, settings: WorkerSettings) -> WorkerHandle:
        handle: Any = super().create_worker(worker_index, settings)
        call = handle.call

        async def deadly_call(method: Any, *arguments: Any) -> Any:
            if method is Worker.add_env and "Deadly" in repr(arguments):
                handle.kill()
            return await call(method, *arguments)

        handle.call = deadly_call
        return handle  # type: ignore[no-any-return]


@pytest.mark.slow
async def test_env_update_that_kills_every_worker_fails_and_leaves_calls_running() -> None:
    await check_deadly_update(DeadlyUpdateBackend(), rollserve.EnvSpec("sample_envs:Deadly"), AtLeast(200))


@pytest.mark.slow
@pytest.mark.parametrize("target", [AtLeast(200), Fragments(240)], ids=["at least", "fragments"])
async def test_env_update_that_kills_every_process_fails_and_leaves_calls_running(
    ray_backend: Backend, target: Target
) -> None:
    await check_deadly_update(ray_backend, rollserve.EnvSpec("sample_envs:Deadly", {"num_steps": 0}), target)


async def check_deadly_update(backend: Backend, deadly: rollserve.EnvSpec, target: Target) -> None:
    slow, same = (rollserve.EnvSpec("sample_envs:Slow", {"step_seconds": seconds}) for seconds in (0.1, 0.0))
    async with pool_of(InProcessBackend(), same, workers=3, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        expected = await sample(pool, target, seed=1)
    async with pool_of(backend, slow, workers=3, unit_retries=1, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        running = asyncio.create_task(sample(pool, target, seed=1))
        with raises(WorkerLostError, reason=Reason.WORKER_LOST_AGAIN):
            await pool.update_env([deadly])
        assert not running.done()
        batch = await running
        assert equal(batch, expected)
        assert adds_up(batch.account)
        assert batch.account.retry_reasons["worker_lost"] > 0
        await until(lambda: num_healthy(pool) == 3)
        # All 3 are lost in the first round, and then one of them in each of 3 more.
        assert sum(worker.num_restarts for worker in pool.status().workers) <= 3 + 3
        assert pool.status().env_version == 1


@pytest.mark.parametrize(
    ("backend", "start_seconds"),
    [("in-process", 2.0), pytest.param("ray", 20.0, marks=pytest.mark.slow)],
    indirect=["backend"],
)
async def test_calls_bound_to_a_missing_worker_fail_after_its_time_to_start(
    backend: Backend, tmp_path: Path, start_seconds: float
) -> None:
    async with short_of_one(backend, tmp_path, start_seconds=start_seconds) as pool:
        await pool.update_agent([RandomSpec()])
        (index,) = (index for index, worker in enumerate(pool.status().workers) if not worker.healthy)
        results = await asyncio.gather(
            sample(pool, Fragments(8)), pool.update_agent([RandomSpec()] * 2, per_worker=True), return_exceptions=True
        )
        for result in results:
            with raises(
                WorkerLostError,
                reason=Reason.WORKER_LOST,
                match=rf"worker {index} .*\b{start_seconds:g} s\b.*no license",
            ):
                raise result if isinstance(result, BaseException) else AssertionError
        assert pool.status().policy_version == 1


async def test_calls_and_updates_are_rejected_below_min_healthy_workers(tmp_path: Path) -> None:
    async with short_of_one(InProcessBackend(), tmp_path, min_healthy_workers=2) as pool:
        requests = (
            lambda: sample(pool, AtLeast(1)),
            lambda: evaluate(pool, 1),
            lambda: pool.update_agent([RandomSpec()]),
            lambda: pool.update_env([CARTPOLE]),
        )
        for request in requests:
            with raises(TooFewWorkersError, reason=Reason.TOO_FEW_WORKERS, match=r"\b1\b.*\b2\b.*no license"):
                await request()
        lay(tmp_path, "license")
        await until(lambda: num_healthy(pool) == 2)
        await pool.update_agent([RandomSpec()])
        assert (await sample(pool, AtLeast(1))).num_steps


async def test_min_healthy_workers_above_the_number_of_workers_is_rejected() -> None:
    with raises(InvalidValueError, field="min_healthy_workers", reason=Reason.INVALID_VALUE):
        async with pool_of(InProcessBackend(), min_healthy_workers=3):
            pass


def test_clients_get_the_status_of_missing_workers(tmp_path: Path) -> None:
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


class SlowJournalBackend(KillableBackend):
    """Workers in threads, and a journal whose writes wait for the test.

    Attributes:
        num_waiting: number of writes that wait.
        is_open: set while writes need not wait.
        fails: whether writes that have waited fail.
    """

    def __init__(self) -> None:
        super().__init__()
        self.num_waiting = 0
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.fails = False

    async def open_journal(self, check: Any) -> Any:
        journal: Any = await super().open_journal(check)
        journal.write = self._write
        return journal

    async def _write(self, **_: Any) -> None:
        self.num_waiting += 1
        await self.is_open.wait()
        self.num_waiting -= 1
        if self.fails:
            raise SamplerLostError("journal broken by design", reason=Reason.JOURNAL_LOST)


@pytest.mark.parametrize("kind", ["agent", "env"])
async def test_worker_replaced_while_an_update_is_written_gets_the_update(kind: str) -> None:
    backend = SlowJournalBackend()
    async with pool_of(backend, **NOTICE_SECONDS) as pool:
        await pool.update_agent([RandomSpec()])
        backend.is_open.clear()
        update = pool.update_agent([RandomSpec()]) if kind == "agent" else pool.update_env([CARTPOLE])
        updating = asyncio.create_task(update)  # type: ignore[arg-type]
        await until(lambda: backend.num_waiting == 1)
        await kill_worker(pool, backend, 1)
        backend.is_open.set()
        await updating
        batch = await sample(pool, Exactly(2))
        assert len(batch) == 4


async def test_replacement_forgets_an_update_that_failed_while_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next update has the number of the failed one, and replaces what the new worker got of it."""
    backend = SlowJournalBackend()
    async with pool_of(backend, **NOTICE_SECONDS) as pool:
        backend.is_open.clear()
        failing = asyncio.create_task(pool.update_agent([ConstantSpec({"": np.array(0)})]))
        await until(lambda: backend.num_waiting == 1)
        has_agent, may_go_on = asyncio.Event(), asyncio.Event()
        create_worker = backend.create_worker

        def create_gated_worker(index: int, settings: WorkerSettings) -> WorkerHandle:
            handle: Any = create_worker(index, settings)
            call = handle.call

            async def gated_call(method: Any, *arguments: Any) -> Any:
                result = await call(method, *arguments)
                if method is Worker.add_agent:
                    has_agent.set()
                    await may_go_on.wait()
                return result

            handle.call = gated_call
            return handle  # type: ignore[no-any-return]

        monkeypatch.setattr(backend, "create_worker", create_gated_worker)
        backend.kill(1)
        await has_agent.wait()
        backend.fails = True
        backend.is_open.set()
        with raises(SamplerLostError, match="journal broken by design"):
            await failing
        backend.fails = False
        assert (await pool.update_agent([ConstantSpec({"": np.array(1)})])).version == 1
        may_go_on.set()
        await until(lambda: num_healthy(pool) == 2)
        batch = await sample(pool, Exactly(1))
        assert isinstance(batch.actions, np.ndarray)
        assert batch.actions.min() == 1


async def test_prefetch_runs_for_one_call_at_a_time() -> None:
    """Two calls end at the same time, and wait until their counters are written."""
    backend = SlowJournalBackend()
    async with pool_of(backend, rows=2) as pool:
        await pool.update_agent([RandomSpec()])
        backend.is_open.clear()
        calls = [asyncio.create_task(sample(pool, AtLeast(100), prefetch=True)) for _ in range(2)]
        await until(lambda: backend.num_waiting == 2)
        await asyncio.sleep(0.2)
        backend.is_open.set()
        await asyncio.gather(*calls)
        drivers = [task for task in asyncio.all_tasks() if "Call._drive()" in repr(task)]
        assert len(drivers) == len(pool.status().workers)


async def test_fragment_call_does_not_wait_for_a_lost_worker_that_has_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places, backend = Places(tmp_path / "slow"), KillableBackend()
    env = places.env(step_seconds=0.05)
    async with pool_of(backend, env, rows=1, start_seconds=1.0, **NOTICE_SECONDS, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        with places.slow(pool, 1):
            running = asyncio.create_task(sample(pool, Fragments(100)))
            await asyncio.sleep(1)  # the fast worker has delivered, and the slow one takes 2.5 s
            assert not running.done()
            monkeypatch.setattr(backend, "create_worker", no_worker)
            backend.kill(0)
            assert (await running).num_steps == 100


def no_worker(index: int, _: WorkerSettings) -> WorkerHandle:
    raise WorkerLostError("there is no room", index)


async def test_replacement_installs_only_what_calls_need_while_an_update_waits() -> None:
    backend = KillableBackend()
    async with pool_of(backend, workers=1, **NOTICE_SECONDS) as pool:
        await pool.update_agent([RandomSpec()])
        expected = await sample(pool, AtLeast(100), seed=1)
        backend.kill(0)
        await pool.update_env([rollserve.EnvSpec("Acrobot-v1")])
        assert await backend.handles[0].call(Worker.installed_versions) == ({2}, set())
        assert equal(await sample(pool, AtLeast(100), seed=1, env_version=1), expected)
        assert await backend.handles[0].call(Worker.installed_versions) == ({1, 2}, {1})


@pytest.mark.parametrize("how", [pytest.param("in its construction", marks=pytest.mark.slow), "by a signal"])
async def test_environment_that_ends_workers_later_can_be_replaced(
    how: str, ray_backend: Backend, without_recycling: None, tmp_path: Path
) -> None:
    kwargs = {"file": str(tmp_path / "end")} if how == "in its construction" else {"seconds": 0.2}
    env = rollserve.EnvSpec("sample_envs:EndsWorkersLater", kwargs)
    async with pool_of(ray_backend, env, workers=1, rows=1, **NOTICE_SECONDS, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        await sample(pool, AtLeast(1))
        (tmp_path / "end").touch()
        if how == "in its construction":
            os.kill(pool.status().workers[0].identity.process_id, signal.SIGKILL)
        await until(lambda: pool.status().workers[0].num_restarts > 0)
        async with asyncio.timeout(30):
            await pool.update_env([CARTPOLE])
        await pool.update_agent([RandomSpec()])
        assert (await sample(pool, AtLeast(100))).num_steps >= 100


async def test_update_gets_through_while_calls_cost_one_worker_after_the_other(
    ray_backend: Backend, without_recycling: None
) -> None:
    env = rollserve.EnvSpec("sample_envs:Deadly")

    async def call_again(pool: Pool) -> None:
        while True:
            with contextlib.suppress(WorkerLostError):
                await sample(pool, AtLeast(1000), env_version=1)
            await asyncio.sleep(0)

    async with pool_of(ray_backend, env, workers=1, rows=1, **NOTICE_SECONDS, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        calls = [asyncio.create_task(call_again(pool)) for _ in range(8)]
        await until(lambda: pool.status().workers[0].num_restarts > 0)
        await pool.update_env([CARTPOLE])
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        await pool.update_agent([RandomSpec()])
        assert (await sample(pool, AtLeast(100))).num_steps >= 100


async def test_update_replaces_workers_that_are_all_given_up() -> None:
    backend = KillableBackend()
    async with pool_of(backend, workers=1, worker_restarts_per_hour=1, **NOTICE_SECONDS) as pool:
        await kill_worker(pool, backend, 0)
        await kill_worker(pool, backend, 0)
        assert pool.status().workers[0].given_up
        async with asyncio.timeout(20):
            await pool.update_env([CARTPOLE])
        assert num_healthy(pool) == 1


@pytest.mark.parametrize(
    "how", ["files", *(pytest.param(how, marks=pytest.mark.slow) for how in ("maker", "processes"))]
)
async def test_worker_whose_process_is_spoiled_is_replaced(
    how: str, ray_backend: Backend, without_recycling: None
) -> None:
    env = rollserve.EnvSpec("sample_envs:Spoiling", {"how": how})
    async with pool_of(ray_backend, env, workers=1, rows=1, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        await sample(pool, AtLeast(1))
        async with asyncio.timeout(60):
            await pool.update_env([CARTPOLE])
        assert pool.status().workers[0].num_restarts == 1
        assert "worker 0 failed: " in pool.status().workers[0].last_failure
        await pool.update_agent([RandomSpec()])
        assert (await sample(pool, AtLeast(100))).num_steps >= 100
