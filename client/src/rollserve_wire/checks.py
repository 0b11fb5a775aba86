"""Checks of the caller's arguments before anything is sent."""

from __future__ import annotations

import math
import numbers
import operator
import re
from collections.abc import Collection
from types import UnionType
from typing import Any

from rollserve_wire.errors import InvalidArgumentError, mismatch

__all__ = [
    "DNS_SCHEME",
    "SCHEMES",
    "check_choice",
    "check_connection",
    "check_count",
    "check_flag",
    "check_integer",
    "check_known_options",
    "check_names",
    "check_seconds",
    "check_text",
    "check_type",
    "choices_text",
    "type_error",
]

SCHEMES = ("dns:", "ipv4:", "ipv6:", "unix:", "unix-abstract:", "vsock:", "xds:")
"""Schemes of gRPC's names for servers. gRPC itself checks what follows them."""
DNS_SCHEME = "dns:///"
"""Beginning of a name that stands for a gateway at each of its addresses."""
_HOST_AND_PORT = re.compile(r"(\[[0-9A-Za-z:.%]+\]|[^\s,:/@\[\]]+):([0-9]{1,5})")


def check_connection(target: str, sampler: str, timeout: float, max_message_bytes: int | None) -> None:
    """Check the arguments of `rollserve.connect`.

    Raises:
        TypeError: an argument of the wrong type.
        InvalidArgumentError: an argument with an invalid value.
    """
    _check_target(target)
    check_text("sampler", sampler)
    check_seconds("timeout", timeout, positive=True)
    if max_message_bytes is not None:
        check_integer("max_message_bytes", max_message_bytes, 31, signed=False)


def check_text(name: str, value: str) -> None:
    """Check that a value can be sent as text.

    Raises:
        TypeError: not a string.
        InvalidArgumentError: a string that UTF-8 cannot encode.
    """
    check_type(name, value, str, "a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError.of(name, expected="text that UTF-8 can write", got=repr(value)) from None


def check_names(name: str, values: Any) -> None:
    """Check that a value is a sequence of names that can be sent as text; raises as `check_text`."""
    if isinstance(values, str):
        raise type_error(name, "a sequence of names", values)
    for value in values:
        check_text(name, value)


def check_integer(name: str, value: Any, bits: int, *, signed: bool) -> None:
    """Check that a value can be sent as an integer of a number of bits.

    Raises:
        TypeError: not an integer.
        InvalidArgumentError: an integer out of range.
    """
    check_type(name, value, numbers.Integral, "an integer")
    number = operator.index(value)
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    if not low <= number <= high:
        expected = f"an integer of {bits} bits" if signed else f"an integer from 0 to 2**{bits} - 1"
        raise InvalidArgumentError.of(name, expected=expected, got=number)


def check_count(name: str, value: Any) -> None:
    """Check that a value is a positive integer below 2**32.

    Raises:
        TypeError: not an integer.
        InvalidArgumentError: an integer out of range.
    """
    check_integer(name, value, 32, signed=False)
    if value == 0:
        raise InvalidArgumentError.of(name, expected="a positive number", got=0)


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Raise InvalidArgumentError unless a value is among the choices."""
    if value not in choices:
        raise InvalidArgumentError.of(name, expected=choices_text(choices), got=repr(value))


def check_seconds(name: str, value: float, *, positive: bool) -> None:
    """Check that a value is a number of seconds, which may be infinite.

    Raises:
        TypeError: not a number.
        InvalidArgumentError: NaN, or a number that has to be positive and is not.
    """
    check_type(name, value, numbers.Real, "a number of seconds")
    if math.isnan(value) or (positive and value <= 0):
        expected = f"a {'positive ' if positive else ''}number of seconds"
        raise InvalidArgumentError.of(name, expected=expected, got=f"{value:g}")


def check_flag(name: str, value: object) -> None:
    """Raise TypeError unless a value is a truth value."""
    if not isinstance(value, bool):
        raise type_error(name, "a truth value", value)


def check_type(name: str, value: object, kind: type | UnionType, expected: str) -> None:
    """Raise TypeError unless a value is an instance of a type; truth values do not count as numbers."""
    if not isinstance(value, kind) or isinstance(value, bool):
        raise type_error(name, expected, value)


def check_known_options(options: Collection[str], known: type) -> None:
    """Raise TypeError unless all options are keys of a TypedDict."""
    unknown = sorted(set(options) - known.__annotations__.keys())
    if unknown:
        raise TypeError(f"options: {mismatch(f'keys of {known.__name__}', ', '.join(unknown))}")


def choices_text(choices: Collection[str]) -> str:
    """Return the choices as they read in an error: `'shared' or 'separate'`."""
    return " or ".join(map(repr, choices))


def type_error(name: str, expected: str, value: object) -> TypeError:
    """Return the error for an argument of the wrong type."""
    return TypeError(f"{name}: {mismatch(expected, type(value).__name__)}")


def _check_target(target: str) -> None:
    """Check that a target is HOST:PORT or has one of gRPC's schemes."""
    check_text("target", target)
    if target.startswith(DNS_SCHEME) and not _is_address(target.removeprefix(DNS_SCHEME)):
        raise InvalidArgumentError.of("target", expected=f"{DNS_SCHEME}HOST:PORT", got=repr(target))
    if not target.startswith(SCHEMES) and not all(_is_address(part.strip(" ")) for part in target.split(",")):
        expected = "HOST:PORT, such as 127.0.0.1:50051, or several with commas between them"
        raise InvalidArgumentError.of("target", expected=expected, got=repr(target))


def _is_address(text: str) -> bool:
    match = _HOST_AND_PORT.fullmatch(text)
    return match is not None and 1 <= int(match[2]) <= 65535
