"""Videos of episodes: their requests, and sampled episodes as replays need them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from rollserve import EpisodeBatch
from rollserve._calls.responses import read_response
from rollserve_server.agents import exploration_from_proto
from rollserve_server.envs import MAX_FPS, MIN_FPS, Overlay
from rollserve_server.errors import InvalidValueError
from rollserve_server.fields import MAX_FIRST_INDEX, MAX_STEPS, in_field, in_range, optional, set_fields
from rollserve_server.gateway.messages.fields import expectation_of
from rollserve_server.pool import SamplingOptions, VideoRequest
from rollserve_wire.columns import leaves_of, original
from rollserve_wire.replays import ObservationChecksums, RecordedEpisode, checksums
from rollserve_wire.tensors import named_tensors_from_proto, tensor_from_proto
from rollserve_wire.v1 import video_pb2

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from rollserve_server.pool import Expectation
    from rollserve_wire.v1 import sampler_service_pb2 as pb

__all__ = ["EpisodeCollector", "RenderRequest", "render_request_from_proto"]

_FORMATS: Mapping[int, Literal["raw", "mp4"]] = {video_pb2.VIDEO_FORMAT_RAW: "raw", video_pb2.VIDEO_FORMAT_MP4: "mp4"}
_OVERLAYS: Mapping[int, Overlay] = {
    video_pb2.VIDEO_OVERLAY_STEP: Overlay.STEP,
    video_pb2.VIDEO_OVERLAY_REWARD: Overlay.REWARD,
    video_pb2.VIDEO_OVERLAY_ACTION: Overlay.ACTION,
    video_pb2.VIDEO_OVERLAY_VALUE: Overlay.VALUE,
}


class RenderRequest(NamedTuple):
    """A request for a video of an episode.

    Attributes:
        episode: the episode, or which one to sample; its seed is None for the sampler's own.
        env_version: version of the environment; None for the current one.
        expected: the call fails if other versions are current.
        video: the form of the video.
    """

    episode: SamplingOptions | RecordedEpisode
    env_version: int | None
    expected: Expectation
    video: VideoRequest


class EpisodeCollector:
    """Collector of the messages of one episode, which keeps checksums of the observations alone."""

    def __init__(self, *, observations: bool) -> None:
        """Begin without messages.

        Args:
            observations: whether observations are what the environment returned, without transforms.
        """
        self._observations = observations
        self._segments: list[RecordedEpisode] = []
        self._checksums: list[np.ndarray] = []

    def add(self, message: np.ndarray) -> None:
        """Add a message of the call, (size,) uint8."""
        batch = read_response(message.tobytes())
        assert isinstance(batch, EpisodeBatch)  # noqa: S101  # the server's own message
        assert batch.env_seeds is not None  # noqa: S101
        if self._observations:
            self._checksums.append(checksums(leaves_of(batch.observations)))
            self._last = checksums(leaves_of(batch.last_observations))
        self._segments.append(
            RecordedEpisode(
                int(batch.env_seeds[0]),
                {name: column.copy() for name, column in leaves_of(original(batch, "actions")).items()},
                np.array(original(batch, "rewards")),
                bool(batch.terminated[-1]),
                bool(batch.truncated[-1]),
                values=np.array(batch.agent_infos["value"]) if "value" in batch.agent_infos else None,
            )
        )

    def episode(self) -> RecordedEpisode:
        """Return the episode, after the last message."""
        segments = self._segments
        first, last = segments[0], segments[-1]
        values = [segment.values for segment in segments if segment.values is not None]
        found = np.concatenate([*self._checksums, self._last]) if self._observations else None
        return RecordedEpisode(
            first.env_seed,
            {name: np.concatenate([segment.actions[name] for segment in segments]) for name in first.actions},
            np.concatenate([segment.rewards for segment in segments if segment.rewards is not None]),
            last.terminated,
            last.truncated,
            None if found is None else ObservationChecksums(found),
            np.concatenate(values) if values else None,
        )


def render_request_from_proto(request: pb.RenderEpisodeRequest, _: Collection[Path] = ()) -> RenderRequest:
    """Return the request for a video.

    Raises:
        InvalidValueError: a field is missing, malformed or out of range.
    """
    kind = request.WhichOneof("episode")
    if kind is None:
        raise InvalidValueError.of("episode", expected="sampled or recorded", got="none")
    expected, env_version = expectation_of(set_fields(request)), optional(request, "environment_version")
    with in_field(kind):
        episode = (
            _recorded(request.recorded) if kind == "recorded" else _sampled(request.sampled, env_version, expected)
        )
    return RenderRequest(episode, env_version, expected, _video(request))


def _sampled(sampled: pb.SampledEpisode, env_version: int | None, expected: Expectation) -> SamplingOptions:
    if sampled.HasField("max_episode_length"):
        in_range("max_episode_length", sampled.max_episode_length, 1, MAX_STEPS)
    with in_field("exploration"):
        exploration = exploration_from_proto(sampled.exploration)
    return SamplingOptions(
        policy_version=optional(sampled, "policy_version"),
        env_version=env_version,
        expected=expected,
        seed=optional(sampled, "seed"),
        first_index=in_range("episode_index", sampled.episode_index, 0, MAX_FIRST_INDEX),
        max_episode_length=optional(sampled, "max_episode_length"),
        exploration=exploration,
    )


def _recorded(recorded: video_pb2.RecordedEpisode) -> RecordedEpisode:
    with in_field("actions"):
        actions = named_tensors_from_proto(recorded.actions)
        for leaf, column in actions.items():
            if not column.ndim:
                raise InvalidValueError.of(f"[{leaf!r}]", expected="an action for each step", got="a single number")
    num_steps = len(next(iter(actions.values()), ()))
    columns = {}
    for name in ("rewards", "values"):
        with in_field(name):
            columns[name] = tensor_from_proto(getattr(recorded, name)) if recorded.HasField(name) else None
            _check_column(columns[name], num_steps)
    found = np.array(recorded.observation_checksums, np.uint32)
    if len(found) not in (0, num_steps + 1):
        raise InvalidValueError.of("observation_checksums", expected=f"none, or {num_steps + 1}", got=len(found))
    return RecordedEpisode(
        recorded.environment_seed,
        actions,
        columns["rewards"],
        recorded.terminated,
        recorded.truncated,
        ObservationChecksums(found) if len(found) else None,
        columns["values"],
    )


def _check_column(column: np.ndarray | None, num_steps: int) -> None:
    if column is not None and (column.shape != (num_steps,) or column.dtype.kind not in "iuf"):
        got = f"{column.dtype} of shape {column.shape}"
        raise InvalidValueError.of("", expected=f"numbers of shape ({num_steps},), one for each action", got=got)


def _video(request: pb.RenderEpisodeRequest) -> VideoRequest:
    if request.format not in _FORMATS:
        raise InvalidValueError.of("format", expected="VIDEO_FORMAT_RAW or VIDEO_FORMAT_MP4", got=request.format)
    fps = optional(request, "frames_per_second")
    if fps is not None and not MIN_FPS <= fps <= MAX_FPS:
        expected = f"a number from {MIN_FPS} to {MAX_FPS}"
        raise InvalidValueError.of("frames_per_second", expected=expected, got=fps)
    for position, overlay in enumerate(request.overlays):
        if overlay not in _OVERLAYS or overlay in request.overlays[:position]:
            expected = f"one of {', '.join(video_pb2.VideoOverlay.keys()[1:])}, each once"
            raise InvalidValueError.of(f"overlays[{position}]", expected=expected, got=overlay)
    return VideoRequest(_FORMATS[request.format], fps, tuple(_OVERLAYS[overlay] for overlay in request.overlays))
