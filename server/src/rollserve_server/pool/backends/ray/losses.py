"""Errors of Ray, translated: why a worker is lost, or that the object store is full."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path

import ray.exceptions

from rollserve_server.errors import DomainError, OverLimitError, WorkerLostError, describe
from rollserve_wire.reasons import Reason

__all__ = ["KernelKills", "domain_error", "putting"]

_STORE_FULL = (ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError)
_MACHINE_LOST = re.compile(r"node (?:has )?(?:died|was terminated|is dead)|node.{0,80}marked dead", re.IGNORECASE)
_USED = re.compile(r"was (\S+ used) / (\S+ limit)")
_RECENT_SECONDS = 10.0
"""Time after the kernel ended a process in which a lost worker is assumed to be that process."""


class KernelKills:
    """The kernel's count of processes that it ended because memory was short. Ray does not report these."""

    def __init__(self, path: Path = Path("/proc/vmstat")) -> None:
        """Start to count.

        Args:
            path: the kernel's statistics of virtual memory.
        """
        self._path = path
        self._num_kills = self._count()
        self._seen: float | None = None

    def is_recent(self) -> bool:
        """Return whether the kernel ended a process since the last call of this method, or within the last 10 s."""
        num_kills, now = self._count(), time.monotonic()
        if num_kills > self._num_kills:
            self._num_kills, self._seen = num_kills, now
        return self._seen is not None and now - self._seen < _RECENT_SECONDS

    def _count(self) -> int:
        try:
            text = self._path.read_text()
        except OSError:  # only Linux has the file
            return 0
        return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill ")), 0)


@contextlib.contextmanager
def putting() -> Iterator[None]:
    """Translate errors of a full object store that are raised in the block.

    Raises:
        OverLimitError: the object store is full.
    """
    try:
        yield
    except _STORE_FULL as error:
        raise _store_full() from error


def domain_error(error: ray.exceptions.RayError, worker_index: int, kills: KernelKills) -> DomainError:
    """Return the error for a call of a worker that failed with an error of Ray.

    Args:
        error: Ray's error.
        worker_index: index of the worker.
        kills: the kernel's count on this machine.
    """
    cause = getattr(error, "cause", error)
    if isinstance(cause, _STORE_FULL) or isinstance(error, _STORE_FULL):
        return _store_full()
    return WorkerLostError(f"worker {worker_index} is lost: {_why(error, kills)}", worker_index)


def _store_full() -> OverLimitError:
    text = (
        "Ray's object store is full, and so is the disk that it spills to: the server needs a larger "
        "--object-store-bytes, a smaller --call-window-bytes or --max-calls, or room on the disk of Ray's folder"
    )
    return OverLimitError(text, reason=Reason.OBJECT_STORE_FULL)


def _why(error: ray.exceptions.RayError, kills: KernelKills) -> str:
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        found = _USED.search(str(error))
        used = f" ({found[1]}, {found[2]})" if found else ""
        return f"Ray ended it because its machine was short of memory{used}"
    if isinstance(error, ray.exceptions.NodeDiedError) or _MACHINE_LOST.search(str(error)):
        return "its machine is out of Ray's reach"
    if isinstance(error, ray.exceptions.ActorUnavailableError):
        return "its process is out of reach"
    if isinstance(error, ray.exceptions.ActorDiedError):
        if kills.is_recent():
            return "its process ended, and the kernel has ended a process of this machine because memory was short"
        return "its process ended"
    if isinstance(error, ray.exceptions.RayTaskError):
        return f"it failed: {describe(error.cause)}"
    return type(error).__name__
