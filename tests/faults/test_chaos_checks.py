"""Checks of the chaos run: each kind of wrong result is found."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from faults.chaos.chains import chains_of
from faults.chaos.checks import delivered_twice, differences, different_steps, wrong_ends
from faults.chaos.digests import Segment, segments_of, step_digest
from faults.chaos.processes import Usage
from faults.chaos.sessions import act, drive
from faults.chaos.story import Beginning, RecordedCall
from faults.soak.watching import Track

import rollserve
from rollserve_server.local import LocalServer

LENGTHS = [3, 1, 4]
ACCOUNT = {
    "num_steps": 8,
    "num_kept_steps": 2,
    "num_dropped_steps": 1,
    "num_carried_steps": 4,
    "num_simulated_steps": 7,
}


@pytest.fixture(scope="module")
def server(light_server: LocalServer) -> LocalServer:
    return light_server


def batch(first: int = 0, **changes: np.ndarray) -> rollserve.EpisodeBatch:
    """A batch of three episodes."""
    num_steps = sum(LENGTHS)
    columns = {
        "observations": np.arange(2.0 * num_steps).reshape(num_steps, 2),
        "last_observations": -np.arange(6.0).reshape(3, 2),
        "actions": np.arange(num_steps) % 3,
        "rewards": np.ones(num_steps),
        "lengths": np.array(LENGTHS),
        "terminated": np.array([True, False, True]),
        "truncated": np.array([False, True, False]),
        "episode_indices": np.arange(first, first + 3),
    }
    return rollserve.EpisodeBatch(**{**columns, **changes})


def call_with(segments: Sequence[Segment], kind: str = "samples", outcome: str = "ok", at: int = 0) -> RecordedCall:
    request = {"kind": kind, "number": 8, "seed": None, "options": {}}
    return RecordedCall("client", request, Beginning("run", 1, 0, 1, 1, at, 2), list(segments), outcome=outcome)


@pytest.mark.parametrize("num_steps", range(9))
def test_any_split_of_the_reference_has_no_differences(num_steps: int) -> None:
    """The first message ends after `num_steps`, and the second begins there."""
    head = [_first_steps(batch(), num_steps)] if num_steps else []
    parts = [*head, batch().without_first_steps(num_steps)]
    segments = [segment for part in parts for segment in segments_of(part)]
    assert not list(differences(call_with(segments), batch(), is_whole=True))
    assert not list(differences(call_with(segments[:1]), batch(), is_whole=False))


def _first_steps(whole: rollserve.EpisodeBatch, num_steps: int) -> rollserve.EpisodeBatch:
    """Cut a batch after its first steps, as a message of a stream would be."""
    ends = np.cumsum(whole.lengths)
    count = int(np.searchsorted(ends, num_steps)) + 1
    lengths = whole.lengths[:count].copy()
    lengths[-1] -= ends[count - 1] - num_steps
    is_cut = lengths[-1] != whole.lengths[count - 1]
    last = whole.last_observations[:count].copy()
    flags = [whole.terminated[:count].copy(), whole.truncated[:count].copy()]
    if is_cut:
        last[-1] = whole.observations[num_steps]
        for flag in flags:
            flag[-1] = False
    return rollserve.EpisodeBatch(
        observations=whole.observations[:num_steps],
        last_observations=last,
        actions=whole.actions[:num_steps],
        rewards=whole.rewards[:num_steps],
        lengths=lengths,
        terminated=flags[0],
        truncated=flags[1],
        episode_indices=whole.episode_indices[:count],
    )


WRONG: dict[str, Callable[[], Sequence[Segment]]] = {
    "another observation": lambda: list(segments_of(batch(observations=np.zeros((8, 2))))),
    "another last observation": lambda: list(segments_of(batch(last_observations=np.zeros((3, 2))))),
    "another type": lambda: list(segments_of(batch(rewards=np.ones(8, np.float32)))),
    "another end": lambda: list(segments_of(batch(truncated=np.array([False, True, True])))),
    "other episodes": lambda: list(segments_of(batch(first=1))),
    "one too few": lambda: list(segments_of(batch()))[:2],
    "one too many": lambda: [*segments_of(batch()), *segments_of(batch(first=3))],
    "another order": lambda: list(segments_of(batch()))[::-1],
    "one twice": lambda: list(segments_of(batch()))[:1] * 2,
}


@pytest.mark.parametrize("segments", WRONG.values(), ids=WRONG.keys())
def test_wrong_segments_are_found(segments: Callable[[], Sequence[Segment]]) -> None:
    assert list(differences(call_with(segments()), batch(), is_whole=True))


def test_steps_delivered_twice_are_found() -> None:
    first, second = call_with(list(segments_of(batch()))), call_with(list(segments_of(batch(first=3))))
    assert not list(delivered_twice([first, second]))
    (text,) = delivered_twice([first, call_with(first.segments[:1])])
    assert "step 0 was delivered 2 times" in text
    # A failed fragment call moves no rows.
    fragments = [call_with(first.segments, "fragments", outcome) for outcome in ("UNAVAILABLE", "ok")]
    assert not list(delivered_twice(fragments))
    assert list(delivered_twice(fragments[1:] * 2))


def test_wrong_ends_and_accounts_are_found() -> None:
    call = call_with(())
    call.end = {"account": ACCOUNT, "num_steps": 8}
    assert not list(wrong_ends(call))
    call.end = {"account": {**ACCOUNT, "num_simulated_steps": 8}, "num_steps": 8}
    assert "does not add up" in next(iter(wrong_ends(call)))
    call.end = {"account": ACCOUNT, "num_steps": 7}
    assert "8 steps, the messages 7" in next(iter(wrong_ends(call)))
    for outcome in ("INTERNAL", "DEADLINE_EXCEEDED", "DATA_LOSS", "INVALID_VALUE"):
        assert list(wrong_ends(call_with((), outcome=outcome)))


def test_fragment_calls_are_ordered_by_the_steps_of_their_rows() -> None:
    """The client of one call was killed, and another call failed and was repeated."""
    calls = [
        call_with((), "fragments", outcome, at) for outcome, at in (("ok", 2), ("UNAVAILABLE", 0), ("ok", 0), ("", 1))
    ]
    (chain,) = chains_of(calls)  # 8 rows, which each call advances by one step
    assert [calls.index(call) for call in chain.calls] == [1, 2, 3, 0]
    (chain,) = chains_of([call for call in calls if call.outcome])
    assert [calls.index(call) for call in chain.unknown] == [0]


@pytest.mark.parametrize(
    ("shown", "is_wrong_part", "is_wrong_whole"),
    [
        ("abc", False, False),
        ("ab", False, True),
        ("", False, True),
        ("abcd", True, True),
        ("axc", True, True),
        ("acb", True, True),
    ],
)
def test_wrong_steps_of_sessions_are_found(shown: str, is_wrong_part: bool, is_wrong_whole: bool) -> None:
    call = call_with((), "session")
    call.steps = list(shown)
    assert bool(list(different_steps(call, list("abc"), is_whole=False))) == is_wrong_part
    assert bool(list(different_steps(call, list("abc"), is_whole=True))) == is_wrong_whole


def test_each_change_of_what_a_session_shows_and_records_is_found(cartpole: rollserve.Sampler) -> None:
    def shown(seed: int, every: int = 8) -> list[str | list[Segment]]:
        extras = {"fragment_length": 16, "batch_every": every, "infos": True}
        request = {"number": 40, "seed": seed, "options": {"max_episode_length": 11}, "extras": extras}
        with drive(cartpole, request) as session:
            return [
                step_digest(each) if isinstance(each, rollserve.DrivenStep) else list(segments_of(each))
                for each in act(session, request)
            ]

    first, again, other, fewer = shown(1), shown(1), shown(2), shown(1, every=40)
    assert again == first
    assert len({each for each in first if isinstance(each, str)}) == 41
    assert not any(one == another for one, another in zip(first, other, strict=True))
    assert [each for each in fewer if isinstance(each, str)] == [each for each in first if isinstance(each, str)]
    with drive(cartpole, {"seed": 1, "options": {}, "extras": {"fragment_length": 1, "infos": True}}) as session:
        step = session.observe()
    digest = step_digest(step)
    for name, value in vars(step).items():
        changed = value + 1 if name == "number" else _changed(value)
        if changed is not None:
            assert step_digest(dataclasses.replace(step, **{name: changed})) != digest, name


def _changed(value: object) -> object:
    """The column with its first bit flipped; None for one without any."""
    if not isinstance(value, np.ndarray) or not value.size:
        return None
    changed = value.copy()
    changed.reshape(-1).view(np.uint8)[0] ^= 1
    return changed


def test_growth_of_processes_is_measured_at_rest() -> None:
    def track(values: Sequence[int]) -> Track:
        usages = [Usage("worker", value << 20, value << 20, 10, 10) for value in values]
        seconds = [float(number) for number in range(len(values))]
        return Track("worker 1", seconds, usages, [number % 2 == 1 for number in range(len(values))])

    steady = track([900, 50, 900, 80, 100, 85, 900, 81, 900, 82, 900, 83, 900, 90, 900, 86])
    assert steady.growth("own_bytes", 15.0) == 5 << 20
    assert not list(steady.problems(15.0))
    growing = track([0, 50, 0, 60, 0, 70, 0, 80, 0, 90, 0, 100, 0, 110, 0, 120])
    assert growing.growth("own_bytes", 15.0) == 40 << 20
    (problem,) = growing.problems(15.0)
    assert "own_bytes rose by" in problem
