"""Random messages of any type, and mutations of messages and of bytes."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

from faults.fuzzing.values import random_value
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

__all__ = ["mutated", "mutated_bytes", "random_bytes", "random_message"]

_MAX_DEPTH = 5
_MAX_COPIES = 3000
_MAX_BYTES = 1 << 20


def random_message(descriptor: Descriptor, source: random.Random, depth: int = 0) -> Any:
    """Return a message with half of its fields set to random values."""
    message = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if source.random() < 0.5:
            _set(message, field, source, depth)
    return message


def mutated(message: Message, source: random.Random) -> Message:
    """Return the message with one to three random changes."""
    changed = copy.deepcopy(message)
    for _ in range(source.choice([1, 1, 1, 2, 3])):
        node: Any = source.choice(list(_nodes(changed)))
        if node.DESCRIPTOR.fields:
            _change(node, source.choice(node.DESCRIPTOR.fields), source)
    return changed if changed.ByteSize() <= _MAX_BYTES else message


def mutated_bytes(data: bytes, source: random.Random) -> bytes:
    """Return the bytes with random bytes changed, removed, repeated or inserted."""
    changed = bytearray(data or b"\0")
    for _ in range(source.choice([1, 1, 2, 5, 20])):
        at = source.randrange(len(changed) + 1)
        match source.randrange(6):
            case 0 if at < len(changed):
                changed[at] ^= 1 << source.randrange(8)
            case 1:
                del changed[at:]
            case 2:
                del changed[at : at + source.randrange(1, 20)]
            case 3:
                changed[at:at] = source.randbytes(source.randrange(1, 20))
            case 4:
                changed[at:at] = changed[at : at + source.randrange(1, 200)] * source.choice([1, 2, 50])
            case 5:
                changed[at : at + 1] = source.choice([b"\xff" * 10, b"\x80\x80\x80\x80\x08", b"\0", b"\x7f"])
        changed = changed or bytearray(b"\0")
    return bytes(changed[:_MAX_BYTES])


def random_bytes(source: random.Random) -> bytes:
    """Return bytes that are no message: noise, or fields nested deeper than protobuf parses."""
    if source.random() < 0.5:
        return source.randbytes(source.choice([0, 1, 2, 10, 100, 5000]))
    key, data = bytes([source.randrange(1, 16) << 3 | 2]), b""
    for _ in range(source.choice([10, 99, 101, 1000])):
        data = key + _varint(len(data)) + data
    return data


def _nodes(message: Message) -> Iterator[Message]:
    """Yield the message and all messages within it."""
    yield message
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE and not _is_map(field):
            for part in value if field.is_repeated else [value]:
                yield from _nodes(part)


def _change(node: Any, field: FieldDescriptor, source: random.Random) -> None:
    """Set a field to a random value, clear it, or rearrange its elements."""
    how = source.random()
    if how < 0.15:
        node.ClearField(field.name)
    elif field.is_repeated and not _is_map(field) and len(getattr(node, field.name)) and how < 0.6:
        _rearrange(getattr(node, field.name), source)
    else:
        _set(node, field, source, depth=2)


def _rearrange(elements: Any, source: random.Random) -> None:
    """Repeat or remove an element of a repeated field."""
    at = source.randrange(len(elements))
    if source.random() < 0.4:
        del elements[at]
        return
    size = elements[at].ByteSize() if isinstance(elements[at], Message) else 8
    count = source.choice([1, 1, 2, 60, _MAX_COPIES])
    elements.extend([elements[at]] * min(count, _MAX_BYTES // 4 // (size + 1)))


def _set(node: Any, field: FieldDescriptor, source: random.Random, depth: int) -> None:
    """Set a field to a random value."""
    if _is_map(field):
        key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        if value.type != FieldDescriptor.TYPE_MESSAGE:
            getattr(node, field.name)[random_value(key, source)] = random_value(value, source)
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        if depth >= _MAX_DEPTH:
            return
        for _ in range(source.randrange(4) if field.is_repeated else 1):
            part = random_message(field.message_type, source, depth + 1)
            if field.is_repeated:
                getattr(node, field.name).append(part)
            else:
                getattr(node, field.name).CopyFrom(part)
    elif field.is_repeated:
        getattr(node, field.name).extend(random_value(field, source) for _ in range(source.randrange(5)))
    elif field.type == FieldDescriptor.TYPE_BYTES and getattr(node, field.name) and source.random() < 0.7:
        setattr(node, field.name, mutated_bytes(getattr(node, field.name), source))
    else:
        setattr(node, field.name, random_value(field, source))


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _varint(number: int) -> bytes:
    data = bytearray()
    while number > 127:
        data.append(number & 127 | 128)
        number >>= 7
    return bytes([*data, number])
