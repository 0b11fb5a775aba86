"""Losses: errors of Ray, translated, and a watch that finds out that the cluster itself is lost."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import ray.exceptions

from rollserve_server.errors import DomainError, OverLimitError, WorkerLostError, describe
from rollserve_server.machine import is_own_limit
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["ClusterWatch", "KernelKills", "domain_error", "putting"]

_STORE_FULL = (ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError)
_MACHINE_LOST = re.compile(r"node (?:has )?(?:died|was terminated|is dead)|node.{0,80}marked dead", re.IGNORECASE)
_USED = re.compile(r"was (\S+ used) / (\S+ limit)")
_RECENT_SECONDS = 10.0
"""Time after the kernel ended a process in which a lost worker is assumed to be that process."""
_PERIOD_SECONDS = 0.5
_CONNECT_SECONDS = 2.0
_HEAD_SECONDS = float(os.environ.get("RAY_gcs_rpc_server_reconnect_timeout_s", 10.0)) / 2  # noqa: SIM112  # Ray names it
"""Limit of the head's absence: half of the time after which Ray ends the nodes of a cluster without a head. A head that
keeps its state in Redis comes back, and Ray goes on with it."""
_RAYLET_SECONDS = 1.0
"""Limit of the absence of this machine's raylet: a lost raylet does not come back."""


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


class ClusterWatch:
    """A thread that watches the cluster's head and its raylet on this machine.

    When the cluster is lost, Ray waits for it for a minute, within calls that block their callers, and then ends the
    process. The watch finds the loss within seconds. While this process has no file or memory to look with, it finds
    nothing.

    Attributes:
        has_reported: whether the cluster is lost.
    """

    def __init__(self, head: str, raylet_socket: str, on_lost: Callable[[str], None]) -> None:
        """Start to watch.

        Args:
            head: address of the head, as `host:port`.
            raylet_socket: path of the Unix socket of this machine's raylet.
            on_lost: called once, from the thread, with a text that says what is lost.
        """
        self._head = head
        self._raylet_socket = raylet_socket
        self._on_lost = on_lost
        self._closed = threading.Event()
        self.has_reported = False
        threading.Thread(target=self._watch, name="cluster-watch", daemon=True).start()

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()

    def _watch(self) -> None:
        raylet = None
        head_seen = raylet_seen = time.monotonic()
        while not self._closed.wait(_PERIOD_SECONDS):
            if self._accepts_connections():
                head_seen = time.monotonic()
            # One lasting connection: raylets log connections that come and go.
            is_there = raylet is not None and not _is_closed(raylet)
            if not is_there:
                raylet, is_there = self._connect_to_raylet()
            if is_there:
                raylet_seen = time.monotonic()
            missing, now = "", time.monotonic()
            if now - raylet_seen > _RAYLET_SECONDS:
                missing = "its raylet on this machine"
            elif now - head_seen > _HEAD_SECONDS:
                missing = f"its head at {self._head}"
            if missing and not self._closed.is_set():
                self.has_reported = True
                self._on_lost(f"the Ray cluster is lost: {missing} accepts no connections any more")
                return

    def _accepts_connections(self) -> bool:
        """Return whether the head accepts a new connection, which tests the network, too."""
        host, _, port = self._head.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
        except OSError as error:
            return is_own_limit(error)
        return True

    def _connect_to_raylet(self) -> tuple[socket.socket | None, bool]:
        """Return a connection to the raylet if there is one now, and whether the raylet may be there."""
        try:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:
            return None, is_own_limit(error)
        try:
            connection.connect(self._raylet_socket)
        except OSError as error:
            connection.close()
            return None, is_own_limit(error)
        connection.setblocking(False)
        return connection, True


def _is_closed(connection: socket.socket) -> bool:
    """Return whether the other side, which sends nothing, has closed a connection; close it then."""
    try:
        if connection.recv(1):
            return False
    except BlockingIOError:
        return False
    except OSError as error:
        if is_own_limit(error):
            return False
    connection.close()
    return True
