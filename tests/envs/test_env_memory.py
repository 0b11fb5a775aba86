"""Environments that UpdateEnv refuses, because they or their observations take too much memory."""

from __future__ import annotations

from typing import Any

import pytest
from native_envs import ALLOWED
from pools import evaluate, pool_of, sample
from support import equal, raises

import rollserve
from rollserve import EnvChange, EnvSpec, Reason, Wrapper
from rollserve_server.agents import RandomSpec
from rollserve_server.errors import OverLimitError
from rollserve_server.pool import AtLeast, InProcessBackend, RowUpdates

FIELD = "all_workers.environment"
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
HELD = 8
LIMIT = 4 * HELD * MIB
"""Limit that observations of 1 MiB in four rows just keep."""


def big(observation_bytes: int, **fields: Any) -> EnvSpec:
    return EnvSpec("sample_envs:Big", {"observation_bytes": observation_bytes}, **fields)


@pytest.mark.parametrize(
    ("spec", "row_bytes", "num_rows"),
    [
        (big(MIB + 1), MIB + 1, 4),
        (big(MIB, num_rows=5), MIB, 5),
        (EnvSpec("sample_envs:Big", wrappers=[Wrapper("FrameStackObservation", {"stack_size": 2})]), 2 * MIB, 4),
        (EnvSpec("sample_envs:ScreenRows-v0", vectorization="native", num_rows=4096), 3 * KIB, 4096),
    ],
    ids=["larger", "more rows", "stacked", "native"],
)
async def test_update_refuses_observations_that_take_too_much_memory(
    spec: EnvSpec, row_bytes: int, num_rows: int
) -> None:
    async with pool_of(InProcessBackend(), **{**ALLOWED, "rows": 4}, worker_observation_bytes=LIMIT) as pool:
        await pool.update_agent([RandomSpec()])
        before = await sample(pool, AtLeast(20), seed=1)
        quotes = [str(number) for number in (LIMIT, HELD * row_bytes * num_rows, row_bytes, num_rows)]
        expected: dict[str, Any] = {"reason": Reason.ENVIRONMENTS_TOO_LARGE}
        expected["quotes"] = ("--worker-observation-bytes", *quotes)
        with raises(OverLimitError, field=FIELD, **expected):
            await pool.update_env([spec])
        with raises(OverLimitError, field="options.environment", **expected):
            await evaluate(pool, 1, env=spec)
        assert pool.status().env_version == 1
        assert equal(await sample(pool, AtLeast(20), seed=1), before)
        assert (await pool.update_env([big(MIB)])).version == 2


async def test_rows_that_differ_share_the_memory_for_observations() -> None:
    settings = {**ALLOWED, "rows": 4, "worker_observation_bytes": LIMIT}
    async with pool_of(InProcessBackend(), big(MIB), **settings) as pool:
        row = big(MIB + 1)
        field = "all_workers.per_row.updates[0].environment"
        with raises(OverLimitError, field=field, reason=Reason.ENVIRONMENTS_TOO_LARGE, quotes=str(MIB + 1)):
            await pool.update_env([RowUpdates((row, row, row, row))])
        change = EnvChange(kwargs={"length": 3})
        assert (await pool.update_env([RowUpdates((change, None, change, None))])).version == 2


@pytest.mark.parametrize("at", ["construction", "reset", "step"])
async def test_update_refuses_an_environment_that_needs_more_memory_than_a_probe_has(at: str) -> None:
    async with pool_of(InProcessBackend(), **ALLOWED, probe_memory_bytes=512 * MIB) as pool:
        hoarding = EnvSpec("sample_envs:Hoarding", {"at": at, "num_bytes": GIB})
        quotes = ("sample_envs:Hoarding", "--probe-memory-bytes", str(512 * MIB))
        with raises(OverLimitError, field=FIELD, reason=Reason.ENVIRONMENTS_TOO_LARGE, quotes=quotes):
            await pool.update_env([hoarding])
        assert (await pool.update_env([EnvSpec("sample_envs:Hoarding", {"at": at, "num_bytes": MIB})])).version == 2


async def test_row_that_needs_more_memory_than_a_probe_has_is_named() -> None:
    frugal = EnvSpec("sample_envs:Hoarding", {"at": "reset", "num_bytes": MIB})
    async with pool_of(InProcessBackend(), frugal, **{**ALLOWED, "rows": 4}, probe_memory_bytes=512 * MIB) as pool:
        rows = RowUpdates((None, None, EnvChange(kwargs={"num_bytes": GIB}), None))
        field = "all_workers.per_row.updates[2].change"
        with raises(OverLimitError, field=field, reason=Reason.ENVIRONMENTS_TOO_LARGE, quotes="--probe-memory-bytes"):
            await pool.update_env([rows])


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("stack_size", "quotes"),
    [(200, ("--worker-observation-bytes", str(200 * 210 * 160 * 3))), (1_000_000, "--probe-memory-bytes")],
)
def test_small_request_for_much_memory_costs_no_worker(
    sampler: rollserve.Sampler, stack_size: int, quotes: str | tuple[str, ...]
) -> None:
    workers = [worker.process_id for worker in sampler.status().workers]
    stacked = (Wrapper("FrameStackObservation", {"stack_size": stack_size}),)
    pong = EnvSpec("ALE/Pong-v5", wrappers=stacked, vectorization="rows", num_rows=4096)
    with raises(rollserve.LimitError, field=FIELD, reason=Reason.ENVIRONMENTS_TOO_LARGE, quotes=quotes):
        sampler.update_env(pong)
    assert [worker.process_id for worker in sampler.status().workers] == workers
