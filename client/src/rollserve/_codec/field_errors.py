"""Errors about the fields of messages, and of elements of lists by their names."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

__all__ = ["FieldError", "in_named"]


class FieldError(ValueError):
    """Error about a field of a message; the message itself may be part of another one.

    Attributes:
        field: path of the field within the message, such as `['0/weight'].shape`.
        text: what is wrong, without the path.
    """

    def __init__(self, field: str, text: str) -> None:
        super().__init__(field, text)
        self.field = field
        self.text = text

    def __str__(self) -> str:
        return f"{self.field}: {self.text}"


@contextlib.contextmanager
def in_named(name: str) -> Iterator[None]:
    """Let errors of the block be about the value of this name, in a list of named ones.

    Raises:
        FieldError: instead of a ValueError.
    """
    try:
        yield
    except FieldError as error:
        raise FieldError(f"[{name!r}].{error.field}", error.text) from None
    except ValueError as error:
        raise FieldError(f"[{name!r}]", str(error)) from None
