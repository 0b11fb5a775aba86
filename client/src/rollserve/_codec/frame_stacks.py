"""Observations that are stacks of frames, from frames that come once each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.stride_tricks import as_strided

from rollserve._codec.compression import MOST_RAW_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["unstack_frames"]


def unstack_frames(frames: np.ndarray, frame_count: int, lengths: NDArray[np.integer]) -> tuple[np.ndarray, np.ndarray]:
    """The observations of S segments with T steps in all, and the last ones, from their frames.

    Args:
        frames: (T + S*K, *F), of each segment as many as it has steps, and K more.
        frame_count: K, of how many frames an observation consists.
        lengths: (S,), integers, how many steps each segment has.

    Returns:
        (T, K, *F), of one segment a view of the frames, and (S, K, *F). Neither can be written to.

    Raises:
        ValueError: there are fewer than two frames in an observation, or more or fewer in all than the lengths say, or
            the observations would be larger than any message.
    """
    if frame_count < 2:
        raise ValueError(f"frame_count {frame_count} came, at least 2 was expected")
    if lengths.min(initial=1) < 1:
        raise ValueError(f"a length of {lengths.min()} came, at least 1 was expected")
    lengths = lengths.astype(np.int64)
    num_steps = int(lengths.sum())
    num_frames = num_steps + len(lengths) * frame_count
    if frames.ndim < 1 or len(frames) != num_frames:
        raise ValueError(f"frames of shape {frames.shape} came, {num_frames} frames were expected")
    num_bytes = (num_steps + len(lengths)) * frame_count * frames[:1].nbytes
    if num_bytes > MOST_RAW_BYTES:
        raise ValueError(f"frames for {num_bytes} bytes came, at most {MOST_RAW_BYTES} were expected")
    place = np.arange(frame_count)
    last_frames = np.cumsum(lengths + frame_count) - frame_count
    last_observations = frames[last_frames[:, np.newaxis] + place]
    if len(lengths) == 1:
        shape, strides = (num_steps, frame_count, *frames.shape[1:]), (frames.strides[0], *frames.strides)
        observations = as_strided(frames, shape, strides)
    else:
        # Each observation's first frame: its row, and K for each segment before its own.
        first_frames = np.arange(num_steps) + np.repeat(np.arange(len(lengths)) * frame_count, lengths)
        observations = frames[first_frames[:, np.newaxis] + place]
    for array in (observations, last_observations):
        array.flags.writeable = False
    return observations, last_observations
