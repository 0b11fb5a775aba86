"""Moments in accounts: bit for bit of the delivered steps, however these were sampled and sent."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from cutting_proxy import cutting_proxy
from pools import pool_of, sample
from shuffled_workers import NATIVE, ROWS
from support import equal, raises
from unreliable import ForgetfulBackend, MortalBackend

import rollserve
from rollserve import RunningMoments, RunningReturns
from rollserve_server.agents import RandomSpec
from rollserve_server.local import LocalServer
from rollserve_server.pool import AtLeast, Exactly, Fragments, InProcessBackend
from rollserve_server.sampling.work import claims as work_claims
from rollserve_wire.columns import leaves_of

BOTH: Any = {"observation_moments": True, "return_discount": 0.9}
MODULES = {"allow_module": ("sample_envs",)}


@pytest.fixture
def server(thread_server: LocalServer) -> LocalServer:
    return thread_server


@pytest.fixture
def sampler(thread_sampler: rollserve.Sampler) -> rollserve.Sampler:
    thread_sampler.update_agent(rollserve.RandomAgent())
    return thread_sampler


def moments_of(batch: rollserve.EpisodeBatch) -> tuple[RunningMoments | None, RunningMoments | None]:
    return batch.account.observation_moments, batch.account.return_moments


def check(batch: rollserve.EpisodeBatch, discount: float | None = 0.9, *, without: tuple[str, ...] = ()) -> None:
    """Check the moments of a batch beside numpy, and beside the client's own, bit for bit."""
    observations, returns = moments_of(batch)
    assert observations is not None
    columns = {name: leaf for name, leaf in leaves_of(batch.observations).items() if name not in without}
    assert observations == RunningMoments.of_segments(columns, batch.lengths)
    assert observations.count == batch.num_steps
    for name, column in columns.items():
        rows = column.astype(np.float64)
        assert np.allclose(leaves_of(observations.mean)[name], rows.mean(axis=0), rtol=1e-12, atol=1e-15)
        assert np.allclose(leaves_of(observations.variance)[name], rows.var(axis=0), rtol=1e-12, atol=1e-15)
    if discount is None:
        assert returns is None
        return
    by_step = []
    for segment in batch.split():
        assert segment.discounted_returns_before is not None
        running = float(segment.discounted_returns_before[0])
        for reward in segment.rewards.tolist():
            running = running * discount + reward
            by_step.append(running)
    assert returns is not None
    assert returns.count == batch.num_steps
    assert np.allclose(returns.mean, np.mean(by_step), rtol=1e-12)
    assert np.allclose(returns.variance, np.var(by_step), rtol=1e-12)
    if not batch.first_steps.any():
        client = RunningReturns(discount)
        assert np.allclose(client.add(batch), by_step, rtol=1e-12)
        assert client.moments == returns


ENVS: dict[str, tuple[rollserve.EnvSpec, tuple[str, ...]]] = {
    "rows": (rollserve.EnvSpec("CartPole-v1", num_rows=3), ()),
    "native": (rollserve.EnvSpec("CartPole-v1", vectorization="native", num_rows=4, num_episodes_per_row=3), ()),
    "nested": (rollserve.EnvSpec("sample_envs:Nested", {"length": 7}), ("pose/1", "counts")),
    "images": (rollserve.EnvSpec("sample_envs:Screens"), ()),
    "stacks": (rollserve.EnvSpec("sample_envs:FrameStacks-v0", num_rows=3), ()),
    "native stacks": (rollserve.EnvSpec("sample_envs:FrameStacks-v0", vectorization="native", num_rows=3), ()),
}


@pytest.mark.parametrize("name", ENVS)
def test_moments_are_the_same_with_any_number_of_workers_and_size_of_messages(
    sampler: rollserve.Sampler, server: LocalServer, name: str
) -> None:
    env, without = ENVS[name]
    sampler.update_env(env)
    expected = sampler.obtain_samples(700, seed=3, **BOTH)
    check(expected, without=without)
    with rollserve.connect(server.address, max_message_bytes=1 << 15) as narrow:
        for num_workers, each in ((1, sampler), (3, narrow), (5, sampler)):
            sampler.resize(num_workers)
            assert moments_of(each.obtain_samples(700, seed=3, **BOTH)) == moments_of(expected)


@pytest.mark.parametrize("name", ENVS)
def test_moments_of_fragments_and_of_exact_episodes_are_of_what_was_delivered(
    sampler: rollserve.Sampler, server: LocalServer, name: str
) -> None:
    env, without = ENVS[name]
    sampler.update_env(env)
    check(sampler.obtain_exact_episodes(5, seed=3, **BOTH), without=without)
    for _ in range(2):
        check(sampler.obtain_fragments(240, **BOTH), without=without)
    first = sampler.obtain_fragments(240, seed=3, **BOTH)
    with rollserve.connect(server.address, max_message_bytes=1 << 15) as narrow:
        again = narrow.obtain_fragments(240, seed=3, **BOTH)
    assert moments_of(again) == moments_of(first)


def test_moments_continue_in_stream_and_in_asyncio(sampler: rollserve.Sampler, server: LocalServer) -> None:
    expected = sampler.obtain_samples(500, seed=3, **BOTH)
    with sampler.stream_samples(500, seed=3, **BOTH) as stream:
        assert sum(batch.num_steps for batch in stream) == expected.num_steps
    account = stream.end()
    assert (account.observation_moments, account.return_moments) == moments_of(expected)

    async def obtain() -> rollserve.EpisodeBatch:
        async with rollserve.aconnect(server.address) as other:
            return await other.obtain_samples(500, seed=3, **BOTH)

    assert moments_of(asyncio.run(obtain())) == moments_of(expected)
    assert moments_of(sampler.obtain_samples(500, seed=3)) == (None, None)
    only = sampler.obtain_samples(500, seed=3, return_discount=0.9)
    assert moments_of(only) == (None, moments_of(expected)[1])


@pytest.mark.parametrize(
    ("env", "target"),
    [(NATIVE, AtLeast(60)), (ROWS, AtLeast(60)), (ROWS, Exactly(3)), (NATIVE, Fragments(60)), (ROWS, Fragments(60))],
    ids=["blocks", "rows", "exact episodes", "fragments of blocks", "fragments"],
)
async def test_losses_of_workers_and_results_change_no_bit(
    env: rollserve.EnvSpec, target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_claims, "_PARCELS_BYTES", 1)
    async with pool_of(InProcessBackend(), env, workers=3) as pool:
        await pool.update_agent([RandomSpec()])
        expected = await sample(pool, target, max_message_bytes=1200, seed=3, **BOTH)
    check(expected)
    num_retried = 0
    for backend in (MortalBackend(1, num_deaths=4, with_machines=True), ForgetfulBackend(1, num_losses=4)):
        async with pool_of(backend, env, workers=3, unit_retries=20) as pool:
            await pool.update_agent([RandomSpec()])
            batch = await sample(pool, target, max_message_bytes=1200, seed=3, **BOTH)
        assert equal(batch, expected)
        assert moments_of(batch) == moments_of(expected)
        num_retried += batch.account.num_retried_episodes
    assert num_retried > 0


CALLS: dict[str, Any] = {
    "samples": lambda sampler: sampler.obtain_samples(24_000, seed=3, **BOTH),
    "fragments": lambda sampler: sampler.obtain_fragments(24_000, seed=3, **BOTH),
    "later fragments": lambda sampler: sampler.obtain_fragments(24_000, seed=3, row_step_count=10, **BOTH),
}


@pytest.mark.parametrize("call", CALLS)
def test_interrupted_call_has_the_moments_of_the_whole_batch(
    sampler: rollserve.Sampler, server: LocalServer, call: str
) -> None:
    rows = sum(worker.num_rows for worker in sampler.status().workers)
    sampler.obtain_fragments(10 * rows, seed=3, **BOTH)
    expected = CALLS[call](sampler)
    check(expected)
    with (
        cutting_proxy(server.address, num_cuts=3, max_bytes=600_000, seed=0) as proxy,
        rollserve.connect(proxy.address) as distant,
    ):
        distant.status()
        batch = CALLS[call](distant)
        assert equal(batch, expected)
        assert batch.account.num_resumptions > 0
        assert moments_of(batch) == moments_of(expected)


def test_interrupted_stream_has_no_moments(sampler: rollserve.Sampler, server: LocalServer) -> None:
    with (
        cutting_proxy(server.address, num_cuts=3, max_bytes=600_000, seed=0) as proxy,
        rollserve.connect(proxy.address) as distant,
    ):
        distant.status()
        with distant.stream_samples(24_000, seed=3, **BOTH) as stream:
            assert sum(batch.num_steps for batch in stream) >= 24_000
        account = stream.end()
    assert account.num_resumptions > 0
    assert (account.observation_moments, account.return_moments) == (None, None)


def test_agent_normalizes_by_the_moments_of_a_call(sampler: rollserve.Sampler) -> None:
    status = sampler.status()
    agent = rollserve.MlpAgent.initial(status.observation_space, status.action_space, seed=0, normalization=True)
    moments = RunningMoments()
    for _ in range(3):
        sampler.update_agent(agent, observation_moments=moments)
        batch = sampler.obtain_samples(300, observation_moments=True)
        held = sampler.agent_parameters()
        expected = moments.parameters() if moments.count else agent.parameters
        for name in ("observation/mean", "observation/variance"):
            assert np.array_equal(held[name], expected[name])
        assert batch.account.observation_moments is not None
        moments.merge(batch.account.observation_moments)
    assert moments.count > 900


REFUSED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "discount above 1": ("obtain_samples", "options.return_discount", {"return_discount": 1.01}),
    "negative discount": ("obtain_samples", "options.return_discount", {"return_discount": -0.1}),
    "nan": ("obtain_exact_episodes", "options.return_discount", {"return_discount": float("nan")}),
    "fragments": ("obtain_fragments", "options.return_discount", {"return_discount": 2}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_moments_that_nobody_can_compute_are_refused(sampler: rollserve.Sampler, case: str) -> None:
    method, field, options = REFUSED[case]
    with raises(rollserve.InvalidArgumentError, field=field):
        getattr(sampler, method)(80, **options)
    with raises(TypeError, field="return_discount"):
        sampler.obtain_samples(80, return_discount="0.9")  # type: ignore[arg-type]
    with raises(TypeError, field="observation_moments"):
        sampler.obtain_samples(80, observation_moments=1)  # type: ignore[arg-type]
    assert sampler.obtain_samples(80, **BOTH).num_steps >= 80


@pytest.mark.parametrize("options", [{"observation_moments": True}, {"return_discount": 0.5}], ids=str)
def test_moments_of_discarded_steps_are_refused(sampler: rollserve.Sampler, options: Any) -> None:
    (name,) = options
    with (
        raises(rollserve.InvalidArgumentError, field=f"options.{name}"),
        sampler.stream_samples(80, blackhole=True, **options) as stream,
    ):
        list(stream)


@pytest.mark.parametrize(
    "env",
    [
        rollserve.EnvSpec("CliffWalking-v1", {"max_episode_steps": 20}),
        rollserve.EnvSpec("sample_envs:Big", {"observation_bytes": (1 << 17) + 1, "length": 3}),
    ],
    ids=["no numbers", "too large"],
)
def test_moments_of_other_observations_are_refused_before_the_agent_is_updated(
    sampler: rollserve.Sampler, env: rollserve.EnvSpec
) -> None:
    sampler.update_env(env)
    version = sampler.status().policy_version
    for options in ({}, {"agent": rollserve.RandomAgent()}):
        with raises(rollserve.InvalidArgumentError, field="options.observation_moments"):
            sampler.obtain_samples(80, observation_moments=True, **options)  # type: ignore[arg-type]
    assert sampler.status().policy_version == version
    assert sampler.obtain_samples(40, return_discount=0.5).num_steps >= 40
