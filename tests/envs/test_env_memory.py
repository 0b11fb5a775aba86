"""Environments that UpdateEnv refuses, because they or their observations take too much memory."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import pytest
from every_space import EVERY_SPACE, own_classes
from gymnasium import spaces
from native_envs import ALLOWED
from pools import evaluate, pool_of, sample
from support import equal, raises

import rollserve
from rollserve import EnvChange, EnvSpec, Reason, Wrapper
from rollserve_server.agents import RandomSpec
from rollserve_server.envs import describe_space, pickle_uniform_boxes
from rollserve_server.errors import OverLimitError
from rollserve_server.local import LocalServer
from rollserve_server.machine import num_cores
from rollserve_server.pool import AtLeast, InProcessBackend, RowUpdates
from rollserve_wire.spaces import space_to_proto

FIELD = "all_workers.environment"
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
HELD = 8
LIMIT = 4 * HELD * MIB
"""Limit that observations of 1 MiB in four rows just keep."""


@pytest.fixture(scope="session")
def server(ray_server: LocalServer) -> LocalServer:
    """The shared server whose workers are processes, with memory of their own."""
    return ray_server


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


async def test_sampler_refuses_observations_that_take_too_much_memory_in_all_workers() -> None:
    settings = {**ALLOWED, "rows": 4, "worker_observation_bytes": GIB, "sampler_observation_bytes": 2 * LIMIT}
    async with pool_of(InProcessBackend(), **settings) as pool:
        await pool.update_agent([RandomSpec()])
        before = await sample(pool, AtLeast(20), seed=1)
        quotes = ("--sampler-observation-bytes", str(2 * LIMIT), str(2 * HELD * 4 * (MIB + 1)))
        too_large: dict[str, Any] = {"reason": Reason.ENVIRONMENTS_TOO_LARGE, "quotes": quotes}
        with raises(OverLimitError, field=FIELD, **too_large):
            await pool.update_env([big(MIB + 1)])
        with raises(OverLimitError, field="options.environment", **too_large):
            await evaluate(pool, 1, env=big(MIB + 1))
        assert pool.status().env_version == 1
        assert equal(await sample(pool, AtLeast(20), seed=1), before)
        assert (await pool.update_env([big(MIB)])).version == 2


async def test_resize_refuses_observations_that_take_too_much_memory_in_all_workers() -> None:
    settings = {**ALLOWED, "rows": 4, "max_workers": 4, "sampler_observation_bytes": 2 * LIMIT}
    async with pool_of(InProcessBackend(), big(MIB), **settings) as pool:
        quotes = ("--sampler-observation-bytes", str(2 * LIMIT), str(3 * LIMIT))
        with raises(OverLimitError, field="worker_count", reason=Reason.ENVIRONMENTS_TOO_LARGE, quotes=quotes):
            await pool.resize(3)
        assert len(pool.status().workers) == 2
        await pool.update_env([big(MIB // 2)])
        assert await pool.resize(4) == 2


async def test_evaluation_counts_the_workers_that_a_resize_has_added() -> None:
    settings = {**ALLOWED, "rows": 4, "max_workers": 4, "sampler_observation_bytes": 2 * LIMIT}
    async with pool_of(InProcessBackend(), **settings) as pool:
        await pool.update_agent([RandomSpec()])
        await evaluate(pool, 1, env=big(MIB))
        await pool.resize(3)
        with raises(OverLimitError, field="options.environment", reason=Reason.ENVIRONMENTS_TOO_LARGE):
            await evaluate(pool, 1, env=big(MIB))


async def test_sampler_does_not_start_with_observations_that_take_too_much_memory() -> None:
    settings = {**ALLOWED, "rows": 4, "sampler_observation_bytes": 2 * LIMIT - 1}
    with raises(
        OverLimitError, field=FIELD, reason=Reason.ENVIRONMENTS_TOO_LARGE, quotes="--sampler-observation-bytes"
    ):
        async with pool_of(InProcessBackend(), big(MIB), **settings):
            pass


async def test_default_memory_for_observations_is_that_of_four_workers_for_each_core() -> None:
    settings = {**ALLOWED, "rows": 1, "max_workers": 4 * num_cores() + 1, "worker_observation_bytes": HELD * KIB}
    async with pool_of(InProcessBackend(), big(KIB), **settings) as pool:
        with raises(OverLimitError, field="worker_count", quotes=str(HELD * KIB * 4 * num_cores())):
            await pool.resize(4 * num_cores() + 1)
        assert await pool.resize(3) == 2


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


def test_bounds_of_large_observations_take_no_memory_of_the_server(
    sampler: rollserve.Sampler, server: LocalServer
) -> None:
    """Workers describe their spaces, and gymnasium's boxes have four arrays of an observation's shape."""
    process = psutil.Process(server.process.pid)
    before = process.memory_full_info().uss
    sampler.update_env(big(16 * MIB, num_rows=1))
    assert process.memory_full_info().uss - before < 8 * 16 * MIB


@pytest.mark.parametrize("copied", [lambda space: pickle.loads(pickle.dumps(space)), copy.deepcopy])
@pytest.mark.parametrize("space", [*EVERY_SPACE, spaces.Box(-1, 1, (0,), np.float32)], ids=str)
def test_copies_of_spaces_are_equal(space: spaces.Space[Any], copied: Callable[[Any], Any]) -> None:
    pickle_uniform_boxes()
    space.seed(3)
    again = copied(space)
    assert repr(again) == repr(space)
    assert again.np_random.bit_generator.state == space.np_random.bit_generator.state
    for box, original in zip(boxes_in(again), boxes_in(space), strict=True):
        for name in ("low", "high", "bounded_below", "bounded_above"):
            one, other = getattr(box, name), getattr(original, name)
            assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


@pytest.mark.parametrize("dtype", [np.uint8, np.bool_, np.float64])
def test_pickles_of_large_spaces_are_small(dtype: Any) -> None:
    pickle_uniform_boxes()
    assert len(pickle.dumps(spaces.Box(0, 1, (50, 84, 84), dtype))) < 1000


def test_every_space_arrives_at_the_client(cartpole: rollserve.Sampler) -> None:
    space = cartpole.update_env("sample_envs:EverySpace").observation_space
    assert isinstance(space, rollserve.spaces.Dict)
    for name, expected in {**{str(number): each for number, each in enumerate(EVERY_SPACE)}, **own_classes()}.items():
        assert space_to_proto(space[name]) == space_to_proto(describe_space(expected))
    cartpole.update_agent(rollserve.RandomAgent())
    assert cartpole.obtain_samples(10).num_steps >= 10


def boxes_in(space: Any) -> list[spaces.Box]:
    if isinstance(space, spaces.Box):
        return [space]
    parts = space.spaces.values() if isinstance(space, spaces.Dict) else getattr(space, "spaces", ())
    return [box for part in parts for box in boxes_in(part)]
