"""Observations that are stacks of frames, as frames that are written once each."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.sampling.encode.fields import Rows

if TYPE_CHECKING:
    from rollserve_server.sampling.record.columns import Piece
    from rollserve_server.sampling.record.infos import InfoKey

__all__ = ["frames_once"]


def frames_once(segments: Sequence[Sequence[Piece]], key: InfoKey, last: Iterable[np.ndarray]) -> Rows | None:
    """Return the frames of segments' observations.

    Args:
        segments: pieces of each segment.
        key: key of the observations' leaf.
        last: for each segment the observation (*O) after its last step.

    Returns:
        For each segment all frames of its first observation, and the newest frame of each following observation, as in
        `FrameStack`; None if the observations were not recorded as stacks, or a stack does not begin with the frames of
        the one before it, without the oldest.
    """
    column = ("observations", key)
    if not all(piece.has_stacks(column) for pieces in segments for piece in pieces):
        return None
    frames: list[np.ndarray] = []
    for pieces, observation in zip(segments, last, strict=True):
        # Within an array, stacks continue each other.
        arrays = [*(array for piece in pieces for array in piece.arrays(column)), observation[np.newaxis]]
        for before, following in itertools.pairwise(arrays):
            if before[-1, 1:].tobytes() != following[0, :-1].tobytes():
                return None
        frames += [arrays[0][0], arrays[0][1:, -1], *(array[:, -1] for array in arrays[1:])]
    return Rows(frames, key.dtype, key.shape[1:])
