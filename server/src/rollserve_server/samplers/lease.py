"""Leases of samplers: how long one may be without a call before it is deleted."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator

__all__ = ["Lease"]


class Lease:
    """A lease that each use renews, and that does not run out during a use.

    Attributes:
        seconds: how long it lasts without a use.
    """

    def __init__(self, seconds: float) -> None:
        """Start with a lease that was renewed just now."""
        self.seconds = seconds
        self._num_uses = 0
        self._renewed_at = time.monotonic()

    @property
    def seconds_left(self) -> float:
        """Time until the lease runs out; all of it during a use."""
        return self.seconds if self._num_uses else max(self._renewed_at + self.seconds - time.monotonic(), 0.0)

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep the lease for the duration of the block, and renew it at its end."""
        self._num_uses += 1
        try:
            yield
        finally:
            self._num_uses -= 1
            self._renewed_at = time.monotonic()

    async def expired(self) -> None:
        """Wait until the lease has run out."""
        # An event for each use would cost more than to look again.
        while seconds := self.seconds_left:  # noqa: ASYNC110
            await asyncio.sleep(seconds)
