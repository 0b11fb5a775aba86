"""Connections, seen from outside: their number, and the bytes that they have received.

gRPC bounds no peer, and reports no message before it has arrived whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from rollserve_server.gateway.peers import Address, address_of, charged_host, plain_host

__all__ = ["ConnectionLimit", "Traffic"]


_LOOK_SECONDS = 1.0
_OPEN_FILES = Path("/dev/fd")
"""The files that this process has open, by their numbers. A system without it has no bound by peer."""
_HAS_OPEN_FILES = _OPEN_FILES.exists()

_SEARCH_SECONDS = 0.1
"""Least time between two searches for connections among the open files: 4 ms with a thousand of them."""
_TCP_INFO = struct.Struct("=128xQ")
"""Linux' `struct tcp_info`, up to `tcpi_bytes_received`."""
_COUNTS_BYTES = sys.platform == "linux" and _HAS_OPEN_FILES

_log = logging.getLogger(__name__)


class Traffic:
    """Numbers of bytes that the connections of this process have received."""

    def __init__(self) -> None:
        """Start without connections."""
        self._numbers: dict[Address, int] = {}
        self._searched = -_SEARCH_SECONDS

    def num_received(self, peer: str) -> int | None:
        """Return how many bytes a connection has received, given its name from gRPC; None where nobody counts them.

        A connection that is closed, or too new to be known, has received 0.
        """
        if not _COUNTS_BYTES:
            return None
        address = address_of(peer)
        found = self._received_by(address)
        if found is None and time.monotonic() - self._searched >= _SEARCH_SECONDS:
            with contextlib.suppress(OSError):  # the process has as many files open as it may
                numbers = map(int, os.listdir(_OPEN_FILES))
                self._numbers = {seen[0]: number for number in numbers if (seen := _traffic(number)) is not None}
            self._searched = time.monotonic()
            found = self._received_by(address)
        return found or 0

    def _received_by(self, address: Address) -> int | None:
        number = self._numbers.get(address)
        seen = None if number is None else _traffic(number)
        return None if seen is None or seen[0] != address else seen[1]  # the file may be another one by now


class ConnectionLimit:
    """Closes the newest connections of peers that have more than they may.

    Attributes:
        max_peer_connections: number of connections that a peer may keep.
    """

    def __init__(self, port: int, max_peer_connections: int) -> None:
        """Start without connections.

        Args:
            port: port that clients connect to.
            max_peer_connections: number of connections that a peer may keep.
        """
        self._port = port
        self.max_peer_connections = max_peer_connections
        self._kept: set[Address] = set()

    async def keep(self) -> None:
        """Look at all connections every second, for ever."""
        if not _HAS_OPEN_FILES:
            return
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            with contextlib.suppress(OSError):  # the process has as many files open as it may
                for peer, num_closed in (await asyncio.to_thread(self.close_surplus)).items():
                    _log.warning("connections closed", extra={"peer": peer, "connections": num_closed})

    def close_surplus(self) -> Counter[str]:
        """Close the connections that are too many; return their numbers by peer."""
        by_peer: defaultdict[str, dict[Address, int]] = defaultdict(dict)
        for number in map(int, os.listdir(_OPEN_FILES)):
            with _connection(number, self._port) as found:
                if found is not None:
                    _, address = found
                    by_peer[charged_host(address[0])][address] = number
        kept: set[Address] = set()
        num_closed: Counter[str] = Counter()
        for peer, numbers in by_peer.items():
            oldest_first = sorted(numbers, key=lambda address: address not in self._kept)
            kept.update(oldest_first[: self.max_peer_connections])
            for address in oldest_first[self.max_peer_connections :]:
                num_closed[peer] += self._close(numbers[address], address)
        self._kept = kept
        return num_closed

    def _close(self, number: int, address: Address) -> bool:
        """Close a connection, unless its number has become another file's meanwhile; return whether it was there."""
        with _connection(number, self._port) as found:
            if found is None or found[1] != address:
                return False
            with contextlib.suppress(OSError):  # the client may have closed it
                found[0].shutdown(socket.SHUT_RDWR)  # gRPC reads its end
            return True


@contextlib.contextmanager
def _connection(number: int, port: int) -> Iterator[tuple[socket.socket, Address] | None]:
    """Yield an open file as a connection to a port, with the client's address; None if it is something else."""
    with contextlib.ExitStack() as stack:
        found = None
        with contextlib.suppress(OSError):  # the file is closed by now, no socket, or not connected
            descriptor = os.dup(number)  # a number of its own, so that gRPC may close its own meanwhile
            stack.callback(os.close, descriptor)
            connection = socket.socket(fileno=descriptor)
            stack.callback(connection.detach)
            if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.getsockname()[1] == port:
                found = connection, connection.getpeername()[:2]
        yield found


def _traffic(number: int) -> tuple[Address, int] | None:
    """Return the client of a connection, and how many bytes have arrived, given its number as a file; else None."""
    connection = None
    try:
        connection = socket.socket(fileno=number)
        if connection.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        host, port = connection.getpeername()[:2]
        return (plain_host(host), port), int(_TCP_INFO.unpack(info)[0])
    except (OSError, struct.error):  # the file is closed by now, no socket, or not connected
        return None
    finally:
        if connection is not None:
            connection.detach()
