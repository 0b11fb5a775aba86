"""Calls end with the same episodes in any order of the workers' work and reports."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from pools import adds_up, pool_of, sample
from shuffled_workers import NATIVE, ROWS, ShuffledBackend
from support import equal

import rollserve
from rollserve_server.agents import RandomSpec
from rollserve_server.pool import AtLeast, Exactly, Fragments, InProcessBackend, Target

if TYPE_CHECKING:
    pass


_CALLS = 10
_MAX_SECONDS = 20.0


FULL = {"worker_buffer_bytes": 4000, "call_window_bytes": 3000}
CASES: dict[str, tuple[rollserve.EnvSpec, Target | Fragments, dict[str, Any], int]] = {
    "blocks": (NATIVE, AtLeast(300), {}, 3),
    "blocks, full": (NATIVE, AtLeast(300), FULL, 4),
    "rows, full": (ROWS, AtLeast(300), FULL, 2),
    "exactly, full": (ROWS, Exactly(20), {"worker_buffer_bytes": 2000, "call_window_bytes": 2000}, 4),
    "fragments, full": (ROWS, Fragments(240), {"call_window_bytes": 3000}, 3),
}
"""Environment, target, options, and the number of workers in the test that is not slow."""


@pytest.mark.parametrize(
    ("case", "num_workers"),
    [
        pytest.param(case, num_workers, marks=() if num_workers == fast else pytest.mark.slow)
        for case, (_, _, _, fast) in CASES.items()
        for num_workers in (2, 3, 4)
    ],
)
async def test_batches_do_not_depend_on_the_order_of_events(case: str, num_workers: int) -> None:
    env, target, options, _ = CASES[case]
    async with pool_of(InProcessBackend(), env, workers=num_workers) as pool:
        await pool.update_agent([RandomSpec()])
        expected = [await sample(pool, target) for _ in range(_CALLS)]
    for seed in range(2):
        async with pool_of(ShuffledBackend(seed), env, workers=num_workers, **options) as pool:
            await pool.update_agent([RandomSpec()])
            for call in range(_CALLS):
                async with asyncio.timeout(_MAX_SECONDS):
                    batch = await sample(pool, target)
                assert equal(batch, expected[call]), (seed, call)
                assert adds_up(batch.account)
