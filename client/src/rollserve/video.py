"""Videos of episodes, as a server renders them: the request, and the frames that come."""

from __future__ import annotations

import numbers
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rollserve._calls.requests import exploration_of
from rollserve.episode_batch import EpisodeBatch, episode_of
from rollserve_wire.checks import check_flag, check_integer, check_type
from rollserve_wire.columns import leaves_of
from rollserve_wire.errors import InvalidArgumentError, malformed_error, mismatch
from rollserve_wire.replays import ObservationArrays, checksums, recorded_episode
from rollserve_wire.representations import briefly
from rollserve_wire.tensors import named_tensors_to_proto, tensor_to_proto
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1 import video_pb2

if TYPE_CHECKING:
    from rollserve._calls.own_versions import OwnVersions

__all__ = [
    "Overlay",
    "Video",
    "VideoCollector",
    "VideoFormat",
    "render_request",
]


VideoFormat = Literal["mp4", "raw"]
"""MP4 with H.264, or pictures as they were rendered."""

Overlay = Literal["step", "reward", "action", "value"]
"""A line of text in pictures."""


_FORMATS: Mapping[VideoFormat, video_pb2.VideoFormat.ValueType] = {
    "mp4": video_pb2.VIDEO_FORMAT_MP4,
    "raw": video_pb2.VIDEO_FORMAT_RAW,
}
_FORMAT_NAMES = {number: name for name, number in _FORMATS.items()}
_OVERLAYS: Mapping[Overlay, video_pb2.VideoOverlay.ValueType] = {
    "step": video_pb2.VIDEO_OVERLAY_STEP,
    "reward": video_pb2.VIDEO_OVERLAY_REWARD,
    "action": video_pb2.VIDEO_OVERLAY_ACTION,
    "value": video_pb2.VIDEO_OVERLAY_VALUE,
}


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


def render_request(
    sampler: str,
    own_versions: OwnVersions,
    batch: EpisodeBatch | None,
    segment: int,
    *,
    seed: int | None,
    index: int | None,
    version: int | None,
    env_version: int | None,
    max_episode_length: int | None,
    deterministic: bool,
    video_format: VideoFormat,
    fps: float | None,
    overlays: Sequence[Overlay],
) -> pb.RenderEpisodeRequest:
    """Return the request for a video; for the arguments, see `rollserve.Sampler.render`.

    Raises:
        TypeError: an argument of the wrong type.
        ValueError: a batch beside a seed, index, version or options of the agent, or neither; a segment that is no
            whole episode with a seed.
        IndexError: no such segment.
        InvalidArgumentError: a number out of range, or an unknown format or overlay.
    """
    request = pb.RenderEpisodeRequest(sampler=sampler, **_form(video_format, fps, overlays))
    check_flag("deterministic", deterministic)
    numbers_given = {"seed": seed, "index": index, "version": version, "max_episode_length": max_episode_length}
    for name, value in (*numbers_given.items(), ("env_version", env_version)):
        if value is not None:
            check_integer(name, value, 64, signed=name in ("version", "env_version"))
    given = [name for name, value in numbers_given.items() if value is not None] + ["deterministic"] * deterministic
    if batch is not None:
        check_type("batch", batch, EpisodeBatch, "an EpisodeBatch")
        if given:
            raise ValueError(f"{given[0]}: {mismatch('none beside a batch, whose episode has its actions', 'one')}")
        request.recorded.CopyFrom(_recorded(episode_of(batch, segment)))
        if env_version is None and batch.account_or_none is not None and batch.account.env_version:
            env_version = batch.account.env_version
    elif index is None:
        raise ValueError(f"index: {mismatch('the index of an episode, or a batch', 'neither')}")
    else:
        request.sampled.episode_index = index
        if seed is not None:
            request.sampled.seed = seed
        if version is not None:
            request.sampled.policy_version = version
        if max_episode_length is not None:
            request.sampled.max_episode_length = max_episode_length
        request.sampled.exploration.MergeFrom(exploration_of({"deterministic": deterministic}) or pb.Exploration())
    if env_version is not None:
        request.environment_version = env_version
    own_versions.expect_in_rendering(request)
    return request


class VideoCollector:
    """Collector of a video's messages."""

    def __init__(self) -> None:
        self._beginning: video_pb2.VideoBeginning | None = None
        self._parts: list[bytes] = []
        self._end: video_pb2.VideoEnd | None = None

    def add(self, response: pb.RenderEpisodeResponse) -> None:
        """Add a message."""
        match response.WhichOneof("content"):
            case "beginning":
                self._beginning = response.beginning
            case "data":
                self._parts.append(response.data)
            case "end":
                self._end = response.end

    def result(self) -> Video:
        """Return the video, after the end of the stream; raise ServerError for an incomplete one."""
        beginning, data = self._beginning, b"".join(self._parts)
        if beginning is None or self._end is None or self._end.byte_count != len(data):
            raise malformed_error("the stream ended within a video")
        num_pixels = beginning.frame_count * beginning.height * beginning.width
        name = _FORMAT_NAMES.get(beginning.format)
        if name is None or (name == "raw" and len(data) != 3 * num_pixels):
            raise malformed_error(f"data: {mismatch('pictures of the form in the beginning', f'{len(data)} bytes')}")
        return Video(
            name,
            data,
            beginning.frame_count,
            beginning.height,
            beginning.width,
            beginning.frames_per_second,
            beginning.environment_version,
            beginning.policy_version,
            beginning.seed,
            beginning.episode_index,
        )


def _form(name: VideoFormat, fps: float | None, overlays: Sequence[Overlay]) -> dict[str, Any]:
    if name not in _FORMATS:
        raise InvalidArgumentError.of("format", expected=f"one of {list(_FORMATS)}", got=repr(name))
    if fps is not None:
        check_type("fps", fps, numbers.Real, "a number")
    check_type("overlays", overlays, Sequence, "a sequence of overlays")
    for overlay in overlays:
        if overlay not in _OVERLAYS:
            raise InvalidArgumentError.of("overlays", expected=f"some of {list(_OVERLAYS)}", got=repr(overlay))
    return {
        "format": _FORMATS[name],
        "frames_per_second": fps,
        "overlays": [_OVERLAYS[overlay] for overlay in overlays],
    }


def _recorded(segment: EpisodeBatch) -> video_pb2.RecordedEpisode:
    """Return the message of a batch of one whole episode."""
    episode = recorded_episode(segment, observations=True)
    assert isinstance(episode.observations, ObservationArrays)  # noqa: S101  # as asked for
    assert episode.rewards is not None  # noqa: S101  # batches have them
    parts = (episode.observations.observations, episode.observations.last)
    return video_pb2.RecordedEpisode(
        environment_seed=episode.env_seed,
        actions=named_tensors_to_proto(episode.actions),
        rewards=tensor_to_proto(np.asarray(episode.rewards)),
        terminated=episode.terminated,
        truncated=episode.truncated,
        observation_checksums=np.concatenate([checksums(leaves_of(part)) for part in parts]).tolist(),
        values=None if episode.values is None else tensor_to_proto(np.asarray(episode.values)),
    )
