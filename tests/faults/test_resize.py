"""Workers come and go while the pool runs: no call is disturbed, and what comes is what would have come."""

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
    set_start_seconds,
    until,
)
from support import equal, raises, server_environment

import rollserve
from rollserve import Reason
from rollserve_server.agents import MlpSpec, RandomSpec
from rollserve_server.errors import InvalidValueError, NotReadyError, OverLimitError, WorkerLostError
from rollserve_server.local import LocalServer, local_server
from rollserve_server.pool import AtLeast, Backend, Exactly, Fragments, InProcessBackend, Pool, Target
from rollserve_server.pool.backends.ray.backend import RayBackend
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
    """An agent for these environments."""
    observations = rollserve.spaces.Box(np.float64(-np.inf), np.float64(np.inf), (2,), np.dtype(np.float64))
    actions = rollserve.spaces.Discrete(3, start=2)
    agent = rollserve.MlpAgent.initial(observations, actions, seed=seed)
    return MlpSpec(agent.layer_sizes, agent.activation, agent.head, agent.parameters)


def members(agent: MlpSpec, count: int) -> dict[str, np.ndarray]:
    """The parameters of so many agents that are each a little different."""
    scales = 1 + np.arange(count, dtype=np.float32) / 8
    return {name: np.stack([value * scale for scale in scales]) for name, value in agent.parameters.items()}


def sizes_of(pool: Pool) -> tuple[int, int]:
    """How many workers there are, and how many that are leaving."""
    workers = pool.status().workers
    staying = [worker.index for worker in workers if not worker.is_leaving]
    assert staying == list(range(len(staying)))
    return len(staying), len(workers) - len(staying)


def owners(folder: Path) -> set[int]:
    """The processes that have environments open which the folder shows."""
    return {int(file.name.partition(".")[0]) for file in folder.iterdir()}


def process_ids(pool: Pool) -> set[int]:
    return {worker.identity.process_id for worker in pool.status().workers}


async def only(pool: Pool, before: set[int]) -> None:
    """Waits until no process is there any more of those before, but for those that the pool has."""
    left = [psutil.Process(each) for each in before - process_ids(pool) if psutil.pid_exists(each)]
    await until(lambda: not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in left))


def account_of(result: Any) -> Any:
    """The account, which adds up."""
    assert result.account is not None
    assert adds_up(result.account)
    return result.account


def are_equal(first: Any, second: Any) -> bool:
    """Whether two results of the same call tell the same episodes."""
    account_of(first)
    account_of(second)
    if isinstance(first, rollserve.EpisodeBatch):
        return equal(first, second)
    return bool(first.outcomes == second.outcomes)


def calls(pool: Pool, num_workers: int) -> list[Callable[[], Coroutine[Any, Any, Any]]]:
    """One of each kind. What they bring is a function of the number of workers and of nothing else."""
    targets: list[Any] = [AtLeast(600), Exactly(12), Fragments(num_workers * NUM_ROWS * 60)]
    return [
        *(functools.partial(sample, pool, target, seed=SEED) for target in targets),
        lambda: evaluate(pool, 60),
        lambda: evaluate_population(pool, members(mlp(), 6), 12),
    ]


async def expected_of(num_workers: int) -> list[Any]:
    """What those calls bring that nothing disturbs."""
    async with pool_of(InProcessBackend(), RAGGED, workers=num_workers, rows=NUM_ROWS, **MODULES) as pool:
        await pool.update_agent([mlp()])
        return [await call() for call in calls(pool, num_workers)]


@pytest.mark.parametrize(("before", "after"), [(3, 1), (1, 3)])
async def test_calls_of_all_kinds_keep_the_workers_that_they_began_with(
    backend: Backend, tmp_path: Path, before: int, after: int
) -> None:
    expected = {num_workers: await expected_of(num_workers) for num_workers in (before, after)}
    env = watched(tmp_path, step_seconds=0.001)
    async with pool_of(backend, env, workers=before, rows=NUM_ROWS, **MODULES) as pool:
        await pool.update_agent([mlp()])
        processes = process_ids(pool)
        running = [asyncio.create_task(call()) for call in calls(pool, before)]
        await until(lambda: num_running(pool) == len(running))
        assert await pool.resize(after) == before
        if after < before:
            assert sizes_of(pool) == (after, before - after)
            assert not any(task.done() for task in running)
        results = await asyncio.gather(*running)
        assert all(are_equal(*pair) for pair in zip(results, expected[before], strict=True))
        assert [len(result.account.workers) for result in results] == [before] * len(results)
        await until(lambda: sizes_of(pool) == (after, 0))
        simulated = sum(result.account.num_simulated_steps for result in results)
        results = [await call() for call in calls(pool, after)]
        assert all(are_equal(*pair) for pair in zip(results, expected[after], strict=True))
        assert equal(results[0], expected[before][0])  # at least so many steps are the same with any number
        assert [len(result.account.workers) for result in results] == [after] * len(results)
        if isinstance(backend, RayBackend):
            await only(pool, processes)
            assert owners(tmp_path) == process_ids(pool)
        simulated += sum(result.account.num_simulated_steps for result in results)
        assert pool.status().num_simulated_steps == simulated
    assert not owners(tmp_path)


@pytest.mark.parametrize("env", [CARTPOLE, NATIVE], ids=["rows", "native"])
async def test_the_own_sequence_goes_on_through_any_number_of_workers(backend: Backend, env: rollserve.EnvSpec) -> None:
    """Also what was sampled ahead is accounted for, whoever had it."""
    async with pool_of(backend, env, workers=2) as pool, pool_of(InProcessBackend(), env) as other:
        for each in (pool, other):
            await each.update_agent([RandomSpec()])
        begun = calls_of(pool)
        batches = [await sample(pool, AtLeast(2000), prefetch=True)]
        await until(lambda: begun[-1].account.num_simulated_steps > 0)
        await pool.resize(1)  # while workers sample ahead
        batches.append(await sample(pool, AtLeast(300)))
        assert account_of(batches[-1]).num_superseded_steps >= account_of(batches[-1]).num_prefetched_steps > 0
        await pool.resize(3)  # while they hold what that call left
        running = asyncio.create_task(sample(pool, AtLeast(8000)))
        await until(lambda: num_running(pool) == 1)
        await pool.resize(2)  # while a call runs
        batches += [await running, await sample(pool, AtLeast(300))]
        accounts = [account_of(batch) for batch in batches]
        assert len({account.seed for account in accounts}) == 1
        whole = rollserve.EpisodeBatch.concatenate(*batches)
        assert np.array_equal(whole.episode_indices, np.arange(len(whole)))
        assert equal(whole, await sample(other, AtLeast(whole.num_steps), seed=accounts[0].seed))
        # Nothing that was kept for calls with another number of workers is left, nor anybody who had it.
        await until(lambda: sizes_of(pool) == (2, 0))


async def test_fragments_begin_anew_and_old_sequences_are_told_of_it(backend: Backend) -> None:
    async with pool_of(backend, CARTPOLE, workers=2, rows=2) as pool:
        await pool.update_agent([RandomSpec()])
        first, second = [await sample(pool, Fragments(80)) for _ in range(2)]
        await sample(pool, Fragments(80), seed=5)
        assert account_of(second).seed == account_of(first).seed
        running = asyncio.create_task(sample(pool, Fragments(20_000)))
        await until(lambda: num_running(pool) == 1)
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
        # The same request from the beginning brings what any pool of this size brings.
        batch = await sample(pool, Fragments(120), seed=5)
    async with pool_of(InProcessBackend(), CARTPOLE, workers=3, rows=2) as other:
        await other.update_agent([RandomSpec()])
        assert equal(batch, await sample(other, Fragments(120), seed=5))


async def test_calls_that_count_on_a_number_of_workers(backend: Backend) -> None:
    async with pool_of(backend) as pool:
        await pool.update_agent([RandomSpec()])
        exact = await sample(pool, Exactly(5), seed=1, num_workers=2)
        await pool.resize(1)
        for target in (Exactly(5), AtLeast(5), Fragments(4)):
            with raises(NotReadyError, field="options.worker_count", reason=Reason.WORKER_COUNT):
                await sample(pool, target, seed=1, num_workers=2)  # type: ignore[arg-type]
        await pool.resize(2)
        assert equal(exact, await sample(pool, Exactly(5), seed=1, num_workers=2))


async def test_workers_that_differ_stay_as_many_as_they_are(backend: Backend) -> None:
    async with pool_of(backend, RAGGED, rows=NUM_ROWS, **MODULES) as pool:
        await pool.update_agent([mlp(1), mlp(2)], per_worker=True)
        before = await sample(pool, AtLeast(200), seed=3)
        evaluated = await evaluate(pool, 10)
        for num_workers in (1, 3):
            with raises(NotReadyError, reason=Reason.WORKERS_DIFFER, match="agents"):
                await pool.resize(num_workers)
        assert await pool.resize(2) == 2  # there is nothing to do
        assert equal(before, await sample(pool, AtLeast(200), seed=3))
        await pool.update_agent([mlp(1)])
        await pool.update_env([RAGGED, rollserve.EnvSpec("sample_envs:Ragged", {"most": 7})], per_worker=True)
        with raises(NotReadyError, reason=Reason.WORKERS_DIFFER, match="environments"):
            await pool.resize(1)
        assert sizes_of(pool) == (2, 0)
        await pool.update_env([RAGGED])
        assert await pool.resize(3) == 2
        # The versions of then are those of two workers.
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
    """See Backend. Has room for the first few workers, and lets others wait for it for ever.

    Attributes:
        num_places: for how many.
        num_waiting: how many have been refused and not been given up.
    """

    def __init__(self, backend: Backend, num_places: int) -> None:
        self.num_places, self.num_waiting = num_places, 0
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def create_worker(self, worker_index: int, config: WorkerSettings) -> Any:
        if worker_index < self.num_places:
            return self._backend.create_worker(worker_index, config)
        self.num_waiting += 1
        return _Waiting(self)


class _Waiting:
    def __init__(self, backend: Cramped) -> None:
        self._backend = backend
        self._is_killed = False

    async def call(self, *_: Any) -> Any:
        await asyncio.Event().wait()

    def kill(self, error: Exception | None = None) -> None:
        self._backend.num_waiting -= not self._is_killed
        self._is_killed = True


async def test_without_room_nothing_changes(backend: Backend, tmp_path: Path) -> None:
    cramped: Any = Cramped(backend, 3)
    env = watched(tmp_path)
    async with pool_of(cramped, env, rows=NUM_ROWS, max_workers=5, start_seconds=20, **MODULES) as pool:
        await pool.update_agent([mlp()])
        before = [await sample(pool, target, seed=3) for target in (AtLeast(200), Exactly(5))]
        kept = await sample(pool, Fragments(80))
        set_start_seconds(pool, 1.0 if isinstance(backend, InProcessBackend) else 4.0)
        resizing = asyncio.create_task(pool.resize(4))
        await until(lambda: cramped.num_waiting == 1)
        # Meanwhile everything goes on, with those that are there.
        assert all(equal(*pair) for pair in zip(before, [await again(pool, batch) for batch in before], strict=True))
        with raises(WorkerLostError, reason=Reason.WORKER_LOST, match=r"worker [23] .* [14] s\b"):
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
        set_start_seconds(pool, 60)
        cramped.num_places = 4
        assert await pool.resize(4) == 2
        assert equal(before[0], await sample(pool, AtLeast(200), seed=3))


async def again(pool: Pool, batch: rollserve.EpisodeBatch) -> rollserve.EpisodeBatch:
    """The same call with the same seed."""
    is_exact = batch.worker_indices is not None
    target: Target = Exactly(len(batch) // 2) if is_exact else AtLeast(batch.num_steps)
    return await sample(pool, target, seed=account_of(batch).seed)


async def test_changes_and_updates_come_one_after_the_other(backend: Backend) -> None:
    async with pool_of(backend, RAGGED, rows=NUM_ROWS, **MODULES) as pool:
        await pool.update_agent([mlp(1)])
        expected = await sample(pool, AtLeast(300), seed=3)
        short = rollserve.EnvSpec("sample_envs:Ragged", {"most": 4})
        sizes: list[Any] = await asyncio.gather(
            pool.resize(3),
            pool.update_agent([mlp(2)]),
            pool.resize(1),
            pool.update_env([rollserve.EnvSpec("sample_envs:Ragged", {"most": 5})]),
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


async def test_any_sizes_while_clients_sample(backend: Backend) -> None:
    source = random.Random(3)
    async with pool_of(InProcessBackend(), RAGGED, workers=1, rows=3, **MODULES) as pool:
        await pool.update_agent([mlp(1)])
        expected = [await sample(pool, AtLeast(1500), seed=seed) for seed in range(3)]
        outcomes = (await evaluate(pool, 60)).outcomes
    async with pool_of(backend, RAGGED, workers=2, rows=3, **MODULES) as pool:
        await pool.update_agent([mlp(1)])
        processes = process_ids(pool)
        over = asyncio.Event()

        async def client(seed: int) -> int:
            num_calls = 0
            while not over.is_set():
                batch = await sample(pool, AtLeast(1500), seed=seed)
                assert adds_up(account_of(batch))
                assert equal(batch, expected[seed])
                assert (await evaluate(pool, 60)).outcomes == outcomes
                exact = await sample(pool, Exactly(3))
                assert len(exact) == 3 * len(account_of(exact).workers)
                rows = await sample(pool, Fragments(144))
                assert rows.num_steps == 144  # so many goes with 3 rows of 1 to 4 workers
                num_calls += 1
            return num_calls

        clients = [asyncio.create_task(client(seed)) for seed in range(3)]
        for _ in range(5 if isinstance(backend, RayBackend) else 30):
            await pool.resize(source.choice([1, 2, 3, 4]))
            processes |= process_ids(pool)
            await asyncio.sleep(source.random() / 5)
        over.set()
        assert all(await asyncio.gather(*clients))
        await pool.resize(1)
        await until(lambda: sizes_of(pool) == (1, 0))
        if isinstance(backend, RayBackend):
            await only(pool, processes)
        assert account_of(await sample(pool, AtLeast(1))).num_lost_steps == 0


async def test_workers_that_are_killed_while_the_number_changes(ray_backend: RayBackend, tmp_path: Path) -> None:
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

        # One that is to leave while calls that need just this one go on.
        running = [asyncio.create_task(call()) for call in calls(pool, 3)[:3]]
        await until(lambda: num_running(pool) == 3)
        await pool.resize(1)
        assert sizes_of(pool) == (1, 2)
        leaving = next(worker for worker in pool.status().workers if worker.index == 2)
        os.kill(leaving.identity.process_id, signal.SIGKILL)
        results = await asyncio.gather(*running)
        assert all(are_equal(*pair) for pair in zip(results, expected[3][:3], strict=True))
        assert sum(result.account.num_retried_episodes for result in results) > 0
        await until(lambda: sizes_of(pool) == (1, 0))

        # One that is being replaced, and nobody needs.
        await pool.resize(2)
        processes |= process_ids(pool)
        lost = pool.status().workers[1]
        os.kill(lost.identity.process_id, signal.SIGKILL)
        assert are_equal(await sample(pool, AtLeast(600), seed=SEED), expected[2][0])
        await pool.resize(1)
        await until(lambda: sizes_of(pool) == (1, 0))
        await only(pool, processes)
        assert are_equal(await sample(pool, AtLeast(600), seed=SEED), expected[2][0])


@pytest.mark.parametrize("succeeds", [True, False])
async def test_a_worker_that_came_first_and_died_before_the_last_one_came(
    ray_backend: RayBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, succeeds: bool
) -> None:
    expected = await expected_of(3)
    last_may_come, first_came = asyncio.Event(), asyncio.Event()
    create = ray_backend.create_worker

    def create_slowly(index: int, config: WorkerSettings) -> Any:
        handle = create(index, config)
        call = handle.call

        async def call_later(method: Any, *arguments: Any, **options: Any) -> Any:
            answer = await call(method, *arguments, **options)
            if index == 1 and method is Worker.add_env:
                first_came.set()
            if index == 2 and method is Worker.identity:
                await last_may_come.wait()
                if not succeeds:
                    raise WorkerLostError("lost by design", 2)
            return answer

        monkeypatch.setattr(handle, "call", call_later)
        return handle

    async with pool_of(ray_backend, watched(tmp_path), workers=1, rows=NUM_ROWS, **MODULES) as pool:
        await pool.update_agent([mlp()])
        monkeypatch.setattr(ray_backend, "create_worker", create_slowly)
        resizing = asyncio.create_task(pool.resize(3))
        await first_came.wait()
        await asyncio.sleep(0.2)
        (first,) = {owner for owner in owners(tmp_path) if owner not in process_ids(pool)}
        os.kill(first, signal.SIGKILL)
        await asyncio.sleep(1)  # for Ray to tell of it
        last_may_come.set()
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


async def test_how_many_workers_clients_may_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the operator says so, no more than a few times the cores: of any number the machine would be full."""
    backend = InProcessBackend()
    monkeypatch.setattr(backend, "default_num_workers", lambda: 1, raising=False)
    for num_workers, most in ((None, 4), (2, 4), (6, 6)):
        async with pool_of(backend, CARTPOLE, workers=num_workers) as pool:
            with raises(OverLimitError, field="worker_count", reason=Reason.TOO_MANY_WORKERS, match=rf"\b{most}\b"):
                await pool.resize(most + 1)
            await pool.resize(1)
            assert await pool.resize(most) == 1
            assert sizes_of(pool) == (most, 0)


async def test_calls_are_served_while_many_workers_are_added() -> None:
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


def test_over_the_wire(tmp_path: Path) -> None:
    """With a Ray of the server's own, which was started for one worker."""
    log = tmp_path / "server.log"
    options = ("--env", "CartPole-v1", "--workers", "1", "--max-workers", "3", "--vectorization", "rows", "--rows", "4")
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
        check_refusals(sampler)
        check_resumption(server, sampler)
        shown = rollserve_command("resize", server.address, "3")
        assert (shown.returncode, shown.stdout) == (0, "3 workers, 2 before\n"), shown.stderr
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
        assert simulated >= sampler.status().counters.num_steps >= 3 * before.num_steps
    text = log.read_text()
    assert "Traceback" not in text, text
    assert "pool resized" in text


def check_refusals(sampler: rollserve.Sampler) -> None:
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
    """Streams that break and go on after the number has changed: with the same, or not at all."""
    calls: list[tuple[Callable[[rollserve.Sampler], rollserve.SampleStream], int, int]] = [
        (lambda distant: distant.stream_samples(150_000, seed=2, expected_num_workers=3), 3, 2),
        (lambda distant: distant.stream_exact_episodes(5000, seed=2), 2, 1),
        (lambda distant: distant.stream_fragments(240_000, seed=2), 1, 2),
    ]
    for call, before, after in calls:
        with (
            cutting_proxy(server.address, num_cuts=0, max_bytes=1, seed=1) as proxy,
            rollserve.connect(proxy.address, max_message_bytes=1 << 18) as distant,
            call(distant) as stream,
        ):
            parts = [next(stream)]
            assert sampler.resize(after) == before
            proxy.cut()
            if before == 3:
                parts += stream
                batch = rollserve.EpisodeBatch.concatenate(*parts).joined()
                assert stream.end().num_resumptions == 1
                assert equal(batch, sampler.obtain_samples(150_000, seed=2))
            else:
                with raises(rollserve.PreconditionError, field="options.worker_count", reason=Reason.WORKER_COUNT):
                    list(stream)


async def resize_async(address: str, num_workers: int) -> int:
    async with rollserve.aconnect(address) as sampler:
        return await sampler.resize(num_workers)


def test_a_start_with_more_than_clients_may_ask_for() -> None:
    command = [sys.executable, "-m", "rollserve_server", "--env", "CartPole-v1", "--workers", "4", "--max-workers", "3"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert re.search(r"max_workers \(from --max-workers\): .*\b4\b.*\b3\b", ended.stderr), ended.stderr
