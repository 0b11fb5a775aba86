"""The server's end of lines."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import mmap
import os
import pickle
import secrets
import socket
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_server.errors import OverLimitError, describe
from rollserve_server.futures import ignore_result
from rollserve_server.pool.backends.ray.line.frames import (
    HEAD,
    NUMBER,
    Kind,
    Place,
    is_of_same_user,
    packed_head,
    unpacked_head,
)
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Answer", "Line", "LineEndedError", "Listener"]

_log = logging.getLogger(__name__)

_RECEIVED_BYTES = 64 << 10
_MAX_IDLE_BYTES = 96 << 20
"""Memory of a worker for results that it may keep for later ones: getting new memory takes as long as writing."""

Answer = tuple[Any, "NDArray[np.uint8] | None"]
"""The outcome of a call, and the result that belongs to it."""


class LineEndedError(Exception):
    """The line has ended.

    Attributes:
        cause: why this end of it ended, in words; empty if the worker did, which is gone, or belongs to another server.
    """

    def __init__(self, cause: str = "") -> None:
        super().__init__(cause)
        self.cause = cause


class Listener:
    """Waits for the worker that is to connect to one line.

    Attributes:
        name: name of the socket, which only its user's processes on this machine can connect to.
        line: the line to the worker, once it has connected.
    """

    def __init__(self) -> None:
        """Start to listen, under a name that no other process can foresee.

        Raises:
            OSError: the system has no such sockets.
        """
        self.name = f"rollserve-{secrets.token_hex(16)}"
        self.line: asyncio.Future[Line] = asyncio.get_running_loop().create_future()
        self._socket = socket.socket(socket.AF_UNIX)
        # Names that begin with a zero byte need no file, and are gone with the process; only Linux has them.
        self._socket.bind(f"\0{self.name}")
        self._socket.listen(1)
        self._socket.setblocking(False)
        self.line.get_loop().add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        # The loop's own `sock_accept` would lose a connection that arrives when its caller is cancelled.
        try:
            connection, _ = self._socket.accept()
            if is_of_same_user(connection) and not self.line.done():
                self.line.set_result(Line(connection))
            else:
                connection.close()
        except BlockingIOError:
            pass
        except OSError as error:  # too many open files: calls go through Ray
            if not self.line.done():
                self.line.set_exception(error)

    def close(self) -> None:
        """Stop to listen."""
        self.line.get_loop().remove_reader(self._socket)
        self._socket.close()


class Line:
    """Sends calls to a worker, which answers them in their order. A frame that cannot be taken ends the line.

    Attributes:
        is_open: whether the line has not ended.
        progress: rises with all that is sent or received.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(connection, self._guarded, self._receive)
        self._unsent: deque[memoryview] = deque()
        self._is_writing = False  # whether the loop waits for room to send more
        self._unanswered: deque[asyncio.Future[Answer]] = deque()
        self._received = bytearray()
        # File descriptors of regions that have arrived; None for one that this process had no room for.
        self._descriptors: deque[int | None] = deque()
        self._regions: dict[int, NDArray[np.uint8]] = {}
        self._idle_bytes = 0
        self._cause = ""
        self.is_open = True
        self.progress = 0

    @property
    def num_unanswered(self) -> int:
        """Number of calls that have no answer."""
        return len(self._unanswered)

    def ask(self, *call: Any) -> asyncio.Future[Answer]:
        """Send a call; return its answer.

        The answer is a `LineEndedError` if the line ends before, and an `OverLimitError` if there is no room for it.
        """
        content = pickle.dumps(call)  # before the call has a place in the order of answers
        future: asyncio.Future[Answer] = self._loop.create_future()
        future.add_done_callback(ignore_result)  # whoever asked may have ended
        if not self.is_open:
            future.set_exception(LineEndedError(self._cause))
            return future
        self._unanswered.append(future)
        self._guarded(self._send, Kind.CALL, content)
        return future

    def close(self, cause: str = "") -> None:
        """End the line, with the cause if its worker has to end, too. Results that somebody still reads stay valid."""
        if not self.is_open:
            return
        self.is_open, self._cause = False, cause
        self._loop.remove_reader(self._connection)
        self._loop.remove_writer(self._connection)
        self._connection.close()
        for descriptor in self._descriptors:
            if descriptor is not None:
                os.close(descriptor)
        self._regions.clear()
        for future in self._unanswered:
            if not future.done():
                future.set_exception(LineEndedError(cause))
        self._unanswered.clear()

    def _guarded(self, act: Callable[..., None], *arguments: Any) -> None:
        """Send or receive; end the line with the cause if that fails: calls behind it would wait for ever."""
        try:
            act(*arguments)
        except (BlockingIOError, InterruptedError):
            pass
        except ConnectionError:
            self.close()
        except Exception as error:
            _log.exception("line broken")
            self.close(describe(error))

    def _send(self, kind: Kind, content: bytes) -> None:
        self._unsent += (memoryview(packed_head(kind, len(content))), memoryview(content))
        if self._is_writing:
            return
        self._guarded(self._send_more)
        if self._unsent and self.is_open:
            self._is_writing = True
            self._loop.add_writer(self._connection, self._guarded, self._send_more)

    def _send_more(self) -> None:
        """Send what the socket has room for."""
        while self._unsent:
            num_sent = self._connection.sendmsg(self._unsent)
            self.progress += num_sent
            while self._unsent and num_sent >= len(self._unsent[0]):
                num_sent -= len(self._unsent.popleft())
            if num_sent:
                self._unsent[0] = self._unsent[0][num_sent:]
        if self._is_writing:
            self._is_writing = False
            self._loop.remove_writer(self._connection)

    def _receive(self) -> None:
        """Take what has arrived."""
        received, descriptors, flags, _ = socket.recv_fds(self._connection, _RECEIVED_BYTES, 4)
        self._descriptors += descriptors
        if flags & socket.MSG_CTRUNC:
            self._descriptors.append(None)
        if not received:
            self.close()
            return
        self.progress += len(received)
        self._received += received
        while self.is_open and len(self._received) >= HEAD.size:
            kind, num_bytes = unpacked_head(self._received)
            stop = HEAD.size + num_bytes
            if len(self._received) < stop:
                return
            with memoryview(self._received) as view, view[HEAD.size : stop] as content:
                answer = _unpickled(content)
            del self._received[:stop]
            self._take(kind, *answer)

    def _take(self, kind: Kind, outcome: Any, buffer: NDArray[np.uint8] | None, place: Place | None) -> None:
        failure = None
        if kind is Kind.ANSWER_IN_NEW_REGION:
            assert place is not None  # noqa: S101  # a region has one
            try:
                self._regions[place.number] = _mapped(self._descriptors.popleft())
            except OSError as error:  # a limit of this process, not the worker's fault
                failure = OverLimitError(
                    f"the server has no room for a result: {error.strerror}", reason=Reason.OBJECT_STORE_FULL
                )
                self._send(Kind.DROP, NUMBER.pack(place.number))
        elif place is not None:
            self._idle_bytes -= len(self._regions[place.number])
        if place is not None and failure is None:
            buffer = self._view(place)
        future = self._unanswered.popleft()
        if future.done():
            return
        if failure is None:
            future.set_result((outcome, buffer))
        else:
            future.set_exception(failure)

    def _view(self, place: Place) -> NDArray[np.uint8]:
        """Return a result, whose region the worker may use again once nobody refers to it any more."""
        # An array of its own, which is the base of all parts of it, and ends with the last of them.
        view = np.frombuffer(self._regions[place.number].data, np.uint8, place.num_bytes)
        weakref.finalize(view, self._release_soon, place).atexit = False
        return view

    def _release_soon(self, place: Place) -> None:
        """Release a region in the thread of the line; called in any."""
        with contextlib.suppress(RuntimeError):  # its loop has ended
            self._loop.call_soon_threadsafe(self._guarded, self._release, place)

    def _release(self, place: Place) -> None:
        """Let the worker use a region again, which nobody refers to any more."""
        if not self.is_open:
            return
        num_bytes = len(self._regions[place.number])
        if place.is_kept and self._idle_bytes + num_bytes <= _MAX_IDLE_BYTES:
            self._idle_bytes += num_bytes
            self._send(Kind.RELEASE, NUMBER.pack(place.number))
        else:
            del self._regions[place.number]
            self._send(Kind.DROP, NUMBER.pack(place.number))


def _unpickled(content: memoryview) -> Any:
    try:
        return pickle.loads(content)  # noqa: S301  # from the worker
    except BaseException as error:  # also what the code of classes raises, which is no error of the socket
        raise ValueError(f"an answer cannot be read: {describe(error)}") from error


def _mapped(descriptor: int | None) -> NDArray[np.uint8]:
    """Return the memory of a file descriptor, which is closed, as an array that cannot be written."""
    if descriptor is None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    try:
        num_bytes = os.fstat(descriptor).st_size
        return np.frombuffer(mmap.mmap(descriptor, num_bytes, prot=mmap.PROT_READ), np.uint8)
    finally:
        os.close(descriptor)
