"""The process that started a server: the server ends with it, answers its requests, and tells it the port."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from rollserve_server.errors import DomainError, describe
from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self

__all__ = ["Answer", "PortFile", "answering_control", "end_with_parent"]

_INTERVAL_SECONDS = 0.5
_log = logging.getLogger(__name__)
Answer = Callable[[str], Awaitable[str]]
"""Does what a request asks for, given its arguments, and returns what the answer says beyond `done`."""


def end_with_parent(process_id: int) -> None:
    """Send SIGTERM to this process as soon as its parent is not the given process, or no longer.

    Linux can do that by itself (`PR_SET_PDEATHSIG`), but already when the parent's thread ends that started this
    process.

    Args:
        process_id: id of the parent process.
    """
    threading.Thread(target=_watch, args=(process_id,), name="parent", daemon=True).start()


def _watch(process_id: int) -> None:
    while os.getppid() == process_id:
        time.sleep(_INTERVAL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


@contextlib.asynccontextmanager
async def answering_control(descriptor: int | None, answers: Mapping[str, Answer]) -> AsyncIterator[None]:
    """Answer requests on the control socket for the duration of the block.

    Requests and answers are lines. A request is a name, and arguments after a space. It is answered by `done`, with
    more after a space if there is more to say, or by `failed: ` and why.

    Args:
        descriptor: file descriptor of a connected stream socket; None for none.
        answers: answers to requests, by their names.

    Raises:
        OSError: the descriptor is no socket.
    """
    if descriptor is None:
        yield
        return
    try:
        connection = socket.socket(fileno=descriptor)
    except OSError as error:
        text = mismatch("the file descriptor of a socket", descriptor, error.strerror or "")
        raise OSError(f"control_fd: {text}") from None
    connection.set_inheritable(False)
    reader, writer = await asyncio.open_connection(sock=connection)
    answering = asyncio.create_task(_answer(reader, writer, answers))
    try:
        yield
    finally:
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
        writer.close()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: Mapping[str, Answer]) -> None:
    with contextlib.suppress(ConnectionError):  # the other process has ended
        while line := await reader.readline():
            writer.write(f"{await _outcome(line.decode(errors='replace').strip(), answers)}\n".encode())
            await writer.drain()


async def _outcome(request: str, answers: Mapping[str, Answer]) -> str:
    name, _, arguments = request.partition(" ")
    if name not in answers:
        return f"failed: {mismatch(' or '.join(map(repr, answers)), repr(name))}"
    try:
        return f"done {await answers[name](arguments)}".rstrip()
    except DomainError as error:
        return f"failed: {' '.join(str(error).split())}"
    except Exception as error:  # whatever it is: the other process waits for an answer
        _log.exception("control request failed", extra={"request": name})
        return f"failed: {' '.join(describe(error).split())}"


class PortFile:
    """A file that has the port while the server listens there. A context manager, which removes the file at the end."""

    def __init__(self, path: Path | None) -> None:
        """Remove an earlier server's file.

        Args:
            path: path of the file; None for no file.

        Raises:
            OSError: the file cannot be written.
        """
        self._path = path
        self._unfinished = path and path.parent / f".{path.name}.{os.getpid()}"
        if path is not None and self._unfinished is not None:
            with _naming(path):
                path.unlink(missing_ok=True)
                try:
                    self._unfinished.write_text("none\n")  # so that a full disk shows now
                finally:
                    self._unfinished.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.remove()

    def write(self, port: int) -> None:
        """Write the port. The file appears with all of its content.

        Raises:
            OSError: the file cannot be written.
        """
        if self._path is not None and self._unfinished is not None:
            with _naming(self._path):
                self._unfinished.write_text(f"{port}\n")
                self._unfinished.replace(self._path)

    def remove(self) -> None:
        """Remove the file. May be called more than once, and from any thread."""
        for path in (self._unfinished, self._path):
            if path is not None:
                with contextlib.suppress(OSError):
                    path.unlink()


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the setting in errors about the file."""
    try:
        yield
    except OSError as error:
        text = mismatch("a file that can be written", path, error.strerror or "")
        raise OSError(f"port_file: {text}") from None
