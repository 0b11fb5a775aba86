"""The worker's end of the step protocol, for tests of hosts."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from rollserve_wire.rows.v1.rows_pb2 import Hello, Request, Response
from rollserve_wire.tensors import named_tensors_from_proto, named_tensors_to_proto

__all__ = ["Driver", "Rows", "started"]

Rows = dict[str, np.ndarray]


class Driver:
    """Sends requests over a connected socket, and awaits their answers."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._number = 0
        self._hello = Hello.FromString(self.read())

    @property
    def hello(self) -> Hello:
        """What the host has said first."""
        return self._hello

    def ask(self, **content: Any) -> Response:
        """Send the next request, and return its answer."""
        response = self.send(Request(number=self._number + 1, **content).SerializeToString())
        assert response.number == self._number + 1
        self._number += 1
        return response

    def reset(self, rows: Sequence[int], seeds: Sequence[int]) -> Rows:
        """Reset rows that do not fail, and return their observations."""
        results = self.ask(reset={"rows": rows, "seeds": seeds}).results
        assert not results.failures
        assert not results.rewards
        return named_tensors_from_proto(results.observations)

    def step(self, actions: Rows, rows: Sequence[int] = ()) -> Response:
        """Step rows, or all."""
        return self.ask(step={"rows": rows, "actions": named_tensors_to_proto(actions)})

    def send(self, message: bytes) -> Response:
        """Send a message, whatever it is, and return its answer."""
        self._connection.sendall(struct.pack("<I", len(message)) + message)
        return Response.FromString(self.read())

    def read(self) -> bytes:
        """Return the next message."""
        (size,) = struct.unpack("<I", self._receive(4))
        return self._receive(size)

    def _receive(self, size: int) -> bytes:
        received = b""
        while len(received) < size:
            part = self._connection.recv(size - len(received))
            if not part:
                raise EOFError
            received += part
        return received


@contextmanager
def started(command: Sequence[str]) -> Iterator[Driver]:
    """Run a host on one end of a pair of sockets; it has to end well once the other end is closed."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            environment = {**os.environ, "ROLLSERVE_ROWS_FD": str(theirs.fileno())}
            process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)
        try:
            yield Driver(ours)
            ours.close()
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.wait()
