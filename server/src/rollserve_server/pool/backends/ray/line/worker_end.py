"""The worker's end of a line."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
from typing import TYPE_CHECKING, Any, Self

from rollserve_server.pool.backends.ray.line.frames import (
    HEAD,
    NUMBER,
    Kind,
    is_of_same_user,
    packed_head,
    unpacked_head,
)
from rollserve_server.pool.backends.ray.line.results import ResultMemory

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["WorkerLine"]

_SMALL_BYTES = 16 << 10
"""Size up to which head and content of a frame are joined, to send them at once."""


class WorkerLine:
    """Receives calls from the server one after the other, and sends their outcomes.

    Attributes:
        results: memory for large results.
    """

    def __init__(self, connection: socket.socket, *, keeps_memory: bool) -> None:
        """Take a connected socket; `keeps_memory` says whether memory for results is kept for later ones."""
        self._connection = connection
        self.results = ResultMemory(keeps=keeps_memory)

    @classmethod
    def connect(cls, name: str, *, keeps_memory: bool) -> Self:
        """Connect to the server.

        Args:
            name: name of the server's socket.
            keeps_memory: whether memory for results is kept for later ones.

        Raises:
            OSError: this process cannot reach it, because it runs on another machine or as another user.
        """
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(f"\0{name}")
            # Calls are unpickled, so they have to be the server's.
            if not is_of_same_user(connection):
                raise PermissionError("the server runs as another user")
        except BaseException:
            connection.close()
            raise
        return cls(connection, keeps_memory=keeps_memory)

    def next_call(self) -> Any:
        """Wait for a call, and return it; None once the server or `end` has ended the line."""
        while (head := self._receive(HEAD.size)) is not None:
            kind, num_bytes = unpacked_head(head)
            content = self._receive(num_bytes)
            if content is None:
                break
            match kind:
                case Kind.CALL:
                    return pickle.loads(content)  # noqa: S301  # from the server
                case Kind.RELEASE:
                    self.results.release(*NUMBER.unpack(content))
                case Kind.DROP:
                    self.results.drop(*NUMBER.unpack(content))
        return None

    def answer(self, outcome: Any, buffer: NDArray[np.uint8] | None = None) -> None:
        """Send the outcome of the oldest call that has none, with the buffer that was made for it.

        Raises:
            OSError: the line has ended.
        """
        lent = None if buffer is None else self.results.lend(buffer)
        if lent is None:
            self._send(Kind.ANSWER, pickle.dumps((outcome, buffer, None)))
            return
        place, descriptor = lent
        content = pickle.dumps((outcome, None, place))
        if descriptor is None:
            self._send(Kind.ANSWER, content)
            return
        try:
            socket.send_fds(self._connection, [packed_head(Kind.ANSWER_IN_NEW_REGION, len(content))], [descriptor])
            self._connection.sendall(content)
        finally:
            os.close(descriptor)

    def end(self) -> None:
        """End the line. May be called from any thread: `next_call` returns None."""
        with contextlib.suppress(OSError):  # it has ended
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Free the socket of the line, which has ended."""
        self._connection.close()

    def _receive(self, num_bytes: int) -> bytearray | None:
        """Return the next bytes; None at the end of the line."""
        content = bytearray(num_bytes)
        view = memoryview(content)
        with contextlib.suppress(ConnectionError):
            while len(view):
                num_received = self._connection.recv_into(view)
                if not num_received:
                    return None
                view = view[num_received:]
            return content
        return None

    def _send(self, kind: Kind, content: bytes) -> None:
        head = packed_head(kind, len(content))
        if len(content) < _SMALL_BYTES:
            self._connection.sendall(head + content)
        else:
            self._connection.sendall(head)
            self._connection.sendall(content)
