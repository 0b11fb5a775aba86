"""Limits on the content of requests, checked before anything is built from them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor import FieldDescriptor

from rollserve import Reason
from rollserve._codec.protobuf import LENGTH_DELIMITED, UnusualError, fields
from rollserve_server.errors import OverLimitError

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = ["MAX_FIELDS", "MAX_TEXT_BYTES", "check_fields"]

MAX_FIELDS = 1 << 18
"""Largest number of fields of a request. An empty message is two bytes on the wire, hundreds of bytes in memory, and
takes time to parse."""
MAX_TEXT_BYTES = 1 << 20
"""Largest size of a text, such as a name or JSON. Larger values, such as tensors and models, are sent as bytes."""
_NUMBER_BYTES = {FieldDescriptor.CPPTYPE_DOUBLE: 8, FieldDescriptor.CPPTYPE_FLOAT: 4}
"""Size of a number in a packed list; other types may take as little as one byte."""


def check_fields(kind: type[Message], data: bytes) -> None:
    """Check that a serialized message has neither too many fields nor too long texts.

    The fields of nested messages count, and so do the elements of lists of numbers. Malformed bytes are left to the
    parser; see https://protobuf.dev/programming-guides/encoding.

    Args:
        kind: class of the message.
        data: the serialized message.

    Raises:
        OverLimitError: more than 262,144 fields, or a text of more than 1 MiB.
    """
    try:
        _check(kind.DESCRIPTOR, data)
    except (IndexError, UnusualError):  # a field that ends behind the data, or a varint that is too long
        return


def _check(kind: Any, data: bytes) -> None:
    num_fields = 0
    messages = [(kind, 0, len(data))]
    while messages:
        message, start, stop = messages.pop()
        members = _members(message)
        for key, _, begin, end in fields(data, start, stop, strict=False):
            num_fields += 1
            member = members.get(key >> 3) if key & 7 == LENGTH_DELIMITED else None
            if member is not None:
                if member.message_type is not None:
                    messages.append((member.message_type, begin, min(end, stop)))
                elif member.type == FieldDescriptor.TYPE_STRING:
                    _check_text(member, end - begin)
                else:
                    num_fields += (end - begin) // _NUMBER_BYTES.get(member.cpp_type, 1)
            if num_fields > MAX_FIELDS:
                raise OverLimitError.of(
                    "", expected=f"at most {MAX_FIELDS} fields", got="more", reason=Reason.REQUEST_TOO_LARGE
                )


def _check_text(member: FieldDescriptor, size: int) -> None:
    if size > MAX_TEXT_BYTES:
        expected, got = f"a text of at most {MAX_TEXT_BYTES} bytes", f"{size} bytes"
        raise OverLimitError.of(member.name, expected=expected, got=got, reason=Reason.REQUEST_TOO_LARGE)


@functools.cache
def _members(message: Any) -> Mapping[int, FieldDescriptor]:
    """Return the fields of a message by number that are messages, texts or lists of numbers."""
    return {
        member.number: member
        for member in message.fields
        if member.type != FieldDescriptor.TYPE_BYTES
        and (member.message_type is not None or member.type == FieldDescriptor.TYPE_STRING or member.is_repeated)
    }
