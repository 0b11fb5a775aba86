"""Videos of episodes: what is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rollserve_server.envs import Overlay

__all__ = ["VideoRequest"]


@dataclass(frozen=True)
class VideoRequest:
    """The form of a video.

    Attributes:
        format: raw pictures, or MP4.
        fps: pictures per second; None for the environment's own number.
        overlays: texts in the pictures, one line for each.
    """

    format: Literal["raw", "mp4"]
    fps: float | None = None
    overlays: tuple[Overlay, ...] = ()
