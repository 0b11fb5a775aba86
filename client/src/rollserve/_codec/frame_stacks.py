"""Observations that are stacks of frames, restored from messages that hold each frame once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.stride_tricks import as_strided

from rollserve_wire.compression import MAX_RAW_BYTES
from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["unstack_frames"]


def unstack_frames(frames: np.ndarray, frame_count: int, lengths: NDArray[np.integer]) -> tuple[np.ndarray, np.ndarray]:
    """Return the observations and last observations of S segments with T steps in all.

    Args:
        frames: (T + S*K, *F), for each segment K frames more than it has steps.
        frame_count: K, the number of frames in an observation.
        lengths: (S,), integers, number of steps of each segment.

    Returns:
        (T, K, *F), a view of the frames if there is one segment, and (S, K, *F). Both are read-only.

    Raises:
        ValueError: fewer than two frames in an observation, a length below 1, a number of frames that does not fit the
            lengths, or observations larger than any message.
    """
    if frame_count < 2:
        raise ValueError(f"frame_count: {mismatch('at least 2', frame_count)}")
    if lengths.min(initial=1) < 1:
        raise ValueError(f"lengths: {mismatch('at least 1', lengths.min())}")
    lengths = lengths.astype(np.int64)
    num_steps = int(lengths.sum())
    num_frames = num_steps + len(lengths) * frame_count
    if frames.ndim < 1 or len(frames) != num_frames:
        raise ValueError(f"frames: {mismatch(f'{num_frames} frames', f'shape {frames.shape}')}")
    num_bytes = (num_steps + len(lengths)) * frame_count * frames[:1].nbytes
    if num_bytes > MAX_RAW_BYTES:
        raise ValueError(f"frames: {mismatch(f'at most {MAX_RAW_BYTES} bytes of observations', num_bytes)}")
    positions = np.arange(frame_count)
    last_frames = np.cumsum(lengths + frame_count) - frame_count
    last_observations = frames[last_frames[:, np.newaxis] + positions]
    if len(lengths) == 1:
        shape, strides = (num_steps, frame_count, *frames.shape[1:]), (frames.strides[0], *frames.strides)
        observations = as_strided(frames, shape, strides)
    else:
        # The first frame of each observation: its row, plus K for each segment before its own.
        first_frames = np.arange(num_steps) + np.repeat(np.arange(len(lengths)) * frame_count, lengths)
        observations = frames[first_frames[:, np.newaxis] + positions]
    for array in (observations, last_observations):
        array.flags.writeable = False
    return observations, last_observations
