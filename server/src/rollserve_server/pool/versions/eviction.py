"""Eviction: workers forget versions that no call needs any more."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from rollserve_server.futures import in_background
from rollserve_server.sampling import Worker

if TYPE_CHECKING:
    from rollserve_server.pool.backends.backend import WorkerHandle
    from rollserve_server.pool.versions.versions import KeptVersions, Versions

__all__ = ["Eviction"]


class Eviction:
    """Tells workers, in the background, which versions to keep."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions
        # The versions that each worker keeps, unless it has got a new one since.
        self._known: WeakKeyDictionary[WorkerHandle, KeptVersions] = WeakKeyDictionary()

    def reset(self) -> None:
        """Forget what workers know: they are about to get new versions."""
        self._known.clear()

    def run(self) -> None:
        """Have all workers forget the versions that no call needs any more."""
        kept = self._versions.kept()
        for slot in self._versions.workers.with_leaving:
            # Nearly always nothing has changed since the previous call, and a needless order would delay a short one.
            if slot.healthy and self._known.get(slot.handle) != kept:
                self._known[slot.handle] = kept
                in_background(slot.handle.call(Worker.retain, *kept))  # a lost worker is noticed when it is needed
