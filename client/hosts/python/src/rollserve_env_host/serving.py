"""Connections to workers, over sockets: each has rows of its own."""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
from typing import Any, Callable, Mapping, Optional

from rollserve_env_host.environments import Environment, versions
from rollserve_env_host.messages import rows_pb2
from rollserve_env_host.rows import Rows

__all__ = ["DESCRIPTOR", "listen", "serve"]

DESCRIPTOR = "ROLLSERVE_ROWS_FD"
"""The variable that names the descriptor of the socket that a worker hands to a host."""

_LENGTH = struct.Struct("<I")
_MAX_BYTES = 1 << 30

Make = Callable[[Mapping[str, Any]], Environment]


def serve(make: Make, name: str, connection: Optional[socket.socket] = None) -> None:
    """Serve one worker, until it closes the connection.

    Args:
        make: makes an environment with arguments.
        name: name of the environment, for people.
        connection: the connection; by default, the socket that the worker has handed to this process.

    Raises:
        KeyError: no worker has started this process, and no connection is given.
    """
    if connection is None:
        connection = socket.socket(fileno=int(os.environ[DESCRIPTOR]))
    rows = Rows(make)
    try:
        hello = rows_pb2.Hello(protocol_version=1, name=name, versions=versions())
        _send(connection, hello.SerializeToString())
        while True:
            data = _receive(connection)
            if data is None:
                return
            _send(connection, rows.answer(rows_pb2.Request.FromString(data)).SerializeToString())
    except ConnectionError:  # the worker is gone
        pass
    finally:
        rows.close()
        connection.close()


def listen(make: Make, name: str, address: str) -> None:
    """Serve all workers that connect to HOST:PORT, each in a process of its own where the system can fork.

    Prints the address, with the port that was found for port 0.
    """
    host, _, port = address.rpartition(":")
    with socket.create_server((host, int(port)), backlog=64) as server:
        print("listening on {}:{}".format(host, server.getsockname()[1]), flush=True)
        while True:
            connection, _ = server.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not hasattr(os, "fork"):
                threading.Thread(target=serve, args=(make, name, connection), daemon=True).start()
                continue
            pid = os.fork()
            if pid == 0:
                if os.fork():  # whose end nobody waits for
                    os._exit(0)
                server.close()
                try:
                    serve(make, name, connection)
                finally:
                    sys.stderr.flush()
                    os._exit(0)
            os.waitpid(pid, 0)
            connection.close()


def _send(connection: socket.socket, data: bytes) -> None:
    connection.sendall(_LENGTH.pack(len(data)) + data)


def _receive(connection: socket.socket) -> Optional[bytes]:
    """Return a message; None if the worker has closed the connection."""
    head = _exactly(connection, _LENGTH.size)
    if head is None:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > _MAX_BYTES:
        raise ConnectionError("message: expected at most {} bytes, got {}".format(_MAX_BYTES, length))
    return _exactly(connection, length)


def _exactly(connection: socket.socket, size: int) -> Optional[bytes]:
    data, filled = bytearray(size), 0
    view = memoryview(data)
    while filled < size:
        count = connection.recv_into(view[filled:])
        if not count:
            return None
        filled += count
    return bytes(data)
