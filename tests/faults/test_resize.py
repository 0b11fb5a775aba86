"""Resizing a pool while it runs: no call is disturbed, and calls deliver what they would have delivered."""

from __future__ import annotations

import asyncio
import functools
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from cutting_proxy import cutting_proxy
from faults.backends import SLOW_ON_RAY
from faults.killable import NOTICE_SECONDS, KillableBackend
from faults.running import begin_to_sample
from pools import (
    CARTPOLE,
    adds_up,
    calls_of,
    evaluate,
    evaluate_population,
    kill_one,
    num_running,
    pool_of,
    sample,
    until,
)
from support import equal, raises, server_environment

import rollserve
from rollserve import Reason
from rollserve_server.agents import MlpSpec, RandomSpec
from rollserve_server.errors import InvalidValueError, NotReadyError, OverLimitError, WorkerLostError
from rollserve_server.local import LocalServer, local_server
from rollserve_server.pool import AtLeast, Backend, Exactly, Fragments, InProcessBackend, Pool, Target
from rollserve_server.sampling import Worker
from rollserve_server.settings import WorkerSettings

ROLLSERVE = Path(sys.executable).with_name("rollserve")
MODULES = {"allow_module": ("sample_envs",)}
RAGGED = rollserve.EnvSpec("sample_envs:Ragged")
NATIVE = rollserve.EnvSpec("CartPole-v1", vectorization="native", num_rows=4, num_episodes_per_row=2)
NUM_ROWS = 2
SEED = 11


def watched(folder: Path, step_seconds: float = 0.0) -> rollserve.EnvSpec:
    return rollserve.EnvSpec("sample_envs:Watched", {"folder": str(folder), "step_seconds": step_seconds})


def mlp(seed: int = 0) -> MlpSpec:
    """An agent for `RAGGED` and `watched` environments."""
    observations = rollserve.spaces.Box(np.float64(-np.inf), np.float64(np.inf), (2,), np.dtype(np.float64))
    actions = rollserve.spaces.Discrete(3, start=2)
    agent = rollserve.MlpAgent.initial(observations, actions, seed=seed)
    return MlpSpec(agent.layer_sizes, agent.activation, agent.head, agent.parameters)


def members(agent: MlpSpec, count: int) -> dict[str, np.ndarray]:
    """The parameters of `count` agents that differ a little."""
    scales = 1 + np.arange(count, dtype=np.float32) / 8
    return {name: np.stack([value * scale for scale in scales]) for name, value in agent.parameters.items()}


def sizes_of(pool: Pool) -> tuple[int, int]:
    """The numbers of workers that stay and that are leaving."""
    workers = pool.status().workers
    staying = [worker.index for worker in workers if not worker.is_leaving]
    assert staying == list(range(len(staying)))
    return len(staying), len(workers) - len(staying)


def owners(folder: Path) -> set[int]:
    """Return the processes with open environments: each has a file in the folder, where killed ones leave theirs."""
    return {process for file in folder.iterdir() if psutil.pid_exists(process := int(file.name.partition(".")[0]))}


def process_ids(pool: Pool) -> set[int]:
    return {worker.identity.process_id for worker in pool.status().workers}


async def until_ended(pool: Pool, before: set[int]) -> None:
    """Wait until all former processes of the pool have ended."""
    left = [psutil.Process(each) for each in before - process_ids(pool) if psutil.pid_exists(each)]
    await until(lambda: not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in left))


def account_of(result: Any) -> Any:
    """Return the account of a result, and check that it adds up."""
    assert adds_up(result.account)
    return result.account


def are_equal(first: Any, second: Any) -> bool:
    """Whether two results of the same call hold the same episodes."""
    account_of(first)
    account_of(second)
    if isinstance(first, rollserve.EpisodeBatch):
        return equal(first, second)
    return bool(first.outcomes == second.outcomes)


def calls(pool: Pool, num_workers: int) -> list[Callable[[], Coroutine[Any, Any, Any]]]:
    """Calls of each kind, whose results depend on the number of workers alone."""
    targets: list[Any] = [AtLeast(300), Exactly(6), Fragments(num_workers * NUM_ROWS * 30)]
    return [
        *(functools.partial(sample, pool, target, seed=SEED) for target in targets),
        lambda: evaluate(pool, 30),
        lambda: evaluate_population(pool, members(mlp(), 6), 12),
    ]


async def expected_of(num_workers: int) -> list[Any]:
    """The results of these calls in a pool that nothing disturbs."""
    async with pool_of(InProcessBackend(), RAGGED, workers=num_workers, rows=NUM_ROWS, **MODULES) as pool:
        await pool.update_agent([mlp()])
        return [await call() for call in calls(pool, num_workers)]


@pytest.mark.usefixtures("without_recycling")
@pytest.mark.parametrize(
    ("backend", "before", "after"),
    [
        ("in-process", 3, 1),
        ("in-process", 1, 3),
        pytest.param("ray", 3, 1, marks=pytest.mark.slow),
        pytest.param("ray", 1, 3, marks=pytest.mark.slow),
    ],
    indirect=["backend"],
)
async def test_running_calls_keep_their_workers_during_a_resize(
    backend: Backend, tmp_path: Path, before: int, after: int
) -> None:
    expected = {num_workers: await expected_of(num_workers) for num_workers in (before, after)}
    env = watched(tmp_path, step_seconds=0.001)
    async with pool_of(backend, env, workers=before, rows=NUM_ROWS, **MODULES) as pool:
        await pool.update_agent([mlp()])
        processes = process_ids(pool)
        slow = tmp_path / "slow"  # so that no call ends before all have begun
        slow.touch()
        running = [asyncio.create_task(call()) for call in calls(pool, before)]
        await until(lambda: num_running(pool) == len(running))
        assert await pool.resize(after) == before
        if after < before:
            assert sizes_of(pool) == (after, before - after)
        slow.unlink()
        results = await asyncio.gather(*running)
        assert all(are_equal(*pair) for pair in zip(results, expected[before], strict=True))
        assert [len(result.account.workers) for result in results] == [before] * len(results)
        await until(lambda: sizes_of(pool) == (after, 0))
        simulated = sum(result.account.num_simulated_steps for result in results)
        results = [await call() for call in calls(pool, after)]
        assert all(are_equal(*pair) for pair in zip(results, expected[after], strict=True))
        assert equal(results[0], expected[before][0])  # at least N steps are the same with any number of workers
        assert [len(result.account.workers) for result in results] == [after] * len(results)
        if not isinstance(backend, InProcessBackend):
            await until_ended(pool, processes)
            assert owners(tmp_path) == process_ids(pool)
        simulated += sum(result.account.num_simulated_steps for result in results)
        assert pool.status().num_simulated_steps == simulated
    assert not owners(tmp_path)


@SLOW_ON_RAY
@pytest.mark.parametrize("env", [CARTPOLE, NATIVE], ids=["rows", "native"])
async def test_own_sequence_continues_through_resizes(backend: Backend, env: rollserve.EnvSpec) -> None:
    """Accounts count prefetched episodes, whichever worker held them."""
    async with pool_of(backend, env, workers=2) as pool, pool_of(InProcessBackend(), env) as other:
        for each in (pool, other):
            await each.update_agent([RandomSpec()])
        begun = calls_of(pool)
        batches = [await sample(pool, AtLeast(2000), prefetch=True)]
        prefetch = begun[-1].account
        await until(lambda: prefetch.num_simulated_steps > 0)
        await pool.resize(1)  # while workers prefetch
        batches.append(await sample(pool, AtLeast(300)))
        kept, account = account_of(batches[0]).num_kept_steps, account_of(batches[1])
        assert account.num_prefetched_steps == prefetch.num_simulated_steps
        # Steps of rows that only waited for others were never held, so that nothing supersedes them.
        num_held_steps = kept + prefetch.num_simulated_steps - prefetch.num_idle_steps
        assert account.num_superseded_steps >= num_held_steps > 0
        assert account.num_idle_steps >= prefetch.num_idle_steps
        await pool.resize(3)  # while they hold what the last call left
        running = await begin_to_sample(pool, AtLeast(8000))
        await pool.resize(2)  # while a call runs
        batches += [await running, await sample(pool, AtLeast(300))]
        accounts = [account_of(batch) for batch in batches]
        assert len({account.seed for account in accounts}) == 1
        whole = rollserve.EpisodeBatch.concatenate(*batches)
        assert np.array_equal(whole.episode_indices, np.arange(len(whole)))
        assert equal(whole, await sample(other, AtLeast(whole.num_steps), seed=accounts[0].seed))
        # No worker of a former size is left.
        await until(lambda: sizes_of(pool) == (2, 0))


@SLOW_ON_RAY
async def test_row_sequences_begin_again_after_a_resize(backend: Backend) -> None:
    async with pool_of(backend, CARTPOLE, workers=2, rows=2) as pool:
        await pool.update_agent([RandomSpec()])
        first, second = [await sample(pool, Fragments(80)) for _ in range(2)]
        await sample(pool, Fragments(80), seed=5)
        assert account_of(second).seed == account_of(first).seed
        running = await begin_to_sample(pool, Fragments(20_000))
        await pool.resize(3)
        assert account_of(await running).seed == account_of(first).seed
        with raises(
            NotReadyError, field="fragments.row_step_count", reason=Reason.ROW_STEP_COUNT, match=r"\b20\b.*workers"
        ):
            await sample(pool, Fragments(120, row_step_count=20), seed=5)
        third, fourth = [await sample(pool, Fragments(120)) for _ in range(2)]
        assert account_of(third).seed != account_of(first).seed
        assert (account_of(third).row_step_count, account_of(fourth).row_step_count) == (0, 20)
        assert account_of(third).num_carried_steps == 0
        # A row sequence from its beginning is the same in any pool of this size.
        batch = await sample(pool, Fragments(120), seed=5)
    async with pool_of(InProcessBackend(), CARTPOLE, workers=3, rows=2) as other:
        await other.update_agent([RandomSpec()])
        assert equal(batch, await sample(other, Fragments(120), seed=5))


@SLOW_ON_RAY
async def test_call_is_rejected_if_the_number_of_workers_is_not_the_expected_one(backend: Backend) -> None:
    async with pool_of(backend) as pool:
        await pool.update_agent([RandomSpec()])
        exact = await sample(pool, Exactly(5), seed=1, num_workers=2)
        await pool.resize(1)
        for target in (Exactly(5), AtLeast(5), Fragments(4)):
            with raises(NotReadyError, field="options.worker_count", reason=Reason.WORKER_COUNT):
                await sample(pool, target, seed=1, num_workers=2)  # type: ignore[arg-type]
        await pool.resize(2)
        assert equal(exact, await sample(pool, Exactly(5), seed=1, num_workers=2))


@SLOW_ON_RAY
async def test_resize_is_rejected_while_workers_differ(backend: Backend) -> None:
    async with pool_of(backend, RAGGED, rows=NUM_ROWS, **MODULES) as pool:
        await pool.update_agent([mlp(1), mlp(2)], per_worker=True)
        before = await sample(pool, AtLeast(200), seed=3)
        evaluated = await evaluate(pool, 10)
        for num_workers in (1, 3):
            with raises(NotReadyError, reason=Reason.WORKERS_DIFFER, match="agents"):
                await pool.resize(num_workers)
        assert await pool.resize(2) == 2  # nothing changes
        assert equal(before, await sample(pool, AtLeast(200), seed=3))
        await pool.update_agent([mlp(1)])
        await pool.update_env([RAGGED, rollserve.EnvSpec("sample_envs:Ragged", {"max_length": 7})], per_worker=True)
        with raises(NotReadyError, reason=Reason.WORKERS_DIFFER, match="environments"):
            await pool.resize(1)
        assert sizes_of(pool) == (2, 0)
        await pool.update_env([RAGGED])
        assert await pool.resize(3) == 2
        # Versions from before have one agent for each of two workers.
        for call in (
            lambda: sample(pool, AtLeast(200), seed=3, policy_version=1, env_version=1),
            lambda: evaluate(pool, 10, policy_version=1),
        ):
            with raises(NotReadyError, field="options.policy_version", reason=Reason.WORKER_COUNT):
                await call()
        assert len(pool.agents.parameters(1, 1)[1]) == len(pool.agents.parameters(2, 2)[1])
        await pool.resize(2)
        assert equal(before, await sample(pool, AtLeast(200), seed=3, policy_version=1, env_version=1))
        assert (await evaluate(pool, 10, policy_version=1, env_version=1)).outcomes == evaluated.outcomes


class Cramped:
    """A backend with room for a few workers: others never start.

    Attributes:
        num_places: number of workers that start.
        num_waiting: number of workers that have not started and are not killed.
    """

    def __init__(self, backend: Backend, num_places: int) -> None:
        self.num_places, self.num_waiting = num_places, 0
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def create_worker(self, worker_index: int, settings: WorkerSettings) -> Any:
        if worker_index < self.num_places:
            return self._backend.create_worker(worker_index, settings)
        self.num_waiting += 1
        return _NeverStarts(self)


class _NeverStarts:
    def __init__(self, backend: Cramped) -> None:
        self._backend = backend
        self._is_killed = False

    async def call(self, *_: Any) -> Any:
        await asyncio.Event().wait()

    def kill(self, error: Exception | None = None) -> None:
        self._backend.num_waiting -= not self._is_killed
        self._is_killed = True


@pytest.mark.parametrize(
    ("backend", "start_seconds"),
    [("in-process", 2.0), pytest.param("ray", 20.0, marks=pytest.mark.slow)],
    indirect=["backend"],
)
async def test_resize_without_room_changes_nothing(backend: Backend, start_seconds: float, tmp_path: Path) -> None:
    cramped: Any = Cramped(backend, 3)
    env = watched(tmp_path)
    limits = {"max_workers": 5, "start_seconds": start_seconds}
    async with pool_of(cramped, env, rows=NUM_ROWS, **limits, **MODULES) as pool:
        await pool.update_agent([mlp()])
        before = [await sample(pool, target, seed=3) for target in (AtLeast(200), Exactly(5))]
        kept = await sample(pool, Fragments(80))
        resizing = asyncio.create_task(pool.resize(4))
        await until(lambda: cramped.num_waiting == 1)
        # Meanwhile the pool serves calls with the workers that it has.
        assert all(equal(*pair) for pair in zip(before, [await repeated(pool, batch) for batch in before], strict=True))
        with raises(WorkerLostError, reason=Reason.WORKER_LOST, match=rf"worker [23] .*\b{start_seconds:g} s\b"):
            await resizing
        with raises(OverLimitError, field="worker_count", reason=Reason.TOO_MANY_WORKERS, match=r"\b5\b"):
            await pool.resize(6)
        cancelled = asyncio.create_task(pool.resize(4))
        await until(lambda: cramped.num_waiting == 1)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        assert cancelled.cancelled()
        assert cramped.num_waiting == 0
        assert sizes_of(pool) == (2, 0)
        await until(lambda: owners(tmp_path) <= process_ids(pool))
        after = await sample(pool, Fragments(80))
        assert (account_of(after).seed, account_of(after).row_step_count) == (account_of(kept).seed, 20)
        cramped.num_places = 4
        assert await pool.resize(4) == 2
        assert equal(before[0], await sample(pool, AtLeast(200), seed=3))


async def repeated(pool: Pool, batch: rollserve.EpisodeBatch) -> rollserve.EpisodeBatch:
    """Repeat a call with the seed that it had."""
    is_exact = batch.worker_indices is not None
    target: Target = Exactly(len(batch) // 2) if is_exact else AtLeast(batch.num_steps)
    return await sample(pool, target, seed=account_of(batch).seed)


@SLOW_ON_RAY
async def test_resizes_and_updates_run_one_after_the_other(backend: Backend) -> None:
    async with pool_of(backend, RAGGED, rows=NUM_ROWS, **MODULES) as pool:
        await pool.update_agent([mlp(1)])
        expected = await sample(pool, AtLeast(300), seed=3)
        short = rollserve.EnvSpec("sample_envs:Ragged", {"max_length": 4})
        sizes: list[Any] = await asyncio.gather(
            pool.resize(3),
            pool.update_agent([mlp(2)]),
            pool.resize(1),
            pool.update_env([rollserve.EnvSpec("sample_envs:Ragged", {"max_length": 5})]),
            evaluate(pool, 10, env=short),
            pool.resize(2),
        )
        assert [sizes[0], sizes[2], sizes[5]] == [2, 3, 1]
        assert sizes_of(pool)[0] == 2
        assert (
            sizes[4].outcomes
            == (await evaluate(pool, 10, env=short, policy_version=sizes[4].account.policy_version)).outcomes
        )
        status = pool.status()
        assert (status.policy_version, status.env_version) == (2, 2)
        assert (await sample(pool, AtLeast(100), seed=3)).lengths.max() <= 5
        assert equal(expected, await sample(pool, AtLeast(300), seed=3, policy_version=1, env_version=1))
        with raises(InvalidValueError, field="per_worker.updates", reason=Reason.INVALID_VALUE, match=r"\b2\b"):
            await pool.update_agent([mlp(1)] * 3, per_worker=True)


@SLOW_ON_RAY
@pytest.mark.usefixtures("without_recycling")
async def test_calls_deliver_the_same_through_random_resizes(backend: Backend) -> None:
    source = random.Random(3)
    async with pool_of(InProcessBackend(), RAGGED, workers=1, rows=3, **MODULES) as pool:
        await pool.update_agent([mlp(1)])
        expected = [await sample(pool, AtLeast(1500), seed=seed) for seed in range(3)]
        outcomes = (await evaluate(pool, 60)).outcomes
    async with pool_of(backend, RAGGED, workers=2, rows=3, **MODULES) as pool:
        await pool.update_agent([mlp(1)])
        processes = process_ids(pool)
        stopping = asyncio.Event()

        async def client(seed: int) -> int:
            num_calls = 0
            while not stopping.is_set():
                batch = await sample(pool, AtLeast(1500), seed=seed)
                assert adds_up(account_of(batch))
                assert equal(batch, expected[seed])
                assert (await evaluate(pool, 60)).outcomes == outcomes
                exact = await sample(pool, Exactly(3))
                assert len(exact) == 3 * len(account_of(exact).workers)
                rows = await sample(pool, Fragments(144))
                assert rows.num_steps == 144  # a multiple of 3 rows for 1 to 4 workers
                num_calls += 1
            return num_calls

        clients = [asyncio.create_task(client(seed)) for seed in range(3)]
        for _ in range(20 if isinstance(backend, InProcessBackend) else 5):
            await pool.resize(source.choice([1, 2, 3, 4]))
            processes |= process_ids(pool)
            await asyncio.sleep(source.random() / 5)
        stopping.set()
        assert all(await asyncio.gather(*clients))
        await pool.resize(1)
        await until(lambda: sizes_of(pool) == (1, 0))
        if not isinstance(backend, InProcessBackend):
            await until_ended(pool, processes)
        assert account_of(await sample(pool, AtLeast(1))).num_lost_steps == 0


@pytest.mark.usefixtures("without_recycling")
@pytest.mark.slow
async def test_calls_deliver_the_same_when_workers_die_during_resizes(ray_backend: Backend, tmp_path: Path) -> None:
    env, source = watched(tmp_path, step_seconds=0.001), random.Random(5)
    expected = {num_workers: await expected_of(num_workers) for num_workers in (2, 3)}
    async with pool_of(ray_backend, env, workers=2, rows=NUM_ROWS, **MODULES) as pool:
        await pool.update_agent([mlp()])
        processes = process_ids(pool)
        resizing = asyncio.create_task(pool.resize(3))
        await asyncio.sleep(0.2)
        kill_one(pool, source)
        running = [asyncio.create_task(call()) for call in calls(pool, 2)[:2]]
        await resizing
        results = await asyncio.gather(*running)
        assert all(are_equal(*pair) for pair in zip(results, expected[2][:2], strict=True))
        await until(lambda: all(worker.healthy for worker in pool.status().workers))
        processes |= process_ids(pool)

        # A leaving worker dies while calls still need it.
        slow = tmp_path / "slow"  # so that no call ends before all have begun
        slow.touch()
        running = [asyncio.create_task(call()) for call in calls(pool, 3)[:3]]
        await until(lambda: num_running(pool) == 3)
        await pool.resize(1)
        assert sizes_of(pool) == (1, 2)
        leaving = next(worker for worker in pool.status().workers if worker.index == 2)
        os.kill(leaving.identity.process_id, signal.SIGKILL)
        slow.unlink()
        results = await asyncio.gather(*running)
        assert all(are_equal(*pair) for pair in zip(results, expected[3][:3], strict=True))
        assert sum(result.account.num_retried_episodes for result in results) > 0
        await until(lambda: sizes_of(pool) == (1, 0))

        # A worker is removed while it is being replaced.
        await pool.resize(2)
        processes |= process_ids(pool)
        lost = pool.status().workers[1]
        os.kill(lost.identity.process_id, signal.SIGKILL)
        assert are_equal(await calls(pool, 2)[0](), expected[2][0])
        await pool.resize(1)
        await until(lambda: sizes_of(pool) == (1, 0))
        await until_ended(pool, processes)
        assert are_equal(await calls(pool, 2)[0](), expected[2][0])


@pytest.mark.parametrize("succeeds", [True, False])
async def test_resize_replaces_a_new_worker_that_dies_before_the_last_one_starts(
    monkeypatch: pytest.MonkeyPatch, succeeds: bool
) -> None:
    expected, backend = await expected_of(3), KillableBackend()
    last_may_start, first_started = asyncio.Event(), asyncio.Event()
    create = backend.create_worker

    def create_slowly(index: int, settings: WorkerSettings) -> Any:
        handle = create(index, settings)
        call = handle.call

        async def call_later(method: Any, *arguments: Any, **options: Any) -> Any:
            answer = await call(method, *arguments, **options)
            if index == 1 and method is Worker.add_env:
                first_started.set()
            if index == 2 and method is Worker.identity:
                await last_may_start.wait()
                if not succeeds:
                    raise WorkerLostError("lost by design", 2)
            return answer

        monkeypatch.setattr(handle, "call", call_later)
        return handle

    async with pool_of(backend, RAGGED, workers=1, rows=NUM_ROWS, **NOTICE_SECONDS, **MODULES) as pool:
        await pool.update_agent([mlp()])
        monkeypatch.setattr(backend, "create_worker", create_slowly)
        resizing = asyncio.create_task(pool.resize(3))
        await first_started.wait()
        backend.kill(1)
        await asyncio.sleep(1)  # the pool notices it within 0.5 s
        last_may_start.set()
        if not succeeds:
            with raises(WorkerLostError, match="lost by design"):
                await resizing
            assert sizes_of(pool) == (1, 0)
            return
        await resizing
        await until(lambda: [worker.num_restarts for worker in pool.status().workers] == [0, 1, 0])
        await until(lambda: all(worker.healthy for worker in pool.status().workers))
        results = [await call() for call in calls(pool, 3)]
        assert all(are_equal(*pair) for pair in zip(results, expected, strict=True))
        assert sum(result.account.num_retried_episodes for result in results) == 0


async def test_resize_is_limited_to_four_times_the_cores_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = InProcessBackend()
    monkeypatch.setattr(backend, "default_num_workers", lambda: 1, raising=False)
    for num_workers, limit in ((None, 4), (2, 4), (6, 6)):
        async with pool_of(backend, CARTPOLE, workers=num_workers) as pool:
            with raises(OverLimitError, field="worker_count", reason=Reason.TOO_MANY_WORKERS, match=rf"\b{limit}\b"):
                await pool.resize(limit + 1)
            await pool.resize(1)
            assert await pool.resize(limit) == 1
            assert sizes_of(pool) == (limit, 0)


async def test_calls_run_while_many_workers_are_added() -> None:
    async with pool_of(InProcessBackend(), CARTPOLE, workers=1, max_workers=400) as pool:
        await pool.update_agent([RandomSpec()])
        resizing = asyncio.create_task(pool.resize(400))
        await sample(pool, AtLeast(10))
        assert not resizing.done()
        resizing.cancel()
        await asyncio.gather(resizing, return_exceptions=True)
        assert sizes_of(pool) == (1, 0)


def rollserve_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ROLLSERVE, *arguments], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_clients_resize_the_pool_of_a_server(tmp_path: Path) -> None:
    """The server's own Ray was started for one worker."""
    log = tmp_path / "server.log"
    options = ("--env", "CartPole-v1", "--workers", "1", "--max-workers", "3", "--vectorization", "rows", "--rows", "4")
    options += ("--allow-module", "sample_envs")
    with (
        local_server(*options, log=log, environment=server_environment()) as server,
        rollserve.connect(server.address) as sampler,
    ):
        updated = sampler.update_env("CartPole-v1")
        sampler.update_agent(rollserve.MlpAgent.initial(updated.observation_space, updated.action_space, seed=0))
        before = sampler.obtain_samples(5000, seed=1)
        assert sampler.resize(3) == 1
        status = sampler.status()
        assert (status.num_workers, [worker.worker_index for worker in status.workers]) == (3, [0, 1, 2])
        assert len({worker.process_id for worker in status.workers}) == 3
        assert equal(before, sampler.obtain_samples(5000, seed=1))
        assert len(sampler.obtain_exact_episodes(5, seed=1, expected_num_workers=3)) == 15
        check_rejections(sampler)
        check_resumption(server, sampler)
        shown = rollserve_command("resize", server.address, "3")
        assert (shown.returncode, shown.stdout) == (0, "3 workers, previously 2\n"), shown.stderr
        shown = rollserve_command("resize", server.address, "4")
        assert (shown.returncode, "TOO_MANY_WORKERS" in shown.stderr) == (1, True)
        assert asyncio.run(resize_async(server.address, 1)) == 3
        with sampler.stream_samples(10**9) as stream:
            next(stream)
            assert sampler.resize(2) == 1
            next(stream)
            assert sampler.resize(1) == 2
            next(stream)
        assert sampler.status().num_workers == 1
        lines = rollserve_command("status", server.address).stdout.splitlines()
        assert sum(line.startswith("worker ") and ": healthy, 4 rows" in line for line in lines) == 1
        simulated = sampler.status().counters.num_simulated_steps
        assert simulated >= sampler.status().counters.num_steps >= 2 * before.num_steps + 1600
    text = log.read_text()
    assert "Traceback" not in text, text
    assert "pool resized" in text


def check_rejections(sampler: rollserve.Sampler) -> None:
    for num_workers in (0, 10_001):
        with raises(rollserve.InvalidArgumentError, field="worker_count", reason=Reason.INVALID_VALUE):
            sampler.resize(num_workers)
    with raises(rollserve.LimitError, field="worker_count", reason=Reason.TOO_MANY_WORKERS):
        sampler.resize(4)
    with raises(rollserve.InvalidArgumentError, field="num_workers"):
        sampler.resize(-1)
    with pytest.raises(TypeError):
        sampler.resize("3")  # type: ignore[arg-type]
    for call in (sampler.obtain_exact_episodes, sampler.obtain_samples, sampler.obtain_fragments):
        with raises(rollserve.PreconditionError, field="options.worker_count", reason=Reason.WORKER_COUNT):
            call(12, expected_num_workers=2)
    assert sampler.status().num_workers == 3


def check_resumption(server: LocalServer, sampler: rollserve.Sampler) -> None:
    """Check that streams which break during a resize resume with the same episodes, or are rejected."""
    sampler.update_env("sample_envs:Big", kwargs={"observation_bytes": 10_000, "length": 30})
    sampler.update_agent(rollserve.RandomAgent())
    calls: list[tuple[Callable[[rollserve.Sampler], rollserve.SampleStream], int, int]] = [
        (lambda distant: distant.stream_samples(1600, seed=2, expected_num_workers=3), 3, 2),
        (lambda distant: distant.stream_exact_episodes(40, seed=2), 2, 1),
        (lambda distant: distant.stream_fragments(2400, seed=2), 1, 2),
    ]
    for call, before, after in calls:
        with (
            cutting_proxy(server.address, num_cuts=0, max_bytes=1, seed=1) as proxy,
            rollserve.connect(proxy.address, max_message_bytes=1 << 16) as distant,
            call(distant) as stream,
        ):
            parts = [next(stream)]
            assert sampler.resize(after) == before
            proxy.cut()
            if before == 3:
                parts += stream
                batch = rollserve.EpisodeBatch.concatenate(*parts).joined()
                assert stream.end().num_resumptions == 1
                assert equal(batch, sampler.obtain_samples(1600, seed=2))
            else:
                with raises(rollserve.PreconditionError, field="options.worker_count", reason=Reason.WORKER_COUNT):
                    list(stream)


async def resize_async(address: str, num_workers: int) -> int:
    async with rollserve.aconnect(address) as sampler:
        return await sampler.resize(num_workers)


def test_server_does_not_start_with_more_workers_than_its_limit() -> None:
    command = [sys.executable, "-m", "rollserve_server", "--env", "CartPole-v1", "--workers", "4", "--max-workers", "3"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert re.search(r"max_workers \(from --max-workers\): .*\b4\b.*\b3\b", ended.stderr), ended.stderr
