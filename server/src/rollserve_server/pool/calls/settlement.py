"""Settlement: what becomes of a call's sequence when the call ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollserve_server.errors import EnvFailedError, EpisodeFailedError
from rollserve_server.pool.plan.placement import PerWorker

if TYPE_CHECKING:
    from rollserve_server.pool.calls.episodes import EpisodeCall
    from rollserve_server.pool.calls.fragments import FragmentCall
    from rollserve_server.pool.calls.stream_sequence import StreamSequence
    from rollserve_server.pool.sequences.own_sequence import OwnSequence
    from rollserve_server.pool.sequences.row_sequences import RowSequences
    from rollserve_server.pool.sequences.sequences import Sequences
    from rollserve_server.pool.state.row_sequence import RowsMoved

__all__ = ["EpisodeSettlement", "FragmentSettlement", "RoundSettlement", "Settlement"]


@dataclass(frozen=True)
class EpisodeSettlement:
    """Settles a call for whole episodes, with the own sequence that it used if it named no seed."""

    sequences: Sequences
    call: EpisodeCall
    own: OwnSequence | None

    def complete(self) -> None:
        """Keep the sequence for the next call."""
        self.sequences.keep(self.call.sequence)
        if self.own is not None:
            sequence = self.call.sequence
            is_exact = isinstance(sequence.placement, PerWorker)
            # The units of an exact call begin where its workers do, so no other call continues them.
            self.own.continue_at(sequence.ledger.next_index, None if is_exact else sequence.spec)

    def cancel(self, error: BaseException) -> None:
        """Drop the sequence of a call that ended early, because of the error.

        Own sequences go on behind an episode that failed, or with another seed.
        """
        self.sequences.cancel(self.call.sequence, self.call.account.num_discarded_steps)
        if self.own is None:
            return
        if isinstance(error, EpisodeFailedError) and error.episode_index is not None:
            self.own.continue_at(error.episode_index + 1, None)  # no other call should fail with it
        else:  # the client may resume the call
            self.sequences.renew(self.own)


@dataclass(frozen=True)
class FragmentSettlement:
    """Settles a fragment call."""

    row_sequences: RowSequences
    call: FragmentCall

    def complete(self) -> RowsMoved | None:
        """Record where the rows stand now; return what the journal has to know of them, if anything."""
        return self.row_sequences.complete(self.call.sequence, self.call.reached())

    def cancel(self, error: BaseException) -> None:
        """Leave the sequence of a call that ended early, because of the error, where it stood before."""
        call = self.call
        # Rows that run into an error of an environment would do so again.
        end = isinstance(error, EnvFailedError)
        self.row_sequences.cancel(call.sequence, call.account, call.open_locations(), call.coming(), end=end)


@dataclass(frozen=True)
class RoundSettlement(FragmentSettlement):
    """Settles a round of fragments, whose sequence stays with its stream."""

    stream: StreamSequence

    def complete(self) -> RowsMoved | None:
        """Record where the rows stand now, for the next round."""
        return self.stream.complete_rows(self.call)

    def cancel(self, error: BaseException) -> None:
        """Leave the sequence where it stood before the round."""
        self.stream.lose_rows()
        super().cancel(error)


Settlement = EpisodeSettlement | FragmentSettlement
