"""Texts in pictures: the step, reward, action and value of an episode."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_server.errors import NotFoundError
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollserve_wire.replays import RecordedEpisode

__all__ = ["Overlay", "StepTexts"]

_LINES_PER_PICTURE, _MIN_POINTS = 24, 9
"""Size of the letters: so many lines would fill a picture."""
_MAX_NUMBERS = 4
"""Numbers of an action that are shown."""


class Overlay(enum.Enum):
    """A line of text. The value is what it begins with."""

    STEP = "step"
    REWARD = "reward"
    ACTION = "action"
    VALUE = "value"


class StepTexts:
    """The lines of text of an episode's pictures, which are drawn in their order."""

    def __init__(self, episode: RecordedEpisode, overlays: Sequence[Overlay]) -> None:
        """Prepare to draw the texts of an episode."""
        self._episode = episode
        self._overlays = overlays
        self._return = 0.0
        self._font: Any = None

    def drawn(self, frame: np.ndarray, step: int, reward: float | None) -> np.ndarray:
        """Return a picture with its texts; pictures come in the order of their steps.

        Args:
            frame: (height, width, 3) uint8.
            step: number of steps before the picture.
            reward: reward of the last of them; None before the first.

        Raises:
            NotFoundError: Pillow is not installed.
        """
        try:
            from PIL import Image, ImageDraw, ImageFont
        except ImportError as error:
            text = "they need Pillow, which is not installed on the server: pip install 'rollserve-server[video]'"
            raise NotFoundError(text, reason=Reason.PACKAGE_NOT_FOUND, field="overlays") from error
        self._return += reward or 0.0
        points = max(len(frame) // _LINES_PER_PICTURE, _MIN_POINTS)
        self._font = self._font or ImageFont.load_default(points)
        lines = "\n".join(f"{overlay.value} {self._text(overlay, step, reward)}" for overlay in self._overlays)
        picture, edge = Image.fromarray(frame), points // 3
        draw = ImageDraw.Draw(picture)
        _, _, right, bottom = draw.multiline_textbbox((edge, edge), lines, font=self._font)
        draw.rectangle((0, 0, right + edge, bottom + edge), fill="black")  # legible whatever is behind
        draw.multiline_text((edge, edge), lines, fill="white", font=self._font)
        return np.asarray(picture)

    def _text(self, overlay: Overlay, step: int, reward: float | None) -> str:
        match overlay:
            case Overlay.STEP:
                return str(step)
            case Overlay.REWARD:
                return f"{reward or 0.0:.3g}, in all {self._return:.4g}"
            case Overlay.ACTION:
                return _action_text(self._episode, step - 1) if step else "-"
            case Overlay.VALUE:
                values = self._episode.values
                return f"{float(values[step]):.4g}" if values is not None and step < len(values) else "-"


def _action_text(episode: RecordedEpisode, step: int) -> str:
    numbers = [number for column in episode.actions.values() for number in np.ravel(column[step]).tolist()]
    shown = ", ".join(
        f"{number:.2f}" if isinstance(number, float) else str(number) for number in numbers[:_MAX_NUMBERS]
    )
    return f"{shown}, …" if len(numbers) > _MAX_NUMBERS else shown
