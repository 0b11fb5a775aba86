"""Makes messages of what came."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import DecodeError

from rollserve_server.errors import InvalidValueError
from rollserve_server.gateway.requests.limits import check_fields

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = ["decoded", "parsed"]

_M = TypeVar("_M", bound="Message")


def parsed(kind: type[_M], data: bytes) -> _M:
    """A request of a class.

    Raises:
        OverLimitError: it has too much in it, see `check_fields`.
        InvalidValueError: it is none.
    """
    check_fields(kind, data)
    return decoded(kind, data)


def decoded(kind: type[_M], data: bytes) -> _M:
    """The same of one that was looked at already."""
    try:
        return kind.FromString(data)
    except DecodeError:
        name = kind.DESCRIPTOR.full_name
        raise InvalidValueError(f"{len(data)} bytes came that are no {name}, or hold a text that is no UTF-8") from None
