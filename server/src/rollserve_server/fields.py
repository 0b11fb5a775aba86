"""Fields of messages: checks of their values, their paths in errors, and times."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from google.protobuf.timestamp_pb2 import Timestamp

from rollserve_server.errors import DomainError, InvalidValueError, joined
from rollserve_wire.errors import FieldError

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = [
    "MAX_FIRST_INDEX",
    "MAX_STEPS",
    "MAX_WORKERS",
    "in_field",
    "in_range",
    "optional",
    "seconds_of",
    "set_fields",
    "timestamp_of",
]

MAX_STEPS, MAX_FIRST_INDEX, MAX_WORKERS = 1 << 50, 1 << 62, 10_000
_MAX_TIMESTAMP_SECONDS = 253_370_764_799  # of year 9998: rounded, the last one of 9999 is no timestamp any more


def in_range(field: str, value: int, minimum: int, maximum: int) -> int:
    """Return the value of a field; raise InvalidValueError if it is out of range."""
    if not minimum <= value <= maximum:
        raise InvalidValueError.of(field, expected=f"a number from {minimum} to {maximum}", got=value)
    return value


@contextlib.contextmanager
def in_field(field: str) -> Iterator[None]:
    """Prefix the fields of errors raised in the block with this path.

    A ValueError, as the client's functions raise it, becomes an InvalidValueError of the field, or of the field within
    it that the error names.
    """
    try:
        yield
    except DomainError as error:
        error.field = joined(field, error.field)
        raise
    except FieldError as error:
        raise InvalidValueError(error.text, field=joined(field, error.field)) from error
    except ValueError as error:
        raise InvalidValueError(str(error), field=field) from error


def optional(message: Message, name: str) -> Any:
    """Return the value of a field, or None if it is not set."""
    return getattr(message, name) if message.HasField(name) else None


def timestamp_of(seconds: float) -> Timestamp:
    """Return a time as a message, given in seconds since 1970."""
    timestamp = Timestamp()
    timestamp.FromNanoseconds(round(seconds * 1e9))
    return timestamp


def seconds_of(field: str, timestamp: Timestamp) -> float:
    """Return a time in seconds since 1970; raise InvalidValueError of the field if it is before, or after year 9998."""
    in_range(f"{field}.seconds", timestamp.seconds, 0, _MAX_TIMESTAMP_SECONDS)
    in_range(f"{field}.nanos", timestamp.nanos, 0, 999_999_999)
    return timestamp.ToNanoseconds() / 1e9


def set_fields(message: Message) -> Mapping[str, Any]:
    """Return the fields of a message that are set, by name; those without presence if they are not their default."""
    return {field.name: value for field, value in message.ListFields()}
