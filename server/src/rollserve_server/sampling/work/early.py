"""Episodes that a worker writes before the pool claims them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollserve_server.sampling.protocol.episodes import EARLY, Claim

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollserve_server.sampling.protocol.episodes import EarlyClaim
    from rollserve_server.sampling.record.episodes import Episode

__all__ = ["EarlyEpisodes"]


class EarlyEpisodes:
    """The episodes of an early claim, as they finish.

    Attributes:
        num_bytes: approximate bytes of the episodes that `are_finished` has found.
    """

    def __init__(self, expected: EarlyClaim, finished: Mapping[int, Episode]) -> None:
        """Look at the first episode.

        Args:
            expected: what the pool expects to claim.
            finished: the finished episodes by index; may change.
        """
        self.num_bytes = 0
        self._expected = expected
        self._finished = finished
        self._stop = expected.start
        self._num_steps = 0

    @property
    def are_finished(self) -> bool:
        """Whether all episodes of the claim are finished."""
        while not self.is_last and self._stop < self._expected.stop and self._stop in self._finished:
            episode = self._finished[self._stop]
            self._stop += 1
            self._num_steps += episode.length
            self.num_bytes += episode.num_bytes
        return self.is_last or self._stop == self._expected.stop

    @property
    def is_last(self) -> bool:
        """Whether the finished episodes have the number of steps at which the call ends."""
        return self._expected.num_steps is not None and self._num_steps >= self._expected.num_steps

    def claim(self) -> Claim | None:
        """Return the claim of the episodes, or None if they are not finished."""
        if not self.are_finished:
            return None
        return Claim(EARLY, self._expected.start, self._stop, worker_index=self._expected.worker_index)
