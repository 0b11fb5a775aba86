"""Texts among the infos of environments, as columns of UTF-8 bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from rollserve._codec.columns import mask_name

__all__ = ["JSON_PREFIX", "MAX_TEXT_INFO_BYTES", "TEXT_PREFIX", "text_infos"]

MAX_TEXT_INFO_BYTES = 1 << 16
"""Upper bound for the bytes of a text."""

TEXT_PREFIX, JSON_PREFIX = "text/", "json/"
"""Texts in front of the name of a column of texts, and of a column of other values as JSON."""


def text_infos(infos: Mapping[str, np.ndarray]) -> dict[str, list[Any]]:
    """Return the texts among infos by name, as Python's values: one for each row, None for a row without one.

    >>> rollserve.text_infos(batch.env_infos)["event"]  # doctest: +SKIP
    [None, 'goal', None, …]

    Args:
        infos: `env_infos` or `episode_infos` of a batch whose environment has `EnvSpec.text_info_bytes`. Texts are the
            columns `text/NAME`, and other values `json/NAME`: uint8 (T, B), UTF-8 with zeros behind it.
            Columns of such a name that hold something else, as of a number that the environment calls `text/x`, are
            left out.
    """
    values: dict[str, list[Any]] = {}
    for column_name, column in infos.items():
        for prefix, read in ((TEXT_PREFIX, bytes.decode), (JSON_PREFIX, json.loads)):
            if column_name.startswith(prefix) and column.dtype == np.uint8 and column.ndim == 2:
                present = infos.get(mask_name(column_name))
                rows = range(len(column)) if present is None else np.flatnonzero(present).tolist()
                try:
                    texts = {row: read(column[row].tobytes().rstrip(b"\0")) for row in rows}
                except ValueError:  # bytes that are no text
                    continue
                found = values.setdefault(column_name.removeprefix(prefix), [None] * len(column))
                for row, text in texts.items():
                    found[row] = text
    return values
