"""The last versions of something, by number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

__all__ = ["Versions"]

_T = TypeVar("_T")


class Versions(Generic[_T]):
    """Counts up with each value that is added, and keeps the last few.

    Attributes:
        number: of the current version; 0 before there is one.
    """

    def __init__(self, num_kept: int) -> None:
        """Begins without a version; keeps so many at a time, the current one among them."""
        self._num_kept = num_kept
        self._values: dict[int, _T] = {}
        self.number = 0

    def __iter__(self) -> Iterator[int]:
        return iter(self._values)

    @property
    def current(self) -> _T | None:
        """The current version."""
        return self._values.get(self.number)

    def get(self, number: int) -> _T | None:
        """A version, or None if it is not there, or not any more."""
        return self._values.get(number)

    def add(self, value: _T) -> None:
        """Makes a value the current version, one more than before."""
        self.number += 1
        self._values[self.number] = value
        for number in [number for number in self._values if number <= self.number - self._num_kept]:
            del self._values[number]
