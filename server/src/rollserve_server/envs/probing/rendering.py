"""Episodes as videos: each is replayed in an environment that is made for it, and compared on the way."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rollserve_server.activity import Phase, current_activity
from rollserve_server.envs.making import close_env, drawing_hint, make_env
from rollserve_server.envs.probing.memory import naming_memory_limit
from rollserve_server.errors import (
    EnvFailedError,
    InvalidValueError,
    NotFoundError,
    NotReadyError,
    OverLimitError,
    describe,
)
from rollserve_wire.errors import mismatch
from rollserve_wire.reasons import Reason
from rollserve_wire.replays import RecordedEpisode, frame_of, replayed

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

    from rollserve_server.settings import HealthSettings
    from rollserve_wire.environments import EnvSpec

__all__ = ["MAX_FPS", "MIN_FPS", "Overlay", "Rendering", "VideoForm", "render"]

_NICENESS = 10
"""Lower priority than workers on the same machine have."""

MIN_FPS, MAX_FPS = 0.001, 1000
"""Fewest pictures per second, below which MP4 cannot hold how long one is shown; the most."""

_DEFAULT_FPS = 30.0
_MODE = "rgb_array"

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


@dataclass(frozen=True)
class Rendering:
    """A video to make.

    Attributes:
        spec: the environment.
        episode: the episode.
        format: raw pictures, or MP4.
        fps: pictures per second; None for the environment's own number.
        overlays: texts in the pictures, one line for each.
        max_bytes: the most bytes that the video may have.
    """

    spec: EnvSpec
    episode: RecordedEpisode
    format: Literal["raw", "mp4"]
    fps: float | None
    overlays: tuple[Overlay, ...]
    max_bytes: int


@dataclass(frozen=True)
class VideoForm:
    """The form of a video's pictures.

    Attributes:
        height: rows of a picture.
        width: columns of a picture.
        fps: pictures per second.
        num_frames: number of pictures.
    """

    height: int
    width: int
    fps: float
    num_frames: int


def render(rendering: Rendering, health: HealthSettings) -> Generator[VideoForm | bytes, None, None]:
    """Replay an episode in an environment of its own; yield the form of the video, and its bytes in parts.

    Args:
        rendering: the video.
        health: has the limit of memory, for errors.

    Raises:
        NotFoundError: a package is missing.
        InvalidValueError: the environment cannot be made, or renders no pictures.
        EnvFailedError: the environment raised an error.
        NotReadyError: the replay differs from the episode.
        OverLimitError: the video is too large, or the environment needs more memory than it has here.
    """
    os.nice(_NICENESS)
    spec = rendering.spec
    with naming_memory_limit(spec.id, health):
        env = _made(spec)
        try:
            fps = rendering.fps or _fps_of(env)
            frames = _frames(env, rendering)
            first = next(frames)
            height, width, _ = first.shape
            yield VideoForm(height, width, fps, rendering.episode.num_steps + 1)
            yield from _bounded(_written(itertools.chain([first], frames), rendering, fps), rendering.max_bytes)
        finally:
            close_env(env)


def _made(spec: EnvSpec) -> Any:
    try:
        return make_env(dataclasses.replace(spec, kwargs={**spec.kwargs, "render_mode": _MODE}))
    except InvalidValueError as error:  # workers have made it without the mode
        raise _not_renderable(spec, error.text) from None


def _fps_of(env: Any) -> float:
    try:
        fps = env.metadata["render_fps"]
    except BaseException:  # whatever the environment has in place of it
        return _DEFAULT_FPS
    return float(fps) if isinstance(fps, int | float) and MIN_FPS <= fps <= MAX_FPS else _DEFAULT_FPS


def _frames(env: Any, rendering: Rendering) -> Iterator[np.ndarray]:
    """Yield the pictures, one after the reset and one after each step."""
    spec, episode = rendering.spec, rendering.episode
    steps, texts = replayed(env, episode, dict(spec.reset_options) or None), _StepTexts(episode, rendering.overlays)
    shape: tuple[int, ...] = ()
    for step in range(episode.num_steps + 1):
        current_activity().begin(Phase.STEP if step else Phase.RESET)
        reward = _next_reward(steps, spec)
        try:
            frame = frame_of(env)
        except BaseException as error:
            raise _not_renderable(spec, f"{describe(error)}{drawing_hint(error)}") from error
        shape = shape or frame.shape
        if frame.shape != shape:
            raise _not_renderable(spec, f"a picture of shape {frame.shape} after one of shape {shape}")
        yield texts.drawn(frame, step, reward) if rendering.overlays else frame
    _next_reward(steps, spec, is_last=True)


def _next_reward(steps: Generator[float | None, None, str], spec: EnvSpec, *, is_last: bool = False) -> float | None:
    """Return what a replay yields; raise an error if it differs, or the environment fails."""
    try:
        return next(steps)
    except StopIteration as end:
        if end.value or not is_last:
            raise NotReadyError.of(
                "episode", expected="the recorded episode", got=end.value, reason=Reason.REPLAY_DIFFERS
            ) from None
        return None
    except BaseException as error:
        raise EnvFailedError(f"{spec.id} failed in the replay: {describe(error)}") from error


def _written(frames: Iterable[np.ndarray], rendering: Rendering, fps: float) -> Iterator[bytes]:
    if rendering.format == "raw":
        yield from (np.ascontiguousarray(frame).tobytes() for frame in frames)
        return
    try:
        from rollserve.data.videos import mp4_parts  # the processes of videos alone use the client

        yield from mp4_parts(frames, fps)
    except ImportError as error:
        text = (
            f"MP4 needs a package that is not installed on the server (pip install 'rollserve-server[video]'): {error}"
        )
        raise NotFoundError(text, reason=Reason.PACKAGE_NOT_FOUND, field="format") from error
    except OSError as error:  # of ffmpeg; the environment's are other errors by now
        raise _not_renderable(rendering.spec, f"pictures that MP4 cannot hold: {error}") from error


def _bounded(parts: Iterable[bytes], max_bytes: int) -> Iterator[bytes]:
    num_bytes = 0
    for part in parts:
        num_bytes += len(part)
        if num_bytes > max_bytes:
            expected = f"a video of at most {max_bytes} bytes (--max-video-bytes)"
            raise OverLimitError.of("format", expected=expected, got="more", reason=Reason.VIDEO_TOO_LARGE)
        yield part


def _not_renderable(spec: EnvSpec, text: str) -> InvalidValueError:
    expected = f"an environment that renders pictures with render_mode={_MODE!r}"
    return InvalidValueError(mismatch(expected, f"{spec.id}: {text}"), reason=Reason.ENV_NOT_RENDERABLE)


class _StepTexts:
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
