"""How much requests may hold: looked at before anything is made of them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from rollserve import Reason
from rollserve._codec.protobuf import LENGTH_DELIMITED, VARINT
from rollserve_server.errors import OverLimitError

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = ["MOST_FIELDS", "MOST_TEXT_BYTES", "check_fields"]

MOST_FIELDS = 1 << 18
"""An empty message is two bytes on the wire, and hundreds in memory; each takes its time to be read."""
MOST_TEXT_BYTES = 1 << 20
"""Of names and JSON. What is larger, as tensors and models are, comes as bytes."""
_FIXED64, _FIXED32 = 1, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}
_MOST_VARINT_BYTES = 10
_NUMBER_BYTES = {FieldDescriptor.CPPTYPE_DOUBLE: 8, FieldDescriptor.CPPTYPE_FLOAT: 4}
"""Of an element of a list, where that is not written with as few as one."""


def check_fields(kind: type[Message], data: bytes) -> None:
    """Sees to it that a serialized message has not too many fields, nor too long texts.

    Counts the fields of all messages in it, and the elements of its lists of numbers. What is malformed is left to who
    parses it; see https://protobuf.dev/programming-guides/encoding.

    Args:
        kind: the class of the message.
        data: its bytes.

    Raises:
        OverLimitError: it has.
    """
    try:
        _check(kind.DESCRIPTOR, data)
    except (IndexError, DecodeError):  # the first where it ends within a field
        return


def _check(kind: Any, data: bytes) -> None:
    num_fields = 0
    messages = [(kind, 0, len(data))]
    while messages:
        message, position, stop = messages.pop()
        members = _members(message)
        while position < stop:
            key, position = _varint(data, position)
            num_fields += 1
            wire_type = key & 7
            if wire_type == LENGTH_DELIMITED:
                size, position = _varint(data, position)
                member = members.get(key >> 3)
                if member is not None:
                    if member.message_type is not None:
                        messages.append((member.message_type, position, min(position + size, stop)))
                    elif member.type == FieldDescriptor.TYPE_STRING:
                        _check_text(member, size)
                    else:
                        num_fields += size // _NUMBER_BYTES.get(member.cpp_type, 1)
                position += size
            elif wire_type == VARINT:
                _, position = _varint(data, position)
            else:
                position += _FIXED_BYTES.get(wire_type, 0)
            if num_fields > MOST_FIELDS:
                text = f"a request with more fields came than {MOST_FIELDS}, which were expected at most"
                raise OverLimitError(text, reason=Reason.REQUEST_TOO_LARGE)


def _check_text(member: FieldDescriptor, size: int) -> None:
    if size > MOST_TEXT_BYTES:
        text = f"a text of {size} bytes came, {MOST_TEXT_BYTES} at most were expected"
        raise OverLimitError(text, reason=Reason.REQUEST_TOO_LARGE, field=member.name)


@functools.cache
def _members(message: Any) -> Mapping[int, FieldDescriptor]:
    """By number, the fields of a message whose values may hold more than one, or are texts."""
    return {
        member.number: member
        for member in message.fields
        if member.type != FieldDescriptor.TYPE_BYTES
        and (member.message_type is not None or member.type == FieldDescriptor.TYPE_STRING or member.is_repeated)
    }


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A number, and where it ends."""
    value = data[position]
    position += 1
    if value < 0x80:
        return value, position
    value &= 0x7F
    for shift in range(7, 7 * _MOST_VARINT_BYTES, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise DecodeError("a number that is too long")
