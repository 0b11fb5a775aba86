"""What the responses of sampling calls bring, read where their bytes stand.

Episode batches are taken apart here, so that no column is copied: their arrays are views of the response. All else, and
whatever is legal but not what servers write, goes through the generated classes.
"""

from __future__ import annotations

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from rollserve._codec.columns import columns_of
from rollserve._codec.frame_stacks import unstack_frames
from rollserve._codec.protobuf import LENGTH_DELIMITED, UnusualError, fields, key_of
from rollserve._codec.tensor_fields import NO_TENSOR, add_named_tensor, keys_of, read_tensor
from rollserve._codec.tensors import array_from_tensor
from rollserve.episode_batch import EpisodeBatch
from rollserve.v1 import episode_batch_pb2 as pb
from rollserve.v1.sampler_service_pb2 import ObtainSamplesResponse
from rollserve.v1.tensor_pb2 import NamedTensor

__all__ = ["Bytes", "Content", "read_response"]

Bytes = bytes | bytearray | memoryview
"""Where a response may stand."""

Content = EpisodeBatch | pb.Beginning | pb.Progress | pb.Account | pb.SharedMessage
"""What a response brings."""


_BATCH = keys_of(ObtainSamplesResponse.DESCRIPTOR)["batch"]
_OTHER_CONTENTS: dict[int, type[pb.Beginning | pb.Progress | pb.Account | pb.SharedMessage]] = {
    keys_of(ObtainSamplesResponse.DESCRIPTOR)[name]: kind
    for name, kind in (
        ("beginning", pb.Beginning),
        ("progress", pb.Progress),
        ("account", pb.Account),
        ("shared", pb.SharedMessage),
    )
}
_HEADER_DTYPES = {
    FieldDescriptor.TYPE_BOOL: np.dtype(np.bool_),
    FieldDescriptor.TYPE_FIXED32: np.dtype("<u4"),
    FieldDescriptor.TYPE_FIXED64: np.dtype("<u8"),
    FieldDescriptor.TYPE_SFIXED64: np.dtype("<i8"),
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
_REWARDS = keys_of(pb.EpisodeBatch.DESCRIPTOR)["rewards"]
_FRAME_STACKS = keys_of(pb.EpisodeBatch.DESCRIPTOR)["frame_stacks"]
_FRAMES = keys_of(pb.FrameStack.DESCRIPTOR)["frames"]


def read_response(data: Bytes) -> Content | None:
    """What a serialized ObtainSamplesResponse or ObtainExactEpisodesResponse brings, or None if that is nothing.

    The arrays of a batch cannot be written to: they are views of the bytes, unless those are compressed.

    Raises:
        ValueError: the response is malformed.
        ModuleNotFoundError: a column is compressed, and the package for it is not installed.
    """
    view = memoryview(data).cast("B").toreadonly()
    try:
        return _content(view)
    except (UnusualError, IndexError, DecodeError, ValueError):
        pass  # even what looks wrong may be made right by what comes later
    try:
        response = ObtainSamplesResponse.FromString(view.tobytes())
    except DecodeError:
        raise ValueError(f"{len(view)} bytes came that are no response, or hold a text that is no UTF-8") from None
    if response.WhichOneof("content") is None:
        return None
    response.DiscardUnknownFields()
    # As it is written now it is usual.
    return _content(memoryview(response.SerializeToString()))


def _content(data: memoryview) -> Content:
    contents = list(fields(data, 0, len(data)))
    if len(contents) != 1:
        raise UnusualError
    ((key, _, start, stop),) = contents
    if key == _BATCH:
        return _batch(data, start, stop)
    if key in _OTHER_CONTENTS:
        return _OTHER_CONTENTS[key].FromString(data[start:stop].tobytes())
    raise UnusualError


def _batch(data: memoryview, start: int, stop: int) -> EpisodeBatch:
    headers = {name: np.empty(0, dtype) for name, dtype in _HEADERS.values()}
    columns: dict[str, dict[str, np.ndarray]] = {name: {} for name in _COLUMNS.values()}
    rewards: np.ndarray | None = None
    stacks = []
    for key, _, begin, end in fields(data, start, stop):
        if key in _COLUMNS:
            add_named_tensor(columns[_COLUMNS[key]], data, begin, end)
        elif key in _HEADERS:
            name, dtype = _HEADERS[key]
            if len(headers[name]):
                raise UnusualError
            headers[name] = _header(data[begin:end], dtype)
        elif key == _REWARDS and rewards is None:
            rewards = read_tensor(data, begin, end)
        elif key == _FRAME_STACKS:
            stacks.append((begin, end))
        else:
            raise UnusualError
    for begin, end in stacks:
        _add_stack(columns["observations"], columns["last_observations"], data[begin:end], headers["lengths"])
    workers = headers["worker_indices"]
    return EpisodeBatch(
        observations=columns_of(columns["observations"]),
        last_observations=columns_of(columns["last_observations"]),
        actions=columns_of(columns["actions"]),
        rewards=array_from_tensor(NO_TENSOR, b"") if rewards is None else rewards,
        lengths=headers["lengths"],
        terminated=headers["terminated"],
        truncated=headers["truncated"],
        agent_infos=columns["agent_infos"],
        env_infos=columns["environment_infos"],
        episode_infos=columns["episode_infos"],
        policy_versions=headers["policy_versions"],
        episode_indices=headers["episode_indices"],
        first_steps=headers["first_steps"],
        env_seeds=headers["environment_seeds"],
        worker_indices=workers if len(workers) else None,
        initial_states=columns["initial_states"],
    )


def _header(value: memoryview, dtype: np.dtype) -> np.ndarray:
    """Packed numbers of fixed width, or truth values."""
    if len(value) % dtype.itemsize or (dtype == np.bool_ and not set(value) <= {0, 1}):
        raise UnusualError
    return np.frombuffer(value, dtype)


def _add_stack(
    observations: dict[str, np.ndarray],
    last_observations: dict[str, np.ndarray],
    data: memoryview,
    lengths: np.ndarray,
) -> None:
    """Adds the observations that a FrameStack holds: the generated class reads all of it but the frames."""
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
    if name in observations or name in last_observations:
        raise ValueError(f"{name!r}: the name came twice")
    try:
        array = array_from_tensor(NO_TENSOR, b"") if frames is None else read_tensor(data, *frames)
        observations[name], last_observations[name] = unstack_frames(array, stack.frame_count, lengths)
    except ValueError as error:
        raise ValueError(f"{name!r}: {error}") from None
