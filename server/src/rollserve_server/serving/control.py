"""The control socket, on which the process that started the server asks it for what no client may ask."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from rollserve_server.errors import DomainError, describe
from rollserve_wire.errors import mismatch

__all__ = ["Answer", "answering_control"]

_log = logging.getLogger(__name__)

Answer = Callable[[str], Awaitable[str]]
"""Does what a request asks for, given its arguments, and returns what the answer says beyond `done`."""


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
