"""Limits on the content of requests, checked before anything is built from them."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor import FieldDescriptor

from rollserve import Reason
from rollserve._codec.protobuf import LENGTH_DELIMITED, UnusualError, fields
from rollserve_server.errors import OverLimitError, joined

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
                    if end - begin > MAX_TEXT_BYTES:
                        expected, got = f"a text of at most {MAX_TEXT_BYTES} bytes", f"{end - begin} bytes"
                        path = _path_of(kind, data, begin)
                        raise OverLimitError.of(path, expected=expected, got=got, reason=Reason.REQUEST_TOO_LARGE)
                else:
                    num_fields += (end - begin) // _NUMBER_BYTES.get(member.cpp_type, 1)
            if num_fields > MAX_FIELDS:
                raise OverLimitError.of(
                    "", expected=f"at most {MAX_FIELDS} fields", got="more", reason=Reason.REQUEST_TOO_LARGE
                )


def _path_of(message: Any, data: bytes, position: int) -> str:
    """Return the path of the text whose value begins at a position; of a map's key or value, the path of the map."""
    path, start, stop = "", 0, len(data)
    while not message.GetOptions().map_entry:
        counts: Counter[int] = Counter()
        for key, _, begin, end in fields(data, start, stop, strict=False):
            counts[key >> 3] += 1
            if begin <= position < end:
                break
        member = message.fields_by_number[key >> 3]
        path = joined(path, member.name)
        message, start, stop = member.message_type, begin, end
        is_map = message is not None and message.GetOptions().map_entry
        if member.is_repeated and not is_map:
            path += f"[{counts[member.number] - 1}]"
        if message is None:
            break
    return path


@functools.cache
def _members(message: Any) -> Mapping[int, FieldDescriptor]:
    """Return the fields of a message by number that are messages, texts or lists of numbers."""
    return {
        member.number: member
        for member in message.fields
        if member.type != FieldDescriptor.TYPE_BYTES
        and (member.message_type is not None or member.type == FieldDescriptor.TYPE_STRING or member.is_repeated)
    }
