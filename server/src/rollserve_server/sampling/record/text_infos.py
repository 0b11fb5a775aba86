"""Infos that are no numbers, as texts of a fixed number of bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from rollserve_wire.columns import JSON_PREFIX, TEXT_PREFIX

__all__ = ["TextReader"]


class TextReader:
    """Reads texts, and values that JSON can hold, as arrays of bytes."""

    def __init__(self, num_bytes: int) -> None:
        """Read texts of at most `num_bytes` bytes of UTF-8."""
        self._num_bytes = num_bytes

    def read(self, name: str, value: Any) -> tuple[str, np.ndarray] | None:
        """Return the name of a value's column, and its text (B,) uint8 with zeros behind it; None if it has none.

        Texts are written as they are. None, and lists, tuples and arrays of anything that JSON can hold, are written as
        JSON with sorted names and without spaces. A value has no text if its text would be longer or has a character
        of code 0 or a lone surrogate, or if JSON cannot hold the value, as NaN and objects of classes.
        """
        is_text = isinstance(value, str)
        if not is_text and not (value is None or isinstance(value, list | tuple | np.ndarray)):
            return None
        try:
            text = str(value) if is_text else _json(value)
            encoded = text.encode()
        except (TypeError, ValueError, RecursionError):
            return None
        if len(encoded) > self._num_bytes or b"\0" in encoded:
            return None
        prefix = TEXT_PREFIX if is_text else JSON_PREFIX
        return prefix + name, np.frombuffer(encoded.ljust(self._num_bytes, b"\0"), np.uint8)


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, default=_plain, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def _plain(value: Any) -> Any:
    """Return an array or number of numpy, or a mapping, as a value that JSON can hold."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError
