"""A proxy whose connections to a server break or stall."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Iterator


class CuttingProxy:
    """A proxy that cuts each of its first connections after a random number of bytes from the server.

    Attributes:
        address: address to connect to, `host:port`.
        num_cuts: number of connections cut after their number of bytes.
        flows: cleared to hold back what the server sends.
    """

    def __init__(self, target: str, num_cuts: int, max_bytes: int, seed: int) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._random = random.Random(seed)
        self._cuts_left = num_cuts
        self._max_bytes = max_bytes
        self.num_cuts = 0
        self.flows = threading.Event()
        self.flows.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for each in self._sockets:
            _shut(each)

    def cut(self) -> None:
        """Cut all open connections."""
        for each in self._sockets[1:]:
            _shut(each)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            self._sockets += [client, server]
            always = threading.Event()
            always.set()
            limit = None
            if self._cuts_left:
                self._cuts_left -= 1
                limit = self._random.randrange(1, self._max_bytes)
            for direction in ((client, server, always, None), (server, client, self.flows, limit)):
                threading.Thread(target=self._forward, args=direction, daemon=True).start()

    def _forward(
        self, source: socket.socket, sink: socket.socket, flows: threading.Event, cut_after: int | None
    ) -> None:
        num_bytes = 0
        with contextlib.suppress(OSError):
            while flows.wait() and (data := source.recv(1 << 16)):
                num_bytes += len(data)
                if cut_after is not None and num_bytes >= cut_after:
                    sink.sendall(data[: len(data) - (num_bytes - cut_after)])
                    self.num_cuts += 1
                    break
                sink.sendall(data)
        _shut(source)
        _shut(sink)


@contextlib.contextmanager
def cutting_proxy(target: str, *, num_cuts: int, max_bytes: int, seed: int) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(target, num_cuts, max_bytes, seed)
    try:
        yield proxy
    finally:
        proxy.close()


def _shut(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        each.close()
