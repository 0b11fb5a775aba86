"""The sequence that the rounds of a stream have for themselves, from one round to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollserve import Reason
from rollserve_server.errors import NotReadyError
from rollserve_server.pool.requests import AtLeast, Fragments, RowFragments
from rollserve_server.pool.sequences.sequences import OwnSequence

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from rollserve_server.pool.calls.episodes import EpisodeCall
    from rollserve_server.pool.calls.fragments import FragmentCall
    from rollserve_server.pool.parts import PoolParts
    from rollserve_server.pool.requests import StreamRequest
    from rollserve_server.pool.sequences.row_sequences import RowSequence
    from rollserve_server.pool.state.checkpoints import Checkpoint
    from rollserve_server.pool.state.row_sequence import RowSequenceKind, RowsMoved

__all__ = ["StreamSequence"]


class StreamSequence:
    """The sequence of one stream: of whole episodes, or of rows. No other call continues it while the stream runs.

    Attributes:
        own: sequence of whole episodes; None for fragments.
    """

    def __init__(self, parts: PoolParts, request: StreamRequest, stack: AsyncExitStack) -> None:
        """Begin, until the stack is closed: with the request's seed and position, or with a seed of the sampler's."""
        self._parts = parts
        self._rounds, self._options = request.rounds, request.options
        self._rows: RowSequence | None = None
        self._has_begun = False
        self._num_left_row_steps = 0  # of a fragment that an update has cut
        self.own: OwnSequence | None = None
        if not isinstance(request.rounds, AtLeast):
            stack.callback(self._release)
        elif request.options.seed is None:
            self.own = stack.enter_context(parts.sequences.own())
        else:
            self.own = OwnSequence(request.options.seed, request.options.first_index)

    def num_steps(self, num_rows: int) -> int:
        """Return the number of steps of the next round, at least, for a number of rows of all workers."""
        if isinstance(self._rounds, AtLeast):
            return self._rounds.num_steps
        return (self._num_left_row_steps or self._rounds.num_row_steps) * num_rows

    def target(self, num_rows: int) -> AtLeast | Fragments:
        """Return the target of the next round."""
        if isinstance(self._rounds, AtLeast):
            return self._rounds
        return Fragments(self.num_steps(num_rows), soft_horizon=self._rounds.soft_horizon)

    def take_rows(self, kind: RowSequenceKind, initial: Checkpoint) -> RowSequence:
        """Return the row sequence of the next round.

        Raises:
            NotReadyError: the sequence of a seed does not stand where the stream begins, or has ended with a resize.
        """
        assert isinstance(self._rounds, RowFragments)  # noqa: S101  # the round has fragments
        sequences, seed = self._parts.row_sequences, self._options.seed
        if self._rows is not None and sequences.has(self._rows):
            return self._rows
        self._release()
        if seed is not None and self._has_begun:
            text = "the number of workers has changed, and with it the rows that the seed's episodes depend on"
            raise NotReadyError(f"{text}: begin another stream", reason=Reason.WORKER_COUNT, field="options.seed")
        self._has_begun = True
        if seed is None:
            return sequences.begin_private(kind, initial)
        return sequences.begin(seed, kind, self._rounds.row_step_count, initial)

    def complete_rows(self, call: FragmentCall) -> RowsMoved | None:
        """Go on behind a round; return what the journal has to know of it."""
        assert isinstance(self._rounds, RowFragments)  # noqa: S101
        sequences = self._parts.row_sequences
        moved = sequences.complete(call.sequence, call.reached())
        self._rows = call.sequence if sequences.go_on(call.sequence) else None
        left = (self._num_left_row_steps or self._rounds.num_row_steps) - call.num_row_steps
        self._num_left_row_steps = left if self._rows is not None else 0
        return moved

    def lose_rows(self) -> None:
        """Record that a round has ended early, and that its sequence is not lent any more."""
        self._rows = None

    def next_position(self, call: EpisodeCall | FragmentCall) -> tuple[int, int]:
        """Return where the sequence stands behind a round: steps of each row, and index of the next episode."""
        if self.own is None:
            account = call.account
            return account.row_step_count + call.num_row_steps, 0  # type: ignore[union-attr]  # a call for fragments
        return 0, call.sequence.ledger.next_index  # type: ignore[union-attr]  # a call for whole episodes

    def break_off(self) -> None:
        """Have no other call go on behind rounds that a client may ask for again."""
        if self.own is not None and self._options.seed is None:
            self._parts.sequences.renew(self.own)

    def _release(self) -> None:
        rows, self._rows = self._rows, None
        if rows is not None:
            self._parts.row_sequences.release(rows)
