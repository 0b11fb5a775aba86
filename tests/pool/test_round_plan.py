"""The plan of a stream's rounds keeps its bounds, whatever trainer, workers and connection do, and loses no round."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollserve_server.pool import StreamBounds, WhenFull
from rollserve_server.pool.plan.rounds import Pause, PlannedRound, RoundPlan

NUM_STEPS = 10


class Stream:
    """A stream in a model: workers that sample, a connection that sends, and a trainer that takes and updates."""

    def __init__(self, bounds: StreamBounds) -> None:
        self.max_ahead_bytes = bounds.max_ahead_bytes or 1 << 20
        self.bounds, self.plan = bounds, RoundPlan(bounds, self.max_ahead_bytes)
        self.version, self.num_taken = 1, 0
        self.begun: list[PlannedRound] = []
        self.fates: dict[int, str] = {}
        self.steps_by_version: Counter[int] = Counter()

    def sample(self) -> None:
        """Begin a round if that may be, and sample the one that has begun otherwise."""
        running = [each for each in self.begun if not each.is_sampled and each.number not in self.fates]
        if running:
            self.plan.add(running[0], 100)
            assert self.plan.has_room(running[0]) or self.plan.num_ahead_bytes >= self.max_ahead_bytes
            self.plan.finish(running[0], NUM_STEPS)
            return
        self.discard(self.plan.take_stale(self.version), "stale")
        self.discard(self.plan.take_overflow(self.version, NUM_STEPS), "overflow")
        if self.plan.pause(self.version, NUM_STEPS) is None:
            self.begun.append(self.plan.begin(self.version, NUM_STEPS))
            self.steps_by_version[self.version] += NUM_STEPS

    def send(self) -> None:
        """Go on with the round that is being sent, or begin to send another one."""
        self.discard(self.plan.take_stale(self.version), "stale")
        sending = [each for each in self.plan.rounds if each.is_sending]
        if not sending:
            first = self.plan.send_next(self.version, self.num_taken)
            if first is not None and self.bounds.max_policy_lag is not None:
                assert self.version - first.version == first.lag <= self.bounds.max_policy_lag
        elif sending[0].is_sampled:
            self.plan.sent_bytes(sending[0], sending[0].num_unsent_bytes)
            self.plan.sent(sending[0])
            self.fates[sending[0].number] = "sent"

    def take(self) -> None:
        """Take a round that was sent."""
        self.num_taken = min(self.num_taken + 1, self.plan.num_sent_rounds)

    def update(self) -> None:
        """Update the agent."""
        self.version += 1

    def discard(self, rounds: object, fate: str) -> None:
        for each in rounds:  # type: ignore[attr-defined]
            assert each.number not in self.fates
            assert not each.is_sending
            self.fates[each.number] = fate

    def check(self) -> None:
        """Check the bounds, and that each round is in one place."""
        plan, bounds = self.plan, self.bounds
        most = NUM_STEPS if bounds.max_ahead_steps is None else bounds.max_ahead_steps
        assert plan.num_ahead_steps <= most
        for num_steps in self.steps_by_version.values():
            assert bounds.max_steps_per_version is None or num_steps <= bounds.max_steps_per_version
        if bounds.max_unread_rounds is not None:
            assert plan.num_sent_rounds - self.num_taken <= bounds.max_unread_rounds
        if bounds.when_full is WhenFull.WAIT:
            assert "overflow" not in self.fates.values()
        waiting = [each.number for each in plan.rounds]
        assert sorted([*waiting, *self.fates]) == [each.number for each in self.begun]


ACTIONS = {"sample": Stream.sample, "send": Stream.send, "take": Stream.take, "update": Stream.update}


@st.composite
def all_bounds(draw: st.DrawFn) -> StreamBounds:
    return StreamBounds(
        max_policy_lag=draw(st.none() | st.integers(0, 3)),
        max_ahead_steps=draw(st.none() | st.integers(NUM_STEPS, 5 * NUM_STEPS)),
        max_ahead_bytes=draw(st.sampled_from([1, 150, 1 << 20])),
        max_steps_per_version=draw(st.none() | st.integers(NUM_STEPS, 3 * NUM_STEPS)),
        max_unread_rounds=draw(st.none() | st.integers(1, 3)),
        when_full=draw(st.sampled_from(WhenFull)),
    )


@given(all_bounds(), st.lists(st.sampled_from(sorted(ACTIONS)), max_size=80))
def test_plan_keeps_its_bounds_and_loses_no_round(bounds: StreamBounds, actions: list[str]) -> None:
    stream = Stream(bounds)
    for action in actions:
        ACTIONS[action](stream)
        stream.check()


@given(all_bounds(), st.lists(st.sampled_from(sorted(ACTIONS)), max_size=40))
def test_plan_sends_another_round_once_everybody_goes_on(bounds: StreamBounds, actions: list[str]) -> None:
    """However the stream has come to a halt, a trainer that takes and updates makes it go on."""
    stream = Stream(bounds)
    for action in actions:
        ACTIONS[action](stream)
    num_sent = stream.plan.num_sent_rounds
    stream.update()
    for _ in range(40):
        for action in ("take", "sample", "send"):
            ACTIONS[action](stream)
    assert stream.plan.num_sent_rounds > num_sent


@given(all_bounds(), st.integers(1, 100))
def test_plan_samples_no_more_than_the_stream_has(bounds: StreamBounds, num_steps: int) -> None:
    stream = Stream(StreamBounds(**{**vars(bounds), "num_steps": num_steps}))
    for _ in range(100):
        for action in ("take", "sample", "sample", "send", "send", "update"):
            ACTIONS[action](stream)
    assert stream.plan.is_complete
    assert stream.plan.pause(stream.version, NUM_STEPS) is Pause.ENOUGH
    assert stream.plan.num_sent_steps == -(-num_steps // NUM_STEPS) * NUM_STEPS


def test_plan_drops_the_oldest_round_for_the_newest() -> None:
    stream = Stream(StreamBounds(max_ahead_steps=2 * NUM_STEPS, max_unread_rounds=1, when_full=WhenFull.DROP_OLDEST))
    for _ in range(10):
        stream.sample()
    assert [stream.fates.get(number) for number in range(5)] == ["overflow"] * 3 + [None] * 2


def test_plan_counts_a_version_anew_when_it_changes() -> None:
    stream = Stream(StreamBounds(max_ahead_steps=100, max_steps_per_version=2 * NUM_STEPS))
    for _ in range(10):
        stream.sample()
    assert stream.plan.pause(1, NUM_STEPS) is Pause.UPDATE
    assert stream.plan.pause(2, NUM_STEPS) is None


@pytest.mark.parametrize("when_full", WhenFull)
def test_round_larger_than_all_bytes_waits_for_its_sending(when_full: WhenFull) -> None:
    plan = RoundPlan(StreamBounds(max_unread_rounds=1, when_full=when_full), 100)
    large = plan.begin(1, NUM_STEPS)
    plan.add(large, 150)
    assert not plan.has_room(large)
    assert plan.send_next(1, 0) is large
    plan.sent_bytes(large, 100)
    assert plan.has_room(large)
