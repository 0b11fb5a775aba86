"""Videos of episodes, as a server renders them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from rollserve_wire.errors import mismatch
from rollserve_wire.representations import briefly

__all__ = ["Overlay", "Video", "VideoFormat"]

VideoFormat = Literal["mp4", "raw"]
"""MP4 with H.264, or pictures as they were rendered."""

Overlay = Literal["step", "reward", "action", "value"]
"""A line of text in pictures."""


@briefly
@dataclass(frozen=True)
class Video:
    """A video of an episode: a picture after the reset, and one after each step.

    Attributes:
        format: `mp4`, or `raw` for pictures one behind the other.
        data: the bytes.
        num_frames: number of pictures.
        height: rows of each picture.
        width: columns of each picture.
        fps: pictures per second.
        env_version: version of the environment.
        policy_version: version of the agent that acted; 0 for an episode of a batch.
        seed: root seed of the episode; 0 for an episode of a batch.
        episode_index: index of the episode in the sequence of the seed; 0 for an episode of a batch.
    """

    format: VideoFormat
    data: bytes = field(repr=False)
    num_frames: int
    height: int
    width: int
    fps: float
    env_version: int
    policy_version: int
    seed: int
    episode_index: int

    @property
    def frames(self) -> np.ndarray:
        """Pictures (num_frames, height, width, 3) uint8, read-only; ValueError for MP4, which has to be decoded."""
        if self.format != "raw":
            raise ValueError(f"format: {mismatch('raw, to have the pictures as an array', self.format)}")
        return np.frombuffer(self.data, np.uint8).reshape(self.num_frames, self.height, self.width, 3)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the bytes to a file; raise OSError if it cannot be written."""
        Path(path).write_bytes(self.data)
