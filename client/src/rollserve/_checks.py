"""Checks of what a caller passes, before anything is sent."""

from __future__ import annotations

import math
import numbers
import operator
import re
from collections.abc import Collection
from types import UnionType
from typing import Any

from rollserve.errors import InvalidArgumentError, mismatch

__all__ = [
    "check_choice",
    "check_connection",
    "check_count",
    "check_flag",
    "check_integer",
    "check_seconds",
    "check_text",
    "check_type",
]

_SCHEMES = ("dns:", "ipv4:", "ipv6:", "unix:", "unix-abstract:", "vsock:", "xds:")
"""Of gRPC's names for servers; what follows them is gRPC's to judge."""
_HOST_AND_PORT = re.compile(r"(\[[0-9A-Za-z:.%]+\]|[^\s:/@\[\]]+):([0-9]{1,5})")


def check_connection(target: str, sampler: str, timeout: float, max_message_bytes: int | None) -> None:
    """Raises unless these can be the arguments of `rollserve.connect`.

    Raises:
        TypeError: one is of another type.
        InvalidArgumentError: one has a value that is of no use.
    """
    _check_target(target)
    check_text("sampler", sampler)
    check_seconds("timeout", timeout, positive=True)
    if max_message_bytes is not None:
        check_integer("max_message_bytes", max_message_bytes, 31, signed=False)


def check_text(name: str, value: str) -> None:
    """Raises unless the value can be sent as text.

    Raises:
        TypeError: it is not a string.
        InvalidArgumentError: it cannot be encoded.
    """
    check_type(name, value, str, "a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError.of(name, expected="text that UTF-8 can write", got=repr(value)) from None


def check_integer(name: str, value: Any, bits: int, *, signed: bool) -> None:
    """Raises unless the value can be sent as an integer of so many bits.

    Raises:
        TypeError: it is not an integer.
        InvalidArgumentError: it is out of range.
    """
    check_type(name, value, numbers.Integral, "an integer")
    number = operator.index(value)
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    if not low <= number <= high:
        expected = f"an integer of {bits} bits" if signed else f"an integer from 0 to 2**{bits} - 1"
        raise InvalidArgumentError.of(name, expected=expected, got=str(number))


def check_count(name: str, value: Any) -> None:
    """Raises unless the value is a positive integer of 32 bits.

    Raises:
        TypeError: it is not an integer.
        InvalidArgumentError: it is out of range.
    """
    check_integer(name, value, 32, signed=False)
    if value == 0:
        raise InvalidArgumentError.of(name, expected="a positive number", got="0")


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Raises InvalidArgumentError unless the value is one of some names."""
    if value not in choices:
        raise InvalidArgumentError.of(name, expected=" or ".join(map(repr, choices)), got=repr(value))


def check_seconds(name: str, value: float, *, positive: bool) -> None:
    """Raises unless the value is a number of seconds; infinitely many are allowed.

    Raises:
        TypeError: it is not a number.
        InvalidArgumentError: it is no number, or not positive although it has to be.
    """
    check_type(name, value, numbers.Real, "a number of seconds")
    if math.isnan(value) or (positive and value <= 0):
        raise InvalidArgumentError.of(
            name, expected=f"a {'positive ' if positive else ''}number of seconds", got=f"{value:g}"
        )


def check_flag(name: str, value: object) -> None:
    """Raises TypeError unless the value is a truth value."""
    if not isinstance(value, bool):
        raise _type_error(name, "a truth value", value)


def check_type(name: str, value: object, kind: type | UnionType, expected: str) -> None:
    """Raises TypeError unless the value is of the kind; truth values are no numbers."""
    if not isinstance(value, kind) or isinstance(value, bool):
        raise _type_error(name, expected, value)


def _check_target(target: str) -> None:
    """Raises unless the target is HOST:PORT or has one of gRPC's schemes."""
    check_text("target", target)
    if target.startswith(_SCHEMES):
        return
    found = _HOST_AND_PORT.fullmatch(target)
    if found is None or not 1 <= int(found[2]) <= 65535:
        raise InvalidArgumentError.of("target", expected="HOST:PORT, such as 127.0.0.1:50051", got=repr(target))


def _type_error(name: str, expected: str, value: object) -> TypeError:
    return TypeError(f"{name}: {mismatch(expected, type(value).__name__)}")
