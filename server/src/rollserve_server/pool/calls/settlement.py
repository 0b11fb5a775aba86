"""What becomes of what a call worked on, whichever way it ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rollserve_server.errors import EnvFailedError, EpisodeFailedError
from rollserve_server.pool.plan.placement import PerWorker
from rollserve_server.pool.sequences.sequences import SequenceKind

if TYPE_CHECKING:
    from rollserve_server.pool.calls.episodes import EpisodeCall
    from rollserve_server.pool.calls.fragments import FragmentCall
    from rollserve_server.pool.sequences.row_sequences import RowSequences
    from rollserve_server.pool.sequences.sequences import OwnSequence, Sequences
    from rollserve_server.pool.state.sampler_state import RowsMoved

__all__ = ["EpisodeSettlement", "FragmentSettlement", "Settlement"]


class Settlement(Protocol):
    """Takes in how a call ends."""

    def complete(self) -> RowsMoved | None:
        """It was answered in full. Returns what rows it has moved, if they go on from there."""
        ...

    def cancel(self, error: BaseException) -> None:
        """It ended early, because of the error."""
        ...


@dataclass(frozen=True)
class EpisodeSettlement:
    """Of a call for whole episodes: a call that names no seed has its part of the sequence for itself."""

    sequences: Sequences
    call: EpisodeCall
    own: OwnSequence | None

    def complete(self) -> None:
        """See Settlement."""
        self.sequences.keep(self.call.sequence)
        if self.own is not None:
            sequence, is_exact = self.call.sequence, isinstance(self.call.sequence.placement, PerWorker)
            its = sequence.spec
            kind = SequenceKind(its.policy_version, its.env_version, its.max_episode_length, its.exploration)
            # The units of such a call begin where its workers do.
            self.own.go_on(sequence.ledger.next_index, None if is_exact else kind)

    def cancel(self, error: BaseException) -> None:
        """See Settlement."""
        self.sequences.cancel(self.call.sequence, self.call.account.num_discarded_steps)
        if self.own is None:
            return
        if isinstance(error, EpisodeFailedError) and error.episode_index is not None:
            self.own.go_on(error.episode_index + 1, None)  # no other call is to fail with it
        else:  # who had it may go on with it, and by itself
            self.sequences.renew(self.own)


@dataclass(frozen=True)
class FragmentSettlement:
    """Of a call for fragments: one that ends early has not happened."""

    row_sequences: RowSequences
    call: FragmentCall

    def complete(self) -> RowsMoved | None:
        """See Settlement."""
        return self.row_sequences.complete(self.call)

    def cancel(self, error: BaseException) -> None:
        """See Settlement."""
        # Rows that run into an error of an environment would do so again.
        self.row_sequences.cancel(self.call, end=isinstance(error, EnvFailedError))
