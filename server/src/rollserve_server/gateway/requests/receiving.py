"""Reads of requests: all at a time, within a bound on the bytes of requests that have not arrived whole.

gRPC hands over whole requests only, and begins to take a request of up to `max_request_bytes` into memory once somebody
reads. How much of it has arrived, the system knows: it counts the bytes of each connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc.aio

from rollserve_server.errors import ClientStalledError, OverLimitError
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from rollserve_server.gateway.rpcs.open_rpc import OpenRpc

__all__ = ["Kind", "Receiving"]

_LOOK_SECONDS, _IDLE_LOOK_SECONDS = 0.02, 0.1
"""How often connections are looked at while requests wait to be read, and while none does."""
_MIN_BYTES_PER_SECOND = 4 << 20
"""Speed of a connection below which nobody waits for its requests. They go on to arrive beside others."""


class Kind(NamedTuple):
    """A kind of requests.

    Attributes:
        name: what tells it from others.
        max_arriving: number of its requests that arrive at a time; those whose client stalls are not among them.
        patience_seconds: how long a request counts as arriving.
        max_seconds: how long a request may take to its last byte; None for as long as clients may stall.
    """

    name: str
    max_arriving: int
    patience_seconds: float
    max_seconds: float | None = None


class _Read:
    """A read of a request.

    Attributes:
        rpc: the RPC.
        kind: kind of the request.
        charged_to: whom the read is charged to, and its connection.
        may_begin: done once gRPC may read.
        began: when that was (`time.monotonic`).
        has_arrived: whether the request is there.
    """

    def __init__(self, rpc: OpenRpc, kind: Kind) -> None:
        self.rpc = rpc
        self.kind = kind
        self.charged_to = (*rpc.charged_to, rpc.connection)
        self.may_begin: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.began = 0.0
        self.has_arrived = False


@dataclass
class _Connection:
    """A connection whose requests are read.

    Attributes:
        num_before: number of bytes that it had received before these requests.
        num_received: number of bytes at the last look.
        looked: when that was (`time.monotonic`).
        num_reads: number of reads.
    """

    num_before: int
    num_received: int
    looked: float
    num_reads: int = 0


class Receiving:
    """Reads of requests of all kinds.

    A request that does not arrive holds up no other one: reads begin while few others are arriving, and one whose
    connection hardly receives anything counts no more. Of the waiting ones, the next is of the client, and then of the
    address, with the fewest begun reads. If the bytes of unfinished requests are too many, reads are ended: stalled
    ones first, of the address or principal with the most bytes.
    """

    def __init__(self, max_bytes: int, num_received: Callable[[str], int | None]) -> None:
        """Start without reads.

        Args:
            max_bytes: number of bytes of all requests that have not arrived whole.
            num_received: returns how many bytes a connection has received, given its name from gRPC; None where the
                system does not tell.
        """
        self._max_bytes = max_bytes
        self._num_received = num_received
        self._waiting: list[_Read] = []
        self._begun: set[_Read] = set()
        self._arriving: dict[Kind, set[_Read]] = {}
        self._num_begun: Counter[str] = Counter()
        self._connections: dict[str, _Connection] = {}
        self._look_timer: asyncio.TimerHandle | None = None

    @contextlib.asynccontextmanager
    async def reading(self, rpc: OpenRpc, kind: Kind) -> AsyncGenerator[Any, None]:
        """Yield the next request of an RPC as bytes, or `grpc.aio.EOF`; it counts as arriving until the block ends.

        Raises:
            OverLimitError: requests that have not arrived have too many bytes together.
            ClientStalledError: the request did not arrive in time.
        """
        read = _Read(rpc, kind)
        self._waiting.append(read)
        try:
            self._begin_waiting()
            self._look_later()
            await read.may_begin
            data = await rpc.read(kind.max_seconds)
            self._end_arrival(read, 0 if data is grpc.aio.EOF else len(data))
            yield data
        finally:
            if read in self._waiting:
                self._waiting.remove(read)
            if read in self._begun:
                if not read.has_arrived:
                    self._end_arrival(read, 0)
                self._begun.remove(read)
                self._num_begun.subtract(read.charged_to)
                for charged in read.charged_to:
                    if not self._num_begun[charged]:
                        del self._num_begun[charged]
                self._arriving[kind].discard(read)
                self._begin_waiting()

    def _begin_waiting(self) -> None:
        """Begin the reads that may begin."""
        while self._waiting and (read := self._next_read()) is not None:
            self._waiting.remove(read)
            self._begun.add(read)
            self._arriving.setdefault(read.kind, set()).add(read)
            self._num_begun.update(read.charged_to)
            name = read.rpc.connection
            connection, read.began = self._connections.get(name), time.monotonic()
            if connection is None:
                num_received = self._num_received(name) or 0
                connection = self._connections[name] = _Connection(num_received, num_received, read.began)
            connection.num_reads += 1
            if not read.may_begin.done():  # the RPC has ended
                read.may_begin.set_result(None)

    def _next_read(self) -> _Read | None:
        """Return the waiting read that begins next: of the reads that have room, the one with the least share."""
        best: _Read | None = None
        share = (0, 0)
        have_room: dict[tuple[Kind, str], bool] = {}
        for read in self._waiting:
            key = read.kind, read.rpc.peer
            if key not in have_room:
                have_room[key] = self._has_room(*key)
            if not have_room[key]:
                continue
            own = self._share(read)
            if best is None or own < share:
                best, share = read, own
                if share == (0, 0):
                    break
        return best

    def _has_room(self, kind: Kind, peer: str) -> bool:
        """Whether a read may begin: a client leaves one place to others."""
        arriving = self._arriving.get(kind)
        if not arriving:
            return True
        if len(arriving) >= kind.max_arriving:
            return False
        return sum(each.rpc.peer == peer for each in arriving) < max(kind.max_arriving - 1, 1)

    def _share(self, read: _Read) -> tuple[int, int]:
        """Return what the client of a read has of all reads, and what its address or principal has."""
        return self._num_begun[read.rpc.peer], max(map(self._num_begun.__getitem__, read.rpc.charged_to))

    def _end_arrival(self, read: _Read, num_bytes: int) -> None:
        """Stop counting the bytes of an arrived request as unfinished ones of its connection."""
        read.has_arrived = True
        connection = self._connections[read.rpc.connection]
        connection.num_before += num_bytes
        connection.num_reads -= 1
        if not connection.num_reads:
            del self._connections[read.rpc.connection]

    def _look_later(self) -> None:
        if self._look_timer is None and (self._waiting or self._connections):
            seconds = _LOOK_SECONDS if self._waiting else _IDLE_LOOK_SECONDS
            self._look_timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        self._look_timer = None
        if not (self._waiting or self._connections):
            return
        try:
            self._look_at_reads()
            self._begin_waiting()
        finally:
            self._look_later()

    def _look_at_reads(self) -> None:
        """Check what has arrived, and which requests do not arrive; end some if they have too many bytes."""
        now = time.monotonic()
        late = [read for read in self._begun if not read.has_arrived and now - read.began > _LOOK_SECONDS]
        num_unfinished: dict[str, int] = {}
        moving, uncounted = set(), set()
        for name in {read.rpc.connection for read in late}:
            connection, num_received = self._connections[name], self._num_received(name)
            if num_received is None:
                uncounted.add(name)
                continue
            num_more, seconds = num_received - connection.num_received, now - connection.looked
            if num_more > seconds * _MIN_BYTES_PER_SECOND:
                moving.add(name)
            connection.num_received, connection.looked = num_received, now
            num_unfinished[name] = max(num_received - connection.num_before, 0)
        for read in late:
            is_patient = now - read.began < read.kind.patience_seconds
            if read.rpc.connection in uncounted:
                if not is_patient and any(waiting.kind == read.kind for waiting in self._waiting):
                    read.rpc.end(ClientStalledError("the request had not arrived while others waited"))
            elif not (is_patient and read.rpc.connection in moving):
                self._arriving[read.kind].discard(read)
        self._end_surplus(late, num_unfinished)

    def _end_surplus(self, reads: list[_Read], num_bytes: dict[str, int]) -> None:
        """End reads until the unfinished requests of connections have few enough bytes."""
        while (total := sum(num_bytes.values())) > self._max_bytes:
            num_charged: Counter[str] = Counter()
            for read in {each.rpc.connection: each for each in reads if each.rpc.connection in num_bytes}.values():
                num_charged.update(dict.fromkeys(read.rpc.charged_to, num_bytes[read.rpc.connection]))

            def surplus(read: _Read, num_charged: Counter[str] = num_charged) -> tuple[bool, int, int]:
                is_stalled = read not in self._arriving[read.kind]
                most = max(num_charged[charged] for charged in read.rpc.charged_to)
                return is_stalled, most, num_bytes[read.rpc.connection]

            most = max((read for read in reads if num_bytes.get(read.rpc.connection)), key=surplus)
            num_ended = num_bytes.pop(most.rpc.connection)
            expected = f"at most {self._max_bytes} bytes of requests that have not arrived whole"
            for read in reads:
                if read.rpc.connection == most.rpc.connection:
                    got = f"{total}, {num_ended} of them on this connection"
                    reason = Reason.TOO_MANY_REQUEST_BYTES
                    read.rpc.end(OverLimitError.of("", expected=expected, got=got, reason=reason))
