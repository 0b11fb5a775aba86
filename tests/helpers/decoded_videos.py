"""Pictures of videos, decoded by ffmpeg."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import imageio_ffmpeg
import numpy as np

__all__ = ["DecodedVideo", "decoded"]


class DecodedVideo(NamedTuple):
    """The metadata of a video's file, and its pictures (N, height, width, 3)."""

    codec: str
    fps: float
    frames: np.ndarray


def decoded(path: Path) -> DecodedVideo:
    """Decode a video.

    imageio-ffmpeg's own reader takes what other libraries log in a forked child for a message of ffmpeg.
    """
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    done = subprocess.run(command, capture_output=True, check=True)
    found = re.search(rb"Video: (\w+).*, (\d+)x(\d+).*, ([\d.]+) fps", done.stderr)
    assert found is not None, done.stderr.decode()
    codec, width, height, fps = found.groups()
    frames = np.frombuffer(done.stdout, np.uint8).reshape(-1, int(height), int(width), 3)
    return DecodedVideo(codec.decode(), float(fps), frames)
