"""Fragments that go on from call to call: which calls made the rows stand where others began."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from faults.chaos.catalogue import NUM_ROWS
from faults.chaos.story import ToldCall

__all__ = ["Chain", "chains_of"]


class Chain(NamedTuple):
    """The calls of one sequence.

    Attributes:
        calls: each to be asked of a reference one after the other: those that failed stand before the one that moved
            the rows on from the same place.
        unknown: those whose history is not known, because a client that was killed did not tell of it.
    """

    calls: Sequence[ToldCall]
    unknown: Sequence[ToldCall]


def chains_of(calls: Sequence[ToldCall]) -> Iterator[Chain]:
    """The sequences of all calls for fragments whose beginning is known."""
    sequences: dict[tuple[str, int, int, int, int | None], list[ToldCall]] = defaultdict(list)
    for call in calls:
        if call.request["kind"] == "fragments" and call.beginning is not None:
            limit = call.request["options"].get("max_episode_length")
            begun = call.beginning
            sequences[begun.run, begun.seed, begun.env, begun.worker_count, limit].append(call)
    for (_, _, _, num_workers, _), members in sequences.items():
        yield _chain(members, num_workers * NUM_ROWS)


def _chain(calls: Sequence[ToldCall], num_rows: int) -> Chain:
    at: dict[int, list[ToldCall]] = defaultdict(list)
    for call in calls:
        assert call.beginning is not None
        at[call.beginning.row_step_count].append(call)
    ordered: list[ToldCall] = []
    clock: int | None = 0
    while clock is not None and clock in at:
        here = at.pop(clock)
        moved = _moved_on(here, clock, num_rows, set(at))
        ordered += [call for call in here if call is not moved]
        if moved is not None:
            ordered.append(moved)
        clock = None if moved is None else clock + moved.request["number"] // num_rows
    return Chain(ordered, [call for rest in at.values() for call in rest])


def _moved_on(calls: Sequence[ToldCall], clock: int, num_rows: int, later: set[int]) -> ToldCall | None:
    """The call that moved the rows on, if one has: one that succeeded, or that only its client does not know of."""
    done = [call for call in calls if call.outcome == "ok"]
    if done:
        return done[-1]
    maybe = [call for call in calls if clock + call.request["number"] // num_rows in later]
    policies = {(call.beginning and call.beginning.policy, call.request["number"]) for call in maybe}
    return maybe[-1] if len(policies) == 1 else None
