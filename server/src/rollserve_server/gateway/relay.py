"""The relay: where workers take seats of the hosts that have opened streams to the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import secrets
import socket
import struct
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from rollserve_server.envs import RelayPlace
from rollserve_server.errors import InvalidValueError, NotAllowedError
from rollserve_server.futures import in_background
from rollserve_wire.errors import mismatch
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from rollserve_wire.rows.v1 import rows_pb2

__all__ = ["Relay", "Seat", "read_message", "write_message"]

_LENGTH = struct.Struct("<I")
_BUFFER_BYTES = 1 << 20
_MAX_KNOCK_BYTES = 4096
_KNOCK_SECONDS = 10.0
"""How long a connection may take to prove that it is a worker's."""
_AWAY_SECONDS = 20.0
"""How long a host may be away: until it is back, rows wait that had it before, or that were tried on it."""


class Seat:
    """A host's stream, which serves one worker.

    Attributes:
        hello: what the host has said of itself.
        worker: connection of the worker that takes the seat.
    """

    def __init__(self, hello: rows_pb2.Hello) -> None:
        self.hello = hello
        self.worker: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = (
            asyncio.get_running_loop().create_future()
        )


class _Seats:
    """The seats of the hosts of one name.

    Attributes:
        free: seats that no worker has taken, the longest free one first.
        taken: seats that workers have taken.
        returning: until when hosts are expected back whose workers have left (`time.monotonic`), in order.
    """

    def __init__(self) -> None:
        self.free: deque[Seat] = deque()
        self.taken: set[Seat] = set()
        self.returning: deque[float] = deque()

    def all(self) -> Iterator[Seat]:
        """Yield all seats."""
        yield from self.free
        yield from self.taken

    def text(self) -> str:
        """Return how many there are, for errors."""
        num_seats = len(self.free) + len(self.taken)
        return f"{num_seats} connected, {len(self.taken)} of them in use" if num_seats else "no host connected"


class Relay:
    """Where workers take seats: a socket at an address that they reach, which nobody else can make use of.

    Attributes:
        place: the address, and what workers prove with that they are the server's.
    """

    def __init__(self, address: str) -> None:
        """Take a free port of an address; nobody is answered there before `allow`."""
        self._socket = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        self._socket.bind((address, 0))
        self.place = RelayPlace(address, self._socket.getsockname()[1], secrets.token_hex(32))
        self._server: asyncio.Server | None = None
        self._seats: dict[str, _Seats] = {}
        self._names: Collection[str] = ()
        # Set at the next seat that becomes free; each sets another event.
        self._freed = asyncio.Event()

    async def allow(self, names: Collection[str]) -> None:
        """Let hosts have these names from now on, and no others; those that have one keep it."""
        self._names = names
        if names and self._server is None:
            self._server = await asyncio.start_server(
                lambda *streams: in_background(self._answer(*streams)), sock=self._socket, limit=_BUFFER_BYTES
            )

    def num_seats(self) -> Mapping[str, tuple[int, int]]:
        """Return the numbers of free and taken seats by the name of their hosts, of names that hosts have had."""
        return {name: (len(seats.free), len(seats.taken)) for name, seats in self._seats.items()}

    def close(self) -> None:
        """Answer no workers any more."""
        if self._server is not None:
            self._server.close()
        self._socket.close()

    @contextlib.contextmanager
    def offering(self, name: str, hello: rows_pb2.Hello) -> Iterator[Seat]:
        """Offer a seat of a host for the block, which ends when its worker has left.

        Raises:
            NotAllowedError: hosts may not have that name.
            InvalidValueError: hosts of that name say another hello.
        """
        if name not in self._names:
            listed = ", ".join(f"'host:{each}'" for each in sorted(self._names)) or "none"
            expected = f"a name that the server's operator allows (option --allow-host: {listed})"
            raise NotAllowedError.of("name", expected=expected, got=repr(name), reason=Reason.HOST_NOT_ALLOWED)
        seats = self._seats.setdefault(name, _Seats())
        if any(each.hello != hello for each in seats.all()):
            expected = f"what the other hosts of the name {name!r} say: {_shown(next(seats.all()).hello)}"
            raise InvalidValueError.of("message", expected=expected, got=_shown(hello))
        seat = Seat(hello)
        seats.free.append(seat)
        if seats.returning:
            seats.returning.popleft()
        self._freed.set()
        self._freed = asyncio.Event()
        try:
            yield seat
            if seat in seats.taken:
                seats.returning.append(time.monotonic() + _AWAY_SECONDS)
        finally:
            if seat in seats.taken:
                seats.taken.remove(seat)
                seat.worker.result()[1].close()
            else:
                seats.free.remove(seat)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Give a seat to a worker, or say why there is none. Whoever has not the secret hears nothing."""
        try:
            async with asyncio.timeout(_KNOCK_SECONDS):
                knock = json.loads(await read_message(reader, _MAX_KNOCK_BYTES))
            if not hmac.compare_digest(str(knock["secret"]), self.place.secret):
                raise ValueError("no secret")
            name, waits = knock["name"], knock["waits"]
        except (EOFError, OSError, TimeoutError, ValueError, KeyError, TypeError):
            writer.close()
            return
        seats = self._seats.setdefault(name, _Seats())
        if not await self._has_free(seats, waits=waits):
            expected = f"a host of the name {name!r} with a free seat" + (
                f" within {_AWAY_SECONDS:g} s" if waits else ""
            )
            write_message(writer, mismatch(expected, seats.text()).encode())
            writer.close()
            return
        seat = seats.free.popleft()
        seats.taken.add(seat)
        write_message(writer, b"")
        write_message(writer, seat.hello.SerializeToString())
        seat.worker.set_result((reader, writer))

    async def _has_free(self, seats: _Seats, *, waits: bool) -> bool:
        """Whether there is a free seat: at once, or, if the worker waits or a host is expected back, within 20 s."""
        until = time.monotonic() + _AWAY_SECONDS
        while not seats.free:
            now, freed = time.monotonic(), self._freed
            while seats.returning and seats.returning[0] <= now:
                seats.returning.popleft()
            if now >= until or not (waits or seats.returning):
                return False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(seats.returning[0] if seats.returning else until, until) - now):
                    await freed.wait()
        return True


async def read_message(reader: asyncio.StreamReader, max_bytes: int | None = None) -> bytes:
    """Return the next message behind its length; raise EOFError if there is none, and ValueError for a larger one."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if max_bytes is not None and length > max_bytes:
        raise ValueError(mismatch(f"at most {max_bytes} bytes", length))
    return await reader.readexactly(length)


def write_message(writer: asyncio.StreamWriter, message: bytes) -> None:
    """Send a message behind its length."""
    writer.writelines((_LENGTH.pack(len(message)), message))


def _shown(hello: rows_pb2.Hello) -> str:
    versions = ", ".join(f"{package} {version}" for package, version in sorted(hello.versions.items()))
    return f"{hello.name!r} with {versions or 'no versions'}"
