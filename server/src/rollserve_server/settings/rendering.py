"""Videos: how large they may be, and how long they may take."""

from __future__ import annotations

from pydantic import Field

from rollserve_server.settings.groups import Group

__all__ = ["RenderSettings"]


class RenderSettings(Group):
    """Bounds of videos, which child processes of the server make."""

    max_video_frames: int = Field(
        default=20_000, ge=2, le=10_000_000, description="Number of pictures that a video may have."
    )
    max_video_bytes: int = Field(default=1 << 30, ge=1, description="Bytes that a video may have.")
    render_seconds: float = Field(
        default=600.0,
        gt=0,
        le=1e9,
        description="How long a video may take to be made, without the time that its episode takes to be sampled and "
        "its client to read.",
    )
