"""Parsing of serialized requests, within limits that are checked before anything is made of them.

A field takes hundreds of times its bytes in memory once it is parsed. So the bytes are scanned first, unless the
request is too short to exceed any limit. Parameters are not parsed at all: they stay where they arrived.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from rollserve_server.errors import InvalidValueError, OverLimitError, joined
from rollserve_wire.parameter_updates import read_parameters_update
from rollserve_wire.protobuf import LENGTH_DELIMITED, UnusualError, fields
from rollserve_wire.reasons import Reason
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from rollserve_wire.parameter_updates import ParametersUpdate

__all__ = [
    "MAX_FIELDS",
    "MAX_NAME_BYTES",
    "MAX_TEXT_BYTES",
    "check_fields",
    "max_elements",
    "parse",
    "parse_agent_update",
    "parse_drive_spec",
    "parse_receipt",
    "parse_stream_spec",
    "parse_unchecked",
]


_M = TypeVar("_M", bound="Message")
_Q = TypeVar("_Q", pb.StreamSamplesRequest, pb.DriveEnvironmentsRequest)

MAX_FIELDS = 1 << 18
"""Largest number of fields of a request. An empty message is two bytes on the wire, hundreds of bytes in memory, and
takes time to parse."""
MAX_TEXT_BYTES, MAX_NAME_BYTES = 1 << 20, 4096
"""Largest sizes of JSON or a description, and of any other text, such as a name or path. Larger values, such as tensors
and models, are sent as bytes."""
_MAX_ELEMENTS = 4096
"""Largest number of texts, messages or members of enums in a field."""
_OTHER_MAX_ELEMENTS: Mapping[str, int] = {
    # The event loop takes tens of microseconds for each.
    **dict.fromkeys(("policies", "rules", "choices"), 1024),
    # One for each worker.
    **dict.fromkeys(("updates", "workers", "agents"), 10_000),
    # Of a saved sampler, one for each row of all workers; and bounded where evaluations are read.
    **dict.fromkeys(("rows", "policy_maps"), sys.maxsize),
}
_MIN_CHECKED_BYTES = 1025
"""Least size of a request in which there can be too much of anything: more than 1024 elements."""
_NUMBER_BYTES = {FieldDescriptor.CPPTYPE_DOUBLE: 8, FieldDescriptor.CPPTYPE_FLOAT: 4}
"""Size of a number in a packed list; other types may take as little as one byte."""


def parse(kind: type[_M], data: bytes) -> _M:
    """Return a request of a class.

    Raises:
        OverLimitError: the request has too many fields, or too long a text; see `check_fields`.
        InvalidValueError: the bytes are no such request.
    """
    if len(data) >= _MIN_CHECKED_BYTES:
        check_fields(kind, data)
    return parse_unchecked(kind, data)


def parse_agent_update(data: bytes) -> pb.UpdateAgentRequest | ParametersUpdate:
    """Return a request of `UpdateAgent`; one with parameters for all workers as views of its bytes."""
    return read_parameters_update(data) or parse(pb.UpdateAgentRequest, data)


def parse_stream_spec(data: bytes) -> pb.StreamSpec:
    """Return what the first message of `StreamSamples` asks for."""
    return _parse_content(pb.StreamSamplesRequest, data, ("spec",), "a spec in the first message").spec


def parse_receipt(data: bytes) -> int:
    """Return the number of rounds that the client has taken, from a later message of `StreamSamples`."""
    message = _parse_content(pb.StreamSamplesRequest, data, ("receipt",), "a receipt in each later message")
    return message.receipt.round_count


def parse_drive_spec(data: bytes) -> pb.DriveSpec | pb.DriveResumption | pb.SessionReading:
    """Return what the first message of `DriveEnvironments` asks for."""
    contents, expected = ("spec", "resumption", "reading"), "a spec, a resumption or a reading in the first message"
    message = _parse_content(pb.DriveEnvironmentsRequest, data, contents, expected)
    found: pb.DriveSpec | pb.DriveResumption | pb.SessionReading = getattr(message, message.WhichOneof("content") or "")
    return found


def _parse_content(kind: type[_Q], data: bytes, contents: Collection[str], expected: str) -> _Q:
    """Return a message of a client's stream; raise InvalidValueError for other content."""
    message = parse(kind, data)
    got = message.WhichOneof("content")
    if got not in contents:
        raise InvalidValueError.of("content", expected=expected, got=got or "none")
    return message


def parse_unchecked(kind: type[_M], data: bytes) -> _M:
    """Return a request of a class, whose number of fields has been checked before.

    Raises:
        InvalidValueError: the bytes are no such request.
    """
    try:
        return kind.FromString(data)
    except DecodeError:
        expected = f"a serialized {kind.DESCRIPTOR.full_name} with texts in UTF-8"
        got = f"{len(data)} bytes that cannot be parsed as one"
        raise InvalidValueError.of("", expected=expected, got=got) from None


def max_elements(field: FieldDescriptor) -> int:
    """Return how many elements a repeated field may have.

    For numbers and rows, only the number of fields of a whole request is bounded.
    """
    is_number = field.message_type is None and field.enum_type is None and field.type != FieldDescriptor.TYPE_STRING
    return _OTHER_MAX_ELEMENTS.get(field.name, sys.maxsize if is_number else _MAX_ELEMENTS)


def check_fields(kind: type[Message], data: bytes) -> None:
    """Check that a serialized message has neither too many fields or elements of a field, nor too long texts.

    The fields of nested messages count, and so do the elements of lists of numbers. Malformed bytes are left to the
    parser; see https://protobuf.dev/programming-guides/encoding.

    Args:
        kind: class of the message.
        data: the serialized message.

    Raises:
        OverLimitError: more than 262,144 fields, more elements of a field than `max_elements`, or a text of more than
            4 KiB, or 1 MiB for JSON and descriptions.
    """
    try:
        _check(kind.DESCRIPTOR, data)
    except (IndexError, UnusualError):  # a field that ends behind the data, or a varint that is too long
        return


def _check(kind: Any, data: bytes) -> None:
    num_fields = 0
    # How many elements the fields of a message have so far, by number. Where a field that is not repeated is there more
    # than once, the parser joins its values: the counts of the message in it are kept behind its negative number.
    messages: list[tuple[Any, int, int, dict[int, Any]]] = [(kind, 0, len(data), {})]
    while messages:
        message, start, stop, counts = messages.pop()
        members = _members(message)
        for key, position, begin, end in fields(data, start, stop, strict=False):
            num_fields += 1
            member = members.get(key >> 3)
            if member is not None:
                field, size, num_elements = member.field, end - begin, 1
                if key & 7 != LENGTH_DELIMITED:
                    pass
                elif field.message_type is not None:
                    inner = {} if member.max_elements else counts.setdefault(-field.number, {})
                    messages.append((field.message_type, begin, min(end, stop), inner))
                elif field.type == FieldDescriptor.TYPE_STRING:
                    if size > member.max_bytes:
                        expected = f"a text of at most {member.max_bytes} bytes"
                        raise _refused(_path_of(kind, data, position), expected, f"{size} bytes")
                elif field.is_repeated:
                    num_elements = size // _NUMBER_BYTES.get(field.cpp_type, 1)
                    num_fields += num_elements
                if member.max_elements:
                    counts[field.number] = counts.get(field.number, 0) + num_elements
                    if counts[field.number] > member.max_elements:
                        path = _path_of(kind, data, position)
                        path = path.rpartition("[")[0] if path.endswith("]") else path
                        raise _refused(path, f"at most {member.max_elements} elements", "more")
            if num_fields > MAX_FIELDS:
                raise _refused("", f"at most {MAX_FIELDS} fields", "more")


def _refused(field: str, expected: str, got: str) -> OverLimitError:
    return OverLimitError.of(field, expected=expected, got=got, reason=Reason.REQUEST_TOO_LARGE)


def _path_of(message: Any, data: bytes, position: int) -> str:
    """Return the path of the field whose key is at a position; of a map's key or value, the path of the map."""
    path, start, stop, at = "", 0, len(data), -1
    while at != position and not message.GetOptions().map_entry:
        counts: Counter[int] = Counter()
        for field in fields(data, start, stop, strict=False):
            key, at, begin, end = field
            counts[key >> 3] += 1
            if at <= position < end:
                break
        member = message.fields_by_number[key >> 3]
        path = joined(path, member.name)
        message, start, stop = member.message_type, begin, end
        is_map = message is not None and message.GetOptions().map_entry
        if member.is_repeated and not is_map:
            path += f"[{counts[member.number] - 1}]"
    return path


class _Member(NamedTuple):
    """A field that is a message, a text or repeated; a field that is not repeated has 0 elements at most."""

    field: FieldDescriptor
    max_bytes: int
    max_elements: int


@functools.cache
def _members(message: Any) -> Mapping[int, _Member]:
    """Return the bounded fields of a message by number."""
    return {
        field.number: _Member(
            field,
            MAX_TEXT_BYTES if field.name == "description" or field.name.endswith("_json") else MAX_NAME_BYTES,
            max_elements(field) if field.is_repeated else 0,
        )
        for field in message.fields
        if field.type != FieldDescriptor.TYPE_BYTES
        and (field.message_type is not None or field.type == FieldDescriptor.TYPE_STRING or field.is_repeated)
    }
