"""The control socket, on which the process that started the server can reset the sampler."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

from rollserve.errors import mismatch
from rollserve_server.errors import DomainError

__all__ = ["answering_control"]

_RESET = b"reset\n"


@contextlib.asynccontextmanager
async def answering_control(descriptor: int | None, reset: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Answer requests on the control socket for the duration of the block.

    Requests and answers are lines. `reset` is answered by `done` once the sampler is reset, or by `failed: ` and why.

    Args:
        descriptor: file descriptor of a connected stream socket; None for none.
        reset: resets the sampler.

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
    answering = asyncio.create_task(_answer(reader, writer, reset))
    try:
        yield
    finally:
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
        writer.close()


async def _answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reset: Callable[[], Awaitable[None]]
) -> None:
    with contextlib.suppress(ConnectionError):  # the other process has ended
        while line := await reader.readline():
            writer.write(await _outcome(line, reset) + b"\n")
            await writer.drain()


async def _outcome(line: bytes, reset: Callable[[], Awaitable[None]]) -> bytes:
    if line != _RESET:
        return b"failed: " + mismatch(repr(_RESET), repr(line)).encode()
    try:
        await reset()
    except DomainError as error:
        return f"failed: {' '.join(str(error).split())}".encode()
    return b"done"
