"""Requests for recordings and reads of datasets."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from rollserve import data
from rollserve_server.errors import InvalidValueError
from rollserve_server.fields import MAX_FIRST_INDEX, MAX_STEPS, in_field, in_range, optional, set_fields
from rollserve_server.gateway.messages.sample_requests import (
    check_first_index,
    message_limit_of,
    sampling_options_of,
)
from rollserve_server.pool import AtLeast, InAll, MessageFormat, SamplingOptions
from rollserve_server.sampling import ColumnFormat

if TYPE_CHECKING:
    from pathlib import Path

    from rollserve_wire.v1 import datasets_pb2 as pb2
    from rollserve_wire.v1 import sampler_service_pb2 as pb

__all__ = [
    "ReadRequest",
    "RecordingRequest",
    "metadata_from_proto",
    "read_request_from_proto",
    "recording_request_from_proto",
]

_MAX_EPISODES = 1 << 40
_MAX_SOURCES, _MAX_BATCH, _MAX_SHUFFLED = 64, 1 << 20, 1 << 24
_BATCH = 256
_REFUSED = ("agent_update", "prefetch", "blackhole", "observation_moments", "return_discount", "deliver_policies")
"""Options of sampling that have no meaning for a recording."""


@dataclass(frozen=True)
class RecordingRequest:
    """A request for a recording.

    Attributes:
        dataset: id of the dataset.
        target: what the dataset has at the end.
        options: options of sampling.
        num_workers: the call fails if there are more or fewer workers; None for any number.
        metadata: what a new dataset says about itself, by Minari's names.
    """

    dataset: str
    target: InAll | AtLeast
    options: SamplingOptions
    num_workers: int | None
    metadata: Mapping[str, Any]


def recording_request_from_proto(request: pb.RecordDatasetRequest, _: Collection[Path] = ()) -> RecordingRequest:
    """Return the request for a recording; raise InvalidValueError for a field that is out of range or unset."""
    match request.WhichOneof("amount"):
        case "episode_count":
            target: InAll | AtLeast = InAll(in_range("episode_count", request.episode_count, 1, _MAX_EPISODES))
        case "step_count":
            target = AtLeast(in_range("step_count", request.step_count, 1, MAX_STEPS))
        case _:
            raise InvalidValueError.of("amount", expected="episode_count or step_count", got="none")
    with in_field("options"):
        sampling_options = _options_from_proto(request.options, _REFUSED)
    return RecordingRequest(
        request.dataset,
        target,
        sampling_options,
        optional(request.options, "worker_count"),
        metadata_from_proto(request.description),
    )


def metadata_from_proto(about: pb2.DatasetDescription) -> Mapping[str, Any]:
    """Return what a dataset says about itself, by Minari's names."""
    metadata = {
        "author": sorted(set(about.authors)),
        "author_email": sorted(set(about.author_emails)),
        "algorithm_name": about.algorithm_name,
        "description": about.description,
        "code_permalink": about.code_permalink,
    }
    return {name: value for name, value in metadata.items() if value}


@dataclass(frozen=True)
class ReadRequest:
    """A request for batches of datasets.

    Attributes:
        paths: of each source, the paths of its files; None for live episodes.
        files: of each source, how its files are read, as `rollserve.data.read` takes it; None for live episodes.
        live_steps: of each source, the least number of steps of a batch of live episodes; 0 for files.
        weights: of each source, its probability before division.
        positions: of each source, where its files are read on.
        num_drawn: number of batches that were drawn before.
        batch_size: number of segments of each batch of files.
        mix_seed: seed of the draws.
        until_last: whether the mix goes on with the others when a source has ended.
        messages: how messages are written.
        options: options of live episodes.
    """

    paths: Sequence[Sequence[str] | None]
    files: Sequence[Mapping[str, Any] | None]
    live_steps: Sequence[int]
    weights: Sequence[float]
    positions: Sequence[tuple[int, int, int]]
    num_drawn: int
    batch_size: int
    mix_seed: int
    until_last: bool
    messages: MessageFormat
    options: SamplingOptions


def read_request_from_proto(request: pb.ReadDatasetRequest, _: Collection[Path] = ()) -> ReadRequest:
    """Return the request for a read; raise InvalidValueError for a field that is out of range or unset."""
    sources = request.sources
    in_range("sources", len(sources), 1, _MAX_SOURCES)
    positions = [(0, 0, 0)] * len(sources)
    if request.HasField("position"):
        positions = [_position_from_proto(each) for each in request.position.sources]
        if len(positions) != len(sources):
            expected = f"{len(sources)} positions, one for each source"
            raise InvalidValueError.of("position.sources", expected=expected, got=len(positions))
        in_range("position.drawn_count", request.position.drawn_count, 0, MAX_FIRST_INDEX)
    files, steps, weights = [], [], []
    for number, source in enumerate(sources):
        with in_field(f"sources[{number}]"):
            is_live = source.WhichOneof("content") == "live"
            with in_field("live" if is_live else "files"):
                files.append(None if is_live else _files_from_proto(source))
                steps.append(in_range("step_count", source.live.step_count, 1, MAX_STEPS) if is_live else 0)
            weights.append(source.weight if source.HasField("weight") else 1.0)
            if not (math.isfinite(weights[-1]) and weights[-1] > 0):
                raise InvalidValueError.of("weight", expected="a positive number", got=weights[-1])
    with in_field("live_options"):
        options = _options_from_proto(request.live_options, (*_REFUSED, "seed", "first_episode_index"))
    return ReadRequest(
        [None if source.WhichOneof("content") == "live" else list(source.files.paths) for source in sources],
        files,
        steps,
        weights,
        positions,
        request.position.drawn_count,
        in_range("batch_size", request.batch_size, 1, _MAX_BATCH) if request.HasField("batch_size") else _BATCH,
        request.mix_seed,
        request.until_last,
        MessageFormat(message_limit_of(set_fields(request)), ColumnFormat(None, False)),
        options,
    )


def _files_from_proto(source: pb2.DatasetSource) -> Mapping[str, Any]:
    """Return how the files of a source are read."""
    if source.WhichOneof("content") is None:
        raise InvalidValueError.of("", expected="files or live", got="none")
    files = source.files
    for name, known in (("format", get_args(data.Format)), ("dones", ("terminated", "truncated"))):
        value = getattr(files, name)
        if value and value not in known:
            raise InvalidValueError.of(name, expected=f"one of {', '.join(known)}, or nothing", got=repr(value))
    length = optional(files, "fragment_length")
    if length is not None:
        in_range("fragment_length", length, 1, MAX_STEPS)
    shuffle = files.shuffle
    num_steps = optional(shuffle, "step_count")
    if num_steps is not None:
        in_range("shuffle.step_count", num_steps, 1, _MAX_SHUFFLED)
    shard = (0, 1)
    if files.HasField("shard"):
        in_range("shard.count", files.shard.count, 1, 1 << 31)
        shard = in_range("shard.index", files.shard.index, 0, files.shard.count - 1), files.shard.count
    return {
        "format": files.format or None,
        "length": length,
        "num_epochs": in_range("epoch_count", files.epoch_count, 0, MAX_STEPS) or None,
        "shuffle_seed": shuffle.seed if files.HasField("shuffle") else None,
        **({} if num_steps is None else {"shuffle_steps": num_steps}),
        "shard": shard,
        "infos": not files.skip_infos,
        "dones": files.dones or None,
    }


def _position_from_proto(position: pb2.SourcePosition) -> tuple[int, int, int]:
    with in_field("position"):
        values = (position.epoch, position.chunk, position.segment)
        names = ("epoch", "chunk", "segment")
        epoch, chunk, segment = (
            in_range(name, value, 0, MAX_FIRST_INDEX) for name, value in zip(names, values, strict=True)
        )
        return epoch, chunk, segment


def _options_from_proto(options: pb.SamplingOptions, refused: Sequence[str]) -> SamplingOptions:
    given = set_fields(options)
    for name in refused:
        if name in given:
            raise InvalidValueError.of(name, expected="none beside a dataset", got="one")
    check_first_index(given)
    return sampling_options_of(given)
