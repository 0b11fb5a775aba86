"""Segments in a replay buffer whose episodes may go on in a later batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rollserve.episode_batch import EpisodeBatch

__all__ = ["OpenSegments"]

_Key = tuple[int, int, int | None]


class OpenSegments:
    """The last steps of fragments, by where their episodes go on."""

    def __init__(self) -> None:
        self._steps: dict[_Key, int] = {}
        self._limit = 64

    def add(self, batch: EpisodeBatch, steps: NDArray[np.int64], oldest: int) -> None:
        """Remember the segments of a batch whose episodes have not ended.

        Args:
            batch: the batch.
            steps: (N,), number of the last step of each segment.
            oldest: number of the oldest step in the buffer; what was before it is forgotten, now or later.
        """
        for segment in np.flatnonzero(~(batch.terminated | batch.truncated)).tolist():
            self._steps[_key(batch, segment, int(batch.lengths[segment]))] = int(steps[segment])
        if len(self._steps) > self._limit:
            self._steps = {key: step for key, step in self._steps.items() if step >= oldest}
            self._limit = max(64, 2 * len(self._steps))

    def find(self, batch: EpisodeBatch, oldest: int) -> NDArray[np.int64]:
        """Return the number of the step before each segment, and forget it, (N,); -1 for none since the oldest one."""
        found = np.full(len(batch), -1)
        for segment in np.flatnonzero(batch.first_steps > 0).tolist():
            step = self._steps.pop(_key(batch, segment, 0), -1)
            found[segment] = step if step >= oldest else -1
        return found


def _key(batch: EpisodeBatch, segment: int, num_steps: int) -> _Key:
    """Return the episode, and the step of it that is some steps after the beginning of a segment."""
    seed = None if batch.env_seeds is None else int(batch.env_seeds[segment])
    return int(batch.episode_indices[segment]), int(batch.first_steps[segment]) + num_steps, seed
