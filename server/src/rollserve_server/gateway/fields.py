"""Fields of requests: checks of their values, and their names in errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rollserve_server.errors import InvalidValueError, within

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = ["MOST_FIRST_INDEX", "MOST_STEPS", "in_range", "of_field", "optional"]

MOST_STEPS, MOST_FIRST_INDEX = 1 << 50, 1 << 62


def in_range(field: str, value: int, least: int, most: int) -> int:
    """The value; raises InvalidValueError if it is out of range."""
    if not least <= value <= most:
        raise InvalidValueError.of(field, value, f"a number from {least} to {most}")
    return value


@contextlib.contextmanager
def of_field(field: str) -> Iterator[None]:
    """Names the field that errors are about, also those of the client's functions, which know no fields."""
    with within(field):
        try:
            yield
        except ValueError as error:
            raise InvalidValueError(str(error)) from error


def optional(message: Message, name: str) -> Any:
    """The value of a field, or None if it is not set."""
    return getattr(message, name) if message.HasField(name) else None
