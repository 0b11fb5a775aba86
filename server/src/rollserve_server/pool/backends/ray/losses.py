"""What errors of Ray tell of: why a worker is lost, or what is full. Knows Ray, as `ray_backend` does."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path

import ray.exceptions

from rollserve import Reason
from rollserve_server.errors import DomainError, OverLimitError, WorkerLostError

__all__ = ["KernelKills", "domain_error", "putting"]

_STORE_FULL = (ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError)
_MACHINE_LOST = re.compile(r"node (?:has )?(?:died|was terminated|is dead)|node.{0,80}marked dead", re.IGNORECASE)
_USED = re.compile(r"was (\S+ used) / (\S+ limit)")
_RECENT_SECONDS = 10.0
"""A worker that is lost so soon after the kernel was seen to end a process is taken to be that process."""


class KernelKills:
    """How many processes of this machine the kernel has ended because memory was short: nobody else tells of it."""

    def __init__(self, path: Path = Path("/proc/vmstat")) -> None:
        """Begins to count."""
        self._path = path
        self._num_kills = self._count()
        self._seen: float | None = None

    def is_recent(self) -> bool:
        """Whether there was one since this was last asked, or a moment before that."""
        num_kills, now = self._count(), time.monotonic()
        if num_kills > self._num_kills:
            self._num_kills, self._seen = num_kills, now
        return self._seen is not None and now - self._seen < _RECENT_SECONDS

    def _count(self) -> int:
        try:
            text = self._path.read_text()
        except OSError:  # not on every system
            return 0
        return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill ")), 0)


@contextlib.contextmanager
def putting() -> Iterator[None]:
    """Wherever something may be put into the object store.

    Raises:
        OverLimitError: it is full.
    """
    try:
        yield
    except _STORE_FULL as error:
        raise _store_full() from error


def domain_error(error: ray.exceptions.RayError, worker_index: int, kills: KernelKills) -> DomainError:
    """The error that says what an error of Ray says about what a worker was asked."""
    cause = getattr(error, "cause", error)
    if isinstance(cause, _STORE_FULL) or isinstance(error, _STORE_FULL):
        return _store_full()
    return WorkerLostError(f"worker {worker_index} is lost: {_why(error, kills)}", worker_index)


def _store_full() -> OverLimitError:
    return OverLimitError(
        "Ray's object store is full, and so is the disk that it puts the rest on: the server needs a larger "
        "--object-store-bytes, a smaller --call-window-bytes or --max-calls, or room on the disk of Ray's folder",
        reason=Reason.OBJECT_STORE_FULL,
    )


def _why(error: ray.exceptions.RayError, kills: KernelKills) -> str:
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        found = _USED.search(str(error))
        used = f", of which it saw {found[1]} of its {found[2]}" if found else ""
        return f"Ray ended it because its machine was short of memory{used}"
    if isinstance(error, ray.exceptions.NodeDiedError) or _MACHINE_LOST.search(str(error)):
        return "its machine is out of Ray's reach"
    if isinstance(error, ray.exceptions.ActorUnavailableError):
        return "its process is out of reach"
    if isinstance(error, ray.exceptions.ActorDiedError):
        if kills.is_recent():
            return "its process ended, and the kernel has ended a process of this machine because memory was short"
        return "its process ended"
    return type(error).__name__
