"""Videos of pictures, such as an episode's."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from rollserve.bridges.loading import load
from rollserve.errors import mismatch

__all__ = ["write_video"]


def write_video(path: str | os.PathLike[str], frames: Iterable[np.ndarray], *, fps: float = 30.0) -> int:
    """Write pictures to a video file, MP4 with H.264 for `.mp4`; return their number.

    Pictures are written as they come, so that a video takes no memory. Sizes that are odd get a black edge.

    >>> rollserve.data.write_video("episode.mp4", batch.replay(0, make_env))  # doctest: +SKIP

    Args:
        path: the file.
        frames: pictures (height, width, 3) uint8, all of one size.
        fps: pictures per second.

    Raises:
        ImportError: the extra `video` is not installed.
        ValueError: no picture, or one of another form than the first.
        OSError: a file that cannot be written.
    """
    if not 0 < fps < float("inf"):
        raise ValueError(f"fps: {mismatch('a positive number', fps)}")
    path = Path(path)
    imageio_ffmpeg = load("imageio_ffmpeg", "video")
    path.open("wb").close()  # an OSError that says why
    writer, size, num_frames = None, (0, 0), 0
    try:
        for frame in frames:
            _check(frame, size)
            if writer is None:
                height, width = size = frame.shape[:2]
                edges = ((0, height % 2), (0, width % 2), (0, 0))
                even = width + width % 2, height + height % 2
                writer = imageio_ffmpeg.write_frames(path, even, fps=fps, macro_block_size=2, ffmpeg_log_level="error")
                writer.send(None)
            writer.send(np.ascontiguousarray(np.pad(frame, edges)))
            num_frames += 1
    finally:
        if writer is not None:
            writer.close()
    if not num_frames:
        raise ValueError(f"frames: {mismatch('at least one picture', 'none')}")
    return num_frames


def _check(frame: np.ndarray, size: tuple[int, ...]) -> None:
    is_picture = isinstance(frame, np.ndarray) and frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3
    if not is_picture or (size != (0, 0) and frame.shape[:2] != size):
        expected = f"uint8 of shape {(*(size if size != (0, 0) else ('height', 'width')), 3)}"
        got = f"{frame.dtype} of shape {frame.shape}" if isinstance(frame, np.ndarray) else type(frame).__name__
        raise ValueError(f"frames: {mismatch(expected, got)}")
