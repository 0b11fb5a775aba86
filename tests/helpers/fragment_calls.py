"""Calls for fragments of a pool, and what they are joined to."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import random
from typing import Any

import numpy as np
from pools import adds_up, kill_one, sample
from support import equal

import rollserve
from rollserve_server.agents import AgentSpec, MlpSpec, RandomSpec
from rollserve_server.pool import Fragments, Pool
from rollserve_server.sampling import ColumnFormat

MODULES = {"allow_module": ("sample_envs",)}
AS_CLIENTS = ColumnFormat(returns_before=True)
"""Format of columns that clients ask for."""
CHEETAH = rollserve.EnvSpec("HalfCheetah-v5", {"max_episode_steps": 70})


def mlp(env: rollserve.EnvSpec, seed: int) -> AgentSpec:
    sizes = {"CartPole-v1": (4, rollserve.spaces.Discrete(2)), "HalfCheetah-v5": (17, box(6))}
    if env.id not in sizes:
        return RandomSpec()
    num_inputs, action_space = sizes[env.id]
    agent = rollserve.MlpAgent.initial(box(num_inputs), action_space, seed=seed)
    return MlpSpec(agent.layer_sizes, agent.activation, agent.head, agent.parameters)


def box(size: int) -> rollserve.spaces.Box:
    return rollserve.spaces.Box(np.float32(-1), np.float32(1), (size,), np.dtype(np.float32))


async def fragments(
    pool: Pool, num_steps: int, clock: int | None = None, *, soft: bool = False, skip: int = 0, **options: Any
) -> rollserve.EpisodeBatch:
    batch = await sample(pool, Fragments(num_steps, skip, soft, clock), **options)
    assert batch.num_steps == num_steps - skip
    assert adds_up(batch.account)
    assert batch.account.num_kept_steps == 0
    return batch


async def in_calls(pool: Pool, calls: list[int], seed: int, **options: Any) -> list[rollserve.EpisodeBatch]:
    """Return the batches of calls with these numbers of steps per row, from the start of a seed's sequence."""
    num_rows = sum(worker.num_rows for worker in pool.status().workers)
    clocks = itertools.accumulate(calls, initial=0)
    return [
        await fragments(pool, num_steps * num_rows, clock or None, seed=seed, **options)
        for num_steps, clock in zip(calls, clocks, strict=False)
    ]


async def num_lost_despite_kills(
    pool: Pool, calls: list[int], source: random.Random, max_pause: float, **options: Any
) -> int:
    """Kill a worker after each short call and during each long one, and check the batches; return the lost steps.

    Args:
        pool: a pool with four rows.
        calls: numbers of steps per row; calls from 1,000 on are long.
        source: random numbers for pauses and victims.
        max_pause: largest number of seconds from the begin of a long call to the kill.
        options: options of all calls.
    """
    expected = await in_calls(pool, calls, seed=9, **options)
    clock = num_lost = 0
    for num_steps, expected_batch in zip(calls, expected, strict=True):
        running = asyncio.create_task(fragments(pool, 4 * num_steps, clock or None, seed=9, **options))
        if num_steps >= 1000:
            await asyncio.sleep(source.uniform(0.0, max_pause))
        else:
            await running
        kill_one(pool, source)
        batch = await running
        assert equal(batch, expected_batch)
        assert batch.account.num_broken_off_episodes == 0
        num_lost += batch.account.num_lost_steps
        clock += num_steps
    return num_lost


async def of_episodes(batches: list[rollserve.EpisodeBatch]) -> dict[int, rollserve.EpisodeBatch]:
    """Return the joined fragments of each episode, by its index."""
    parts: dict[int, list[rollserve.EpisodeBatch]] = {}
    for batch in batches:
        # Other episodes of a batch decide, too, which infos have a column.
        for part in dataclasses.replace(batch, env_infos={}, episode_infos={}).split():
            parts.setdefault(int(part.episode_indices[0]), []).append(part)
    return {index: rollserve.EpisodeBatch.concatenate(*segments).joined() for index, segments in parts.items()}
