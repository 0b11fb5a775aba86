"""The client's own reader of responses beside the generated classes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from hypothesis import given, settings
from hypothesis import strategies as st
from support import batch_from_proto, equal, read_batch

import rollserve
from rollserve._calls.responses import read_response
from rollserve_wire.tensors import named_tensors_to_proto, tensor_to_proto
from rollserve_wire.v1 import episode_batch_pb2
from rollserve_wire.v1 import sampler_service_pb2 as pb

DTYPES = ["?", "i1", "u1", "i2", "f2", "i4", "u4", "f4", "i8", "u8", "f8"]


@st.composite
def batches(draw: st.DrawFn) -> episode_batch_pb2.EpisodeBatch:
    source = np.random.default_rng(draw(st.integers(0, 2**32)))
    lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    num_segments, num_steps = len(lengths), sum(lengths)

    def columns(num_rows: int, names: list[str]) -> dict[str, np.ndarray]:
        return {name: column(num_rows) for name in names}

    def column(num_rows: int) -> np.ndarray:
        shape = (num_rows, *draw(st.lists(st.integers(0, 3), max_size=2)))
        return source.integers(0, 2, shape).astype(draw(st.sampled_from(DTYPES)))

    names = draw(st.sampled_from([[""], ["a", "ö/b"]]))
    infos = draw(st.lists(st.text(max_size=3), unique=True, max_size=3))
    stacks = []
    if draw(st.booleans()):
        frames = column(num_steps + 2 * num_segments)
        stacks = [episode_batch_pb2.FrameStack(name="stack", frame_count=2, frames=tensor_to_proto(frames))]
    observations = columns(num_steps, names)
    last = {name: np.zeros((num_segments, *each.shape[1:]), each.dtype) for name, each in observations.items()}
    return episode_batch_pb2.EpisodeBatch(
        episode_indices=source.integers(0, 2**63, num_segments).tolist(),
        first_steps=source.integers(0, 2**40, num_segments).tolist(),
        lengths=lengths,
        terminated=source.integers(0, 2, num_segments).tolist(),
        truncated=source.integers(0, 2, num_segments).tolist(),
        policy_versions=source.integers(-(2**63), 2**63, num_segments).tolist(),
        environment_seeds=source.integers(0, 2**32, num_segments).tolist(),
        worker_indices=draw(st.sampled_from([[], list(range(num_segments))])),
        observations=named_tensors_to_proto(observations),
        last_observations=named_tensors_to_proto(last),
        actions=named_tensors_to_proto(columns(num_steps, names)),
        rewards=tensor_to_proto(source.random(num_steps)),
        agent_infos=named_tensors_to_proto(columns(num_steps, infos)),
        environment_infos=named_tensors_to_proto(columns(num_steps, infos)),
        episode_infos=named_tensors_to_proto(columns(num_segments, infos)),
        frame_stacks=stacks,
        initial_states=named_tensors_to_proto(columns(num_segments, infos)),
    )


@given(batches(), st.integers(0, 7))
def test_batch_is_read_without_a_copy(message: episode_batch_pb2.EpisodeBatch, offset: int) -> None:
    data = pb.ObtainSamplesResponse(batch=message).SerializeToString()
    buffer = np.full(len(data) + 8, 0xAA, np.uint8)
    buffer[offset : offset + len(data)] = np.frombuffer(data, np.uint8)
    batch = read_batch(memoryview(buffer)[offset : offset + len(data)])
    assert equal(batch, batch_from_proto(message))
    assert np.shares_memory(batch.rewards, buffer)
    assert not batch.rewards.flags.writeable


@settings(max_examples=200)
@given(batches(), st.integers(0, 2**32))
def test_legal_encodings_are_read_as_protobuf_reads_them(message: episode_batch_pb2.EpisodeBatch, seed: int) -> None:
    data = scrambled(pb.ObtainSamplesResponse(batch=message), random.Random(seed))
    check_alike(data)
    assert equal(read_batch(data), batch_from_proto(message))


@settings(max_examples=200)
@given(batches(), st.booleans(), st.integers(0, 2**32))
def test_corrupt_messages_are_read_as_protobuf_reads_them(
    message: episode_batch_pb2.EpisodeBatch, usual: bool, seed: int
) -> None:
    source = random.Random(seed)
    response = pb.ObtainSamplesResponse(batch=message)
    data = bytearray(response.SerializeToString() if usual else scrambled(response, source))
    for _ in range(source.choice([0, 1, 1, 2, 5])):
        data[source.randrange(len(data))] = source.choice([0, 1, 0x7F, 0x80, 0xFF, source.randrange(256)])
    check_alike(bytes(data))
    check_alike(bytes(data[: source.randrange(len(data))]))
    # The first bytes hold structure rather than data.
    data[source.randrange(min(40, len(data)))] ^= 1 << source.randrange(8)
    check_alike(bytes(data))


@given(st.binary(max_size=40))
def test_arbitrary_bytes_are_read_as_protobuf_reads_them(data: bytes) -> None:
    check_alike(data)


@pytest.mark.parametrize(
    "content",
    [
        {"beginning": episode_batch_pb2.Beginning(seed=2**64 - 1, sampler_run="a")},
        {"progress": episode_batch_pb2.Progress(simulated_step_count=3)},
        {"account": episode_batch_pb2.Account(step_count=2, dropped_infos={"x": 1})},
    ],
)
def test_other_contents_are_parsed_messages(content: dict[str, Any]) -> None:
    (expected,) = content.values()
    for response in (pb.ObtainSamplesResponse(**content), pb.ObtainExactEpisodesResponse(**content)):
        assert read_response(response.SerializeToString()) == expected
        assert read_response(scrambled(response, random.Random(1))) == expected


def test_last_of_several_contents_counts() -> None:
    progress = pb.ObtainSamplesResponse(progress=episode_batch_pb2.Progress(simulated_step_count=3))
    account = pb.ObtainSamplesResponse(account=episode_batch_pb2.Account(step_count=2))
    assert read_response(progress.SerializeToString() + account.SerializeToString()) == account.account
    assert read_response(b"") is None


def check_alike(data: bytes) -> None:
    """Check that the reader and the generated classes read the bytes alike, or both reject them."""
    try:
        response = pb.ObtainSamplesResponse.FromString(data)
        name = response.WhichOneof("content")
        expected = getattr(response, name) if name else None
        if name == "batch":
            expected = batch_from_proto(response.batch)
    except (DecodeError, OverflowError, ValueError):
        with pytest.raises(ValueError):
            read_response(data)
        return
    content = read_response(data)
    if isinstance(expected, rollserve.EpisodeBatch):
        assert isinstance(content, rollserve.EpisodeBatch)
        assert equal(content, expected)
    elif isinstance(expected, Message):
        assert isinstance(content, Message)
        expected.DiscardUnknownFields()
        content.DiscardUnknownFields()
        assert content == expected
    else:
        assert content is None


def scrambled(message: Message, source: random.Random) -> bytes:
    """Return a legal but unusual encoding: fields in any order or in several parts, and unknown fields."""
    if source.random() < 0.2:
        return message.SerializeToString()
    by_number: list[list[bytes]] = []
    for field, value in message.ListFields():
        values = value if field.is_repeated else [value]
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            entry = message.__class__()
            getattr(entry, field.name).update(value)
            by_number.append([entry.SerializeToString()])
        elif field.message_type is not None:
            by_number.append([part for each in values for part in _parts(field, each, source)])
        elif field.is_repeated:
            by_number.append(_split(message, field, list(values), source))
        else:
            entry = message.__class__()
            setattr(entry, field.name, value)
            by_number.append([entry.SerializeToString()] * source.choice([1, 1, 2]))
    by_number += [[_unknown(source)] for _ in range(source.choice([0, 0, 1]))]
    written = b""
    while by_number := [parts for parts in by_number if parts]:
        parts = by_number[0] if source.random() < 0.7 else source.choice(by_number)
        written += parts.pop(0)
    return written


def _parts(field: FieldDescriptor, value: Message, source: random.Random) -> list[bytes]:
    """Encode a message field; split a singular one at random into two parts, which readers have to merge."""
    if field.is_repeated or source.random() < 0.8:
        return [_delimited(field.number, scrambled(value, source))]
    first, second = value.__class__(), value.__class__()
    for nested_field, nested_value in value.ListFields():
        part = first if source.random() < 0.5 else second
        if nested_field.is_repeated:
            getattr(part, nested_field.name).MergeFrom(nested_value)
        elif nested_field.message_type is not None:
            getattr(part, nested_field.name).CopyFrom(nested_value)
        else:
            setattr(part, nested_field.name, nested_value)
    return [_delimited(field.number, scrambled(part, source)) for part in (first, second)]


def _split(message: Message, field: FieldDescriptor, values: list[Any], source: random.Random) -> list[bytes]:
    """Encode repeated numbers packed in one or two parts, or unpacked."""
    cut = source.randrange(len(values) + 1) if source.random() < 0.3 else 0
    parts = []
    for some in (values[:cut], values[cut:]):
        if some:
            part = message.__class__()
            getattr(part, field.name).extend(some)
            parts.append(part.SerializeToString())
    if source.random() < 0.1 and field.type == FieldDescriptor.TYPE_FIXED32:
        return [_varint(field.number << 3 | 5) + int(value).to_bytes(4, "little") for value in values]
    return parts


def _unknown(source: random.Random) -> bytes:
    number = source.choice([100, 5000, 2**29 - 1])
    return source.choice(
        [
            _varint(number << 3) + _varint(source.randrange(2**64)),
            _varint(number << 3 | 1) + bytes(8),
            _delimited(number, bytes(source.randrange(200))),
            _varint(number << 3 | 3) + _delimited(1, b"ab") + _varint(number << 3 | 4),
            _varint(number << 3 | 5) + bytes(4),
        ]
    )


def _delimited(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)
