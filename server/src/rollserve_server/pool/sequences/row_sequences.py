"""The sequences of episodes that rows run from call to call: where each stands, and which workers have its rows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from rollserve import Reason
from rollserve_server.errors import NotReadyError
from rollserve_server.pool.sequences.root_seeds import derived_seed
from rollserve_server.pool.state.sampler_state import SequenceState
from rollserve_server.sampling import Worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rollserve_server.pool.accounts.account import Account
    from rollserve_server.pool.backends.backend import WorkerHandle
    from rollserve_server.pool.calls.fragments import FragmentCall
    from rollserve_server.pool.state.checkpoints import Checkpoint
    from rollserve_server.pool.state.sampler_state import RowsMoved
    from rollserve_server.sampling import FragmentReport

__all__ = ["RowSequence", "RowSequenceKind", "RowSequences", "WorkLocation"]


class RowSequenceKind(NamedTuple):
    """What the episodes of a sequence are a function of, beside its seed, their indices and the policies that act.

    Attributes:
        env_version: which environment they run in.
        max_episode_length: how many steps they may have, or None for what the environment allows.
        soft_horizon: whether an episode that reaches that length ends without a reset of its environment.
    """

    env_version: int
    max_episode_length: int | None
    soft_horizon: bool


class WorkLocation(NamedTuple):
    """A worker that has its rows of a sequence, and what it calls them."""

    handle: WorkerHandle
    work_id: int


@dataclass(eq=False)
class RowSequence:
    """A sequence of episodes for each row.

    Attributes:
        number: its name.
        seed: its root seed.
        kind: what else its episodes are a function of.
        is_own: whether calls that name no seed go on with it.
        current: where its rows stand.
        previous: where they stood before the last call; None before there was one.
        locations: of each worker, where its rows stand as they do now; None if they have to be made.
        is_busy: whether a call is using it.
        is_written: whether a journal knows where its rows stand.
    """

    number: int
    seed: int
    kind: RowSequenceKind
    is_own: bool
    current: Checkpoint
    previous: Checkpoint | None
    locations: list[WorkLocation | None]
    is_busy: bool = False
    is_written: bool = False

    def at(self, clock: int) -> Checkpoint | None:
        """Where the rows stand or stood at that clock, if that is known."""
        known = (self.current, self.previous)
        return next((each for each in known if each is not None and each.clock == clock), None)

    def copy(self, number: int) -> RowSequence:
        """The same under another name, to go on by itself with rows that have to be made."""
        previous = self.previous and self.previous.copy()
        locations: list[WorkLocation | None] = [None] * len(self.locations)
        return RowSequence(number, self.seed, self.kind, self.is_own, self.current.copy(), previous, locations)

    def is_like(self, other: RowSequence) -> bool:
        """Whether one of the two could stand for the other."""
        return (self.seed, self.kind, self.is_own) == (other.seed, other.kind, other.is_own)


class RowSequences:
    """Keeps sequences from call to call. A call that ends early has not happened: its sequence stands where it did."""

    def __init__(self, own_seed: int, max_kept: int, ids: Iterator[int]) -> None:
        """Begins without sequences.

        Args:
            own_seed: what the seeds of those for calls without a seed derive from.
            max_kept: how many there may be that no call uses, beside the one that calls without a seed go on with.
            ids: names for streams.
        """
        self.ids = ids
        self._own_seed = own_seed
        self._num_seeds = 0
        self._max_kept = max_kept
        self._kept: list[RowSequence] = []
        self._num_cancelled_steps = 0
        self._were_dropped = False
        self._closing: set[asyncio.Task[None]] = set()

    def begin_own(self, kind: RowSequenceKind, initial: Checkpoint) -> tuple[RowSequence, Checkpoint]:
        """A sequence for a call that names no seed, and where it is to begin: where no other call is going on.

        Args:
            kind: of which kind.
            initial: where new rows stand.
        """
        for sequence in self._kept:
            if sequence.is_own and sequence.kind == kind and not sequence.is_busy:
                return self._take(sequence, sequence.current)
        return self._new(self._next_seed(), kind, initial, is_own=True)

    def begin(
        self, seed: int, kind: RowSequenceKind, clock: int | None, initial: Checkpoint
    ) -> tuple[RowSequence, Checkpoint]:
        """The sequence of a seed, and where a call is to begin in it.

        Args:
            seed: its seed.
            kind: of which kind.
            clock: how many steps each row has made; None for the beginning, beside a sequence of calls without a seed.
            initial: where new rows stand.

        Raises:
            NotReadyError: the sequence does not stand there, and did not before its last call.
        """
        there = [sequence for sequence in self._kept if (sequence.seed, sequence.kind) == (seed, kind)]
        if clock is not None:
            at_clock = [(sequence, start) for sequence in there if (start := sequence.at(clock)) is not None]
            for sequence, start in at_clock:
                if not sequence.is_busy:
                    return self._take(sequence, start)
            for sequence, _ in at_clock:  # of a call that its client may have left
                copied = sequence.copy(next(self.ids))
                start = copied.at(clock)
                assert start is not None  # noqa: S101  # as of the original
                self._kept.append(copied)
                return self._take(copied, start)
            if clock:
                raise self._not_there(clock, there)
        for sequence in there:
            if not (sequence.is_own or sequence.is_busy):
                return self._take(sequence, initial)
        return self._new(seed, kind, initial, is_own=False)

    def complete(self, call: FragmentCall) -> RowsMoved | None:
        """Takes back the sequence of a call that is complete. Returns what is to be written of that, if anything."""
        sequence = call.sequence
        moved = call.moved(is_known=sequence.is_written)
        sequence.is_written = True
        sequence.previous, sequence.current = call.start, call.reached()
        sequence.locations = call.locations()
        sequence.is_busy = False
        locations, coming = call.left()
        if locations:
            self._close(locations, coming)
        if sequence not in self._kept:  # it was dropped meanwhile
            self._give_up_rows(sequence)
            return None
        for other in list(self._kept):
            if other is not sequence and not other.is_busy and other.is_like(sequence):
                self._forget(other)
        # Behind those that were used before.
        self._kept.remove(sequence)
        self._kept.append(sequence)
        self._limit()
        return moved

    def cancel(self, call: FragmentCall, *, end: bool) -> None:
        """Takes back the sequence of a call that has ended early: its workers stop, and forget what they did.

        Args:
            call: which call.
            end: whether calls that name no seed are to begin another, because this one would fail again.
        """
        sequence, account = call.sequence, call.account
        self._num_cancelled_steps += account.num_simulated_steps - account.num_steps
        # Those that it did not come to use are of the same names.
        locations = {*call.open_locations(), *(location for location in sequence.locations if location is not None)}
        self._close(locations, call.coming())
        sequence.locations = [None] * len(sequence.locations)
        sequence.is_busy = False
        sequence.is_own &= not end
        others = [other for other in self._kept if other is not sequence and other.is_like(sequence)]
        if sequence in self._kept and (others or not (sequence.is_own or sequence.current.clock)):
            self._forget(sequence)
        self._limit()

    def end_own(self, env_version: int) -> None:
        """Has calls that name no seed begin others than those of environments before this version."""
        for sequence in self._kept:
            if sequence.kind.env_version < env_version:
                sequence.is_own = False
                if not sequence.is_busy:
                    self._give_up_rows(sequence)

    def free_rows(self) -> None:
        """Gives up rows that can be made again and that no call uses, so that their environments are free."""
        for sequence in self._kept:
            if not sequence.is_busy and sequence.current.is_restorable:
                self._give_up_rows(sequence)

    def drop_all(self) -> None:
        """Cancellations all that is kept, and what calls use once they end: there are other rows now."""
        for sequence in self._kept:
            if not sequence.is_busy:
                self._give_up_rows(sequence)
        self._were_dropped |= bool(self._kept)
        self._kept.clear()

    def states(self) -> dict[int, SequenceState]:
        """By name, where those stand whose rows have made steps."""
        return {
            each.number: SequenceState(each.seed, each.kind, each.current, each.previous)
            for each in self._kept
            if each.current.clock
        }

    def numbers(self) -> frozenset[int]:
        """The names of all."""
        return frozenset(each.number for each in self._kept)

    def restore(self, states: Mapping[int, SequenceState]) -> None:
        """Takes in sequences of an earlier server, which calls that name no seed do not go on with."""
        for number, state in states.items():
            locations: list[WorkLocation | None] = [None] * len(state.current.workers)
            sequence = RowSequence(
                number, state.seed, state.kind, False, state.current, state.previous, locations, is_written=True
            )
            self._kept.append(sequence)

    def take_dropped(self, account: Account) -> None:
        """Enters what was dropped since this was last asked into an account."""
        account.num_cancelled_steps += self._num_cancelled_steps
        account.num_carried_steps += self._num_cancelled_steps
        self._num_cancelled_steps = 0

    def _next_seed(self) -> int:
        self._num_seeds += 1
        # Apart from those of sequences of whole episodes.
        return derived_seed(self._own_seed, (0, self._num_seeds))

    def _new(
        self, seed: int, kind: RowSequenceKind, initial: Checkpoint, *, is_own: bool
    ) -> tuple[RowSequence, Checkpoint]:
        locations: list[WorkLocation | None] = [None] * len(initial.workers)
        sequence = RowSequence(next(self.ids), seed, kind, is_own, initial, None, locations)
        self._kept.append(sequence)
        return self._take(sequence, initial)

    def _take(self, sequence: RowSequence, start: Checkpoint) -> tuple[RowSequence, Checkpoint]:
        sequence.is_busy = True
        if start is not sequence.current:
            self._give_up_rows(sequence)
        return sequence, start

    def _limit(self) -> None:
        """Forgets those that are too many, beginning with the oldest, and those of calls without a seed last."""
        idle = [sequence for sequence in self._kept if not sequence.is_busy]
        own = [sequence for sequence in reversed(idle) if sequence.is_own]
        # Calls with a seed can begin theirs anew; those without would never learn what follows.
        newest_own = max(own, key=lambda sequence: sequence.kind.env_version, default=None)
        others = [sequence for sequence in idle if sequence is not newest_own]
        # The last one used is what a client is just going on with.
        by_turn = sorted(others[:-1], key=lambda sequence: sequence.is_own) + others[-1:]
        for sequence in by_turn[: max(len(others) - self._max_kept, 0)]:
            self._forget(sequence)

    def _forget(self, sequence: RowSequence) -> None:
        self._kept.remove(sequence)
        self._give_up_rows(sequence)

    def _give_up_rows(self, sequence: RowSequence) -> None:
        self._close([location for location in sequence.locations if location is not None], ())
        sequence.locations = [None] * len(sequence.locations)

    def _close(self, locations: Iterable[WorkLocation], coming: Sequence[asyncio.Future[FragmentReport]]) -> None:
        # Begun here, so that workers hear of it before anything that comes after.
        closing = []
        for handle, work_id in locations:
            handle.stop(work_id)
            closing.append(asyncio.ensure_future(handle.call(Worker.close_work, work_id)))
        task = asyncio.create_task(self._finish_closing(closing, coming))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _finish_closing(
        self, closing: Sequence[asyncio.Future[None]], coming: Sequence[asyncio.Future[FragmentReport]]
    ) -> None:
        """Counts what workers had still been doing until they heard of it."""
        await asyncio.gather(*closing, return_exceptions=True)
        for report in await asyncio.gather(*coming, return_exceptions=True):
            if not isinstance(report, BaseException):
                self._num_cancelled_steps += report.num_simulated_steps

    def _not_there(self, clock: int, row_sequences: Sequence[RowSequence]) -> NotReadyError:
        known = {each.clock for sequence in row_sequences for each in (sequence.current, sequence.previous) if each}
        stands = (
            f"{' or '.join(map(str, sorted({0, *known})))} was expected" if known else "there is no such sequence now"
        )
        text = f"{clock} came, but {stands}: rows stand there or begin anew"
        if not known and self._were_dropped:
            text = f"{text}; sequences of before the last change of the number of workers have ended with it"
        return NotReadyError(text, reason=Reason.ROW_STEP_COUNT, field="fragments.row_step_count")
