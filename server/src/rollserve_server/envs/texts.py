"""Texts as arrays of one shape: Unicode code points with zeros after the last one, as numpy stores them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    from gymnasium import spaces

__all__ = ["CODE_POINT", "MAX_CODE_POINT", "decode_texts", "encode_text", "why_no_array"]

CODE_POINT = np.dtype(np.uint32)
MAX_CODE_POINT = 0x10FFFF


def why_no_array(space: spaces.Text) -> str:
    """Return why the texts of a space are no arrays of one shape; empty if they are."""
    if space.max_length < 1:
        return "no character"
    return "the character '\\0', which ends texts," if "\0" in space.character_set else ""


def encode_text(value: Any, space: spaces.Text) -> np.ndarray:
    """Return a text as code points, (max_length,). Characters outside the space pass.

    Raises:
        ValueError: the value is no text, is longer than the space's texts, or has a zero among its characters.
    """
    if not isinstance(value, str):
        raise ValueError(mismatch("a text", type(value).__name__))
    if len(value) > space.max_length:
        raise ValueError(mismatch(f"at most {space.max_length} characters", len(value)))
    if "\0" in value:
        raise ValueError(mismatch("a text without '\\0'", f"one at position {value.index(chr(0))}"))
    return np.array([value], f"U{space.max_length}").view(CODE_POINT)


def decode_texts(column: np.ndarray) -> list[str]:
    """Return the text of each row, given the code points (M, max_length)."""
    texts: list[str] = np.ascontiguousarray(column).view(f"U{column.shape[1]}")[:, 0].tolist()
    return texts
