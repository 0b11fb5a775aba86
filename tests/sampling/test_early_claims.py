"""Early claims: what a worker writes before a call has claimed it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rollserve
from rollserve_server.agents import RandomSpec
from rollserve_server.sampling import Claim, EarlyClaim, EpisodeRange, Order, Report, SequenceSpec, Worker
from rollserve_server.settings import WorkerSettings

ENVS = {
    "rows": rollserve.EnvSpec("CartPole-v1", vectorization="rows", num_rows=4),
    "native": rollserve.EnvSpec("CartPole-v1", vectorization="native", num_rows=4),
}


class Sequence:
    """A sequence on a worker."""

    def __init__(self, env: rollserve.EnvSpec) -> None:
        self._worker = Worker(0, WorkerSettings())
        self._worker.add_env(1, env)
        self._worker.add_agent(1, RandomSpec())

    def work(self, num_begun: int = 0, seconds: float = 9.0, **changes: Any) -> tuple[Report, bytes]:
        """Begin episodes and carry out an order."""
        values = {"deliver": (), "max_message_bytes": 1 << 22, **changes}
        begin = tuple(EpisodeRange(range(start, start + 8), start) for start in range(0, num_begun, 8))
        order = Order(SequenceSpec(1, 0, 1, 1), begin, (), None, seconds=seconds, **values)
        report, buffer = self._worker.work(order)
        assert report.failure is None
        return report, buffer.tobytes()

    def claimed(self, start: int, stop: int) -> bytes:
        """Return the messages of a claim."""
        report, data = self.work(seconds=0.0, deliver=(Claim(0, start, stop),))
        assert [parcel.complete for parcel in report.parcels] == [True]
        return data


@pytest.fixture(params=ENVS.values(), ids=ENVS)
def sequence(request: pytest.FixtureRequest) -> Sequence:
    return Sequence(request.param)


def test_early_claim_is_written_when_its_episodes_are_finished(sequence: Sequence) -> None:
    report, data = sequence.work(16, early=EarlyClaim(5, 0, 3))
    assert report.early is not None
    assert not report.parcels
    assert (report.early.claim_id, report.early.start, report.early.stop) == (5, (0, 0), (3, 0))
    assert report.early.complete
    assert len(report.finished) < 16  # it ended the steps
    assert sequence.claimed(0, 3) == data  # the worker has the episodes as before


def test_early_claim_ends_with_the_last_step_that_a_call_needs(sequence: Sequence) -> None:
    report, _ = sequence.work(16, early=EarlyClaim(5, 0, 16, num_steps=30))
    assert report.early is not None
    lengths = {ended.episode_index: ended.num_steps for ended in report.finished}
    num_episodes = report.early.stop[0]
    ends = np.cumsum([lengths[index] for index in range(num_episodes)])
    assert ends[-1] >= 30
    assert all(ends[:-1] < 30)
    again, _ = sequence.work(early=EarlyClaim(6, 0, 16, num_steps=30))
    assert (again.num_simulated_steps, again.early) == (0, None)  # there is nothing to do for the call


def test_early_claim_of_unfinished_episodes_changes_nothing(sequence: Sequence) -> None:
    report, data = sequence.work(8, seconds=1e-9, early=EarlyClaim(5, 0, 8))
    assert report.num_simulated_steps > 0
    assert (report.early, data) == (None, b"")
    later, _ = sequence.work(early=EarlyClaim(6, 0, 8))
    assert later.early is not None
    assert later.early.claim_id == 6


def test_early_claim_of_absent_episodes_changes_nothing(sequence: Sequence) -> None:
    sequence.work(8)
    for early in (EarlyClaim(5, 8, 10), EarlyClaim(6, 4, 10)):
        report, data = sequence.work(early=early)
        assert (report.early, data) == (None, b"")


def test_early_claim_is_left_out_if_it_is_large() -> None:
    env = rollserve.EnvSpec("sample_envs:Big", {"observation_bytes": 1 << 18, "length": 3}, num_rows=2)
    sequence = Sequence(env)
    report, data = sequence.work(8, early=EarlyClaim(5, 0, 2))  # 1.5 MiB
    assert (report.early, data) == (None, b"")
    assert sequence.claimed(0, 2)


def test_early_claim_is_left_out_if_a_step_does_not_fit(sequence: Sequence) -> None:
    report, data = sequence.work(8, early=EarlyClaim(5, 0, 2), max_message_bytes=10)
    assert (report.early, data) == (None, b"")
    assert sequence.claimed(0, 2)


def test_early_claim_is_discarded_in_a_call_that_discards(sequence: Sequence) -> None:
    report, data = sequence.work(8, early=EarlyClaim(5, 0, 2), columns=None)
    assert report.early is not None
    assert data == b""
    assert sum(message.num_steps for message in report.early.messages) == sum(
        ended.num_steps for ended in report.finished if ended.episode_index < 2
    )
    assert sequence.claimed(0, 2)
