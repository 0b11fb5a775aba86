"""A TCP proxy that drops data without closing connections, as a pulled cable does."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


class SilencingProxy:
    """A proxy that forwards data until it is silenced, and then drops the data of all open connections, both ways.

    Attributes:
        address: address to connect to.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = [self._listener]
        self._silenced: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def silence(self) -> None:
        """Drop all further data of the open connections; new connections work."""
        self._silenced = list(self._sockets)

    def close(self) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener is closed
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if sink not in self._silenced:
                    sink.sendall(data)
            if sink not in self._silenced:
                sink.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def silencing_proxy(target: str) -> Iterator[SilencingProxy]:
    proxy = SilencingProxy(target)
    try:
        yield proxy
    finally:
        proxy.close()
