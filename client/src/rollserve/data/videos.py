"""Videos of pictures, such as an episode's, in files."""

from __future__ import annotations

import numbers
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rollserve._formats.videos import VIDEO_EXTRA, mp4_parts
from rollserve.bridges.loading import load
from rollserve_wire.checks import check_type
from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    import numpy as np

__all__ = ["write_video"]


def write_video(path: str | os.PathLike[str], frames: Iterable[np.ndarray], *, fps: float = 30.0) -> int:
    """Write pictures to a file of MP4 with H.264; return their number.

    Pictures are written as they come, so that a video takes no memory. Sizes that are odd get a black edge. A file that
    exists is replaced once the video is whole.

    >>> rollserve.data.write_video("episode.mp4", batch.replay(0, make_env))  # doctest: +SKIP

    Args:
        path: the file.
        frames: pictures (height, width, 3) uint8, all of one size.
        fps: pictures per second.

    Raises:
        ImportError: the extra `video` is not installed.
        TypeError: `fps` is no number.
        ValueError: no picture, or one of another form than the first.
        OSError: a file that cannot be written.
    """
    check_type("fps", fps, numbers.Real, "a positive number")
    if not 0 < fps < float("inf"):
        raise ValueError(f"fps: {mismatch('a positive number', fps)}")
    load("imageio_ffmpeg", VIDEO_EXTRA)
    num_frames = 0

    def counted() -> Iterator[np.ndarray]:
        nonlocal num_frames
        for frame in frames:
            num_frames += 1
            yield frame

    whole = Path(path)
    beginning = whole.with_name(f".{whole.name}.{os.getpid()}.new")
    try:
        with beginning.open("wb") as file:
            for part in mp4_parts(counted(), fps):
                file.write(part)
        beginning.replace(whole)
    finally:
        beginning.unlink(missing_ok=True)
    return num_frames
