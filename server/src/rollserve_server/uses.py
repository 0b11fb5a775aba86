"""Uses of something by several tasks at a time, and for how long it has been without one."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator

__all__ = ["Uses"]


class Uses:
    """Counts the uses of something."""

    def __init__(self, ended_at: float = -math.inf) -> None:
        """Start without a use; the last one ended at some time (`time.monotonic`), by default longer ago than any."""
        self._num_uses = 0
        self._ended_at = ended_at

    @property
    def idle_seconds(self) -> float:
        """Time since the last use has ended; 0 during a use."""
        return 0.0 if self._num_uses else time.monotonic() - self._ended_at

    @contextlib.contextmanager
    def using(self) -> Iterator[None]:
        """Count a use for the duration of the block."""
        self._num_uses += 1
        try:
            yield
        finally:
            self._num_uses -= 1
            self._ended_at = time.monotonic()
