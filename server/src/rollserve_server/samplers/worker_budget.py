"""Bound on the workers of all samplers of a server together."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

from rollserve_server.errors import OverLimitError
from rollserve_wire.reasons import Reason

__all__ = ["WorkerBudget"]


class WorkerBudget:
    """Workers of all samplers; workers that start or end count, too."""

    def __init__(self, max_workers: int, num_workers: Callable[[], Mapping[str, int]]) -> None:
        """Start without reservations.

        Args:
            max_workers: number of workers of all samplers together.
            num_workers: returns the number of workers of each sampler, by its name.
        """
        self._max_workers = max_workers
        self._num_workers = num_workers
        self._reserved: list[tuple[str, int]] = []

    @contextlib.contextmanager
    def reserving(self, sampler: str, num_workers: int, *, is_checked: bool = True) -> Iterator[None]:
        """Count this many workers for a sampler during the block, or as many as it has if these are more.

        Raises:
            OverLimitError: all samplers together would have too many workers.
        """
        numbers = dict(self._num_workers())
        for name, number in self._reserved:
            numbers[name] = max(number, numbers.get(name, 0))
        others = sum(number for name, number in numbers.items() if name != sampler)
        if is_checked and num_workers > numbers.get(sampler, 0) and others + num_workers > self._max_workers:
            left = max(self._max_workers - others, 0)
            expected = f"at most {left}, because all samplers together have at most {self._max_workers} (--max-workers)"
            raise OverLimitError.of("worker_count", expected=expected, got=num_workers, reason=Reason.TOO_MANY_WORKERS)
        reservation = sampler, num_workers
        self._reserved.append(reservation)
        try:
            yield
        finally:
            self._reserved.remove(reservation)
