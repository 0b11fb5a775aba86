"""Fragments with `fraction_of_workers`: the other workers stop early, and their rows continue in the next call."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import re
import signal
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from commands import run
from faults.backends import SLOW_ON_RAY
from faults.killable import NOTICE_SECONDS, KillableBackend, kill_worker
from pools import CARTPOLE, adds_up, pool_of, sample, sample_request
from shuffled_workers import NATIVE, ROWS
from support import raises
from unreliable import MortalBackend, Places

import rollserve
from rollserve import Reason
from rollserve_server.agents import RandomSpec
from rollserve_server.errors import InvalidValueError, WorkerLostError
from rollserve_server.local import LocalServer
from rollserve_server.pool import Backend, Beginning, Fragments, InProcessBackend, Pool

MODULES: dict[str, Any] = {"allow_module": ("sample_envs",)}
_LONG_SECONDS = 60.0
SEED = 5


class Steps(NamedTuple):
    """Steps of a row: observations, actions, rewards, episode indices, step numbers and ends, and what followed."""

    columns: tuple[np.ndarray, ...]
    last_observations: np.ndarray

    @property
    def count(self) -> int:
        return len(self.columns[0])


def steps_of_rows(batch: rollserve.EpisodeBatch, num_rows: int) -> dict[int, Steps]:
    """The steps in a batch of fragments, by row and in order of time."""
    episodes = np.repeat(batch.episode_indices, batch.lengths)
    ends = np.zeros(batch.num_steps, np.bool_)
    ends[np.cumsum(batch.lengths) - 1] = batch.terminated | batch.truncated
    starts = np.cumsum(batch.lengths) - batch.lengths
    numbers = np.arange(batch.num_steps) - np.repeat(starts - batch.first_steps, batch.lengths)
    result = {}
    for row in np.unique(batch.episode_indices % num_rows).tolist():
        positions = np.flatnonzero(episodes % num_rows == row)
        order = positions[np.lexsort((numbers[positions], episodes[positions]))]
        columns = (batch.observations, batch.actions, batch.rewards, episodes, numbers, ends)
        last = np.flatnonzero(batch.episode_indices % num_rows == row)[-1]
        result[row] = Steps(tuple(column[order] for column in columns), batch.last_observations[last])
    return result


class Follower:
    """Check that rows deliver each step of their sequences once."""

    def __init__(self, truth: dict[int, Steps], num_rows_per_worker: int) -> None:
        self._truth = truth
        self._num_rows = num_rows_per_worker
        self._at = dict.fromkeys(truth, 0)
        self.num_missing_steps = 0

    def take(
        self, batch: rollserve.EpisodeBatch, num_steps: int, fraction: float = 1.0, least: float = 0.0
    ) -> rollserve.Account:
        account = batch.account
        assert adds_up(account)
        delivered = steps_of_rows(batch, len(self._truth))
        each = num_steps // len(self._truth)
        num_whole = 0
        for worker in account.workers:
            first = worker.worker_index * self._num_rows
            rows = range(first, first + self._num_rows)
            counts = {delivered[row].count if row in delivered else 0 for row in rows}
            (count,) = counts
            assert count >= math.ceil(least * each)
            assert worker.num_missing_steps == (each - count) * self._num_rows
            num_whole += count == each
        assert num_whole >= math.ceil(fraction * len(account.workers))
        assert account.num_missing_steps == sum(worker.num_missing_steps for worker in account.workers)
        assert account.num_steps == batch.num_steps == num_steps - account.num_missing_steps
        self.num_missing_steps += account.num_missing_steps
        for row, steps in delivered.items():
            start = self._at[row]
            stop = self._at[row] = start + steps.count
            truth = self._truth[row].columns
            for column, true_column in zip(steps.columns, truth, strict=True):
                assert column.tobytes() == true_column[start:stop].tobytes()
            if not steps.columns[-1][-1]:
                assert np.array_equal(steps.last_observations, truth[0][stop])
        return account


async def truth_of(env: rollserve.EnvSpec, num_workers: int, num_row_steps: int, num_rows: int = 2) -> dict[int, Steps]:
    """The first steps of each row in a pool whose calls wait for all workers."""
    stride = num_workers * num_rows
    async with pool_of(InProcessBackend(), env, workers=num_workers, rows=num_rows, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        return steps_of_rows(await sample(pool, Fragments(num_row_steps * stride), seed=SEED), stride)


class Calls:
    """Fragment calls of one row sequence, one after the other."""

    def __init__(self, pool: Pool, truth: dict[int, Steps], num_rows: int = 2) -> None:
        self._pool = pool
        self._stride = len(truth)
        self.follower = Follower(truth, num_rows)
        self._clock = 0

    def continue_on(self, pool: Pool) -> Calls:
        """Make the next calls on another pool."""
        self._pool = pool
        return self

    def request(self, num_row_steps: int, fraction: float, least: float = 0.0) -> Fragments:
        num_steps = num_row_steps * self._stride
        return Fragments(num_steps, row_step_count=self._clock, fraction_of_workers=fraction, fraction_of_samples=least)

    async def __call__(
        self, num_row_steps: int, fraction: float = 1.0, least: float = 0.0, **options: Any
    ) -> rollserve.Account:
        target = self.request(num_row_steps, fraction, least)
        async with asyncio.timeout(_LONG_SECONDS):
            batch = await sample(self._pool, target, seed=SEED, **options)
        assert batch.account.row_step_count == self._clock
        self._clock += num_row_steps
        return self.follower.take(batch, target.num_steps, fraction, least)


@pytest.fixture
def short_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that leave a worker behind 50 ms after it should have stopped, not 1 s."""
    monkeypatch.setattr("rollserve_server.pool.calls.fragments._STOP_SECONDS", 0.05)


FULL = {"call_window_bytes": 3000}
COMBINATIONS = pytest.mark.parametrize(
    ("env", "options", "num_deaths"),
    [
        (NATIVE, {}, 3),
        (NATIVE, FULL, 0),
        (ROWS, {}, 0),
        (ROWS, FULL, 3),
        pytest.param(NATIVE, {}, 0, marks=pytest.mark.slow),
        pytest.param(NATIVE, FULL, 3, marks=pytest.mark.slow),
        pytest.param(ROWS, {}, 3, marks=pytest.mark.slow),
        pytest.param(ROWS, FULL, 0, marks=pytest.mark.slow),
    ],
)
"""Rows, buffers and deaths; the tests that are not slow combine each pair of their values once."""


@pytest.mark.usefixtures("short_stop")
@COMBINATIONS
async def test_rows_deliver_each_step_once_with_any_fractions(
    env: rollserve.EnvSpec, options: dict[str, Any], num_deaths: int
) -> None:
    truth = await truth_of(env, 4, 40 * 12 + 1)  # one more for the last observations
    num_missing = 0
    for seed in range(2):
        async with pool_of(MortalBackend(seed, num_deaths), env, workers=4, **options) as pool:
            await pool.update_agent([RandomSpec()])
            calls = Calls(pool, truth)
            for call in range(12):
                await calls(40, (0.25, 0.5, 0.75, 1.0)[(seed + call) % 4])
            num_missing += calls.follower.num_missing_steps
    assert num_missing > 0


@pytest.mark.usefixtures("short_stop")
@COMBINATIONS
async def test_each_worker_makes_its_least_share(
    env: rollserve.EnvSpec, options: dict[str, Any], num_deaths: int
) -> None:
    truth = await truth_of(env, 4, 40 * 12 + 1)
    async with pool_of(MortalBackend(3, num_deaths), env, workers=4, **options) as pool:
        await pool.update_agent([RandomSpec()])
        calls = Calls(pool, truth)
        for call in range(12):
            await calls(40, 0.25, (0.0, 0.3, 0.51, 1.0)[call % 4])
        if not num_deaths:
            assert calls.follower.num_missing_steps > 0


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path / "slow")


@SLOW_ON_RAY
async def test_call_does_not_wait_for_a_slow_worker(backend: Backend, places: Places) -> None:
    env = places.env(step_seconds=0.2)
    truth = await truth_of(env, 3, 400)
    async with pool_of(backend, env, workers=3, rows=2, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        calls = Calls(pool, truth)
        assert (await calls(20)).num_missing_steps == 0
        with places.slow(pool, 1):
            for _ in range(3):
                began = time.monotonic()
                account = await calls(100, 0.6)  # which takes the slow worker 40 s
                assert time.monotonic() - began < _LONG_SECONDS
                assert [worker.num_missing_steps > 0 for worker in account.workers] == [False, True, False]
        assert (await calls(30, 0.1)).num_steps > 0
        assert (await calls(30)).num_missing_steps == 0


async def test_call_waits_for_the_least_share_of_a_slow_worker(places: Places) -> None:
    env = places.env(step_seconds=0.05)
    truth = await truth_of(env, 3, 400)
    async with pool_of(InProcessBackend(), env, workers=3, rows=2, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        calls = Calls(pool, truth)
        with places.slow(pool, 1):
            account = await calls(100, 0.6, 0.2)  # 20 of 100 vector steps, which take at least 1 s
        made = 200 - account.workers[1].num_missing_steps
        assert 40 <= made < 200
        assert [worker.num_missing_steps for worker in account.workers][::2] == [0, 0]
        assert (await calls(100)).num_missing_steps == 0


async def test_given_up_worker_has_no_least_share_to_give() -> None:
    truth, backend = await truth_of(ROWS, 4, 200), KillableBackend()
    async with pool_of(backend, ROWS, workers=4, worker_restarts_per_hour=1, **NOTICE_SECONDS) as pool:
        await pool.update_agent([RandomSpec()])
        calls = Calls(pool, truth)
        for _ in range(2):
            await kill_worker(pool, backend, 3)
        with raises(WorkerLostError, reason=Reason.WORKER_LOST, match="worker 3 "):
            await calls(40, 0.5, 0.1)
        assert (await calls(40, 0.5)).workers[3].num_missing_steps > 0


@pytest.mark.parametrize("fraction", [0.5, 1.0])
async def test_call_fails_for_a_given_up_worker_only_if_the_others_are_too_few(fraction: float) -> None:
    truth, backend = await truth_of(ROWS, 4, 200), KillableBackend()
    async with pool_of(backend, ROWS, workers=4, worker_restarts_per_hour=1, **NOTICE_SECONDS) as pool:
        await pool.update_agent([RandomSpec()])
        calls = Calls(pool, truth)
        await calls(20)
        for _ in range(2):
            await kill_worker(pool, backend, 3)
        assert pool.status().workers[3].given_up
        if fraction == 1:
            with raises(WorkerLostError, reason=Reason.WORKER_LOST, match="worker 3 "):
                await calls(40)
            return
        for _ in range(3):
            account = await calls(40, fraction)
            assert account.workers[3].num_missing_steps > 0
        with raises(WorkerLostError, reason=Reason.WORKER_LOST, match="worker 3 "):
            await calls(40, 1.0)
        assert pool.status().workers[3].given_up


@pytest.mark.slow
async def test_call_does_not_wait_for_a_stopped_process(ray_backend: Backend) -> None:
    truth = await truth_of(ROWS, 2, 1000)
    async with pool_of(ray_backend, ROWS, workers=2, rows=2) as pool:
        await pool.update_agent([RandomSpec()])
        calls = Calls(pool, truth)
        await calls(20)
        stopped = pool.status().workers[0].identity.process_id
        os.kill(stopped, signal.SIGSTOP)
        try:
            for _ in range(2):
                account = await calls(100, 0.5)
                assert [worker.num_missing_steps for worker in account.workers] == [200, 0]
        finally:
            os.kill(stopped, signal.SIGCONT)
        assert (await calls(100)).num_missing_steps == 0
        assert (await calls(100)).num_missing_steps == 0
        assert all(worker.healthy for worker in pool.status().workers)


@pytest.mark.slow
async def test_rows_that_stopped_early_are_restored_after_a_kill(ray_backend: Backend, places: Places) -> None:
    env = places.env(step_seconds=0.2, most_steps=300)
    truth = await truth_of(env, 2, 1000)
    async with pool_of(ray_backend, env, workers=2, rows=2, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        calls = Calls(pool, truth)
        for worker in (0, 1):
            with places.slow(pool, worker):
                account = await calls(100, 0.5)
            assert account.workers[worker].num_missing_steps > 0
            for victim in pool.status().workers:
                os.kill(victim.identity.process_id, signal.SIGKILL)
            account = await calls(100)
            assert account.num_missing_steps == account.num_broken_off_episodes == 0
            assert account.retry_reasons == {"worker_lost": 4}


@SLOW_ON_RAY
async def test_cancelled_call_moves_no_rows(backend: Backend, places: Places) -> None:
    env = places.env(step_seconds=0.1)
    truth = await truth_of(env, 2, 500)
    async with pool_of(backend, env, workers=2, rows=2, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        calls = Calls(pool, truth)
        with places.slow(pool, 1):
            await calls(50, 0.5)
            request = sample_request(calls.request(100, 0.5), 1 << 22, seed=SEED)
            async with contextlib.aclosing(pool.sample(request)) as items:
                async for item in items:
                    if isinstance(item, Beginning):
                        assert item.reproducibility is rollserve.Reproducibility.WORKER
                        assert item.row_step_count == 50
                    else:
                        break
        assert (await calls(100, 1.0)).num_missing_steps == 0
        await calls(100, 0.5)


async def test_skipped_steps_are_rejected_with_a_fraction() -> None:
    async with pool_of(InProcessBackend(), CARTPOLE, workers=2, rows=2) as pool:
        await pool.update_agent([RandomSpec()])
        with raises(InvalidValueError, field="fragments.skip_step_count", reason=Reason.INVALID_VALUE):
            await sample(pool, Fragments(40, 4, fraction_of_workers=0.5))
        assert (await sample(pool, Fragments(40, 4, fraction_of_workers=1.0))).num_steps == 36


@pytest.mark.parametrize("fraction", [0.0, -0.5, 1.01, float("nan"), float("inf")])
def test_fractions_out_of_range_are_rejected(sampler: rollserve.Sampler, fraction: float) -> None:
    expected = {"field": "fragments.fraction_of_workers", "reason": Reason.INVALID_VALUE}
    with raises(rollserve.InvalidArgumentError, **expected):
        sampler.obtain_fragments(80, fraction_of_workers=fraction)
    with pytest.raises(TypeError, match="fraction_of_workers"):
        sampler.obtain_fragments(80, fraction_of_workers="half")  # type: ignore[arg-type]


@pytest.mark.parametrize("least", [-0.1, 1.01, float("nan")])
def test_least_shares_out_of_range_are_rejected(sampler: rollserve.Sampler, least: float) -> None:
    expected = {"field": "fragments.fraction_of_samples", "reason": Reason.INVALID_VALUE}
    with raises(rollserve.InvalidArgumentError, **expected):
        sampler.obtain_fragments(80, fraction_of_workers=0.5, fraction_of_samples=least)
    with pytest.raises(TypeError, match="fraction_of_samples"):
        sampler.obtain_fragments(80, fraction_of_samples="half")  # type: ignore[arg-type]


@pytest.mark.parametrize("fraction", [None, 1.0])
def test_least_share_is_rejected_where_no_worker_stops(sampler: rollserve.Sampler, fraction: float | None) -> None:
    with raises(
        rollserve.InvalidArgumentError, field="fragments.fraction_of_samples", quotes="fraction_of_workers below 1"
    ):
        sampler.obtain_fragments(80, fraction_of_workers=fraction, fraction_of_samples=0.5)


@pytest.mark.slow
async def test_clients_get_the_steps_of_fast_workers(server: LocalServer, sampler: rollserve.Sampler) -> None:
    slow = [rollserve.EnvSpec("sample_envs:Slow", {"step_seconds": seconds}) for seconds in (0.0, 0.1)]
    sampler.update_env(per_worker=slow)
    sampler.update_agent(rollserve.RandomAgent())
    batch = sampler.obtain_fragments(800, fraction_of_workers=0.5)
    assert [worker.num_missing_steps > 0 for worker in batch.account.workers] == [False, True]
    assert batch.num_steps == 800 - batch.account.num_missing_steps
    async with rollserve.aconnect(server.address) as asynchronous:
        batch = await asynchronous.obtain_fragments(800, fraction_of_workers=0.5, fraction_of_samples=0.05)
    assert batch.num_steps == 800 - batch.account.num_missing_steps < 800
    assert batch.account.workers[1].num_missing_steps <= 380
    fractions = ("--fraction-of-workers", "0.5", "--fraction-of-samples", "0.02")
    shown = run("sample", server.address, "--steps", "800", "--fragments", *fractions)
    assert shown.returncode == 0, shown.stderr
    assert int(re.search(r"(\d+) steps in", shown.stdout)[1]) < 800  # type: ignore[index]
    sampler.update_env(slow[0])
    assert sampler.obtain_fragments(800, fraction_of_workers=1).num_steps == 800
