"""Records of ended episodes: `GetMetrics`, as clients see it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support import raises

import rollserve
from rollserve import CallKind, EpisodeRecords, RecordPosition
from rollserve_server.local import LocalServer, local_server

LIGHT = ("--backend", "in-process", "--workers", "2", "--rows", "2", "--native-rows", "2")


@pytest.fixture(scope="module")
def running() -> Iterator[LocalServer]:
    with local_server("--env", "CartPole-v1", *LIGHT) as server:
        yield server


@pytest.fixture
def address(running: LocalServer) -> str:
    return running.address


@pytest.fixture
def sampler(address: str) -> Iterator[rollserve.Sampler]:
    with rollserve.connect(address, shared=True) as sampler:
        sampler.update_env("CartPole-v1")
        sampler.update_agent(rollserve.RandomAgent())
        yield sampler


def end_of(sampler: rollserve.Sampler) -> RecordPosition:
    return sampler.metrics().end


def by_index(records: EpisodeRecords) -> dict[int, tuple[float, int, bool, bool]]:
    columns = records.episode_indices, records.returns, records.lengths, records.terminated, records.truncated
    return {row[0]: row[1:] for row in zip(*(column.tolist() for column in columns), strict=True)}


def of_batch(batch: rollserve.EpisodeBatch) -> dict[int, tuple[float, int, bool, bool]]:
    columns = batch.episode_indices, batch.returns, batch.lengths, batch.terminated, batch.truncated
    return {row[0]: row[1:] for row in zip(*(column.tolist() for column in columns), strict=True)}


@pytest.mark.parametrize("vectorization", ["rows", "native"])
def test_records_of_whole_episodes_equal_the_batch(sampler: rollserve.Sampler, vectorization: str) -> None:
    sampler.update_env(rollserve.EnvSpec("CartPole-v1", vectorization=vectorization))
    start = end_of(sampler)
    batch = sampler.obtain_samples(500, seed=3)
    records = sampler.metrics(start)
    assert by_index(records) == of_batch(batch)
    assert len(records) == len(batch) > 10
    assert records.num_missed == 0
    assert set(records.call_kinds) == {CallKind.SAMPLES}
    assert records.delivered.all()
    status = sampler.status()
    assert set(records.policy_versions) == {status.policy_version}
    assert set(records.env_versions) == {status.env_version}
    assert set(records.worker_indices) <= {0, 1}
    assert set(records.rows) == {0, 1}
    assert (records.seconds > 0).all()
    assert abs(records.unix_seconds.max() - time.time()) < 60


def test_records_of_exact_episodes_name_their_workers(sampler: rollserve.Sampler) -> None:
    start = end_of(sampler)
    batch = sampler.obtain_exact_episodes(3, seed=3)
    records = sampler.metrics(start)
    assert by_index(records) == of_batch(batch)
    assert set(records.call_kinds) == {CallKind.EXACT_EPISODES}
    np.testing.assert_array_equal(records.worker_indices, batch.worker_indices)


@pytest.mark.parametrize("soft_horizon", [False, True])
@pytest.mark.parametrize("vectorization", ["rows", "native"])
def test_records_of_fragments_count_whole_episodes(
    sampler: rollserve.Sampler, vectorization: str, soft_horizon: bool
) -> None:
    sampler.update_env(rollserve.EnvSpec("CartPole-v1", vectorization=vectorization))
    num_repeated = 0
    limit: dict[str, Any] = {"soft_horizon": True, "max_episode_length": 15} if soft_horizon else {}
    start = end_of(sampler)
    expected: dict[int, list[float]] = {}
    ended: dict[int, tuple[float, int, bool, bool]] = {}
    for call in range(6):
        batch = sampler.obtain_fragments(40, seed=5, row_step_count=10 * call, **limit)
        if call == 3:  # repeated, so that the rows are restored in the middle of episodes
            num_repeated = int((batch.terminated | batch.truncated).sum())
            batch = sampler.obtain_fragments(40, seed=5, row_step_count=10 * call, **limit)
        ends_of_segments = np.cumsum(batch.lengths)
        for segment, stop in enumerate(ends_of_segments):
            number = int(batch.episode_indices[segment])
            rewards = expected.setdefault(number, [])
            rewards.extend(batch.rewards[stop - batch.lengths[segment] : stop].tolist())
            ends = bool(batch.terminated[segment]), bool(batch.truncated[segment])
            if any(ends):
                ended[number] = (sum(rewards), len(rewards), *ends)
    records = sampler.metrics(start)
    assert by_index(records) == ended
    assert len(records) == len(ended) + num_repeated > 4
    assert max(length for _, length, _, _ in ended.values()) > 10  # over several calls
    assert set(records.call_kinds) == {CallKind.FRAGMENTS}


def test_records_mark_evaluations_and_discarded_episodes(sampler: rollserve.Sampler) -> None:
    start = end_of(sampler)
    evaluation = sampler.evaluate(5, seed=3)
    evaluated = sampler.metrics(start)
    assert set(evaluated.call_kinds) == {CallKind.EVALUATION}
    assert not evaluated.delivered.any()
    np.testing.assert_array_equal(evaluated.returns, evaluation.returns)
    with sampler.stream_samples(300, seed=3, blackhole=True) as stream:
        assert not list(stream)
    discarded = sampler.metrics(evaluated.end)
    assert set(discarded.call_kinds) == {CallKind.SAMPLES}
    assert not discarded.delivered.any()
    assert by_index(discarded) == of_batch(sampler.obtain_samples(300, seed=3))
    with sampler.stream_fragments(400, seed=3, blackhole=True) as stream:
        assert not list(stream)
        num_ended = stream.end().num_discarded_episodes
    records = sampler.metrics(discarded.end)
    assert (records.call_kinds == CallKind.FRAGMENTS).sum() == num_ended > 0


def test_stream_follows_episodes_to_come(sampler: rollserve.Sampler) -> None:
    start = end_of(sampler)
    with sampler.stream_metrics(start) as stream:
        assert len(next(stream)) == 0
        batch = sampler.obtain_samples(200, seed=7)
        received = [next(stream)]
        while sum(map(len, received)) < len(batch):
            received.append(next(stream))
        records = EpisodeRecords.concatenate(received)
        assert by_index(records) == of_batch(batch)
        assert stream.end == records.end == end_of(sampler)
        closing = threading.Timer(0.2, stream.close)
        closing.start()
        with pytest.raises(rollserve.CancelledError):
            next(stream)


def test_async_sampler_gets_the_same_records(sampler: rollserve.Sampler, address: str) -> None:
    batch = sampler.obtain_samples(100, seed=8)

    async def follow() -> tuple[EpisodeRecords, EpisodeRecords]:
        async with rollserve.aconnect(address, shared=True) as other:
            records = await other.metrics()
            start = RecordPosition(records.end.log_id, records.end.position - len(batch))
            async with other.stream_metrics(start) as stream:
                return records, await anext(stream)

    records, last = asyncio.run(follow())
    assert records.end == end_of(sampler)
    assert by_index(last) == of_batch(batch)


def test_positions_of_other_logs_and_of_the_future_are_refused(sampler: rollserve.Sampler) -> None:
    end = end_of(sampler)
    with raises(rollserve.PreconditionError, reason="SAMPLER_RUN", field="log_id"):
        sampler.metrics(RecordPosition("another", 0))
    with raises(rollserve.InvalidArgumentError, reason="INVALID_VALUE", field="since"):
        sampler.metrics(RecordPosition(end.log_id, end.position + 1))
    with pytest.raises(TypeError, match="since"):
        sampler.metrics(3)  # type: ignore[arg-type]


def test_too_many_streams_of_records_are_refused(sampler: rollserve.Sampler) -> None:
    streams = [sampler.stream_metrics() for _ in range(16)]
    try:
        for stream in streams:
            next(stream)
        with raises(rollserve.LimitError, reason="TOO_MANY_CALLS"):
            sampler.metrics()
    finally:
        for stream in streams:
            stream.close()
    until = time.monotonic() + 10
    while time.monotonic() < until:
        try:
            sampler.metrics()
        except rollserve.LimitError:
            time.sleep(0.05)
        else:
            return
    pytest.fail("closed streams still count")


def test_overwritten_records_are_counted_as_missed() -> None:
    with (
        local_server("--env", "CartPole-v1", *LIGHT, "--episode-records", "10") as server,
        rollserve.connect(server.address) as sampler,
    ):
        sampler.update_agent(rollserve.RandomAgent())
        batch = sampler.obtain_samples(500, seed=1)
        assert len(batch) > 10
        records = sampler.metrics()
        assert len(records) == 10
        assert records.num_missed == records.start.position == len(batch) - 10
        np.testing.assert_array_equal(records.returns, batch.returns[-10:])
        with sampler.stream_metrics(records.end) as stream:
            next(stream)
            sampler.obtain_samples(500, seed=1)
            later = next(stream)
            while later.end.position < 2 * len(batch):
                later = EpisodeRecords.concatenate([later, next(stream)])
            assert len(later) + later.num_missed == len(batch)
            server.stop()
            with raises(rollserve.UnavailableError, reason="SERVER_STOPPING"):
                next(stream)


def test_records_begin_anew_when_the_sampler_is_reset(sampler: rollserve.Sampler, running: LocalServer) -> None:
    sampler.obtain_samples(100)
    records = sampler.metrics()
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(sampler.stream_metrics(records.end)) for _ in range(8)]
        for stream in streams:
            next(stream)
        running.reset()
        for stream in streams:  # which all end with the same error
            with raises(rollserve.PreconditionError, reason="SAMPLER_RUN"):
                next(stream)
    with raises(rollserve.PreconditionError, reason="SAMPLER_RUN", field="log_id"):
        sampler.metrics(records.end)
    assert len(sampler.metrics()) == 0


@pytest.mark.slow
def test_lost_workers_leave_one_record_for_each_episode() -> None:
    with (
        local_server("--env", "CartPole-v1", "--workers", "2", "--episode-records", "100000") as server,
        rollserve.connect(server.address) as sampler,
    ):
        sampler.update_agent(rollserve.RandomAgent())
        with sampler.stream_samples(400_000, seed=2) as stream:
            next(stream)
            os.kill(sampler.status().workers[0].process_id, signal.SIGKILL)
            for _ in stream:
                pass
            account = stream.end()
        assert account.num_retried_episodes > 0
        records = sampler.metrics()
        assert len(by_index(records)) == len(records) == account.num_episodes
        assert records.lengths.sum() == account.num_steps
