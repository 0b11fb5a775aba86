"""What becomes of what a call worked on, whichever way it ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rollserve_server.errors import EnvFailedError, EpisodeFailedError
from rollserve_server.pool.plan.placement import Blocks
from rollserve_server.pool.sequences.sequences import LaneKind

if TYPE_CHECKING:
    from rollserve_server.pool.calls.episodes import Call
    from rollserve_server.pool.calls.fragments import FragmentCall
    from rollserve_server.pool.sequences.row_sequences import Sequences
    from rollserve_server.pool.sequences.sequences import Lane, Streams
    from rollserve_server.pool.state.sampler_state import Moved

__all__ = ["Ending", "EpisodesEnding", "FragmentsEnding"]


class Ending(Protocol):
    """Takes in how a call ends."""

    def complete(self) -> Moved | None:
        """It was answered in full. Returns what rows it has moved, if they go on from there."""
        ...

    def cancel(self, error: BaseException) -> None:
        """It ended early, because of the error."""
        ...


@dataclass(frozen=True)
class EpisodesEnding:
    """Of a call for whole episodes: a call that names no seed has its part of the sequence for itself."""

    streams: Streams
    call: Call
    lane: Lane | None

    def complete(self) -> None:
        """See Ending."""
        self.streams.keep(self.call.stream)
        if self.lane is not None:
            stream, is_exact = self.call.stream, isinstance(self.call.stream.placement, Blocks)
            its = stream.stream
            kind = LaneKind(its.policy_version, its.env_version, its.max_episode_length, its.exploration)
            # The units of such a call begin where its workers do.
            self.lane.go_on(stream.ledger.next_index, None if is_exact else kind)

    def cancel(self, error: BaseException) -> None:
        """See Ending."""
        self.streams.cancel(self.call.stream, self.call.account.num_discarded_steps)
        if self.lane is None:
            return
        if isinstance(error, EpisodeFailedError) and error.episode_index is not None:
            self.lane.go_on(error.episode_index + 1, None)  # no other call is to fail with it
        else:  # who had it may go on with it, and by itself
            self.streams.renew(self.lane)


@dataclass(frozen=True)
class FragmentsEnding:
    """Of a call for fragments: one that ends early has not happened."""

    sequences: Sequences
    call: FragmentCall

    def complete(self) -> Moved | None:
        """See Ending."""
        return self.sequences.complete(self.call)

    def cancel(self, error: BaseException) -> None:
        """See Ending."""
        # Rows that run into an error of an environment would do so again.
        self.sequences.cancel(self.call, end=isinstance(error, EnvFailedError))
