"""Common part of the streams of datasets of both samplers: everything except the waiting, and their requests."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from rollserve._calls.interruptions import Interruptions
from rollserve._calls.joining import join_parts
from rollserve._calls.requests import sampling_options
from rollserve._calls.responses import holds_batch, read_response
from rollserve.data.reader import Position
from rollserve.data.shuffling import checked_shuffle
from rollserve.data.sources import Files, Live, MixPosition
from rollserve.episode_batch import EpisodeBatch, concatenated, with_spaces
from rollserve_wire.checks import check_choice, check_count, check_flag, check_integer, check_type
from rollserve_wire.errors import InvalidArgumentError, malformed_error, mismatch
from rollserve_wire.spaces import Space, space_from_proto
from rollserve_wire.v1 import datasets_pb2
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    import grpc

    from rollserve._calls.interruptions import Contact
    from rollserve._calls.requests import Reception
    from rollserve._calls.time_limits import TimeLimits
    from rollserve.options import SamplingOptions

__all__ = ["BaseDatasetStream", "DatasetReading", "mix_request"]


_NONE_FOR_FILES = ("accept_shared_memory", "accept_joined", "return_returns_before", "accept_frame_stacks")
"""Options of calls that deliver to clients alone."""


class BaseDatasetStream:
    """State of a stream of a dataset's batches, over all calls that deliver it."""

    def __init__(
        self, method: Callable[..., Any], request: pb.ReadDatasetRequest, limits: TimeLimits, contact: Contact
    ) -> None:
        self._method, self._limits, self._contact = method, limits, contact
        self._reading = DatasetReading(request)
        self._interruptions = Interruptions(limits, contact)
        self._call = method(request, timeout=limits.remaining())

    @property
    def mix_position(self) -> MixPosition:
        """Positions of all sources behind the last batch."""
        return self._reading.position

    @property
    def position(self) -> Position:
        """Position of the first source behind the last batch: three integers, which JSON can hold."""
        return self._reading.position.sources[0]

    @property
    def missing(self) -> Mapping[str, str]:
        """Description of what the files lack, by the field of `EpisodeBatch`; known with the first batch."""
        return {name: text for content in self._reading.contents for name, text in content.missing.items()}

    @property
    def receipts(self) -> tuple[str, ...]:
        """Receipts in the files, as JSON; known with the first batch."""
        return tuple(receipt for content in self._reading.contents for receipt in content.receipts)

    def _take(self, response: bytes) -> EpisodeBatch | None:
        self._contact.was_made = True
        batch = self._reading.read(response)
        if batch is not None:
            self._interruptions.advance()
        return batch

    def _pause(self, error: grpc.RpcError) -> float:
        """Return the seconds to wait before the read goes on, or raise the error if that cannot help."""
        pause = self._interruptions.pause(error, has_begun=self._reading.has_begun)
        if pause is None:
            raise self._interruptions.final_error(error) from self._interruptions.cause_of(error)
        return pause

    def _go_on(self) -> None:
        self._reading.begin()
        self._call = self._method(self._reading.request, timeout=self._limits.remaining())


def mix_request(
    sampler: str,
    sources: Sequence[tuple[Files | Live, float]],
    *,
    batch_size: int,
    seed: int,
    until: str,
    position: MixPosition | None,
    reception: Reception,
    options: SamplingOptions,
) -> pb.ReadDatasetRequest:
    """Return the request for a mix; for the arguments, see `rollserve.Sampler.read_mix`.

    Raises:
        TypeError: an argument of the wrong type.
        InvalidArgumentError: an integer out of range.
    """
    check_count("batch_size", batch_size)
    check_integer("seed", seed, 64, signed=False)
    check_choice("until", until, ("first", "last"))
    live_options = sampling_options(reception, options)
    for name in _NONE_FOR_FILES:
        live_options.ClearField(name)  # type: ignore[arg-type]  # names of fields
    return pb.ReadDatasetRequest(
        sampler=sampler,
        sources=[_source(f"sources[{number}]", *source) for number, source in enumerate(sources)],
        batch_size=batch_size,
        mix_seed=seed,
        until_last=until == "last",
        position=None if position is None else _position(position),
        max_message_bytes=reception.max_message_bytes,
        live_options=live_options,
    )


class DatasetReading:
    """Reader of the responses of ReadDataset, over all calls that deliver the batches.

    Attributes:
        request: request of the next call, which goes on behind the last whole batch.
        has_begun: whether the stream's beginning has arrived.
        position: where the read stands behind the last batch.
        contents: what the files of each source hold; empty before the beginning.
    """

    def __init__(self, request: pb.ReadDatasetRequest) -> None:
        self.request = request
        self.has_begun = False
        self.contents: Sequence[datasets_pb2.DatasetContent] = ()
        self.position = MixPosition(tuple(Position() for _ in request.sources), 0)
        if request.HasField("position"):
            self.position = _position_of(request.position)
        self._parts: list[EpisodeBatch] = []
        self._spaces: list[tuple[Space, Space] | None] = []

    def begin(self) -> None:
        """Drop what was received of a batch that an interruption has cut off."""
        self._parts.clear()

    def read(self, response: bytes) -> EpisodeBatch | None:
        """Read a serialized response; return the batch that it completes, if it does.

        Raises:
            ServerError: a malformed response.
        """
        try:
            return self._read(response)
        except (ValueError, DecodeError) as error:
            raise malformed_error(str(error)) from None

    def _read(self, response: bytes) -> EpisodeBatch | None:
        if holds_batch(response):
            self._add(response)
            return None
        content = pb.ReadDatasetResponse.FromString(response)
        match content.WhichOneof("content"):
            case "beginning":
                self.has_begun = True
                self.contents = list(content.beginning.contents)
                self._spaces = [_spaces_of(each) for each in self.contents]
            case "batch":
                self._add(response)
            case "end":
                return self._batch(content.end)
        return None

    def _add(self, response: bytes) -> None:
        batch = read_response(response)
        assert isinstance(batch, EpisodeBatch)  # noqa: S101  # both responses have it in the same field
        self._parts.append(batch)

    def _batch(self, end: datasets_pb2.DatasetBatchEnd) -> EpisodeBatch:
        parts, self._parts = self._parts, []
        if not parts or end.source_index >= len(self._spaces):
            raise ValueError(f"end: {mismatch('a batch of a source before it', f'source {end.source_index}')}")
        is_live = self.request.sources[end.source_index].HasField("live")
        batch = join_parts(parts, Counter()) if is_live else _whole(parts, set(end.continuing_messages))
        spaces = self._spaces[end.source_index]
        self.request.position.CopyFrom(end.position)
        self.position = _position_of(end.position)
        return batch if spaces is None else with_spaces(batch, spaces)


def _whole(parts: Sequence[EpisodeBatch], continuing: set[int]) -> EpisodeBatch:
    """Return the parts of a batch as one, with the segments that messages have cut."""
    joined: list[EpisodeBatch] = []
    pieces: list[EpisodeBatch] = []
    for number, part in enumerate(parts):
        if number in continuing:
            pieces.append(part.take(slice(0, 1)))
            part = part.take(slice(1, None))
            if number + 1 in continuing and not len(part):
                continue
            joined.append(EpisodeBatch.concatenate(*pieces).joined())
        if number + 1 in continuing:
            pieces = [part.take(slice(len(part) - 1, None))]
            part = part.take(slice(0, len(part) - 1))
        if len(part):
            joined.append(part)
    return concatenated(joined)


def _source(field: str, source: Files | Live, weight: float) -> datasets_pb2.DatasetSource:
    check_type(field, source, Files | Live, "Files or Live")
    if isinstance(source, Live):
        check_integer(f"{field}.num_steps", source.num_steps, 63, signed=False)
        live = datasets_pb2.LiveEpisodes(step_count=source.num_steps)
        return datasets_pb2.DatasetSource(live=live, weight=weight)
    paths = [source.path] if isinstance(source.path, str | os.PathLike) else source.path
    for name in ("length", "num_epochs"):
        if (value := getattr(source, name)) is not None:
            check_count(f"{field}.{name}", value)
    shuffle = checked_shuffle(f"{field}.", source.shuffle_seed, source.shuffle_steps)
    check_flag(f"{field}.infos", source.infos)
    index, count = source.shard
    if not 0 <= index < count:
        raise InvalidArgumentError.of(f"{field}.shard", expected=f"a part from 0 to {count - 1}", got=index)
    files = datasets_pb2.DatasetFiles(
        paths=[os.fspath(path) for path in paths],
        format=source.format or "",
        fragment_length=source.length,
        epoch_count=source.num_epochs or 0,
        shuffle=None
        if shuffle is None
        else datasets_pb2.DatasetShuffle(seed=shuffle.seed, step_count=shuffle.num_steps),
        shard=None if count == 1 else datasets_pb2.DatasetShard(index=index, count=count),
        skip_infos=not source.infos,
        dones=source.dones or "",
    )
    return datasets_pb2.DatasetSource(files=files, weight=weight)


def _position(position: MixPosition) -> datasets_pb2.DatasetPosition:
    sources = [
        datasets_pb2.SourcePosition(**dict(zip(Position._fields, each, strict=True))) for each in position.sources
    ]
    return datasets_pb2.DatasetPosition(sources=sources, drawn_count=position.num_drawn)


def _position_of(message: datasets_pb2.DatasetPosition) -> MixPosition:
    sources = tuple(Position(each.epoch, each.chunk, each.segment) for each in message.sources)
    return MixPosition(sources, message.drawn_count)


def _spaces_of(content: datasets_pb2.DatasetContent) -> tuple[Space, Space] | None:
    if not (content.HasField("observation_space") and content.HasField("action_space")):
        return None
    return space_from_proto(content.observation_space), space_from_proto(content.action_space)
