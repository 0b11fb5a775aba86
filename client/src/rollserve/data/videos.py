"""Videos of pictures, such as an episode's, as MP4 by the ffmpeg that imageio-ffmpeg brings."""

from __future__ import annotations

import contextlib
import numbers
import os
import queue
import subprocess
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from rollserve_wire.checks import check_type
from rollserve_wire.errors import mismatch
from rollserve_wire.extras import load

__all__ = ["mp4_parts", "write_video"]

_EXTRA = "video"
"""The extra that has ffmpeg, and what draws overlays."""

_READ_BYTES = 1 << 16
_QUALITY = 18
"""Constant rate factor of x264, where 0 is lossless and 18 looks so."""


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
    load("imageio_ffmpeg", _EXTRA)
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


def mp4_parts(frames: Iterable[np.ndarray], fps: float) -> Iterator[bytes]:
    """Yield the bytes of an MP4 with H.264, in parts as pictures come.

    The file is fragmented, so that parts never change once they are written. Sizes that are odd get a black edge,
    because H.264 halves the resolution of colours.

    Args:
        frames: pictures (height, width, 3) uint8, all of one size.
        fps: pictures per second.

    Raises:
        ImportError: imageio-ffmpeg is not installed.
        ValueError: no picture, or one of another form than the first.
        OSError: ffmpeg ended with an error.
    """
    imageio_ffmpeg = load("imageio_ffmpeg", _EXTRA)
    iterator = iter(frames)
    first = next(iterator, None)
    if first is None:
        raise ValueError(f"frames: {mismatch('at least one picture', 'none')}")
    _check(first, None)
    size = first.shape
    parts: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    with subprocess.Popen(  # noqa: S603
        _command(imageio_ffmpeg.get_ffmpeg_exe(), size, fps),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        reading = threading.Thread(target=_read, args=(process.stdout, parts), daemon=True)
        reading.start()
        try:
            _write(process, first)
            for frame in iterator:
                _check(frame, size)
                _write(process, frame)
                yield from _available(parts)
            process.stdin.close()  # type: ignore[union-attr]
            reading.join()
            yield from _available(parts)
            _check_ended(process)
        finally:
            process.kill()
            with contextlib.suppress(BrokenPipeError):  # it flushes what ffmpeg does not take any more
                process.stdin.close()  # type: ignore[union-attr]
            reading.join()


def _command(ffmpeg: str, size: tuple[int, ...], fps: float) -> list[str]:
    height, width, _ = size
    picture = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{fps:.6f}", "-i", "pipe:0"]
    even = ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2"]
    codec = ["-c:v", "libx264", "-crf", str(_QUALITY), "-pix_fmt", "yuv420p"]
    fragments = ["-movflags", "frag_keyframe+empty_moov+default_base_moof", "-f", "mp4", "pipe:1"]
    return [ffmpeg, "-loglevel", "error", *picture, *even, *codec, *fragments]


def _read(stream: IO[bytes], parts: queue.SimpleQueue[bytes]) -> None:
    while part := stream.read1(_READ_BYTES):  # type: ignore[attr-defined]  # a BufferedReader
        parts.put(part)


def _available(parts: queue.SimpleQueue[bytes]) -> Iterator[bytes]:
    while not parts.empty():
        yield parts.get()


def _write(process: subprocess.Popen[bytes], frame: np.ndarray) -> None:
    try:
        process.stdin.write(np.ascontiguousarray(frame).data)  # type: ignore[union-attr]
    except BrokenPipeError:
        _check_ended(process)
        raise


def _check_ended(process: subprocess.Popen[bytes]) -> None:
    """Raise OSError if ffmpeg ends with an error."""
    text = process.stderr.read().decode(errors="replace")  # type: ignore[union-attr]
    if process.wait():
        raise OSError(f"ffmpeg: {mismatch('status 0', f'status {process.returncode}: {text.strip()[-500:]}')}")


def _check(frame: Any, size: tuple[int, ...] | None) -> None:
    is_picture = isinstance(frame, np.ndarray) and frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3
    if not is_picture or (size is not None and frame.shape != size):
        expected = f"uint8 of shape {size or ('height', 'width', 3)}"
        got = f"{frame.dtype} of shape {frame.shape}" if isinstance(frame, np.ndarray) else type(frame).__name__
        raise ValueError(f"frames: {mismatch(expected, got)}")
