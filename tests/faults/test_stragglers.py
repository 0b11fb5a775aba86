"""Stragglers: calls run late episodes again on other workers, with the same results."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults.backends import SLOW_ON_RAY
from pools import CARTPOLE, adds_up, evaluate, evaluate_population, pool_of, sample
from shuffled_workers import NATIVE, ROWS, ShuffledBackend
from support import equal
from unreliable import MortalBackend, Places

import rollserve
from rollserve.account import account_from_proto
from rollserve_server.agents import MlpSpec, RandomSpec
from rollserve_server.gateway.messages.accounts import account_to_proto
from rollserve_server.pool import AtLeast, Backend, InProcessBackend
from rollserve_server.pool.plan import estimates

MODULES: dict[str, Any] = {"allow_module": ("sample_envs",)}
_CALLS = 5
_LONG_SECONDS = 60.0  # longer than any call that does not wait for a slow worker


def _adds_up(account: rollserve.Account) -> bool:
    return adds_up(account) and sum(account.retry_reasons.values()) == account.num_retried_episodes


@pytest.fixture
def duplicate_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat each episode as late as soon as another worker is idle."""
    monkeypatch.setattr(estimates, "_MIN_SECONDS", 0.0)


@pytest.mark.usefixtures("duplicate_early")
@pytest.mark.parametrize(
    ("env", "is_full", "num_workers", "num_deaths"),
    [
        (NATIVE, False, 3, 3),
        (NATIVE, True, 4, 0),
        (ROWS, False, 2, 0),
        (ROWS, True, 3, 3),
        *(
            pytest.param(env, is_full, *counts, marks=pytest.mark.slow)
            for env, is_full, others in [
                (NATIVE, False, [(2, 0), (4, 0)]),
                (NATIVE, True, [(2, 0), (3, 3)]),
                (ROWS, False, [(4, 0), (3, 3)]),
                (ROWS, True, [(2, 0), (4, 0)]),
            ]
            for counts in others
        ),
    ],
)
async def test_duplicated_episodes_are_delivered_once(
    env: rollserve.EnvSpec, is_full: bool, num_workers: int, num_deaths: int
) -> None:
    options = {"worker_buffer_bytes": 4000, "call_window_bytes": 3000} if is_full else {}
    async with pool_of(InProcessBackend(), env, workers=num_workers) as pool:
        await pool.update_agent([RandomSpec()])
        expected = [await sample(pool, AtLeast(300)) for _ in range(_CALLS)]
        expected_evaluation = await evaluate(pool, 15)
    num_duplicates = num_lost_steps = 0
    for seed in range(2):
        backend = MortalBackend(seed, num_deaths)
        async with pool_of(backend, env, workers=num_workers, straggler_factor=1e-9, **options) as pool:
            await pool.update_agent([RandomSpec()])
            accounts: list[rollserve.Account] = []
            for call in range(_CALLS):
                async with asyncio.timeout(_LONG_SECONDS):
                    batch = await sample(pool, AtLeast(300))
                assert equal(batch, expected[call]), (seed, call)
                account = batch.account
                assert _adds_up(account)
                assert "straggler" not in account.retry_reasons
                assert account.num_retried_episodes == sum(account.retry_reasons.values())
                assert num_deaths > 0 or account.num_retried_episodes == 0
                accounts.append(account)
                num_duplicates += account.num_straggler_episodes
                num_lost_steps += account.num_lost_steps
            evaluation = await evaluate(pool, 15)
            assert evaluation.outcomes == expected_evaluation.outcomes
            assert adds_up(evaluation.account)
            num_in_pool = sum(account.num_straggler_episodes for account in accounts)
            assert (
                pool.status().counters.num_straggler_episodes == num_in_pool + evaluation.account.num_straggler_episodes
            )
        assert num_deaths == 0 or backend.num_deaths < num_deaths
    assert num_duplicates > 0
    assert num_lost_steps > 0


@pytest.mark.usefixtures("duplicate_early")
@pytest.mark.parametrize(
    ("env", "factor"), [(rollserve.EnvSpec("sample_envs:Unseeded"), 1e-9), (ROWS, 0.0)], ids=["other bytes", "off"]
)
async def test_no_episode_is_duplicated_if_unseeded_or_switched_off(env: rollserve.EnvSpec, factor: float) -> None:
    async with pool_of(ShuffledBackend(1), env, workers=3, straggler_factor=factor, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        for _ in range(_CALLS):
            batch = await sample(pool, AtLeast(100))
            assert batch.account.num_straggler_episodes == batch.account.num_retried_episodes == 0


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path / "slow")


@SLOW_ON_RAY
async def test_call_does_not_wait_for_a_slow_worker(backend: Backend, places: Places) -> None:
    env = places.env(step_seconds=0.3, most_steps=60)
    async with pool_of(InProcessBackend(), env, workers=1, rows=2, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        expected = [await sample(pool, AtLeast(400)) for _ in range(5)]
        expected_evaluation = await evaluate(pool, 8, seed=1)
    async with pool_of(backend, env, workers=3, rows=2, straggler_factor=3.0, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        assert equal(await sample(pool, AtLeast(400)), expected[0])
        accounts: list[rollserve.Account] = []
        with places.slow(pool, 1):
            for call in (1, 2):
                began = time.monotonic()
                batch = await sample(pool, AtLeast(400))
                assert time.monotonic() - began < _LONG_SECONDS
                assert equal(batch, expected[call])
                accounts.append(batch.account)
            began = time.monotonic()
            evaluation = await evaluate(pool, 8, seed=1)
            assert time.monotonic() - began < _LONG_SECONDS
            assert evaluation.outcomes == expected_evaluation.outcomes
            assert evaluation.account.num_straggler_episodes > 0
        for call in (3, 4):  # with what the straggler still had in flight
            batch = await sample(pool, AtLeast(400))
            assert equal(batch, expected[call])
            accounts.append(batch.account)
    assert all(map(_adds_up, accounts))
    assert sum(account.num_straggler_episodes for account in accounts) > 0
    assert sum(account.num_lost_steps for account in accounts) > 0


@pytest.mark.slow
async def test_worker_with_a_full_buffer_runs_late_episodes(places: Places, caplog: pytest.LogCaptureFixture) -> None:
    """The buffered episodes cannot be delivered before the late ones, and all rows are taken."""
    env = places.env(step_seconds=5.0, most_steps=60)
    async with pool_of(InProcessBackend(), env, workers=1, rows=2, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        expected = [await sample(pool, AtLeast(2000)) for _ in range(2)]
    sizes = {"worker_buffer_bytes": 1000, "call_window_bytes": 1000}
    async with pool_of(InProcessBackend(), env, workers=2, rows=2, straggler_factor=3.0, **sizes, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        assert equal(await sample(pool, AtLeast(2000)), expected[0])
        with places.slow(pool, 0):
            async with asyncio.timeout(_LONG_SECONDS):
                batch = await sample(pool, AtLeast(2000))
        assert equal(batch, expected[1])
        assert batch.account.num_straggler_episodes > 0
        assert _adds_up(batch.account)
    await asyncio.sleep(0.2)  # until the abandoned order has failed
    del pool
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_call_does_not_wait_for_a_stopped_process(ray_backend: Backend) -> None:
    async with pool_of(InProcessBackend(), CARTPOLE, workers=1) as pool:
        await pool.update_agent([RandomSpec()])
        expected = [await sample(pool, AtLeast(2000)) for _ in range(5)]
    async with pool_of(ray_backend, CARTPOLE, workers=2, straggler_factor=3.0) as pool:
        await pool.update_agent([RandomSpec()])
        assert equal(await sample(pool, AtLeast(2000)), expected[0])
        stopped = pool.status().workers[1].identity.process_id
        os.kill(stopped, signal.SIGSTOP)
        accounts: list[rollserve.Account] = []
        try:
            for call in (1, 2, 3):
                async with asyncio.timeout(_LONG_SECONDS):
                    batch = await sample(pool, AtLeast(2000))
                assert equal(batch, expected[call])
                accounts.append(batch.account)
        finally:
            os.kill(stopped, signal.SIGCONT)
        batch = await sample(pool, AtLeast(2000))
        assert equal(batch, expected[4])
        accounts.append(batch.account)
        assert all(worker.healthy for worker in pool.status().workers)
    assert all(map(_adds_up, accounts))
    assert sum(account.num_straggler_episodes for account in accounts) > 0


@SLOW_ON_RAY
async def test_population_call_does_not_wait_for_a_slow_worker(backend: Backend, places: Places) -> None:
    env = places.env(step_seconds=0.5)
    agent = rollserve.MlpAgent.initial(
        rollserve.spaces.Box(np.float32(-1), np.float32(1), (2,), np.dtype(np.float32)), rollserve.spaces.Discrete(2)
    )
    spec = MlpSpec(agent.layer_sizes, agent.activation, agent.head, agent.parameters)
    members = {name: np.stack([value * scale for scale in range(6)]) for name, value in agent.parameters.items()}
    async with pool_of(InProcessBackend(), env, workers=1, rows=2, **MODULES) as pool:
        await pool.update_agent([spec])
        expected = await evaluate_population(pool, members, 4, seed=1)
    async with pool_of(backend, env, workers=3, rows=2, straggler_factor=3.0, **MODULES) as pool:
        await pool.update_agent([spec])
        with places.slow(pool, 1):
            began = time.monotonic()
            evaluation = await evaluate_population(pool, members, 4, seed=1)
            assert time.monotonic() - began < _LONG_SECONDS
    assert evaluation.outcomes == expected.outcomes
    assert _adds_up(account_from_proto(account_to_proto(evaluation.account)))
    assert expected.account.num_straggler_episodes == 0 < evaluation.account.num_straggler_episodes


@pytest.mark.usefixtures("duplicate_early")
async def test_duplicated_members_count_once() -> None:
    agent = rollserve.MlpAgent.initial(
        rollserve.spaces.Box(np.float32(-1), np.float32(1), (4,), np.dtype(np.float32)), rollserve.spaces.Discrete(2)
    )
    spec = MlpSpec(agent.layer_sizes, agent.activation, agent.head, agent.parameters)
    members = {name: np.stack([value * scale for scale in range(10)]) for name, value in agent.parameters.items()}
    async with pool_of(InProcessBackend(), ROWS, workers=1) as pool:
        await pool.update_agent([spec])
        expected = await evaluate_population(pool, members, 5)
    num_duplicates = 0
    for seed in range(4):
        async with pool_of(MortalBackend(seed, 3), ROWS, workers=3, straggler_factor=1e-9) as pool:
            await pool.update_agent([spec])
            for _ in range(3):
                evaluation = await evaluate_population(pool, members, 5)
                assert evaluation.outcomes == expected.outcomes
                assert _adds_up(account_from_proto(account_to_proto(evaluation.account)))
                num_duplicates += evaluation.account.num_straggler_episodes
    assert num_duplicates > 0
