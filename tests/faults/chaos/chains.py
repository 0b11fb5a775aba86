"""The order of fragment calls: which call moved the rows to where the next one begins."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from faults.chaos.catalogue import NUM_ROWS
from faults.chaos.story import RecordedCall

__all__ = ["Chain", "chains_of"]


class Chain(NamedTuple):
    """The calls of one row sequence.

    Attributes:
        calls: calls in the order in which a reference has to repeat them. Calls that failed at a position stand before
            the call that moved the rows from there.
        unknown: calls whose position cannot be explained, because a killed client did not record a call before them.
    """

    calls: Sequence[RecordedCall]
    unknown: Sequence[RecordedCall]


def chains_of(calls: Sequence[RecordedCall]) -> Iterator[Chain]:
    """Yield a chain for each row sequence, of the fragment calls whose beginning is known."""
    sequences: dict[tuple[str, int, int, int, int | None], list[RecordedCall]] = defaultdict(list)
    for call in calls:
        if call.request["kind"] == "fragments" and call.beginning is not None:
            limit = call.request["options"].get("max_episode_length")
            beginning = call.beginning
            sequences[beginning.run, beginning.seed, beginning.env, beginning.worker_count, limit].append(call)
    for (_, _, _, num_workers, _), members in sequences.items():
        yield _chain(members, num_workers * NUM_ROWS)


def _chain(calls: Sequence[RecordedCall], num_rows: int) -> Chain:
    at: dict[int, list[RecordedCall]] = defaultdict(list)
    for call in calls:
        assert call.beginning is not None
        at[call.beginning.row_step_count].append(call)
    ordered: list[RecordedCall] = []
    clock: int | None = 0
    while clock is not None and clock in at:
        here = at.pop(clock)
        moved = _moving_call(here, clock, num_rows, set(at))
        ordered += [call for call in here if call is not moved]
        if moved is not None:
            ordered.append(moved)
        clock = None if moved is None else clock + moved.request["number"] // num_rows
    return Chain(ordered, [call for rest in at.values() for call in rest])


def _moving_call(calls: Sequence[RecordedCall], clock: int, num_rows: int, later: set[int]) -> RecordedCall | None:
    """Return the call that moved the rows, or None: it succeeded, or its client was killed before it knew."""
    done = [call for call in calls if call.outcome == "ok"]
    if done:
        return done[-1]
    possible = [call for call in calls if clock + call.request["number"] // num_rows in later]
    policies = {(call.beginning and call.beginning.policy, call.request["number"]) for call in possible}
    return possible[-1] if len(policies) == 1 else None
