"""Continuous sampling by the client: what a trainer gets, its bounds, broken connections, and the account."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from cutting_proxy import cutting_proxy
from pools import adds_up
from support import equal, raises

import rollserve
from rollserve import Reason
from rollserve_server.testing import FaultyServer, faulty_server

NUM_ROWS = 8
ROUND = 16 * NUM_ROWS


@pytest.fixture(scope="module")
def serving() -> Iterator[FaultyServer]:
    options = ("--vectorization", "rows", "--rows", "4", "--keep-versions", "100", "--straggler-factor", "0")
    with faulty_server(*options, "--shared-memory-bytes", str(64 << 20)) as server:
        yield server


@pytest.fixture
def sampler(serving: FaultyServer) -> Iterator[rollserve.Sampler]:
    serving.reset()
    with rollserve.connect(serving.address) as connected:
        connected.update_agent(agent(connected))
        yield connected


def agent(sampler: rollserve.Sampler, seed: int = 0) -> rollserve.MlpAgent:
    status = sampler.status()
    return rollserve.MlpAgent.initial(status.observation_space, status.action_space, seed=seed)


def again(
    sampler: rollserve.Sampler, batches: list[rollserve.EpisodeBatch], **moments: Any
) -> list[rollserve.EpisodeBatch]:
    """Request all rounds again, in ordinary calls; rounds of fragments from the first step of the seed on."""
    replayed = []
    for position, batch in enumerate(batches):
        sampled = batch.round
        assert sampled is not None
        options: dict[str, Any] = {"seed": sampled.seed, **moments}
        options |= {"policy_version": sampled.policy_version, "env_version": sampled.env_version}
        if sampled.num_rows:
            clock = sampled.row_step_count if position else None
            replayed.append(sampler.obtain_fragments(sampled.num_steps, row_step_count=clock, **options))
        else:
            first = sampled.first_episode_index
            replayed.append(sampler.obtain_samples(sampled.num_steps, first_episode_index=first, **options))
    return replayed


KINDS = {"fragments": {"fragment_length": 16}, "episodes": {"num_steps": 200}}


@pytest.mark.parametrize("kind", KINDS)
def test_stream_delivers_what_ordinary_calls_do(sampler: rollserve.Sampler, kind: str) -> None:
    learned = agent(sampler, 1)
    with sampler.stream(**KINDS[kind]) as stream:
        batches = []
        for batch in stream:
            batches.append(batch)
            stream.update_agent(learned.parameters)
            if len(batches) == 6:
                break
    account = stream.account
    assert adds_up(account)
    assert account.num_steps == sum(batch.num_steps for batch in batches)
    assert account.num_episodes == sum(int((batch.terminated | batch.truncated).sum()) for batch in batches)
    assert batches[-1].policy_versions.min() > 1
    for batch, expected in zip(batches, again(sampler, batches), strict=True):
        assert equal(batch, expected)


def test_stream_ends_by_itself_with_its_total(sampler: rollserve.Sampler) -> None:
    with sampler.stream(fragment_length=16, total_num_steps=5 * ROUND - 1) as stream:
        batches = list(stream)
    assert [batch.num_steps for batch in batches] == [ROUND] * 5
    assert stream.end() == stream.account
    assert stream.account.num_rounds == 5
    assert sum(stream.account.lag_step_counts) == 5 * ROUND


@pytest.mark.parametrize("max_policy_lag", [0, 1])
@pytest.mark.parametrize("seconds", [0.0, 0.1], ids=["fast", "slow"])
def test_trainer_gets_no_round_that_is_too_old(sampler: rollserve.Sampler, max_policy_lag: int, seconds: float) -> None:
    learned = agent(sampler, 1)
    bounds = {"max_policy_lag": max_policy_lag, "max_ahead_steps": 3 * ROUND, "buffer_rounds": 2}
    with sampler.stream(fragment_length=16, **bounds) as stream:
        version, lags = 1, []
        for batch in stream:
            assert batch.round is not None
            lags.append(version - batch.round.policy_version)
            time.sleep(seconds)
            version = stream.update_agent(learned.parameters)
            if len(lags) == 6:
                break
    assert max(lags) <= max_policy_lag
    account = stream.account
    assert account.num_steps == 6 * ROUND
    assert adds_up(account)
    assert len(account.lag_step_counts) <= max_policy_lag + 1


def test_updates_of_another_thread_count_at_once(sampler: rollserve.Sampler) -> None:
    """A trainer that updates without pause gets only rounds that are new enough when it gets them."""
    learned, done, versions = agent(sampler, 1), threading.Event(), [1]

    def update() -> None:
        while not done.is_set():
            versions.append(sampler.update_agent(learned.parameters))

    thread = threading.Thread(target=update)
    with sampler.stream(fragment_length=16, max_policy_lag=3) as stream:
        thread.start()
        for count, batch in enumerate(stream):
            before = versions[-1]
            assert batch.round is not None
            assert before - batch.round.policy_version <= 3 + len(versions) - versions.index(before)
            if count == 5:
                break
        done.set()
        thread.join()
    assert adds_up(stream.account)


def test_trainer_that_dies_leaves_the_server_as_it_was(sampler: rollserve.Sampler, serving: FaultyServer) -> None:
    with cutting_proxy(serving.address, num_cuts=0, max_bytes=1 << 30, seed=0) as proxy:
        other = rollserve.connect(proxy.address, timeout=1, shared=True)
        stream = other.stream(fragment_length=16, max_policy_lag=1)
        assert next(stream).num_steps == ROUND
        proxy.close()
    deadline = time.monotonic() + 30
    while (status := sampler.status()).num_running_calls:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert status.num_queued_calls == 0
    assert sampler.obtain_fragments(ROUND).num_steps == ROUND
    with contextlib.suppress(rollserve.RollserveError):
        stream.close()
    other.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("after_messages", [1, 4])
def test_broken_stream_goes_on_without_a_doubled_or_lost_round(
    sampler: rollserve.Sampler, serving: FaultyServer, kind: str, after_messages: int
) -> None:
    serving.break_stream(after_messages=after_messages, times=2)
    moments: Any = {"observation_moments": True, "return_discount": 0.9}
    with sampler.stream(**KINDS[kind], total_num_steps=8 * ROUND, max_policy_lag=5, **moments) as stream:
        batches = list(stream)
    assert len(serving.faults()["made"]) == 2
    rounds = [batch.round for batch in batches]
    for before, after in itertools.pairwise(rounds):
        assert before is not None
        assert after is not None
        assert (after.row_step_count, after.first_episode_index) == (
            before.next_row_step_count,
            before.next_episode_index,
        )
        assert after.number == before.number + 1
    account = stream.account
    assert account.num_resumptions == 2
    assert account.num_steps == sum(batch.num_steps for batch in batches) >= 8 * ROUND
    assert account.num_rounds == len(batches)
    assert adds_up(account)
    for batch, expected in zip(batches, again(sampler, batches, **moments), strict=True):
        assert equal(batch, expected)
        assert batch.round is not None
        assert batch.round.return_moments is not None
        assert batch.round.return_moments == expected.account.return_moments
        assert batch.round.observation_moments == expected.account.observation_moments


def test_connection_that_is_cut_anywhere_loses_nothing(sampler: rollserve.Sampler, serving: FaultyServer) -> None:
    with (
        cutting_proxy(serving.address, num_cuts=4, max_bytes=60_000, seed=1) as proxy,
        rollserve.connect(proxy.address) as distant,
    ):
        distant.update_agent(agent(sampler, 1))
        with distant.stream(fragment_length=64, total_num_steps=30 * 64 * NUM_ROWS) as stream:
            batches = list(stream)
        assert proxy.num_cuts > 0
    for batch, expected in zip(batches, again(sampler, batches), strict=True):
        assert equal(batch, expected)
    assert sum(batch.num_steps for batch in batches) == 30 * 64 * NUM_ROWS


def test_other_clients_update_ends_the_stream(sampler: rollserve.Sampler, serving: FaultyServer) -> None:
    with sampler.stream(fragment_length=16) as stream, rollserve.connect(serving.address) as other:
        next(stream)
        other.update_agent(agent(sampler, 2))
        with raises(rollserve.PreconditionError, reason=Reason.UNEXPECTED_VERSION, match="another client"):
            for _ in range(5):
                next(stream)
        stream.close()


def test_stream_can_bring_its_agent(sampler: rollserve.Sampler) -> None:
    with sampler.stream(fragment_length=16, agent=agent(sampler, 3)) as stream:
        assert (next(stream).policy_versions == 2).all()
        assert stream.update_agent(agent(sampler, 4).parameters) == 3


def test_stream_comes_through_shared_memory(sampler: rollserve.Sampler, serving: FaultyServer) -> None:
    length = 1024  # messages of at least 64 KiB
    with rollserve.connect(serving.address, shared=True, shared_memory=True) as near:
        with near.stream(fragment_length=length, total_num_steps=2 * length * NUM_ROWS, return_spaces=True) as stream:
            batches = list(stream)
        assert stream.account.shared_message_bytes > 0
    assert batches[0].action_space == sampler.status().action_space
    for batch, expected in zip(batches, again(sampler, batches), strict=True):
        without_spaces = dataclasses.replace(batch, observation_space=None, action_space=None)
        assert equal(without_spaces, expected)


def test_closed_stream_frees_its_place(sampler: rollserve.Sampler) -> None:
    for _ in range(20):  # more than may be open at a time
        stream = sampler.stream(fragment_length=16)
        next(stream)
        stream.close()
        with pytest.raises(rollserve.CancelledError):
            for _ in stream:
                pass
    not_ended = pytest.raises(rollserve.PreconditionError, match="account: expected a stream that has ended")
    with contextlib.closing(sampler.stream(fragment_length=16)) as stream, not_ended:
        _ = stream.account


def num_simulated_steps(sampler: rollserve.Sampler) -> int:
    return sum(worker.num_simulated_steps for worker in sampler.status().workers)


def test_account_counts_rounds_that_were_not_handed_out(sampler: rollserve.Sampler) -> None:
    before = num_simulated_steps(sampler)
    with sampler.stream(fragment_length=16, buffer_rounds=3, max_ahead_steps=2 * ROUND) as stream:
        next(stream)
        while sampler.status().num_running_calls or num_simulated_steps(sampler) < before + 5 * ROUND:
            time.sleep(0.02)
    account = stream.account
    assert account.num_steps == ROUND
    assert account.num_unsent_steps >= 4 * ROUND
    assert adds_up(account)


def test_account_before_the_end_is_refused(sampler: rollserve.Sampler) -> None:
    with sampler.stream(fragment_length=16) as stream:
        next(stream)
        with raises(rollserve.PreconditionError, field="account"):
            _ = stream.account
    assert stream.account.num_steps == ROUND


def test_async_stream_is_the_same(sampler: rollserve.Sampler, serving: FaultyServer) -> None:
    async def scenario() -> tuple[list[rollserve.EpisodeBatch], rollserve.Account]:
        async with rollserve.aconnect(serving.address, shared=True) as asynchronous:
            serving.break_stream(after_messages=2)
            batches = []
            async with asynchronous.stream(fragment_length=16, max_policy_lag=1) as stream:
                async for batch in stream:
                    batches.append(batch)
                    await stream.update_agent(agent(sampler, 1).parameters)
                    if len(batches) == 5:
                        break
            closed = asynchronous.stream(num_steps=100)
            await anext(closed)
            closed.close()
            with pytest.raises(rollserve.CancelledError):
                async for _ in closed:
                    pass
            return batches, stream.account

    batches, account = asyncio.run(scenario())
    assert account.num_resumptions == 1
    assert adds_up(account)
    for batch, expected in zip(batches, again(sampler, batches), strict=True):
        assert equal(batch, expected)


BAD: dict[str, tuple[dict[str, object], type[Exception], str]] = {
    "neither": ({}, TypeError, "num_steps, fragment_length"),
    "both": ({"num_steps": 1, "fragment_length": 1}, TypeError, "num_steps, fragment_length"),
    "nothing": ({"fragment_length": 0}, rollserve.InvalidArgumentError, "fragment_length"),
    "no number": ({"num_steps": "x"}, TypeError, "num_steps"),
    "unknown time": ({"num_steps": 1, "apply_update": "now"}, rollserve.InvalidArgumentError, "apply_update"),
    "unknown way": ({"num_steps": 1, "when_full": "stop"}, rollserve.InvalidArgumentError, "when_full"),
    "rows of episodes": ({"num_steps": 1, "row_step_count": 1}, rollserve.InvalidArgumentError, "row_step_count"),
    "progress": ({"num_steps": 1, "progress": True}, rollserve.InvalidArgumentError, "progress"),
    "version": ({"num_steps": 1, "policy_version": 1}, rollserve.InvalidArgumentError, "policy_version"),
    "unknown option": ({"num_steps": 1, "speed": 1}, TypeError, "speed"),
}


@pytest.mark.parametrize("case", BAD)
def test_stream_refuses_bad_arguments(sampler: rollserve.Sampler, case: str) -> None:
    arguments, kind, name = BAD[case]
    stream: Callable[..., rollserve.RoundStream] = sampler.stream
    with pytest.raises(kind, match=name):
        stream(**arguments)


def test_round_is_not_copied_to_another_process(sampler: rollserve.Sampler) -> None:
    with sampler.stream(fragment_length=16) as stream:
        with pytest.raises(TypeError, match="RoundStream"):
            stream.__reduce__()
        assert "1 rounds" in repr(stream) or next(stream).num_steps == ROUND
        assert np.isfinite(next(stream).rewards).all()
