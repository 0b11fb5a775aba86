"""Environments' infos as columns: what of a dict of anything is a number or an array of one shape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["InfoKey", "InfoReader"]


@dataclass(frozen=True, eq=False)
class InfoKey:
    """What values of infos share that stand in one array: a name (nested ones joined by `/`), a dtype and a shape.

    Keys are compared by identity, which costs nothing per step; one reader makes one key for the same things.
    """

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]

    def empty(self) -> np.ndarray:
        """No values, (0, *shape)."""
        return np.empty((0, *self.shape), self.dtype)


class InfoReader:
    """Reads infos, and counts what it cannot take.

    Attributes:
        dropped: by name, how many values were neither numbers, truth values nor arrays of them.
    """

    def __init__(self) -> None:
        self.dropped: Counter[str] = Counter()
        self._scalar_keys: dict[tuple[str, type], InfoKey] = {}
        self._keys: dict[tuple[str, str, tuple[int, ...]], InfoKey] = {}

    def read(self, info: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[InfoKey, Any]]:
        """The values that can stand in columns. Python's numbers become int64 and float64."""
        for key, value in info.items():
            name = f"{prefix}{key}"
            known = self._scalar_keys.get((name, type(value)))
            if known is not None:
                yield known, value
            elif isinstance(value, Mapping):
                yield from self.read(value, f"{name}/")
            else:
                yield from self._read_new(name, value)

    def _read_new(self, name: str, value: Any) -> Iterator[tuple[InfoKey, Any]]:
        try:
            array = np.asarray(value)
        except (ValueError, OverflowError):  # ragged
            array = np.array(None)
        # Names with _ in front are those of masks.
        if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8 or name.rpartition("/")[2].startswith("_"):
            self.dropped[name] += 1
            return
        identity = (name, array.dtype.str, array.shape)
        key = self._keys.get(identity)
        if key is None:
            key = self._keys[identity] = InfoKey(name, array.dtype.newbyteorder("="), array.shape)
        if isinstance(value, bool | int | float | np.generic):
            self._scalar_keys[name, type(value)] = key
        yield key, array
