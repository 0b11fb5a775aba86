"""Killed workers, beside all that a learner can ask for at once: transforms, scales, masks, states, last values."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from typing import Any

import numpy as np
import pytest
from fragment_calls import CHEETAH, MODULES, fragments, in_calls
from mlp_agents import spec_of
from pools import kill_one, pool_of, sample
from support import equal

import rollserve
from rollserve.spaces import Box, Discrete
from rollserve.transforms import CastObservations, ClipActions, RescaleActions, ScaleRewards
from rollserve_server.pool import AtLeast, Backend, InProcessBackend, Pool
from rollserve_server.sampling import ColumnFormat

COLUMNS = ColumnFormat(last_values=True, last_states=True, returns_before=True, all_states=True)
ASKED: dict[str, Any] = {"columns": COLUMNS, "observation_moments": True, "return_discount": 0.9}
TRANSFORMS = (ScaleRewards(0.1), RescaleActions(), ClipActions(), CastObservations("float32"))
INPUTS: dict[str, Any] = {"core": "lstm", "core_size": 4, "previous_action": True, "previous_reward": True}
CASES: dict[str, tuple[rollserve.EnvSpec, int, Any, dict[str, Any]]] = {
    "cheetah": (dataclasses.replace(CHEETAH, transforms=TRANSFORMS, text_info_bytes=8), 17, None, {}),
    "masked": (
        rollserve.EnvSpec("sample_envs:Masked", transforms=TRANSFORMS[:1]),
        3,
        Discrete(5, 2),
        {"action_mask": rollserve.ActionMask(info="action_mask")},
    ),
}
"""Environment, size of observations, actions (None: as HalfCheetah has them) and further options of the agent."""


def agent_of(size: int, actions: Any, options: dict[str, Any]) -> Any:
    """Return a recurrent agent with a value, which normalizes, and sees the action and the reward before."""
    observations = Box(np.float32(-np.inf), np.float32(np.inf), (size,), np.dtype(np.float32))
    actions = actions or Box(np.float32(-1), np.float32(1), (6,), np.dtype(np.float32))
    made = rollserve.MlpAgent.initial(
        observations, actions, seed=1, hidden_sizes=(8,), value="shared", normalization=True, **INPUTS, **options
    )
    generator = np.random.default_rng(2)
    scales = {"observation/mean": generator.normal(size=size), "observation/variance": generator.uniform(1, 2, size)}
    return spec_of(dataclasses.replace(made, parameters={**made.parameters, **scales}))


async def killing(pool: Pool, source: random.Random, seconds: float) -> None:
    """Kill a worker now and then."""
    while True:
        await asyncio.sleep(source.uniform(0.1, seconds))
        kill_one(pool, source)


def same(batch: rollserve.EpisodeBatch, expected: rollserve.EpisodeBatch) -> int:
    """Check that two batches have the same bits and moments; return the steps that were lost with workers."""
    assert equal(batch, expected)
    assert batch.account.observation_moments == expected.account.observation_moments
    assert batch.account.return_moments == expected.account.return_moments
    return batch.account.num_lost_steps


@pytest.mark.slow
@pytest.mark.parametrize("case", ["cheetah", "masked"])
async def test_all_columns_of_a_learner_are_the_same_when_workers_are_killed(ray_backend: Backend, case: str) -> None:
    env, *about_agent = CASES[case]
    agent, target = agent_of(*about_agent), AtLeast(4000)
    options: dict[str, Any] = {"unit_retries": 1000, **MODULES}
    async with pool_of(InProcessBackend(), env, workers=4, rows=1, **options) as pool:
        await pool.update_agent([agent])
        whole = await sample(pool, target, seed=5, **ASKED)
    assert whole.last_values is not None
    assert whole.raw_rewards is not None
    source, num_lost = random.Random(case), 0
    async with pool_of(ray_backend, env, workers=2, rows=2, **options) as pool:
        await pool.update_agent([agent])
        cut = await in_calls(pool, [13, 900], seed=6, **ASKED)
        for _ in range(20):
            killer = asyncio.create_task(killing(pool, source, 0.3))
            try:
                num_lost += same(await sample(pool, target, seed=5, **ASKED), whole)
                again = await fragments(pool, 4 * 900, 13, seed=6, **ASKED)
            finally:
                killer.cancel()
            num_lost += same(again, cut[1])
            if num_lost > 0:
                return
    raise AssertionError("no worker was lost while it sampled")
