"""The last versions of something, by number."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Generic, TypeVar

from rollserve_server.errors import NotReadyError

__all__ = ["Versions"]

_T = TypeVar("_T")


class Versions(Generic[_T]):
    """Counts up with each value that is added, and keeps the last few, and those that are in use.

    Attributes:
        number: of the current version; 0 before there is one.
    """

    def __init__(self, num_kept: int) -> None:
        """Begins without a version; keeps so many at a time, the current one among them."""
        self._num_kept = num_kept
        self._values: dict[int, _T] = {}
        self._uses: Counter[int] = Counter()
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

    def choose(self, wanted: int | None, name: str) -> int:
        """The wanted version, or the current one; `name` is what of.

        Raises:
            NotReadyError: it is not there, or not any more.
        """
        if wanted is None:
            return self.number
        if wanted not in self._values:
            text = f"{wanted} came, one of {', '.join(map(str, self))} was expected: no others are there"
            raise NotReadyError(text, reason=f"{name.upper()}_VERSION", field=f"options.{name}_version")
        return wanted

    def add(self, value: _T) -> None:
        """Makes a value the current version, one more than before."""
        self.number += 1
        self._values[self.number] = value
        self._drop_old()

    @contextlib.contextmanager
    def using(self, number: int) -> Iterator[None]:
        """Keeps a version, which is there, for as long as the block."""
        self._uses[number] += 1
        try:
            yield
        finally:
            self._uses[number] -= 1
            self._drop_old()

    def _drop_old(self) -> None:
        self._uses = +self._uses
        for number in list(self._values):
            if number <= self.number - self._num_kept and number not in self._uses:
                del self._values[number]
