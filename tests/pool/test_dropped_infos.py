"""Accounts count exactly the infos that the batch of their call lacks."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from fragment_calls import MODULES, fragments
from pools import adds_up, calls_of, pool_of, prefetched, sample
from sample_envs import VariedInfos
from unreliable import MortalBackend

import rollserve
from rollserve_server.agents import RandomSpec
from rollserve_server.pool import AtLeast, Exactly, InProcessBackend
from rollserve_server.pool.plan import estimates

ENV = rollserve.EnvSpec("sample_envs:VariedInfos", {"max_length": 40})


def lacking(batch: rollserve.EpisodeBatch) -> Counter[str]:
    """Return the number of infos by name that a plain run of the environment has and the batch lacks."""
    env, missing = VariedInfos(max_length=40), Counter[str]()
    ends = np.cumsum(batch.lengths)
    for segment, (seed, first, length, end) in enumerate(
        zip(batch.env_seeds, batch.first_steps, batch.lengths, ends, strict=True)
    ):
        _, info = env.reset(seed=int(seed))
        missing.update(missing_of(info, batch.episode_infos, segment))
        for step in range(first + length):
            *_, info = env.step(2)
            if step >= first:
                missing.update(missing_of(info, batch.env_infos, end - length - first + step))
    return missing


def missing_of(info: Mapping[str, Any], columns: Mapping[str, np.ndarray], row: int) -> set[str]:
    missing = set()
    for name, value in info.items():
        if name in columns and columns.get(f"_{name}", np.ones(row + 1, np.bool_))[row]:
            assert np.array_equal(columns[name][row], value)
        else:
            missing.add(name)
    return missing


def check(batch: rollserve.EpisodeBatch) -> None:
    assert batch.account.dropped_infos == lacking(batch)
    assert batch.account.dropped_infos["odd"] > 0
    assert adds_up(batch.account)


@pytest.mark.parametrize("num_workers", [1, 3])
async def test_each_call_counts_the_infos_that_its_own_batch_lacks(num_workers: int) -> None:
    async with pool_of(InProcessBackend(), ENV, workers=num_workers, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        for num_steps in (40, 7, 90, 30):
            check(await sample(pool, AtLeast(num_steps)))
        for max_message_bytes in (1 << 22, 4096):
            check(await sample(pool, AtLeast(60), seed=5, max_message_bytes=max_message_bytes))
        check(await sample(pool, Exactly(7)))


async def test_prefetched_episodes_count_where_they_are_delivered() -> None:
    async with pool_of(InProcessBackend(), ENV, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        calls = calls_of(pool)
        num_prefetched = 0
        for _ in range(4):
            batch = await sample(pool, AtLeast(300), prefetch=True)
            check(batch)
            num_prefetched += batch.account.num_prefetched_steps
            await prefetched(calls[-1])
        assert num_prefetched > 0


async def test_fragments_count_the_infos_that_they_lack() -> None:
    async with pool_of(InProcessBackend(), ENV, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        for num_steps in (40, 8, 80):
            check(await fragments(pool, num_steps))
        check(await fragments(pool, 80, seed=3, max_message_bytes=4096))


@pytest.mark.parametrize("seed", range(3))
async def test_counts_are_right_when_workers_die_and_episodes_run_twice(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(estimates, "_MIN_SECONDS", 0.0)  # each episode is late as soon as another worker is idle
    source, backend = random.Random(seed), MortalBackend(seed, 4)
    options = {"worker_buffer_bytes": 20_000, "call_window_bytes": 8_000, "rows": 2, **MODULES}
    async with pool_of(backend, ENV, workers=3, straggler_factor=1e-9, **options) as pool:
        await pool.update_agent([RandomSpec()])
        num_disturbed = 0
        for _ in range(4):
            max_message_bytes = source.choice((4096, 1 << 22))
            batches = [
                await sample(pool, AtLeast(source.randint(50, 300)), max_message_bytes=max_message_bytes),
                await sample(pool, Exactly(source.randint(4, 9)), max_message_bytes=max_message_bytes),
                await fragments(pool, 6 * source.randint(5, 40), max_message_bytes=max_message_bytes),
            ]
            for batch in batches:
                check(batch)
                num_disturbed += batch.account.num_retried_episodes + batch.account.num_straggler_episodes
        assert num_disturbed > 0
