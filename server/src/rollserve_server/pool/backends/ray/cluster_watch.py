"""Whether the cluster of Ray is still there.

When it is not, Ray waits for it for a minute, within calls that block whoever has made them, and then ends the process.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

__all__ = ["ClusterWatch"]

_PERIOD_SECONDS = 0.5
_CONNECT_SECONDS = 2.0
_HEAD_SECONDS = 5.0
"""How long the head may be away: one that keeps its state elsewhere comes back, and Ray goes on with it."""
_RAYLET_SECONDS = 1.0
"""The same of what runs on this machine, which does not come back."""


class ClusterWatch:
    """Looks after the cluster's head, and the part of it on this machine, from a thread of its own."""

    def __init__(self, head: str, raylet_socket: str, on_lost: Callable[[str], None]) -> None:
        """Begins to look.

        Args:
            head: where the head listens, as `host:port`.
            raylet_socket: the Unix socket of this machine's raylet.
            on_lost: called once, from the thread, with what is lost.
        """
        self._head = head
        self._raylet_socket = raylet_socket
        self._on_lost = on_lost
        self._closed = threading.Event()
        threading.Thread(target=self._look, name="cluster-watch", daemon=True).start()

    def close(self) -> None:
        """Ends looking."""
        self._closed.set()

    def _look(self) -> None:
        raylet = None
        head_seen = raylet_seen = time.monotonic()
        while not self._closed.wait(_PERIOD_SECONDS):
            if self._is_head_there():
                head_seen = time.monotonic()
            # Raylets write into their logs when connections come and go: this one stays.
            if raylet is None or _is_closed(raylet):
                raylet = self._connected_to_raylet()
            if raylet is not None:
                raylet_seen = time.monotonic()
            missing, now = "", time.monotonic()
            if now - raylet_seen > _RAYLET_SECONDS:
                missing = "its raylet on this machine"
            elif now - head_seen > _HEAD_SECONDS:
                missing = f"its head at {self._head}"
            if missing and not self._closed.is_set():
                self._on_lost(f"the cluster of Ray is lost: {missing} takes no connections any more")
                return

    def _is_head_there(self) -> bool:
        """Whether it takes a connection: a new one each time tells of the network, too."""
        host, _, port = self._head.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
        except OSError:
            return False
        return True

    def _connected_to_raylet(self) -> socket.socket | None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(self._raylet_socket)
        except OSError:
            connection.close()
            return None
        connection.setblocking(False)
        return connection


def _is_closed(connection: socket.socket) -> bool:
    """Whether the other side has closed a connection that nothing comes from; closes it then."""
    try:
        if connection.recv(1):
            return False
    except BlockingIOError:
        return False
    except OSError:
        pass
    connection.close()
    return True
