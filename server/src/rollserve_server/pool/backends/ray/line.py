"""Lines: sockets between the server and workers on its machine, for calls that would take Ray milliseconds."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import errno
import logging
import mmap
import os
import pickle
import secrets
import socket
import struct
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from rollserve_server.errors import OverLimitError, describe
from rollserve_server.futures import ignore_result
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = [
    "HEAD",
    "Answer",
    "Line",
    "LineEndedError",
    "Listener",
    "MessageKind",
    "Place",
    "WorkerLine",
    "packed_head",
]

_log = logging.getLogger(__name__)
HEAD = struct.Struct("<B7sQ")
"""Head of a frame: its kind, the form of frames, and the number of bytes that follow."""
_NUMBER = struct.Struct("<Q")
"""Content of a frame that names a region."""
_INLINE_BYTES = 64 << 10
"""Size up to which a result travels on the line itself: copying it costs less than mapping memory."""
_FORM = b"line-1\n"
_MAX_BYTES = 8 << 30
"""Bound of a frame's content, beyond which its head is not one."""
_CREDENTIALS = struct.Struct("3i")  # process, user, group
_RECEIVED_BYTES = 64 << 10
_MAX_IDLE_BYTES = 96 << 20
"""Memory of a worker for results that it may keep for later ones: getting new memory takes as long as writing."""
_SMALL_BYTES = 16 << 10
"""Size up to which head and content of a frame are joined, to send them at once."""
_REGION_NAME = "rollserve-results"
"""Name of memory for results, as the operating system shows it."""
_MIN_REGION_BYTES = 1 << 20


class MessageKind(enum.IntEnum):
    """Kind of a frame: what it holds, and which way it goes."""

    CALL = 1
    """A pickled call, for the worker."""
    RELEASE = 2
    """Number of a region that the server has read: the worker may write to it again."""
    DROP = 3
    """Number of a region that the server has read: the worker may free it."""
    ANSWER = 4
    """A pickled outcome and a pickled `Place`, for the server; None for the place if the outcome holds the result."""
    ANSWER_IN_NEW_REGION = 5
    """An answer in a new region, whose file descriptor travels with the frame."""


class Place(NamedTuple):
    """Place of a result in shared memory.

    Attributes:
        number: number of the region; regions have other numbers than all before them.
        num_bytes: size of the result, which begins where the region does.
        is_kept: whether the region may be kept for later results.
    """

    number: int
    num_bytes: int
    is_kept: bool


def packed_head(kind: MessageKind, num_bytes: int) -> bytes:
    """Return the head of a frame."""
    return HEAD.pack(kind, _FORM, num_bytes)


def _unpacked_head(data: bytes | bytearray) -> tuple[MessageKind, int]:
    """Return the kind of the frame that begins here, and the size of its content.

    Raises:
        ValueError: no frame of this form begins here.
    """
    kind, form, num_bytes = HEAD.unpack_from(data)
    if form != _FORM or num_bytes > _MAX_BYTES:
        raise ValueError(f"line: expected a frame of the form {_FORM!r}, got {form!r} with {num_bytes} bytes")
    return MessageKind(kind), num_bytes


def _is_of_same_user(connection: socket.socket) -> bool:
    """Return whether the process at the other end of a Unix socket runs as the user of this process."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(credentials)
    return bool(user == os.geteuid())


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
            if _is_of_same_user(connection) and not self.line.done():
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
        self._guarded(self._send, MessageKind.CALL, content)
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

    def _send(self, kind: MessageKind, content: bytes) -> None:
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
            kind, num_bytes = _unpacked_head(self._received)
            stop = HEAD.size + num_bytes
            if len(self._received) < stop:
                return
            with memoryview(self._received) as view, view[HEAD.size : stop] as content:
                answer = _unpickled(content)
            del self._received[:stop]
            self._take(kind, *answer)

    def _take(self, kind: MessageKind, outcome: Any, buffer: NDArray[np.uint8] | None, place: Place | None) -> None:
        failure = None
        if kind is MessageKind.ANSWER_IN_NEW_REGION:
            assert place is not None  # noqa: S101  # a region has one
            try:
                self._regions[place.number] = _mapped(self._descriptors.popleft())
            except OSError as error:  # a limit of this process, not the worker's fault
                failure = OverLimitError(
                    f"the server has no room for a result: {error.strerror}", reason=Reason.OBJECT_STORE_FULL
                )
                self._send(MessageKind.DROP, _NUMBER.pack(place.number))
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
            self._send(MessageKind.RELEASE, _NUMBER.pack(place.number))
        else:
            del self._regions[place.number]
            self._send(MessageKind.DROP, _NUMBER.pack(place.number))


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
            if not _is_of_same_user(connection):
                raise PermissionError("the server runs as another user")
        except BaseException:
            connection.close()
            raise
        return cls(connection, keeps_memory=keeps_memory)

    def next_call(self) -> Any:
        """Wait for a call, and return it; None once the server or `end` has ended the line."""
        while (head := self._receive(HEAD.size)) is not None:
            kind, num_bytes = _unpacked_head(head)
            content = self._receive(num_bytes)
            if content is None:
                break
            match kind:
                case MessageKind.CALL:
                    return pickle.loads(content)  # noqa: S301  # from the server
                case MessageKind.RELEASE:
                    self.results.release(*_NUMBER.unpack(content))
                case MessageKind.DROP:
                    self.results.drop(*_NUMBER.unpack(content))
        return None

    def answer(self, outcome: Any, buffer: NDArray[np.uint8] | None = None) -> None:
        """Send the outcome of the oldest call that has none, with the buffer that was made for it.

        Raises:
            OSError: the line has ended.
        """
        lent = None if buffer is None else self.results.lend(buffer)
        if lent is None:
            self._send(MessageKind.ANSWER, pickle.dumps((outcome, buffer, None)))
            return
        place, descriptor = lent
        content = pickle.dumps((outcome, None, place))
        if descriptor is None:
            self._send(MessageKind.ANSWER, content)
            return
        try:
            socket.send_fds(
                self._connection, [packed_head(MessageKind.ANSWER_IN_NEW_REGION, len(content))], [descriptor]
            )
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

    def _send(self, kind: MessageKind, content: bytes) -> None:
        head = packed_head(kind, len(content))
        if len(content) < _SMALL_BYTES:
            self._connection.sendall(head + content)
        else:
            self._connection.sendall(head)
            self._connection.sendall(content)


class ResultMemory:
    """Regions of memory that a worker writes results into, one in each, and again once the server has read them.

    They have no path, and exist until the last process closes them.
    """

    def __init__(self, *, keeps: bool) -> None:
        """Start without regions; `keeps` says whether regions are kept for later results."""
        self._keeps = keeps
        self._num_regions = 0
        self._idle: list[_Region] = []
        self._lent: dict[int, _Region] = {}
        # The last buffer, and its region, which nobody has sent yet.
        self._written: tuple[NDArray[np.uint8], _Region] | None = None

    def new_buffer(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return an array of `num_bytes` bytes to write a result into, in a region if the result is large."""
        if num_bytes <= _INLINE_BYTES:
            return np.empty(num_bytes, np.uint8)
        if self._written is not None:  # an error came between
            self._idle.append(self._written[1])
        region = self._take(num_bytes)
        self._written = region.memory[:num_bytes], region
        return self._written[0]

    def lend(self, buffer: NDArray[np.uint8]) -> tuple[Place, int | None] | None:
        """Lend the region of a buffer to the server.

        Returns:
            The place, and the region's file descriptor if the server does not know it yet, which the caller closes;
            None for a small buffer.
        """
        if self._written is None or self._written[0] is not buffer:
            return None
        (_, region), self._written = self._written, None
        self._lent[region.number] = region._replace(descriptor=None)
        return Place(region.number, len(buffer), self._keeps), region.descriptor

    def release(self, number: int) -> None:
        """Record that the server has read a region."""
        self._idle.append(self._lent.pop(number))

    def drop(self, number: int) -> None:
        """Free a region that the server has read."""
        del self._lent[number]

    def _take(self, num_bytes: int) -> _Region:
        """Return the smallest idle region of this size, or a new one."""
        fitting = [region for region in self._idle if len(region.memory) >= num_bytes]
        if fitting:
            region = min(fitting, key=lambda region: len(region.memory))
            self._idle.remove(region)
            return region
        num_region_bytes = _region_bytes(num_bytes)
        descriptor = os.memfd_create(_REGION_NAME, os.MFD_CLOEXEC)
        os.ftruncate(descriptor, num_region_bytes)
        self._num_regions += 1
        memory = np.frombuffer(mmap.mmap(descriptor, num_region_bytes), np.uint8)
        return _Region(self._num_regions, memory, descriptor)


def _region_bytes(num_bytes: int) -> int:
    """Return the size of a region for a result: up to half as large again, so that regions fit other results."""
    unit = max(1 << (num_bytes - 1).bit_length() - 2, _MIN_REGION_BYTES)
    return -(-num_bytes // unit) * unit


class _Region(NamedTuple):
    """A region; its file descriptor is None once the server has it."""

    number: int
    memory: NDArray[np.uint8]
    descriptor: int | None
