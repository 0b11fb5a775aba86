"""Row sequences: where the rows of each stand between fragment calls, and which workers have them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from rollserve_server.errors import NotReadyError
from rollserve_server.futures import in_background
from rollserve_server.pool.sequences.open_work import DroppedSteps
from rollserve_server.pool.sequences.sequences import DerivedSeeds
from rollserve_server.pool.state.row_sequence import RowSequenceKind, RowSequenceState, RowsMoved
from rollserve_server.pool.state.saved_sampler import SavedRowSequence
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from rollserve_server.pool.accounts import Account
    from rollserve_server.pool.sequences.open_work import WorkLocation
    from rollserve_server.pool.state.checkpoints import Checkpoint
    from rollserve_server.pool.state.saved_sampler import SavedOwnSequences
    from rollserve_server.sampling import FragmentReport, RowProgress

__all__ = ["RowSequence", "RowSequences", "RowsReached"]

_KEY = (0,)
"""Beginning of the keys of seeds, which keeps them apart from the seeds of sequences of whole episodes."""
_MAX_EARLIER = 16
"""Positions of a stream's last rounds that are remembered, beside the present one and the one before."""


class RowSequence:
    """A sequence of episodes for each row.

    Attributes:
        number: number of the sequence in the run.
        seed: root seed of its episodes.
        kind: what else its episodes are a function of.
        is_own: whether calls that name no seed continue it.
        is_written: whether a journal knows where its rows stand.
        is_busy: whether a call uses the sequence.
        start: where the call that uses it, or the last one, began.
        locations: for each worker, where its rows stand as they do now; None if they have to be made.
    """

    def __init__(self, number: int, state: RowSequenceState, *, is_own: bool, is_written: bool = False) -> None:
        self.number = number
        self.seed, self.kind = state.seed, state.kind
        self._state = state
        self._moved: tuple[Checkpoint, int, Sequence[Collection[RowProgress]]] | None = None
        self.is_own = is_own
        self.is_written = is_written
        self.is_busy = False
        self.start = state.current
        self._earlier: deque[Checkpoint] = deque(maxlen=_MAX_EARLIER)
        self.locations: list[WorkLocation | None] = [None for _ in state.current.workers]

    @property
    def state(self) -> RowSequenceState:
        """The seed and the kind, and where the rows stand now and stood before the last call."""
        if self._moved is not None:
            start, num_row_steps, progress = self._moved
            self._state = RowSequenceState(self.seed, self.kind, start.after(num_row_steps, progress), start)
            self._moved = None
        return self._state

    @property
    def has_moved(self) -> bool:
        """Whether the rows have made steps."""
        return self._moved is not None or self._state.current.clock > 0

    def move(self, num_row_steps: int, progress: Sequence[Collection[RowProgress]]) -> None:
        """Record what a call has reported of the rows; see `Checkpoint.after`.

        Where they stand takes 3 µs for each row to work out. That is done when it is needed, or when the loop has
        begun to send the call's last message.
        """
        # Continuing from an earlier position overwrites what led from there to later ones.
        while self._earlier and self._earlier[-1].clock >= self.start.clock:
            self._earlier.pop()
        self._moved = self.start, num_row_steps, progress
        asyncio.get_running_loop().call_soon(lambda: self.state)

    def remember_start(self) -> None:
        """Keep where the last call began, so that a later one can begin there."""
        self._earlier.append(self.start)

    def at(self, clock: int) -> Checkpoint | None:
        """Return where the rows stand or stood at that clock, if it is known."""
        return self.state.at(clock) or next((each for each in self._earlier if each.clock == clock), None)

    def copy_at(self, clock: int) -> RowSequenceState:
        """Return an independent copy of the state, or of where the rows stood at a clock if that was earlier."""
        if self.state.at(clock) is not None:
            return self.state.copy()
        point = self.at(clock)
        assert point is not None  # noqa: S101  # the caller has asked
        return RowSequenceState(self.seed, self.kind, point.copy(), None)

    def is_like(self, other: RowSequence) -> bool:
        """Whether one of the two could stand for the other."""
        return (self.seed, self.kind, self.is_own) == (other.seed, other.kind, other.is_own)


class RowsReached(NamedTuple):
    """Positions of a sequence's rows after a completed call.

    Attributes:
        num_row_steps: number of steps that each row has made.
        progress: for each worker, what it reported of its rows.
        locations: for each worker, where its rows stand as they do now; None if they have to be made.
        abandoned: where rows are of workers that did not stop in time.
        reports: reports that these workers still owe.
    """

    num_row_steps: int
    progress: Sequence[Collection[RowProgress]]
    locations: list[WorkLocation | None]
    abandoned: Sequence[WorkLocation]
    reports: Sequence[asyncio.Future[FragmentReport]]


class RowSequences:
    """Row sequences, kept from call to call. A call that ends early leaves its sequence where it stood before.

    Attributes:
        dropped: steps of calls that ended early.
        max_kept: number of sequences that are kept while no call uses them, beside the one that calls without a seed
            continue.
    """

    def __init__(self, own_seed: int, max_kept: int, ids: Iterator[int]) -> None:
        """Start without sequences.

        Args:
            own_seed: root seed that the seeds of sequences for calls without a seed derive from.
            max_kept: number of sequences that are kept while no call uses them, beside the one that calls without a
                seed continue.
            ids: numbers for workers' work and for sequences.
        """
        self._ids = ids
        self._seeds = DerivedSeeds(own_seed, _KEY)
        self.max_kept = max_kept
        self._kept: list[RowSequence] = []
        self.dropped = DroppedSteps()
        self._were_dropped = False

    def begin_own(self, kind: RowSequenceKind, initial: Checkpoint) -> RowSequence:
        """Return a sequence for a call without a seed, which begins where no other call goes on.

        Args:
            kind: kind of the sequence.
            initial: where new rows stand.
        """
        for sequence in self._kept:
            if sequence.is_own and sequence.kind == kind and not sequence.is_busy:
                return self._take(sequence, sequence.state.current)
        return self._new(next(self._seeds), kind, initial, is_own=True)

    def begin_private(self, kind: RowSequenceKind, initial: Checkpoint) -> RowSequence:
        """Return a sequence with a seed of its own that calls without a seed do not continue; see `begin_own`."""
        return self._new(next(self._seeds), kind, initial, is_own=False)

    def go_on(self, sequence: RowSequence) -> bool:
        """Take a sequence whose call has just completed for the next call; return whether it has not ended meanwhile.

        The positions of the last calls are remembered, so that a call can begin at any of them.
        """
        if sequence not in self._kept:
            return False
        sequence.remember_start()
        self._take(sequence, sequence.state.current)
        return True

    def release(self, sequence: RowSequence) -> None:
        """Take back a sequence that `go_on` has lent and no call has used since."""
        sequence.is_busy = False
        if sequence not in self._kept:
            self._give_up_rows(sequence)
        self._limit()

    def has(self, sequence: RowSequence) -> bool:
        """Whether a sequence has not ended."""
        return sequence in self._kept

    def begin(self, seed: int, kind: RowSequenceKind, clock: int | None, initial: Checkpoint) -> RowSequence:
        """Return the sequence of a seed for a call.

        Args:
            seed: seed of the sequence.
            kind: kind of the sequence.
            clock: number of steps that each row has made; None for the beginning, beside a sequence of calls without a
                seed.
            initial: where new rows stand.

        Raises:
            NotReadyError: the sequence does not stand there, and did not before its last call.
        """
        same = [each for each in self._kept if (each.seed, each.kind) == (seed, kind)]
        if clock is not None:
            at_clock = [sequence for sequence in same if sequence.at(clock) is not None]
            idle = next((sequence for sequence in at_clock if not sequence.is_busy), None)
            if idle is None and at_clock:  # used by a call that its client may have left
                original = at_clock[0]
                idle = RowSequence(next(self._ids), original.copy_at(clock), is_own=original.is_own)
                self._kept.append(idle)
            if idle is not None:
                return self._take(idle, idle.at(clock) or initial)
            if clock:
                raise self._unknown_clock(clock, same)
        for sequence in same:
            if not (sequence.is_own or sequence.is_busy):
                return self._take(sequence, initial)
        return self._new(seed, kind, initial, is_own=False)

    def complete(self, sequence: RowSequence, reached: RowsReached) -> RowsMoved | None:
        """Take back the sequence of a completed call; return what the journal has to know of it, if anything."""
        start, seed, kind = sequence.start, sequence.seed, sequence.kind
        known_start = start.clock if sequence.is_written else start
        moved = RowsMoved(sequence.number, seed, kind, known_start, reached.num_row_steps, reached.progress)
        sequence.is_written = True
        sequence.move(reached.num_row_steps, reached.progress)
        sequence.locations = reached.locations
        sequence.is_busy = False
        if reached.abandoned:
            self._close(reached.abandoned, reached.reports)
        if sequence not in self._kept:  # it was dropped meanwhile
            self._give_up_rows(sequence)
            return None
        for other in list(self._kept):
            if other is not sequence and not other.is_busy and other.is_like(sequence):
                self._forget(other)
        # The last one used is the last one to be forgotten.
        self._kept.remove(sequence)
        self._kept.append(sequence)
        self._limit()
        return moved

    def cancel(
        self,
        sequence: RowSequence,
        account: Account,
        locations: Iterable[WorkLocation],
        reports: Sequence[asyncio.Future[FragmentReport]],
        *,
        end: bool,
    ) -> None:
        """Take back the sequence of a call that ended early: its workers stop, and forget what they did.

        Args:
            sequence: the sequence.
            account: account of the call.
            locations: where rows are that the call has used.
            reports: reports that workers still owe.
            end: whether calls without a seed are to begin another sequence, because this one would fail again.
        """
        self.dropped.num_cancelled += account.num_simulated_steps - account.num_steps
        # Rows that the call did not come to use are still where the sequence has them.
        unused = (location for location in sequence.locations if location is not None)
        self._close({*locations, *unused}, reports)
        sequence.locations = [None] * len(sequence.locations)
        sequence.is_busy = False
        sequence.is_own &= not end
        others = [other for other in self._kept if other is not sequence and other.is_like(sequence)]
        if sequence in self._kept and (others or not (sequence.is_own or sequence.state.current.clock)):
            self._forget(sequence)
        self._limit()

    def end_own(self, env_version: int) -> None:
        """Have calls without a seed continue no sequence of environments before this version."""
        for sequence in self._kept:
            if sequence.kind.env_version < env_version:
                sequence.is_own = False
                if not sequence.is_busy:
                    self._give_up_rows(sequence)

    def free_rows(self) -> None:
        """Give up rows that can be made again and that no call uses, so that their environments are free."""
        for sequence in self._kept:
            if not sequence.is_busy and sequence.state.current.is_restorable:
                self._give_up_rows(sequence)

    def drop_all(self) -> None:
        """Forget idle sequences now, and busy ones when their calls end: the number of rows has changed."""
        for sequence in self._kept:
            if not sequence.is_busy:
                self._give_up_rows(sequence)
        self._were_dropped |= bool(self._kept)
        self._kept.clear()

    def is_under_way(self, env_version: int) -> bool:
        """Whether rows of a version of the environments have made steps from which calls can go on, or a call runs."""
        return any(each.is_busy or (each.kind.env_version == env_version and each.has_moved) for each in self._kept)

    def states(self) -> list[SavedRowSequence]:
        """Return where the rows stand that have made steps, for the journal."""
        return [SavedRowSequence(each.state, number=each.number) for each in self._kept if each.state.current.clock]

    def numbers(self) -> list[int]:
        """Return the numbers of all sequences."""
        return [each.number for each in self._kept]

    @property
    def num_seeds(self) -> int:
        """Number of seeds that were derived for sequences."""
        return self._seeds.num_drawn

    def save(self) -> list[SavedRowSequence]:
        """Return independent copies of where the rows stand; a call that runs has not begun."""
        moved = [each for each in self._kept if each.state.current.clock]
        return [SavedRowSequence(dataclasses.replace(each.state, previous=None).copy(), each.is_own) for each in moved]

    def restore(self, saved: Iterable[SavedRowSequence], own: SavedOwnSequences | None) -> None:
        """Go on with saved sequences, or with sequences of an earlier server, before any call.

        Args:
            saved: the sequences.
            own: which seeds were derived; None for an earlier server, whose sequences calls without a seed do not
                continue.
        """
        if own is not None:
            self._seeds = DerivedSeeds(own.seed, _KEY, own.num_row_seeds)
        for state, is_own, number in saved:
            self._kept.append(RowSequence(number or next(self._ids), state, is_own=is_own, is_written=number > 0))

    def _new(self, seed: int, kind: RowSequenceKind, initial: Checkpoint, *, is_own: bool) -> RowSequence:
        sequence = RowSequence(next(self._ids), RowSequenceState(seed, kind, initial, None), is_own=is_own)
        self._kept.append(sequence)
        return self._take(sequence, initial)

    def _take(self, sequence: RowSequence, start: Checkpoint) -> RowSequence:
        sequence.is_busy, sequence.start = True, start
        if start is not sequence.state.current:
            self._give_up_rows(sequence)
        return sequence

    def _limit(self) -> None:
        """Forget sequences beyond the limit: the oldest first, those for calls without a seed last."""
        idle = [sequence for sequence in self._kept if not sequence.is_busy]
        own = [sequence for sequence in reversed(idle) if sequence.is_own]
        # Calls with a seed can begin theirs again; calls without would never learn what follows.
        newest_own = max(own, key=lambda sequence: sequence.kind.env_version, default=None)
        others = [sequence for sequence in idle if sequence is not newest_own]
        # A client is just going on with the last one used.
        in_order = sorted(others[:-1], key=lambda sequence: sequence.is_own) + others[-1:]
        for sequence in in_order[: max(len(others) - self.max_kept, 0)]:
            self._forget(sequence)

    def _forget(self, sequence: RowSequence) -> None:
        self._kept.remove(sequence)
        self._give_up_rows(sequence)

    def _give_up_rows(self, sequence: RowSequence) -> None:
        self._close([location for location in sequence.locations if location is not None], ())
        sequence.locations = [None] * len(sequence.locations)

    def _close(self, locations: Iterable[WorkLocation], reports: Sequence[asyncio.Future[FragmentReport]]) -> None:
        # The calls are made here, so that workers hear of it before anything later.
        closing = []
        for location in locations:
            location.stop()
            closing.append(location.close())
        in_background(self.dropped.count_coming(closing, reports, cancelled=True))

    def _unknown_clock(self, clock: int, sequences: Sequence[RowSequence]) -> NotReadyError:
        states = [sequence.state for sequence in sequences]
        known = {each.clock for state in states for each in (state.current, state.previous) if each}
        expected = " or ".join(map(str, sorted({0, *known}))) if known else "0, because there is no such sequence now"
        hint = "rows stand there or begin again"
        if not known and self._were_dropped:
            hint = f"{hint}; earlier sequences ended when the number of workers changed"
        field, reason = "fragments.row_step_count", Reason.ROW_STEP_COUNT
        return NotReadyError.of(field, expected=expected, got=clock, hint=hint, reason=reason)
