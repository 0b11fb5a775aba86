"""A watch over the Ray cluster.

When the cluster is lost, Ray waits for it for a minute, within calls that block their callers, and then ends the
process. The watch finds the loss within seconds. While this process has no file or memory to look with, it finds
nothing.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

from rollserve_server.machine import is_own_limit

__all__ = ["ClusterWatch"]

_PERIOD_SECONDS = 0.5
_CONNECT_SECONDS = 2.0
_HEAD_SECONDS = 5.0
"""Limit of the head's absence: a head that keeps its state elsewhere comes back, and Ray goes on with it."""
_RAYLET_SECONDS = 1.0
"""Limit of the absence of this machine's raylet: a lost raylet does not come back."""


class ClusterWatch:
    """A thread that watches the cluster's head and its raylet on this machine.

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
