"""Streams of a pool: rounds that can be requested again, bounds, updates, lost workers, accounts."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from faults.killable import NOTICE_SECONDS, KillableBackend, kill_worker
from pools import CARTPOLE, adds_up, cartpole_agent, kill_one, pool_of, sample, until
from streams import NUM_ROWS, again, num_steps_of_round, sampled_ahead, stream_request, streaming
from support import equal, raises

import rollserve
from rollserve import Reason
from rollserve_server.errors import InvalidValueError, NotReadyError, OverLimitError, StoppingError
from rollserve_server.pool import (
    Account,
    ApplyUpdate,
    AtLeast,
    Backend,
    Fragments,
    InProcessBackend,
    Pool,
    RowFragments,
    WhenFull,
)

ROUND = 10 * NUM_ROWS
_LONG = 3000


@contextlib.asynccontextmanager
async def pool_with_agent(backend: Backend | None = None, **changes: object) -> AsyncIterator[Pool]:
    async with pool_of(
        InProcessBackend() if backend is None else backend, CARTPOLE, keep_versions=50, **changes
    ) as pool:
        await pool.update_agent([cartpole_agent(0)])
        yield pool


async def from_the_beginning(pool: Pool, batches: list[rollserve.EpisodeBatch]) -> list[rollserve.EpisodeBatch]:
    """Request all rounds of fragments again, in calls of a sequence of the same seed that begins at its first step."""
    first = await again(pool, batches[0], row_step_count=0)
    return [first, *[await again(pool, batch) for batch in batches[1:]]]


def counted_apart(pool: Pool, account: Account) -> None:
    """Check that a stream's sent rounds are counted as calls, and its discarded ones apart."""
    counters = pool.status().counters
    num_discarded = account.num_stale_steps + account.num_overflow_steps + account.num_unsent_steps
    assert counters.num_completed_calls == account.num_rounds
    assert counters.num_steps == sum(account.lag_step_counts)
    assert counters.message_bytes == account.message_bytes
    # A round that the end has broken off was not sampled whole.
    assert num_discarded - ROUND < counters.num_discarded_steps <= num_discarded
    assert counters.num_discarded_rounds * ROUND == counters.num_discarded_steps > 0


@pytest.mark.parametrize("rounds", [RowFragments(10), AtLeast(100)], ids=["fragments", "episodes"])
def test_rounds_equal_ordinary_calls_with_their_versions(rounds: RowFragments | AtLeast) -> None:
    async def scenario() -> None:
        async with pool_with_agent() as pool:
            async with streaming(pool, stream_request(rounds, max_unread_rounds=1)) as stream:
                batches = []
                for number in range(8):
                    batches += await stream.next_few(1)
                    if number % 2:
                        await pool.update_agent([cartpole_agent(number)])
                account = await stream.end()
            versions = [batch.round.policy_version for batch in batches]  # type: ignore[union-attr]
            assert len(set(versions)) > 2
            for batch, version in zip(batches, versions, strict=True):
                assert (batch.policy_versions == version).all()
            assert [batch.round.number for batch in batches] == list(range(8))  # type: ignore[union-attr]
            replayed = (
                await from_the_beginning(pool, batches)
                if isinstance(rounds, RowFragments)
                else [await again(pool, batch) for batch in batches]
            )
            for batch, expected in zip(batches, replayed, strict=True):
                assert equal(batch, expected)
            assert account.num_rounds >= 8
            assert sum(account.lag_step_counts) == account.num_steps

    asyncio.run(scenario())


def test_recent_round_can_be_requested_again_while_the_stream_runs() -> None:
    async def scenario() -> None:
        async with (
            pool_with_agent() as pool,
            streaming(pool, stream_request(RowFragments(10), max_unread_rounds=1)) as stream,
        ):
            batches = await stream.next_few(6)
            for batch in reversed(batches):
                assert equal(await again(pool, batch), batch)
            assert len(await stream.next_few(2)) == 2

    asyncio.run(scenario())


def test_update_at_the_next_step_cuts_the_fragment_for_all_rows() -> None:
    async def scenario() -> None:
        request = stream_request(RowFragments(_LONG), apply_update=ApplyUpdate.NEXT_STEP)
        async with pool_with_agent() as pool:
            async with streaming(pool, request) as stream:
                first = asyncio.create_task(stream.next_few(1))
                await until(lambda: num_steps_of_round(pool) > 0)
                await pool.update_agent([cartpole_agent(1)])
                batches = [*(await first), *(await stream.next_few(1))]
                await stream.end()
            cut, rest = (batch.round for batch in batches)
            assert cut is not None
            assert rest is not None
            assert (cut.policy_version, rest.policy_version) == (1, 2)
            assert cut.num_steps + rest.num_steps == _LONG * NUM_ROWS
            assert 0 < cut.num_steps < _LONG * NUM_ROWS
            assert rest.row_step_count == cut.num_steps // NUM_ROWS
            for row in range(NUM_ROWS):
                assert batches[0].lengths[batches[0].episode_indices % NUM_ROWS == row].sum() == rest.row_step_count
            for batch, expected in zip(batches, await from_the_beginning(pool, batches), strict=True):
                assert equal(batch, expected)

    asyncio.run(scenario())


def test_stream_waits_for_an_update_after_the_steps_of_a_version() -> None:
    async def scenario() -> None:
        bounds = {"max_steps_per_version": 2 * ROUND, "max_ahead_steps": 10 * ROUND, "max_unread_rounds": 1}
        async with pool_with_agent(progress_seconds=0.1) as pool:
            async with streaming(pool, stream_request(RowFragments(10), **bounds)) as stream:
                versions = [batch.round.policy_version for batch in await stream.next_few(2)]  # type: ignore[union-attr]
                third = asyncio.create_task(stream.next())
                await sampled_ahead(pool)
                assert pool.status().num_simulated_steps == 2 * ROUND
                await asyncio.sleep(0.3)
                assert "update" in stream.progress.waiting_for
                assert not third.done()
                await pool.update_agent([cartpole_agent(1)])
                batch = await third
                assert batch is not None
                assert batch.round is not None
                assert [*versions, batch.round.policy_version] == [1, 1, 2]
                account = await stream.end()
            assert account.update_waiting_seconds > 0.2

    asyncio.run(scenario())


@pytest.mark.parametrize("when_full", WhenFull)
def test_full_stream_waits_or_drops_the_oldest(when_full: WhenFull) -> None:
    async def scenario() -> None:
        bounds = {"max_ahead_steps": 3 * ROUND, "max_unread_rounds": 1, "when_full": when_full}
        async with pool_with_agent() as pool:
            async with streaming(pool, stream_request(RowFragments(10), **bounds)) as stream:
                await stream.next()
                stream.client.num_taken = 0  # it has not taken the round yet
                waiting = asyncio.create_task(stream.next())
                if when_full is WhenFull.WAIT:
                    await until(lambda: pool.status().num_simulated_steps >= 4 * ROUND)
                    await asyncio.sleep(0.5)  # in which it makes no more
                else:
                    await until(lambda: pool.status().num_simulated_steps > 4 * ROUND)
                num_steps = pool.status().num_simulated_steps
                stream.client.take(1)
                batch = await waiting
                assert batch is not None
                assert batch.round is not None
                account = await stream.end()
            if when_full is WhenFull.WAIT:
                assert num_steps == 4 * ROUND
                assert batch.round.number == 1
                assert account.num_overflow_steps == 0
            else:
                assert num_steps > 4 * ROUND
                assert account.num_overflow_steps >= (batch.round.number - 1) * ROUND > 0
            counted_apart(pool, account)

    asyncio.run(scenario())


def test_rounds_that_are_too_old_are_discarded_and_counted() -> None:
    async def scenario() -> None:
        bounds = {"max_ahead_steps": 4 * ROUND, "max_unread_rounds": 1, "max_policy_lag": 1}
        async with pool_with_agent() as pool:
            async with streaming(pool, stream_request(RowFragments(10), **bounds)) as stream:
                await stream.next()
                stream.client.num_taken = 0
                waiting = asyncio.create_task(stream.next())
                await sampled_ahead(pool)
                for seed in (1, 2):
                    await pool.update_agent([cartpole_agent(seed)])
                stream.client.take(1)
                batch = await waiting
                assert batch is not None
                assert batch.round is not None
                assert (batch.round.policy_version, batch.round.policy_lag) == (3, 0)
                account = await stream.end()
            assert account.num_stale_steps == 4 * ROUND
            counted_apart(pool, account)

    asyncio.run(scenario())


@pytest.mark.parametrize("rounds", [RowFragments(10), AtLeast(100)], ids=["fragments", "episodes"])
def test_rounds_have_their_own_moments(rounds: RowFragments | AtLeast) -> None:
    """Rows carry their discounted returns through discarded rounds, and on when the stream breaks."""

    async def scenario() -> None:
        moments: Any = {"observation_moments": True, "return_discount": 0.9}
        bounds = {"max_ahead_steps": 4 * ROUND, "max_policy_lag": 0, "moments": moments}
        async with pool_with_agent() as pool:
            async with streaming(pool, stream_request(rounds, **bounds)) as stream:
                batches = await stream.next_few(2)
                await sampled_ahead(pool)
                await pool.update_agent([cartpole_agent(1)])
                batches += await stream.next_few(2)
            last = batches[-1].round
            assert last is not None
            assert last.number > 3
            if isinstance(rounds, RowFragments):
                rest, position = RowFragments(10, row_step_count=last.next_row_step_count), {}
            else:
                rest, position = rounds, {"first_index": last.next_episode_index}
            request = stream_request(rest, options={"seed": last.seed, **position}, first_number=9, **bounds)
            async with streaming(pool, request) as stream:
                batches += await stream.next_few(2)
                account = await stream.end()
            assert account.moments is None
            for batch in reversed(batches):  # the first one begins the sequence again
                replayed = await again(pool, batch, **moments)
                assert equal(replayed, batch)
                assert batch.round is not None
                found, expected = batch.round, replayed.account
                assert found.return_moments is not None
                assert found.return_moments == expected.return_moments
                assert found.observation_moments == expected.observation_moments
                assert found.return_moments.count == batch.num_steps
                assert batch.discounted_returns_before is not None
                assert batch.discounted_returns_before.any() == batch.first_steps.any()
            plain = stream_request(rounds, options={"seed": 1})
            async with streaming(pool, plain) as stream:
                (batch,) = await stream.next_few(1)
            assert batch.round is not None
            assert batch.round.observation_moments is batch.round.return_moments is None

    asyncio.run(scenario())


def test_stream_ends_with_the_round_that_reaches_its_steps() -> None:
    async def scenario() -> None:
        async with pool_with_agent() as pool:
            async with streaming(pool, stream_request(AtLeast(100), num_steps=250)) as stream:
                batches = []
                while (batch := await stream.next()) is not None:
                    batches.append(batch)
            account = stream.account
            assert adds_up(account)
            assert [batch.num_steps >= 100 for batch in batches] == [True] * len(batches)
            assert account.num_steps == sum(batch.num_steps for batch in batches) >= 250
            assert sum(batch.num_steps for batch in batches[:-1]) < 250

    asyncio.run(scenario())


@pytest.mark.parametrize("rounds", [RowFragments(10), AtLeast(100)], ids=["fragments", "episodes"])
def test_broken_stream_goes_on_behind_the_last_round_received(rounds: RowFragments | AtLeast) -> None:
    """The rounds that the server has sampled beyond come again, and no other call gets them meanwhile."""

    async def scenario() -> None:
        bounds = {"max_ahead_steps": 4 * ROUND if isinstance(rounds, RowFragments) else 400, "max_unread_rounds": 2}
        async with pool_with_agent() as pool:
            async with streaming(pool, stream_request(rounds, num_steps=9 * ROUND, **bounds)) as stream:
                expected = await stream.next_few(3)
                await sampled_ahead(pool)
            last = expected[-1].round
            assert last is not None
            other = await sample(pool, Fragments(ROUND) if isinstance(rounds, RowFragments) else AtLeast(100))
            assert other.account.seed != last.seed
            options = {"seed": last.seed}
            if isinstance(rounds, RowFragments):
                resumed = RowFragments(10, row_step_count=last.next_row_step_count)
            else:
                resumed, options["first_index"] = rounds, last.next_episode_index  # type: ignore[assignment]
            request = stream_request(resumed, options=options, first_number=last.number + 1, **bounds)
            async with streaming(pool, request) as stream:
                batches = expected + await stream.next_few(3)
                await stream.end()
            assert [batch.round.number for batch in batches] == list(range(6))  # type: ignore[union-attr]
            replayed = (
                await from_the_beginning(pool, batches)
                if isinstance(rounds, RowFragments)
                else [await again(pool, batch) for batch in batches]
            )
            for batch, same in zip(batches, replayed, strict=True):
                assert equal(batch, same)

    asyncio.run(scenario())


def test_lost_worker_costs_time_only() -> None:
    async def scenario() -> None:
        backend = KillableBackend()
        async with pool_with_agent(backend, **NOTICE_SECONDS) as pool:
            async with streaming(pool, stream_request(RowFragments(100), max_unread_rounds=1)) as stream:
                batches = await stream.next_few(1)
                for worker in (0, 1):
                    await kill_worker(pool, backend, worker)
                    batches += await stream.next_few(2)
                account = await stream.end()
            for batch, expected in zip(batches, await from_the_beginning(pool, batches), strict=True):
                assert equal(batch, expected)
            assert account.num_broken_off_episodes == 0

    asyncio.run(scenario())


def test_lost_process_costs_time_only(ray_backend: Backend) -> None:
    async def scenario() -> None:
        async with pool_with_agent(ray_backend) as pool:
            async with streaming(pool, stream_request(RowFragments(300), max_unread_rounds=1)) as stream:
                batches = await stream.next_few(2)
                kill_one(pool, random.Random(1))
                batches += await stream.next_few(4)
                account = await stream.end()
            for batch, expected in zip(batches, await from_the_beginning(pool, batches), strict=True):
                assert equal(batch, expected)
            assert account.num_retried_episodes > 0

    asyncio.run(scenario())


def test_streams_and_calls_share_the_workers() -> None:
    async def scenario() -> None:
        async with pool_with_agent(max_calls=1) as pool:
            requests = [stream_request(RowFragments(10)), stream_request(AtLeast(100))]
            async with streaming(pool, requests[0]) as first, streaming(pool, requests[1]) as second:
                for _ in range(3):
                    assert await first.next() is not None
                    assert await second.next() is not None
                    batch = await sample(pool, AtLeast(100))
                    assert batch.num_steps >= 100
                accounts = [await first.end(), await second.end()]
            assert accounts[0].seed != accounts[1].seed
            assert pool.status().num_running_calls == pool.status().num_queued_calls == 0

    asyncio.run(scenario())


def test_update_of_the_environment_leaves_a_stream_in_its_own() -> None:
    async def scenario() -> None:
        async with pool_with_agent() as pool:
            async with streaming(pool, stream_request(RowFragments(10), max_unread_rounds=1)) as stream:
                batches = await stream.next_few(2)
                await pool.update_env([rollserve.EnvSpec("CartPole-v1", {"max_episode_steps": 5})])
                batches += await stream.next_few(3)
                await stream.end()
            assert {batch.round.env_version for batch in batches} == {1}  # type: ignore[union-attr]
            for batch, expected in zip(batches, await from_the_beginning(pool, batches), strict=True):
                assert equal(batch, expected)

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", [None, 5])
def test_resize_ends_the_rows_of_a_stream(seed: int | None) -> None:
    async def scenario() -> None:
        async with pool_with_agent(max_workers=3) as pool:
            request = stream_request(RowFragments(10), options={"seed": seed}, max_unread_rounds=1)
            async with streaming(pool, request) as stream:
                before = (await stream.next_few(1))[0].round
                await pool.resize(3)
                if seed is not None:
                    with raises(NotReadyError, reason=Reason.WORKER_COUNT, field="spec.options.seed"):
                        await stream.next_few(4)
                    return
                rounds = [batch.round for batch in await stream.next_few(4)]
                await stream.end()
            after = rounds[-1]
            assert before is not None
            assert after is not None
            assert (before.num_rows, after.num_rows) == (8, 12)
            assert before.seed != after.seed

    asyncio.run(scenario())


def test_end_counts_what_was_sampled_and_not_sent() -> None:
    async def scenario() -> None:
        async with pool_with_agent() as pool:
            bounds = {"max_ahead_steps": 3 * ROUND, "max_unread_rounds": 1}
            async with streaming(pool, stream_request(RowFragments(10), **bounds)) as stream:
                await stream.next()
                stream.client.num_taken = 0  # it has not taken the round yet
                waiting = asyncio.create_task(stream.next())
                await sampled_ahead(pool)
                stream.client.end()
                assert await waiting is None
            account = stream.account
            assert adds_up(account)
            assert account.num_steps == ROUND
            assert account.num_unsent_steps == 3 * ROUND

    asyncio.run(scenario())


def test_drain_ends_a_stream_that_waits() -> None:
    async def scenario() -> None:
        async with pool_with_agent() as pool:
            request = stream_request(RowFragments(10), max_steps_per_version=ROUND)
            async with streaming(pool, request) as stream:
                await stream.next()
                waiting = asyncio.create_task(stream.next())
                await sampled_ahead(pool)
                pool.drain(StoppingError("the server stops"))
                with raises(StoppingError):
                    await waiting

    asyncio.run(scenario())


def test_round_larger_than_calls_may_be_is_refused() -> None:
    async def scenario() -> None:
        async with pool_with_agent(max_call_steps=ROUND) as pool:
            async with streaming(pool, stream_request(RowFragments(10))) as stream:
                assert len(await stream.next_few(3)) == 3  # together they may have more
            for rounds, field in (
                (RowFragments(11), "spec.fragments.fragment_length"),
                (AtLeast(ROUND + 1), "spec.episodes.step_count"),
            ):
                async with streaming(pool, stream_request(rounds)) as stream:
                    with raises(OverLimitError, reason=Reason.CALL_TOO_LARGE, field=field):
                        await stream.next()

    asyncio.run(scenario())


def test_round_that_does_not_fit_is_refused() -> None:
    async def scenario() -> None:
        async with pool_with_agent() as pool:
            for name in ("max_ahead_steps", "max_steps_per_version"):
                async with streaming(pool, stream_request(RowFragments(10), **{name: ROUND - 1})) as stream:
                    with raises(InvalidValueError, field=f"spec.{name}", quotes=(str(ROUND), str(ROUND - 1))):
                        await stream.next()
            async with streaming(pool, stream_request(RowFragments(10), max_ahead_bytes=1 << 40)) as stream:
                with raises(InvalidValueError, field="spec.max_ahead_bytes", quotes=(str(1 << 26), str(1 << 40))):
                    await stream.next()
            request = stream_request(RowFragments(10, soft_horizon=True))
            async with streaming(pool, request) as stream:
                with raises(InvalidValueError, field="spec.fragments.soft_horizon"):
                    await stream.next()
            batch = await sample(pool, AtLeast(10))
            assert np.isfinite(batch.rewards).all()

    asyncio.run(scenario())
