"""Decoder of the responses of sampling calls, without copies of their columns.

The arrays of an episode batch are views of the response. All other contents, and all that is legal but not what servers
write, are parsed by the generated classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from numpy.lib.stride_tricks import as_strided

from rollserve.episode_batch import EpisodeBatch
from rollserve.multi_agent_batch import MultiAgentBatch, PolicyBatch
from rollserve_wire.columns import COLUMNS, MANY_COLUMNS, POLICY_COLUMNS, ColumnSpec, columns_of
from rollserve_wire.compression import MAX_RAW_BYTES
from rollserve_wire.errors import in_named, mismatch
from rollserve_wire.protobuf import LENGTH_DELIMITED, UnusualError, fields, key_of, keys_of
from rollserve_wire.tensors import NO_TENSOR, PACKED_DTYPES, add_named_tensor, array_from_tensor, read_tensor
from rollserve_wire.v1 import episode_batch_pb2 as pb
from rollserve_wire.v1 import multi_agent_batch_pb2 as many_pb2
from rollserve_wire.v1.sampler_service_pb2 import JoinedResponses, StreamRound, StreamSamplesResponse
from rollserve_wire.v1.tensor_pb2 import NamedTensor, Tensor

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from numpy.typing import NDArray

__all__ = ["Bytes", "Content", "holds_batch", "read_response", "responses_of", "unstack_frames"]


Bytes = bytes | bytearray | memoryview
"""Memory that holds a serialized response."""

Content = EpisodeBatch | MultiAgentBatch | pb.Beginning | pb.Progress | pb.Account | pb.SharedMessage | StreamRound
"""Content of a response."""

_BATCH = keys_of(StreamSamplesResponse.DESCRIPTOR)["batch"]
_OTHER_CONTENTS: dict[int, type[pb.Beginning | pb.Progress | pb.Account | pb.SharedMessage | StreamRound]] = {
    keys_of(StreamSamplesResponse.DESCRIPTOR)[name]: kind
    for name, kind in (
        ("beginning", pb.Beginning),
        ("progress", pb.Progress),
        ("account", pb.Account),
        ("shared", pb.SharedMessage),
        ("round", StreamRound),
    )
}
_JOINED = keys_of(StreamSamplesResponse.DESCRIPTOR)["joined"]
_RESPONSES = keys_of(JoinedResponses.DESCRIPTOR)["responses"]


class _Layout:
    """Fields of a message that hold columns, by their keys.

    Attributes:
        headers: name and dtype of the fields of packed numbers.
        tensors: names of the fields that are one Tensor.
        named: names of the fields of named tensors.
    """

    def __init__(self, message: Descriptor, columns: Mapping[str, ColumnSpec]) -> None:
        own = {field: message.fields_by_name[field] for spec in columns.values() for field in spec.fields}
        keys = {name: key_of(field.number, LENGTH_DELIMITED) for name, field in own.items()}
        self.headers = {
            keys[name]: (name, PACKED_DTYPES[field.type]) for name, field in own.items() if field.type in PACKED_DTYPES
        }
        self.tensors = {keys[name]: name for name, each in own.items() if each.message_type is Tensor.DESCRIPTOR}
        self.named = {keys[name]: name for name, each in own.items() if each.message_type is NamedTensor.DESCRIPTOR}
        # Of each column: its form, the fields that can hold it, and an empty header if messages have to have it.
        dtypes = dict(self.headers.values())
        self._columns = []
        for name, spec in columns.items():
            may_lack = spec.is_optional or bool(spec.option)
            empty = None if may_lack or spec.kind != "header" else np.empty(0, dtypes[spec.fields[0]])
            self._columns.append((name, spec.kind, spec.fields, empty, may_lack))

    def begin(self) -> _Found:
        """Return a message without columns."""
        return _Found({}, {}, {name: {} for name in self.named.values()})

    def read(self, found: _Found, data: memoryview, key: int, start: int, stop: int) -> None:
        """Read a field; raises UnusualError for a field that holds no column, or that came before."""
        if key in self.named:
            add_named_tensor(found.named[self.named[key]], data, start, stop)
        elif key in self.headers:
            name, dtype = self.headers[key]
            if name in found.headers:
                raise UnusualError
            if stop > start:
                found.headers[name] = _header(data[start:stop], dtype)
        elif key in self.tensors and self.tensors[key] not in found.tensors:
            found.tensors[self.tensors[key]] = read_tensor(data, start, stop)
        else:
            raise UnusualError

    def columns(self, found: _Found) -> dict[str, Any]:
        """Return the columns that were read, by name; None for one that a batch can be without."""
        headers, tensors, named = found
        columns: dict[str, Any] = {}
        for name, kind, names, empty, may_lack in self._columns:
            first = names[0]
            if kind == "header":
                columns[name] = headers[first] if first in headers else headers.get(names[-1], empty)
            elif kind == "infos":
                columns[name] = named[first]
            elif kind == "leaves":
                columns[name] = None if may_lack and not named[first] else columns_of(named[first])
            elif first in tensors or may_lack:
                columns[name] = tensors.get(first)
            else:
                columns[name] = array_from_tensor(NO_TENSOR, b"")
        return columns


class _Found(NamedTuple):
    """Columns that were read of a message, by the names of its fields."""

    headers: dict[str, np.ndarray]
    tensors: dict[str, np.ndarray]
    named: dict[str, dict[str, np.ndarray]]


_NO_LENGTHS = np.empty(0, np.uint32)
_BATCH_LAYOUT = _Layout(pb.EpisodeBatch.DESCRIPTOR, COLUMNS)
_MANY_LAYOUT = _Layout(many_pb2.MultiAgentBatch.DESCRIPTOR, MANY_COLUMNS)
_POLICY_LAYOUT = _Layout(many_pb2.PolicyBatch.DESCRIPTOR, POLICY_COLUMNS)
_MANY_BATCH = keys_of(StreamSamplesResponse.DESCRIPTOR)["multi_agent_batch"]
_AGENTS, _POLICIES = (keys_of(many_pb2.MultiAgentBatch.DESCRIPTOR)[name] for name in ("agents", "policies"))
_POLICY, _POLICY_BATCH = (keys_of(many_pb2.PolicyBatch.DESCRIPTOR)[name] for name in ("policy", "batch"))
_FRAME_STACKS = keys_of(pb.EpisodeBatch.DESCRIPTOR)["frame_stacks"]
_FRAMES = keys_of(pb.FrameStack.DESCRIPTOR)["frames"]


def responses_of(message: Bytes) -> Sequence[Bytes]:
    """Return the serialized responses that a message of a stream joins; the message itself if it is a single one.

    Raises:
        ValueError: a malformed message.
    """
    if not message or message[0] != _JOINED:
        return (message,)
    view = memoryview(message).cast("B").toreadonly()
    try:
        ((_, _, start, stop),) = fields(view, 0, len(view))
        parts = list(fields(view, start, stop))
    except (UnusualError, IndexError, ValueError):
        raise ValueError(mismatch("joined responses", f"{len(view)} other bytes")) from None
    return [view[start:stop] for key, _, start, stop in parts if key == _RESPONSES]


def holds_batch(data: Bytes) -> bool:
    """Return whether a response is a batch in the usual form, so that nothing else has to parse it."""
    view = memoryview(data).cast("B")
    try:
        ((key, *_),) = fields(view, 0, len(view))
    except (UnusualError, IndexError, ValueError):
        return False
    return key in (_BATCH, _MANY_BATCH)


def read_response(data: Bytes, num_rows: int = 0) -> Content | None:
    """Return the content of a serialized response of any sampling call, or None without one.

    The other responses have some of the fields of a StreamSamplesResponse.

    The arrays of a batch are read-only: they are views of the bytes, unless those are compressed.

    Args:
        data: the response.
        num_rows: number of rows of all workers of a fragment call, which the indices of episodes are bound to;
            otherwise 0.

    Raises:
        ValueError: a malformed response.
        ModuleNotFoundError: a compressed column whose package is not installed.
    """
    view = memoryview(data).cast("B").toreadonly()
    try:
        return _content(view, num_rows)
    except (UnusualError, IndexError, DecodeError, ValueError):
        pass  # a later field may replace what looks wrong, so the generated class decides
    try:
        response = StreamSamplesResponse.FromString(view.tobytes())
    except DecodeError:
        raise ValueError(mismatch("a response with text in UTF-8", f"{len(view)} other bytes")) from None
    if response.WhichOneof("content") is None:
        return None
    response.DiscardUnknownFields()
    return _content(memoryview(response.SerializeToString()), num_rows)  # in the usual form now


def _content(data: memoryview, num_rows: int) -> Content:
    contents = list(fields(data, 0, len(data)))
    if len(contents) != 1:
        raise UnusualError
    ((key, _, start, stop),) = contents
    if key == _BATCH:
        return _batch(data, start, stop, num_rows)
    if key == _MANY_BATCH:
        return _multi_agent_batch(data, start, stop)
    if key in _OTHER_CONTENTS:
        return _OTHER_CONTENTS[key].FromString(data[start:stop].tobytes())
    raise UnusualError


def _batch(data: memoryview, start: int, stop: int, num_rows: int) -> EpisodeBatch:
    found, stacks = _BATCH_LAYOUT.begin(), []
    for key, _, begin, end in fields(data, start, stop):
        if key == _FRAME_STACKS:
            stacks.append((begin, end))
        else:
            _BATCH_LAYOUT.read(found, data, key, begin, end)
    for begin, end in stacks:
        observations = found.named["observations"], found.named["last_observations"]
        _add_stack(*observations, data[begin:end], found.headers.get("lengths", _NO_LENGTHS))
    columns = _BATCH_LAYOUT.columns(found)
    if num_rows:
        columns["row_indices"] = columns["episode_indices"] % num_rows
    return EpisodeBatch(**columns)


def _multi_agent_batch(data: memoryview, start: int, stop: int) -> MultiAgentBatch:
    agents: list[str] = []
    found, policies = _MANY_LAYOUT.begin(), []
    for key, _, begin, end in fields(data, start, stop):
        if key == _AGENTS:
            agents.append(_text(data, begin, end))
        elif key == _POLICIES:
            policies.append(_policy_batch(data, begin, end))
        else:
            _MANY_LAYOUT.read(found, data, key, begin, end)
    columns = _with_int64(_MANY_LAYOUT.columns(found), MANY_COLUMNS)
    if not len(columns["agent_step_counts"]):  # older servers do not tell the number
        columns["agent_step_counts"] = _agent_step_counts(columns["episode_indices"], policies)
    return MultiAgentBatch(tuple(agents), policies=tuple(policies), **columns)


def _with_int64(columns: Mapping[str, Any], specs: Mapping[str, ColumnSpec]) -> dict[str, Any]:
    """Return columns whose headers of integers are int64."""
    return {name: each.astype(np.int64) if specs[name].dtypes == "iu" else each for name, each in columns.items()}


def _agent_step_counts(episode_indices: np.ndarray, policies: Sequence[PolicyBatch]) -> np.ndarray:
    """Return the number of the agents' steps in each episode that are delivered, (E,)."""
    counts = np.zeros(len(episode_indices), np.int64)
    for part in policies:
        np.add.at(counts, np.searchsorted(episode_indices, part.batch.episode_indices), part.batch.lengths)
    return counts


def _policy_batch(data: memoryview, start: int, stop: int) -> PolicyBatch:
    policy, batch, found = "", None, _POLICY_LAYOUT.begin()
    for key, _, begin, end in fields(data, start, stop):
        if key == _POLICY:
            policy = _text(data, begin, end)
        elif key == _POLICY_BATCH and batch is None:
            batch = _batch(data, begin, end, 0)
        else:
            _POLICY_LAYOUT.read(found, data, key, begin, end)
    if batch is None:
        raise ValueError(f"policies: {mismatch('a batch', 'none')}")
    columns = _with_int64(_POLICY_LAYOUT.columns(found), POLICY_COLUMNS)
    if not len(columns["rewards_before"]):
        columns["rewards_before"] = np.zeros(len(batch))
    if columns["rewards_before"].any() and not batch.first_steps.any():  # else the returns before segments have them
        batch = dataclasses.replace(batch, returns_before=columns["rewards_before"])
    return PolicyBatch(policy, batch, **columns)


def _text(data: memoryview, start: int, stop: int) -> str:
    try:
        return data[start:stop].tobytes().decode()
    except UnicodeDecodeError:
        raise UnusualError from None


def _header(value: memoryview, dtype: np.dtype) -> np.ndarray:
    """Return packed numbers of fixed width, or truth values, as an array."""
    if len(value) % dtype.itemsize or (dtype == np.bool_ and not set(value) <= {0, 1}):
        raise UnusualError
    return np.frombuffer(value, dtype)


def _add_stack(
    observations: dict[str, np.ndarray],
    last_observations: dict[str, np.ndarray],
    data: memoryview,
    lengths: np.ndarray,
) -> None:
    """Add the observations that a FrameStack holds; the generated class parses its other fields."""
    frames, head = None, []
    for key, before, begin, end in fields(data, 0, len(data)):
        if key != _FRAMES:
            head.append(data[before:end])
        elif frames is None:
            frames = begin, end
        else:
            raise UnusualError
    stack = pb.FrameStack.FromString(b"".join(head))
    name = stack.name
    with in_named(name):
        if name in observations or name in last_observations:
            raise ValueError(mismatch("unique names", "this name twice"))
        array = array_from_tensor(NO_TENSOR, b"") if frames is None else read_tensor(data, *frames)
        observations[name], last_observations[name] = unstack_frames(array, stack.frame_count, lengths)


def unstack_frames(frames: np.ndarray, frame_count: int, lengths: NDArray[np.integer]) -> tuple[np.ndarray, np.ndarray]:
    """Return the observations and last observations of S segments with T steps in all.

    Args:
        frames: (T + S*K, *F), for each segment K frames more than it has steps.
        frame_count: K, the number of frames in an observation.
        lengths: (S,), integers, number of steps of each segment.

    Returns:
        (T, K, *F), a view of the frames if there is one segment, and (S, K, *F). Both are read-only.

    Raises:
        ValueError: fewer than two frames in an observation, a length below 1, a number of frames that does not fit the
            lengths, or observations larger than any message.
    """
    if frame_count < 2:
        raise ValueError(f"frame_count: {mismatch('at least 2', frame_count)}")
    if lengths.min(initial=1) < 1:
        raise ValueError(f"lengths: {mismatch('at least 1', lengths.min())}")
    lengths = lengths.astype(np.int64)
    num_steps = int(lengths.sum())
    num_frames = num_steps + len(lengths) * frame_count
    if frames.ndim < 1 or len(frames) != num_frames:
        raise ValueError(f"frames: {mismatch(f'{num_frames} frames', f'shape {frames.shape}')}")
    num_bytes = (num_steps + len(lengths)) * frame_count * frames[:1].nbytes
    if num_bytes > MAX_RAW_BYTES:
        raise ValueError(f"frames: {mismatch(f'at most {MAX_RAW_BYTES} bytes of observations', num_bytes)}")
    positions = np.arange(frame_count)
    last_frames = np.cumsum(lengths + frame_count) - frame_count
    last_observations = frames[last_frames[:, np.newaxis] + positions]
    if len(lengths) == 1:
        shape, strides = (num_steps, frame_count, *frames.shape[1:]), (frames.strides[0], *frames.strides)
        observations = as_strided(frames, shape, strides)
    else:
        # The first frame of each observation: its row, plus K for each segment before its own.
        first_frames = np.arange(num_steps) + np.repeat(np.arange(len(lengths)) * frame_count, lengths)
        observations = frames[first_frames[:, np.newaxis] + positions]
    for array in (observations, last_observations):
        array.flags.writeable = False
    return observations, last_observations
