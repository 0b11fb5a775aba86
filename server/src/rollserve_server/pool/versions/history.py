"""The last versions of agents or environments, by number."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

from rollserve_server.errors import NotReadyError

if TYPE_CHECKING:
    from rollserve_wire.reasons import Reason

__all__ = ["VersionHistory"]

_T = TypeVar("_T")


class VersionHistory(Generic[_T]):
    """Numbers each value that is added, and keeps the last few and those in use.

    Attributes:
        number: number of the current version; 0 before there is one.
    """

    def __init__(self, num_kept: int, *, max_idle_bytes: int = 0, bytes_of: Callable[[_T], int] = lambda _: 0) -> None:
        """Start without a version.

        Args:
            num_kept: number of versions to keep, including the current one.
            max_idle_bytes: bytes of versions that are neither current nor in use; beyond that, the oldest are dropped.
            bytes_of: returns the bytes of a version.
        """
        self._num_kept = num_kept
        self._max_idle_bytes = max_idle_bytes
        self._bytes_of = bytes_of
        self._values: dict[int, _T] = {}
        self._uses: Counter[int] = Counter()
        self.number = 0

    def __iter__(self) -> Iterator[int]:
        return iter(self._values)

    def items(self) -> Iterable[tuple[int, _T]]:
        """Return all versions with their numbers, in rising order."""
        return self._values.items()

    @property
    def current(self) -> _T | None:
        """The current version, or None before there is one."""
        return self._values.get(self.number)

    def get(self, number: int) -> _T | None:
        """Return a version, or None if it is not kept."""
        return self._values.get(number)

    def is_in_use(self, number: int) -> bool:
        """Whether a call uses a version."""
        return self._uses[number] > 0

    def choose(self, wanted: int | None, reason: Reason) -> int:
        """Return the wanted version, or the current one if none is wanted.

        Args:
            wanted: number of the version, or None.
            reason: reason of the error; in lower case, the field that asks for the version.

        Raises:
            NotReadyError: the version is not kept.
        """
        if wanted is None:
            return self.number
        if wanted not in self._values:
            expected = f"one of the versions that are kept, {', '.join(map(str, self))}"
            raise NotReadyError.of(reason.lower(), expected=expected, got=wanted, reason=reason)
        return wanted

    def add(self, value: _T) -> None:
        """Make a value the current version, numbered one higher than the last."""
        self.number += 1
        self._values[self.number] = value
        self._drop_old()

    def skip_to(self, number: int) -> None:
        """Number the next value so, which has to be higher than the current number."""
        self.number = number - 1

    def restore(self, values: Mapping[int, _T]) -> None:
        """Continue with the versions of an earlier server, by number, before any is added."""
        self._values = dict(sorted(values.items()))
        self.number = max(values, default=0)

    @contextlib.contextmanager
    def using(self, number: int) -> Iterator[None]:
        """Keep a version for the duration of the block."""
        self._uses[number] += 1
        try:
            yield
        finally:
            self._uses[number] -= 1
            self._drop_old()

    def _drop_old(self) -> None:
        self._uses = +self._uses
        idle_bytes = 0
        for number in sorted(self._values.keys() - self._uses.keys() - {self.number}, reverse=True):
            idle_bytes += self._bytes_of(self._values[number])
            if number <= self.number - self._num_kept or idle_bytes > self._max_idle_bytes:
                del self._values[number]
