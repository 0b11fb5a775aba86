"""Parsing of serialized requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import DecodeError

from rollserve_server.errors import InvalidValueError
from rollserve_server.gateway.requests.limits import check_fields

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = ["parse", "parse_unchecked"]

_M = TypeVar("_M", bound="Message")


def parse(kind: type[_M], data: bytes) -> _M:
    """Return a request of a class.

    Raises:
        OverLimitError: the request has too many fields, or too long a text; see `check_fields`.
        InvalidValueError: the bytes are no such request.
    """
    check_fields(kind, data)
    return parse_unchecked(kind, data)


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
