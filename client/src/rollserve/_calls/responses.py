"""Decoder of the responses of sampling calls, without copies of their columns.

The arrays of an episode batch are views of the response. All other contents, and all that is legal but not what servers
write, are parsed by the generated classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from numpy.lib.stride_tricks import as_strided

from rollserve.episode_batch import EpisodeBatch
from rollserve.multi_agent_batch import MultiAgentBatch, PolicyBatch
from rollserve_wire.columns import columns_of
from rollserve_wire.compression import MAX_RAW_BYTES
from rollserve_wire.errors import in_named, mismatch
from rollserve_wire.protobuf import LENGTH_DELIMITED, UnusualError, fields, key_of, keys_of
from rollserve_wire.tensors import NO_TENSOR, add_named_tensor, array_from_tensor, read_tensor
from rollserve_wire.v1 import episode_batch_pb2 as pb
from rollserve_wire.v1 import multi_agent_batch_pb2 as many_pb2
from rollserve_wire.v1.sampler_service_pb2 import JoinedResponses, StreamRound, StreamSamplesResponse
from rollserve_wire.v1.tensor_pb2 import NamedTensor

if TYPE_CHECKING:
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
_HEADER_DTYPES = {
    FieldDescriptor.TYPE_BOOL: np.dtype(np.bool_),
    FieldDescriptor.TYPE_FIXED32: np.dtype("<u4"),
    FieldDescriptor.TYPE_FIXED64: np.dtype("<u8"),
    FieldDescriptor.TYPE_SFIXED64: np.dtype("<i8"),
    FieldDescriptor.TYPE_DOUBLE: np.dtype("<f8"),
}
_HEADERS = {
    key_of(field.number, LENGTH_DELIMITED): (field.name, _HEADER_DTYPES[field.type])
    for field in pb.EpisodeBatch.DESCRIPTOR.fields
    if field.type in _HEADER_DTYPES
}
_COLUMNS = {
    key_of(field.number, LENGTH_DELIMITED): field.name
    for field in pb.EpisodeBatch.DESCRIPTOR.fields
    if field.message_type is NamedTensor.DESCRIPTOR
}
_TENSORS = {keys_of(pb.EpisodeBatch.DESCRIPTOR)[name]: name for name in ("rewards", "raw_rewards", "last_values")}
_MANY_BATCH = keys_of(StreamSamplesResponse.DESCRIPTOR)["multi_agent_batch"]
_AGENTS, _POLICIES = (keys_of(many_pb2.MultiAgentBatch.DESCRIPTOR)[name] for name in ("agents", "policies"))
_GLOBAL_STATES = {
    keys_of(many_pb2.MultiAgentBatch.DESCRIPTOR)[name]: name for name in ("global_states", "last_global_states")
}
_POLICY, _POLICY_BATCH = (keys_of(many_pb2.PolicyBatch.DESCRIPTOR)[name] for name in ("policy", "batch"))
_MANY_HEADERS, _POLICY_HEADERS = (
    {
        key_of(field.number, LENGTH_DELIMITED): (field.name, _HEADER_DTYPES[field.type])
        for field in message.DESCRIPTOR.fields
        if field.type in _HEADER_DTYPES
    }
    for message in (many_pb2.MultiAgentBatch, many_pb2.PolicyBatch)
)
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
    headers = {name: np.empty(0, dtype) for name, dtype in _HEADERS.values()}
    columns: dict[str, dict[str, np.ndarray]] = {name: {} for name in _COLUMNS.values()}
    tensors: dict[str, np.ndarray] = {}
    stacks = []
    for key, _, begin, end in fields(data, start, stop):
        if key in _COLUMNS:
            add_named_tensor(columns[_COLUMNS[key]], data, begin, end)
        elif key in _HEADERS:
            name, dtype = _HEADERS[key]
            if len(headers[name]):
                raise UnusualError
            headers[name] = _header(data[begin:end], dtype)
        elif key in _TENSORS and _TENSORS[key] not in tensors:
            tensors[_TENSORS[key]] = read_tensor(data, begin, end)
        elif key == _FRAME_STACKS:
            stacks.append((begin, end))
        else:
            raise UnusualError
    for begin, end in stacks:
        _add_stack(columns["observations"], columns["last_observations"], data[begin:end], headers["lengths"])
    workers, returns_before = headers["worker_indices"], headers["returns_before"]
    seeds, wide_seeds = headers["environment_seeds"], headers["wide_environment_seeds"]
    rows = headers["row_indices"]
    discounted_returns_before = headers["discounted_returns_before"]
    return EpisodeBatch(
        observations=columns_of(columns["observations"]),
        last_observations=columns_of(columns["last_observations"]),
        actions=columns_of(columns["actions"]),
        rewards=tensors["rewards"] if "rewards" in tensors else array_from_tensor(NO_TENSOR, b""),
        lengths=headers["lengths"],
        terminated=headers["terminated"],
        truncated=headers["truncated"],
        agent_infos=columns["agent_infos"],
        env_infos=columns["environment_infos"],
        episode_infos=columns["episode_infos"],
        policy_versions=headers["policy_versions"],
        episode_indices=headers["episode_indices"],
        first_steps=headers["first_steps"],
        env_seeds=wide_seeds if len(wide_seeds) else (seeds if len(seeds) else None),
        worker_indices=workers if len(workers) else None,
        row_indices=headers["episode_indices"] % num_rows if num_rows else (rows if len(rows) else None),
        initial_states=columns["initial_states"],
        last_values=tensors.get("last_values"),
        last_states=columns["last_states"],
        raw_rewards=tensors.get("raw_rewards"),
        env_actions=columns_of(columns["environment_actions"]) if columns["environment_actions"] else None,
        returns_before=returns_before if len(returns_before) else None,  # type: ignore[arg-type]  # the default
        discounted_returns_before=discounted_returns_before if len(discounted_returns_before) else None,
    )


def _multi_agent_batch(data: memoryview, start: int, stop: int) -> MultiAgentBatch:
    agents: list[str] = []
    headers = {name: np.empty(0, dtype) for name, dtype in _MANY_HEADERS.values()}
    policies = []
    states: dict[str, np.ndarray] = {}
    for key, _, begin, end in fields(data, start, stop):
        if key == _AGENTS:
            agents.append(_text(data, begin, end))
        elif key == _POLICIES:
            policies.append(_policy_batch(data, begin, end))
        elif key in _GLOBAL_STATES and _GLOBAL_STATES[key] not in states:
            states[_GLOBAL_STATES[key]] = read_tensor(data, begin, end)
        elif key in _MANY_HEADERS and not len(headers[_MANY_HEADERS[key][0]]):
            name, dtype = _MANY_HEADERS[key]
            headers[name] = _header(data[begin:end], dtype)
        else:
            raise UnusualError
    columns: dict[str, Any] = {
        name: value if value.dtype == np.bool_ else value.astype(np.int64) for name, value in headers.items()
    }
    if not len(columns["agent_step_counts"]):  # older servers do not tell the number
        columns["agent_step_counts"] = _agent_step_counts(columns["episode_indices"], policies)
    return MultiAgentBatch(tuple(agents), **columns, policies=tuple(policies), **states)  # type: ignore[arg-type]  # only states


def _agent_step_counts(episode_indices: np.ndarray, policies: Sequence[PolicyBatch]) -> np.ndarray:
    """Return the number of the agents' steps in each episode that are delivered, (E,)."""
    counts = np.zeros(len(episode_indices), np.int64)
    for part in policies:
        np.add.at(counts, np.searchsorted(episode_indices, part.batch.episode_indices), part.batch.lengths)
    return counts


def _policy_batch(data: memoryview, start: int, stop: int) -> PolicyBatch:
    headers = {name: np.empty(0, dtype) for name, dtype in _POLICY_HEADERS.values()}
    policy, batch = "", None
    for key, _, begin, end in fields(data, start, stop):
        if key == _POLICY:
            policy = _text(data, begin, end)
        elif key == _POLICY_BATCH and batch is None:
            batch = _batch(data, begin, end, 0)
        elif key in _POLICY_HEADERS and not len(headers[_POLICY_HEADERS[key][0]]):
            name, dtype = _POLICY_HEADERS[key]
            headers[name] = _header(data[begin:end], dtype)
        else:
            raise UnusualError
    if batch is None:
        raise ValueError(f"policies: {mismatch('a batch', 'none')}")
    rewards_before = headers["rewards_before"] if len(headers["rewards_before"]) else np.zeros(len(batch))
    if rewards_before.any() and not batch.first_steps.any():  # else the returns before segments have them
        batch = dataclasses.replace(batch, returns_before=rewards_before)
    return PolicyBatch(
        policy,
        batch,
        headers["agent_positions"].astype(np.int64),
        headers["environment_steps"].astype(np.int64),
        rewards_before,
    )


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
