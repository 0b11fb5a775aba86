"""Early claims: what a call will probably claim, as the worker finishes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollserve_server.sampling.protocol.episodes import Claim

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollserve_server.sampling.protocol.episodes import EarlyClaim
    from rollserve_server.sampling.record.episodes import Episode

__all__ = ["EarlyEpisodes"]


class EarlyEpisodes:
    """The finished episodes at the beginning of an early claim.

    Attributes:
        num_bytes: approximate bytes of the episodes.
    """

    def __init__(self, early: EarlyClaim, finished: Mapping[int, Episode]) -> None:
        """Look for the first episodes.

        Args:
            early: the early claim.
            finished: the worker's finished episodes by index; may grow.
        """
        self.num_bytes = 0
        self._early = early
        self._finished = finished
        self._stop = early.start
        self._num_steps = 0
        self._add_finished()
        self._was_satisfied = self._is_satisfied

    @property
    def end_call(self) -> bool:
        """Whether the call ends with the episodes, so that it needs no others."""
        return self._early.num_steps is not None and self._num_steps >= self._early.num_steps

    @property
    def are_due(self) -> bool:
        """Whether the early claim is satisfied, and was not at the beginning."""
        return self._is_satisfied and not self._was_satisfied

    @property
    def claim(self) -> Claim:
        """Claim of the episodes."""
        early = self._early
        return Claim(early.claim_id, early.start, self._stop, worker_index=early.worker_index)

    def advance(self) -> bool:
        """Add the next episodes that are finished; return whether they are due."""
        self._add_finished()
        return self.are_due

    @property
    def _is_satisfied(self) -> bool:
        return self.end_call or self._stop == self._early.stop

    def _add_finished(self) -> None:
        while not self._is_satisfied and (episode := self._finished.get(self._stop)) is not None:
            self._stop += 1
            self._num_steps += episode.length
            self.num_bytes += episode.num_bytes
