"""Environments that raise: their episodes run again with the same results, or are skipped, and accounts report it."""

from __future__ import annotations

import asyncio
import pickle
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from charges import lay
from cutting_proxy import cutting_proxy
from faults.backends import SLOW_ON_RAY
from fragment_calls import box
from odd_errors import TEXTS, raise_odd
from pools import adds_up, calls_of, evaluate, evaluate_population, kill_one, pool_of, prefetched, sample
from shuffled_workers import ShuffledBackend
from support import equal, raises, server_environment
from unreliable import MortalBackend

import rollserve
from rollserve import Reason
from rollserve.cli import main
from rollserve_server.agents import MlpSpec, RandomSpec
from rollserve_server.errors import (
    AgentFailedError,
    EnvFailedError,
    FaultError,
    InvalidValueError,
    NotFoundError,
    portable,
)
from rollserve_server.local import LocalServer, local_server
from rollserve_server.pool import AtLeast, Backend, Exactly, Fragments, InProcessBackend, Pool, Target
from rollserve_server.sampling import ColumnFormat
from rollserve_server.sampling.fragments.action_history import ActionHistory

MODULES: dict[str, Any] = {"allow_module": ("sample_envs",)}
STEADY = rollserve.EnvSpec("sample_envs:Flaky")
BLOCKS = {"vectorization": "native", "num_rows": 4, "num_episodes_per_row": 3}


def flaky(folder: Path | str = "", **kwargs: Any) -> rollserve.EnvSpec:
    return rollserve.EnvSpec("sample_envs:Flaky", {"folder": str(folder), **kwargs})


def coins(folder: Path | str = "", **kwargs: Any) -> rollserve.EnvSpec:
    return rollserve.EnvSpec("sample_envs:FlakyCoins-v0", {"folder": str(folder), **kwargs}, **BLOCKS)


def mlp(num_inputs: int, num_actions: int = 2) -> MlpSpec:
    agent = rollserve.MlpAgent.initial(box(num_inputs), rollserve.spaces.Discrete(num_actions), seed=1)
    return MlpSpec(agent.layer_sizes, agent.activation, agent.head, agent.parameters)


def episodes(batch: rollserve.EpisodeBatch, which: np.ndarray) -> rollserve.EpisodeBatch:
    """Select episodes of a batch by a mask or by their positions."""
    parts = batch.split()
    return rollserve.EpisodeBatch.concatenate(*[parts[position] for position in np.arange(len(batch))[which].tolist()])


async def reference(env: rollserve.EnvSpec, target: Target | Fragments, **options: Any) -> rollserve.EpisodeBatch:
    """Sample environments that do not raise."""
    async with pool_of(InProcessBackend(), env, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        return await sample(pool, target, **options)


def failing(batch: rollserve.EpisodeBatch, one_in: int = 4) -> np.ndarray:
    """A mask of the segments whose seeds make their episodes raise."""
    return np.asarray(batch.env_seeds % one_in == 0)


def check_account(batch: rollserve.EpisodeBatch) -> rollserve.Account:
    account = batch.account
    assert adds_up(account)
    assert sum(account.retry_reasons.values()) == account.num_retried_episodes
    assert account.num_steps == batch.num_steps
    return account


@pytest.mark.parametrize("target", [AtLeast(400), Exactly(30)], ids=["at least", "exactly"])
@pytest.mark.parametrize(
    ("at", "times", "refusals"),
    [("step", 1, 0), ("step", 3, 0), ("reset", 2, 0), ("close", 2, 0), ("step", 1, 2)],
    ids=["step", "step, 3 times", "reset", "close", "step, then construction"],
)
async def test_failed_episodes_run_again_with_the_same_results(
    tmp_path: Path, target: Target, at: str, times: int, refusals: int
) -> None:
    await check_retries(InProcessBackend(), tmp_path, target, at, times, refusals)


async def test_failed_episodes_run_again_on_ray(ray_backend: Backend, tmp_path: Path) -> None:
    await check_retries(ray_backend, tmp_path, AtLeast(400), "step", 2, 1)


async def check_retries(backend: Backend, tmp_path: Path, target: Target, at: str, times: int, refusals: int) -> None:
    expected = await reference(STEADY, target, seed=3)
    async with pool_of(backend, flaky(tmp_path, at=at, times=times, refusals=refusals), **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        batch = await sample(pool, target, seed=3)
        assert equal(batch, expected)
        account, counters = check_account(batch), pool.status().counters
        num_failing = int(failing(batch).sum())
        assert num_failing > 5
        assert account.retry_reasons.keys() == {"environment_failed"}
        assert account.num_retried_episodes >= num_failing * times + refusals
        assert account.num_lost_steps > 0 or at in ("reset", "close")
        assert account.num_failed_episodes == 0
        reported = {failure.episode_index: failure for failure in account.episode_failures}
        for index in batch.episode_indices[failing(batch)].tolist():
            assert times <= reported[index].num_attempts <= times + refusals
            assert not reported[index].skipped
            assert f"episode {index} (environment seed " in reported[index].text
        assert counters.num_env_failures == counters.num_retried_episodes == account.num_retried_episodes
        # No failure is left for a second call.
        assert equal(await sample(pool, target, seed=3), expected)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
async def test_results_are_the_same_with_random_failures(seed: int) -> None:
    env = flaky(at="anywhere", one_in=25)
    async with pool_of(InProcessBackend(), env, env_retries=30, workers=2, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        for target in (AtLeast(1500), Exactly(100)):
            batch = await sample(pool, target, seed=seed)
            assert equal(batch, await reference(STEADY, target, seed=seed))
            assert check_account(batch).num_retried_episodes > 10
        result = await evaluate(pool, 50, seed=seed)
        async with pool_of(InProcessBackend(), STEADY, **MODULES) as other:
            await other.update_agent([RandomSpec()])
            assert (await evaluate(other, 50, seed=seed)).outcomes == result.outcomes
        assert result.account.num_retried_episodes > 0
        assert adds_up(result.account)


async def test_evaluations_count_no_skipped_episodes() -> None:
    """An episode may end on a worker that is lost, and raise where it runs again."""
    num_whole = 0
    for seed in range(15):
        backend, env = MortalBackend(seed, 12, with_machines=True), flaky(at="anywhere", one_in=25)
        async with pool_of(backend, env, env_retries=0, unit_retries=1000, workers=3, **MODULES) as pool:
            await pool.update_agent([RandomSpec()])
            try:
                result = await evaluate(pool, 100, seed=seed, skip_failed=True)
            except EnvFailedError:  # an episode that shares a message with others
                continue
        num_whole += 1
        failures, num_there = result.account.env_failures, len(result.outcomes)
        assert num_there + failures.num_skipped == 100
        assert num_there == result.account.num_discarded_episodes
        assert sum(outcome.length for outcome in result.outcomes) == result.account.num_discarded_steps
        skipped = {failed.index for failed in failures.reported.values() if failed.is_skipped}
        assert skipped.isdisjoint(outcome.episode_index for outcome in result.outcomes)
    assert num_whole > 2


async def test_results_are_the_same_in_any_order_of_answers() -> None:
    expected = [await reference(STEADY, target, seed=5) for target in (AtLeast(300), Exactly(20))]
    for seed in range(4):
        options = {"workers": 3, "worker_buffer_bytes": 4000, "call_window_bytes": 3000, "env_retries": 30}
        env = flaky(at="anywhere", one_in=20)
        async with pool_of(ShuffledBackend(seed), env, **options, **MODULES) as pool:
            await pool.update_agent([RandomSpec()])
            assert equal(await sample(pool, AtLeast(300), seed=5), expected[0])
        async with pool_of(ShuffledBackend(seed), STEADY, workers=2, **MODULES) as pool:
            await pool.update_agent([RandomSpec()])
            assert equal(await sample(pool, Exactly(20), seed=5), expected[1])


@SLOW_ON_RAY
async def test_call_fails_if_an_episode_raises_in_every_attempt(backend: Backend) -> None:
    whole = await reference(STEADY, AtLeast(400), seed=3)
    first = int(np.flatnonzero(failing(whole))[0])
    num_steps = int(whole.lengths[:first].sum())
    async with pool_of(backend, flaky(times=-1), env_retries=2, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        for _ in range(2):
            with raises(
                EnvFailedError, reason=Reason.ENV_FAILED, match=r"RuntimeError: broken by design.*\b3 attempts"
            ) as info:
                await sample(pool, AtLeast(400), seed=3)
            assert info.value.episode_index == first
            # Workers run the failing episode ahead, but a call that does not need it succeeds.
            batch = await sample(pool, AtLeast(num_steps), seed=3)
            assert equal(batch, await reference(STEADY, AtLeast(num_steps), seed=3))
        with raises(EnvFailedError, reason=Reason.ENV_FAILED, match="broken by design"):
            await sample(pool, Exactly(100), seed=3)
        assert pool.status().counters.num_env_failures > 6


@pytest.mark.parametrize("retries", [0, 2])
async def test_calls_skip_failed_episodes(retries: int) -> None:
    await check_gaps(InProcessBackend(), retries)


@pytest.mark.slow
async def test_calls_skip_failed_episodes_on_ray(ray_backend: Backend) -> None:
    await check_gaps(ray_backend, 1)


async def check_gaps(backend: Backend, retries: int) -> None:
    whole = await reference(STEADY, AtLeast(3000), seed=3)
    kept = episodes(whole, ~failing(whole))
    async with pool_of(backend, flaky(times=-1), env_retries=retries, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        position = first = 0
        for num_steps in (1, 700, 20, 400):  # what workers keep between calls has gaps, too
            batch = await sample(pool, AtLeast(num_steps), seed=3, first_index=first, skip_failed=True)
            account = check_account(batch)
            assert equal(batch, episodes(kept, np.arange(position, position + len(batch))))
            assert batch.num_steps - batch.lengths[-1] < num_steps <= batch.num_steps
            last = int(batch.episode_indices[-1])
            assert account.num_failed_episodes == last + 1 - first - len(batch)
            skipped = [failure for failure in account.episode_failures if failure.skipped]
            assert {failure.num_attempts for failure in skipped} <= {retries + 1}
            assert len(skipped) == account.num_failed_episodes
            position, first = position + len(batch), last + 1
        assert pool.status().counters.num_failed_episodes == first - position
        batch = await sample(pool, Exactly(40), seed=3, skip_failed=True)
        exact = await reference(STEADY, Exactly(40), seed=3)
        assert equal(batch, episodes(exact, ~failing(exact)))
        assert check_account(batch).num_failed_episodes == 80 - len(batch)
        result = await evaluate(pool, 40, seed=3, skip_failed=True)
        assert [outcome.episode_index for outcome in result.outcomes] == [
            index for index in kept.episode_indices.tolist() if index < 40
        ]
        assert result.account.env_failures.num_skipped == 40 - len(result.outcomes)
        assert adds_up(result.account)


async def test_own_sequence_with_prefetch_skips_failed_episodes() -> None:
    async with pool_of(InProcessBackend(), flaky(times=-1), **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        batches, calls = [], calls_of(pool)
        for _ in range(8):
            batches.append(await sample(pool, AtLeast(60), prefetch=True, skip_failed=True))
            await prefetched(calls[-1])
        accounts = [check_account(batch) for batch in batches]
        assert sum(account.num_prefetched_steps for account in accounts) > 0
        for account in accounts:
            skipped = [failure for failure in account.episode_failures if failure.skipped]
            assert len(skipped) == account.num_failed_episodes < 64
        joined = rollserve.EpisodeBatch.concatenate(*batches)
        last = int(joined.episode_indices[-1])
        whole = await reference(STEADY, AtLeast(2000), seed=accounts[0].seed)
        assert equal(joined, episodes(whole, ~failing(whole) & (whole.episode_indices <= last)))
        assert sum(account.num_failed_episodes for account in accounts) == last + 1 - len(joined)


async def test_call_fails_if_all_episodes_fail(caplog: pytest.LogCaptureFixture) -> None:
    async with pool_of(InProcessBackend(), flaky(times=-1, one_in=1), **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        with raises(EnvFailedError, reason=Reason.ENV_FAILED, match=r"\b256 episodes"):
            await sample(pool, AtLeast(1), skip_failed=True)
        with raises(EnvFailedError, reason=Reason.ENV_FAILED, match=r"\b5 episodes"):
            await sample(pool, Exactly(3), skip_failed=True)
        with raises(EnvFailedError, reason=Reason.ENV_FAILED, match="broken by design"):
            await evaluate(pool, 1, skip_failed=True)
        lines = [record for record in caplog.records if record.message == "environment failed"]
        assert 0 < len(lines) < pool.status().counters.num_env_failures / 4


async def test_skipping_is_rejected_for_fragments_and_populations() -> None:
    async with pool_of(InProcessBackend(), STEADY, workers=1, rows=2, **MODULES) as pool:
        await pool.update_agent([mlp(3)])
        with raises(InvalidValueError, field="options.skip_failed_episodes", reason=Reason.INVALID_VALUE):
            await sample(pool, Fragments(4), skip_failed=True)
        with raises(InvalidValueError, field="options.skip_failed_episodes", reason=Reason.INVALID_VALUE):
            await evaluate_population(pool, {}, 1, skip_failed=True)


@pytest.mark.parametrize("at", ["step", "reset"])
async def test_failed_blocks_run_again_with_the_same_results(tmp_path: Path, at: str) -> None:
    for target in (AtLeast(1500), Exactly(40)):
        expected = await reference(coins(), target, seed=3)
        folder = tmp_path / type(target).__name__
        folder.mkdir()
        async with pool_of(InProcessBackend(), coins(folder, at=at, times=3), **MODULES) as pool:
            await pool.update_agent([RandomSpec()])
            batch = await sample(pool, target, seed=3)
            assert equal(batch, expected)
            account = check_account(batch)
            assert account.num_retried_episodes > 3
            assert account.num_lost_steps > 0 or at == "reset"
    async with pool_of(InProcessBackend(), coins(times=-1), env_retries=1, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        with raises(EnvFailedError, reason=Reason.ENV_FAILED, match=r"block of episode \d+ .*\b2 attempts"):
            await sample(pool, AtLeast(1500), seed=3)


@pytest.mark.parametrize("target", [AtLeast(1500), Exactly(60)], ids=["at least", "exactly"])
async def test_skipped_blocks_deliver_the_episodes_that_ended_before_the_error(target: Target) -> None:
    async with pool_of(InProcessBackend(), coins(times=-1), **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        batch = await sample(pool, target, seed=3, skip_failed=True)
        account = check_account(batch)
        last = int(batch.episode_indices[-1])
        assert account.num_failed_episodes >= last + 1 - len(batch) > 10
        whole = await reference(coins(), AtLeast(6000) if isinstance(target, AtLeast) else target, seed=3)
        skipped = np.setdiff1d(whole.episode_indices[: last + 1], batch.episode_indices)
        assert equal(batch, episodes(whole, batch.episode_indices))
        assert failing(whole, 2)[skipped].all()
        assert equal(await sample(pool, target, seed=3, skip_failed=True), batch)


@pytest.mark.slow
async def test_calls_skip_the_same_episodes_when_workers_die(ray_backend: Backend) -> None:
    async with pool_of(ray_backend, flaky(times=-1, length=200), workers=3, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        targets = (AtLeast(20_000), Exactly(80))
        expected = [await sample(pool, target, seed=4, skip_failed=True) for target in targets]
        source, num_lost = random.Random(1), 0
        for target, batch in zip(targets, expected, strict=True):
            running = asyncio.create_task(sample(pool, target, seed=4, skip_failed=True))
            await asyncio.sleep(source.uniform(0.1, 0.3))
            kill_one(pool, source)
            again = await running
            assert equal(again, batch)
            num_lost += check_account(again).retry_reasons.get("worker_lost", 0)
        assert num_lost > 0


async def in_calls(pool: Pool, num_steps: int, num_calls: int) -> list[rollserve.EpisodeBatch]:
    """Sample fragments in consecutive calls."""
    targets = [Fragments(8 * num_steps, row_step_count=call * num_steps) for call in range(num_calls)]
    return [await sample(pool, target, seed=6, columns=ColumnFormat(returns_before=True)) for target in targets]


FRAGMENTS: dict[str, tuple[Callable[..., rollserve.EpisodeBatch], dict[str, Any]]] = {
    "rows": (flaky, {"one_in": 4, "length": 60}),  # type: ignore[dict-item]
    "blocks": (coins, {"one_in": 1, "mode": "SameStep"}),  # type: ignore[dict-item]
}


@pytest.mark.parametrize("kind", FRAGMENTS)
@pytest.mark.parametrize("at", ["step", "reset", "anywhere"])
async def test_failed_rows_are_restored(tmp_path: Path, kind: str, at: str) -> None:
    await check_fragments(InProcessBackend(), tmp_path, kind, at)


@pytest.mark.slow
async def test_failed_rows_are_restored_on_ray(ray_backend: Backend, tmp_path: Path) -> None:
    await check_fragments(ray_backend, tmp_path, "rows", "step")


async def check_fragments(backend: Backend, tmp_path: Path, kind: str, at: str) -> None:
    make: Any
    make, kwargs = FRAGMENTS[kind]
    async with pool_of(InProcessBackend(), make(**kwargs), **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        expected = await in_calls(pool, 25, 6)
    if at == "anywhere":
        env, options = make(**{**kwargs, "at": at, "one_in": 60}), {"env_retries": 100}
    else:
        env, options = make(tmp_path, at=at, times=2, **kwargs), {}
    async with pool_of(backend, env, **options, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        batches = await in_calls(pool, 25, 6)
        for batch, undisturbed in zip(batches, expected, strict=True):
            assert equal(batch, undisturbed)
            assert check_account(batch).num_broken_off_episodes == 0
        accounts = [check_account(batch) for batch in batches]
        # Random failures may all miss these calls.
        assert at == "anywhere" or sum(account.retry_reasons.get("environment_failed", 0) for account in accounts) > 0
        assert at != "step" or sum(account.num_lost_steps for account in accounts) > 0


@pytest.mark.parametrize("kind", FRAGMENTS)
async def test_fragment_call_fails_if_a_row_raises_in_every_attempt(kind: str) -> None:
    make: Any
    make, kwargs = FRAGMENTS[kind]
    async with pool_of(InProcessBackend(), make(times=-1, **kwargs), env_retries=2, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        with raises(EnvFailedError, reason=Reason.ENV_FAILED, match=r"broken by design.*\b3 attempts"):
            await in_calls(pool, 50, 4)


async def test_retries_of_rows_are_counted_from_their_last_episode_end(tmp_path: Path) -> None:
    env = rollserve.EnvSpec("sample_envs:RaisingRows-v0", {"folder": str(tmp_path)}, **{**BLOCKS, "num_rows": 2})
    async with pool_of(InProcessBackend(), env, workers=1, env_retries=1, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        for _ in range(4):
            await sample(pool, Fragments(40))
            lay(tmp_path, "step")
            assert check_account(await sample(pool, Fragments(40))).num_retried_episodes == 1


@pytest.mark.parametrize("target", [AtLeast(100), Fragments(100)])
async def test_vector_environment_with_a_length_limit_is_made_with_retries(
    tmp_path: Path, target: Target | Fragments
) -> None:
    env = rollserve.EnvSpec("sample_envs:RaisingRows-v0", {"folder": str(tmp_path)}, **{**BLOCKS, "num_rows": 2})
    async with pool_of(InProcessBackend(), env, workers=1, env_retries=2, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        lay(tmp_path, "make", 2)
        assert max((await sample(pool, target, max_episode_length=3)).lengths) == 3
        lay(tmp_path, "make", 3)
        with raises(
            InvalidValueError,
            field="options.max_episode_length",
            reason=Reason.INVALID_VALUE,
            match=r"\b4\b.*broken by design",
        ):
            await sample(pool, target, max_episode_length=4)


def test_action_history_spans_calls_that_ended_early() -> None:
    history = ActionHistory([SimpleNamespace(actions=[])])  # type: ignore[list-item]
    first, second = np.arange(10).reshape(10, 1), np.arange(20, 30).reshape(10, 1)
    history.begin_call([first])
    history.reset(0, 2)
    history.shorten([first[:5]])
    history.begin_call([second])
    (since,) = history.since_reset(0, 3, 6) or ()
    assert since.tolist() == [2, 3, 4, 20, 21, 22]


async def test_step_with_too_few_values_fails_its_episode() -> None:
    env = rollserve.EnvSpec("sample_envs:FourValues", {"length": 5})
    async with pool_of(InProcessBackend(), env, env_retries=1, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        with raises(
            EnvFailedError,
            reason=Reason.ENV_FAILED,
            match="returned from step: .*, got a tuple of 4",
        ):
            await sample(pool, AtLeast(200), seed=1)
        account = check_account(await sample(pool, AtLeast(200), seed=1, skip_failed=True))
        assert account.num_failed_episodes > 0


@SLOW_ON_RAY
async def test_rows_that_cannot_be_restored_begin_other_episodes(backend: Backend) -> None:
    """The account counts the broken off episodes, and calls deliver all their steps."""
    env = flaky(at="anywhere", one_in=300, length=60, pure=False)
    async with pool_of(backend, env, workers=1, env_retries=50, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        num_broken_off = num_retried = 0
        for _ in range(30):
            batch = await sample(pool, Fragments(100))
            account = check_account(batch)
            assert batch.num_steps == 100
            num_broken_off += account.num_broken_off_episodes
            num_retried += account.num_retried_episodes
        assert num_retried > 0
        assert num_broken_off > 0


async def test_population_retries_failed_members(tmp_path: Path) -> None:
    agent = mlp(3)
    members = {name: np.stack([value, 2 * value, -value]) for name, value in agent.parameters.items()}
    async with pool_of(InProcessBackend(), flaky(tmp_path, times=2), **MODULES) as pool:
        await pool.update_agent([agent])
        result = await evaluate_population(pool, members, 20, seed=3, env=STEADY)
        again = await evaluate_population(pool, members, 20, seed=3)
        assert again.outcomes == result.outcomes
        assert adds_up(again.account)
        assert again.account.num_retried_episodes == again.account.env_failures.num_failures > 0
        with raises(EnvFailedError, reason=Reason.ENV_FAILED, match=r"member \d, episode \d+ .*\b4 attempts"):
            await evaluate_population(pool, members, 20, seed=3, env=flaky(times=-1))


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        ("at least", 1),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("at least", 0), ("exactly", 0), ("exactly", 1))),
    ],
)
def test_streams_resume_across_skipped_episodes(
    sampler: rollserve.Sampler, server: LocalServer, kind: str, seed: int
) -> None:
    def call(sampler: rollserve.Sampler) -> rollserve.EpisodeBatch:
        if kind == "at least":
            return sampler.obtain_samples(4000, seed=3, first_episode_index=5, skip_failed_episodes=True)
        return sampler.obtain_exact_episodes(170, seed=3, first_episode_index=5, skip_failed_episodes=True)

    sampler.update_env("sample_envs:Flaky", kwargs={"times": -1, "length": 40})
    sampler.update_agent(rollserve.RandomAgent())
    with raises(rollserve.ServerError, reason=Reason.ENV_FAILED, match="broken by design"):
        sampler.obtain_samples(4000, seed=3)
    expected = call(sampler)
    with (
        cutting_proxy(server.address, num_cuts=4, max_bytes=160_000, seed=seed) as proxy,
        rollserve.connect(proxy.address, max_message_bytes=13_000) as distant,
    ):
        distant.status()
        batch = call(distant)
        assert proxy.num_cuts > 0
    assert equal(batch, expected)
    account = check_account(batch)
    assert account.num_resumptions > 0
    assert account.num_failed_episodes == expected.account.num_failed_episodes > 0
    assert sampler.status().counters.num_failed_episodes >= account.num_failed_episodes


@pytest.mark.parametrize("skip_failed", [False, True])
async def test_observations_outside_their_space_fail_their_episodes_only_if_checked(skip_failed: bool) -> None:
    env = rollserve.EnvSpec("sample_envs:NoNumbers", {"after": 3})
    async with pool_of(InProcessBackend(), env, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        assert np.isnan((await sample(pool, AtLeast(10))).observations).any()
    async with pool_of(InProcessBackend(), env, check_observations=True, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        assert len(await sample(pool, AtLeast(10), max_episode_length=2)) == 5
        with raises(EnvFailedError, reason=Reason.ENV_FAILED, match=r"episode \d+ .*\b2 steps.*\bnan\b") as info:
            await sample(pool, AtLeast(10), skip_failed=skip_failed)
        assert "[1]" in info.value.text
        assert (re.search(r"\b\d+ episodes", info.value.text) is not None) == skip_failed
        with raises(EnvFailedError, reason=Reason.ENV_FAILED, match=r"\bnan\b"):
            await sample(pool, Fragments(80))
        assert len(await sample(pool, AtLeast(10), max_episode_length=2)) == 5
    async with pool_of(InProcessBackend(), coins(), check_observations=True, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        assert equal(await sample(pool, AtLeast(500), seed=1), await reference(coins(), AtLeast(500), seed=1))


def test_command_line_skips_failed_episodes(
    sampler: rollserve.Sampler, server: LocalServer, capsys: pytest.CaptureFixture[str]
) -> None:
    sampler.update_env("sample_envs:Flaky", kwargs={"times": -1})
    sampler.update_agent(rollserve.RandomAgent())
    command = ["sample", server.address, "--steps", "200", "--seed", "3"]
    assert main(command) == 1
    assert "(ENV_FAILED)" in capsys.readouterr().err
    assert main([*command, "--skip-failed-episodes"]) == 0
    assert "broken by design" in capsys.readouterr().out
    assert main(["status", server.address]) == 0
    assert "errors of environments" in capsys.readouterr().out


async def test_asyncio_client_skips_failed_episodes(sampler: rollserve.Sampler, server: LocalServer) -> None:
    sampler.update_env("sample_envs:Flaky", kwargs={"times": -1})
    sampler.update_agent(rollserve.RandomAgent())
    expected = sampler.obtain_samples(500, seed=3, skip_failed_episodes=True)
    async with rollserve.aconnect(server.address) as connected:
        assert equal(await connected.obtain_samples(500, seed=3, skip_failed_episodes=True), expected)
        result = await connected.evaluate(20, seed=3, skip_failed_episodes=True)
    assert result.account.num_failed_episodes == 20 - len(result) > 0
    assert {failure.num_attempts for failure in result.account.episode_failures} == {4}


@SLOW_ON_RAY
async def test_failing_agent_disturbs_no_other_call(backend: Backend) -> None:
    broken = rollserve.EnvSpec("sample_envs:NoNumbers")
    async with pool_of(backend, broken, **MODULES) as pool:
        await pool.update_agent([mlp(2, 8)])
        expected = await sample(pool, AtLeast(2), seed=1, max_episode_length=2)
        running = asyncio.create_task(sample(pool, AtLeast(3000), seed=1, max_episode_length=2))
        for _ in range(5):
            with raises(AgentFailedError, reason=Reason.AGENT_FAILED):
                await sample(pool, AtLeast(50), seed=1)
        batch = await running
        assert batch.num_steps >= 3000
        check_account(batch)
        assert equal(await sample(pool, AtLeast(2), seed=1, max_episode_length=2), expected)
        assert all(worker.healthy for worker in pool.status().workers)


# Unusual exceptions


ODD_ROWS = "sample_envs:OddRows-v0"
KWARGS = "all_workers.environment.kwargs_json"


@pytest.fixture(scope="module")
def thread_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A server whose workers are threads."""
    log = tmp_path_factory.mktemp("threads") / "server.log"
    options = ("--env", "CartPole-v1", "--workers", "2", "--backend", "in-process", "--allow-module", "sample_envs")
    with local_server(*options, log=log, environment=server_environment()) as running:
        yield running
    text = log.read_text()
    assert "Traceback" not in text, text


@pytest.fixture(params=[pytest.param("ray", marks=pytest.mark.slow), "in-process"])
def either(request: pytest.FixtureRequest) -> Iterator[rollserve.Sampler]:
    """The sampler of a server on each backend; checks that the test loses no worker.

    A worker makes the errors of all of its environments portable in one place, so that Ray sees them alike: one test on
    Ray is not slow.
    """
    name = "server" if request.param == "ray" else "thread_server"
    running: LocalServer = request.getfixturevalue(name)
    with rollserve.connect(running.address) as sampler:
        sampler.update_env("CartPole-v1")
        sampler.update_agent(rollserve.RandomAgent())
        before = workers_of(sampler)
        yield sampler
        assert workers_of(sampler) == before
        sampler.update_env("CartPole-v1")
        sampler.obtain_samples(10)


def workers_of(sampler: rollserve.Sampler) -> list[tuple[int, int, bool]]:
    return [(worker.process_id, worker.num_restarts, worker.healthy) for worker in sampler.status().workers]


@pytest.mark.parametrize("at", ["step", "reset", "step infos", "reset infos"])
def test_environments_may_raise_any_exception(either: rollserve.Sampler, at: str) -> None:
    for error, text in TEXTS.items():
        either.update_env("sample_envs:Odd", kwargs={"error": error, "at": at})
        with raises(rollserve.ServerError, reason=Reason.ENV_FAILED, match="^episode 0 ") as info:
            either.obtain_samples(1, seed=3, timeout=60)
        assert f"{at.removesuffix(' infos')}: {text}" in info.value.message
        assert either.status().workers[0].healthy


@pytest.mark.usefixtures("server")  # by name, so that the test runs in the process that has it
@pytest.mark.parametrize("either", ["ray"], indirect=True)
def test_environments_on_ray_may_raise_any_exception(either: rollserve.Sampler) -> None:
    for error, text in TEXTS.items():
        either.update_env("sample_envs:Odd", kwargs={"error": error, "at": "step"})
        with raises(rollserve.ServerError, reason=Reason.ENV_FAILED, match="^episode 0 ") as info:
            either.obtain_samples(1, seed=3, timeout=60)
        assert f"step: {text}" in info.value.message


@pytest.mark.parametrize("at", ["step", "reset"])
def test_vector_environments_may_raise_any_exception(either: rollserve.Sampler, at: str) -> None:
    for error, text in TEXTS.items():
        kwargs = {"error": error, "at": at}
        either.update_env(rollserve.EnvSpec(ODD_ROWS, kwargs, **BLOCKS))
        with raises(rollserve.ServerError, reason=Reason.ENV_FAILED, match="block of episode 0 ") as info:
            either.obtain_samples(1, seed=3, timeout=60)
        assert f"{at}: {text}" in info.value.message


@pytest.mark.parametrize("name", ["sample_envs:Odd", ODD_ROWS])
def test_environments_may_refuse_with_any_exception(either: rollserve.Sampler, name: str) -> None:
    version = either.status().env_version
    for error, text in TEXTS.items():
        kwargs = {"error": error, "at": "construction"}
        env = rollserve.EnvSpec(name, kwargs, **(BLOCKS if name == ODD_ROWS else {}))
        with raises(rollserve.InvalidArgumentError, field=KWARGS, reason=Reason.ENV_REFUSED) as info:
            either.update_env(env, timeout=60)
        assert f"{name}: {text}" in info.value.message
    assert either.status().env_version == version


@pytest.mark.parametrize("error", ["exit", "cancelled", "wordless"])
def test_exceptions_from_close_hide_no_other_error(either: rollserve.Sampler, error: str) -> None:
    kwargs = {"error": error, "at": "close"}
    for env in (rollserve.EnvSpec("sample_envs:Odd", kwargs), rollserve.EnvSpec(ODD_ROWS, kwargs, **BLOCKS)):
        either.update_env(env)
        assert len(either.obtain_samples(20, seed=3))
        either.update_env("CartPole-v1")
    wrapped = rollserve.EnvSpec("sample_envs:Odd", kwargs, (rollserve.Wrapper("TimeLimit", {"nope": 1}),))
    refused = raises(
        rollserve.InvalidArgumentError,
        field="all_workers.environment.wrappers[0].kwargs_json",
        reason=Reason.ENV_REFUSED,
        match="TimeLimit: TypeError",
    )
    with refused:
        either.update_env(wrapped, timeout=60)
    disabled = rollserve.EnvSpec(ODD_ROWS, {**kwargs, "mode": "Disabled"}, **BLOCKS)
    unknown_reset = "all_workers.environment.vectorization"
    with raises(rollserve.InvalidArgumentError, field=unknown_reset, reason=Reason.INVALID_VALUE):
        either.update_env(disabled, timeout=60)


async def test_exceptions_from_close_stop_no_other_close(backend: Backend, tmp_path: Path) -> None:
    odd = rollserve.EnvSpec("sample_envs:Odd", {"error": "exit", "at": "close", "folder": str(tmp_path)})
    async with pool_of(backend, odd, workers=1, rows=3, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        await sample(pool, AtLeast(10), seed=3)
        (before,) = pool.status().workers
        await pool.update_env([STEADY])
        await sample(pool, AtLeast(10), seed=3)
        (after,) = pool.status().workers
        assert (after.identity, after.num_restarts) == (before.identity, 0)
    assert (tmp_path / "closed").stat().st_size == 1 + 3  # the one that was tried, and the rows


@SLOW_ON_RAY
async def test_module_that_exits_when_imported_is_rejected(backend: Backend) -> None:
    env = rollserve.EnvSpec("leaving_envs:Some")
    with raises(NotFoundError, reason=Reason.MODULE_NOT_FOUND, match="'leaving_envs'.* SystemExit: 0"):
        async with pool_of(backend, env, allow_module=("leaving_envs",), workers=1):
            pass


@pytest.mark.parametrize("error", ["exit", "interrupt", "cancelled", "stop", "huge", "unpicklable"])
def test_unreadable_nested_infos_are_dropped(either: rollserve.Sampler, error: str) -> None:
    either.update_env("sample_envs:Odd", kwargs={"error": error, "at": "nested"})
    batch = either.obtain_samples(2, seed=3, timeout=60)
    assert batch.account.dropped_infos == {"(unreadable)": batch.num_steps}


@pytest.mark.parametrize("error", TEXTS)
def test_any_exception_can_be_pickled_as_portable(error: str) -> None:
    try:
        raise_odd(error)
    except BaseException as raised:
        sent = pickle.loads(pickle.dumps(portable(raised)))
    assert type(sent) is FaultError
    assert TEXTS[error].partition(":")[0] in str(sent)
    assert len(str(sent)) < 10_000
