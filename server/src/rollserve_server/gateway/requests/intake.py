"""Intake: receives requests, within a bound on the memory that they take together."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc.aio

from rollserve_server.errors import InvalidValueError, OverLimitError
from rollserve_server.gateway.requests.receiving import Kind, Receiving
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from rollserve_server.gateway.rpcs.open_rpc import OpenRpc

__all__ = ["Intake"]


_MAX_SMALL_BYTES = 4 << 20  # of a request without agents, parameters and environments
_MAX_NAME_BYTES = 4 << 10  # of a request that holds a name and nothing else

_SMALL_MEMORY_BYTES = 64 << 20
"""Memory that requests of each of these kinds may take while they arrive, if the largest fits in more than a few times:
gRPC takes a request of up to `max_request_bytes` before anybody can say that it is too large."""
_NUM_ARRIVING = 4
_SMALL_SECONDS = 30.0
"""How long a small request may take to its last byte."""

_GZIP = b"\x1f\x8b"
"""First bytes of gzip's format. No serialized message begins with them: the first would be a field of no wire type."""
_GZIP_WINDOW_BITS = zlib.MAX_WBITS | 16


class Intake:
    """Receives requests, within a bound on the memory that they take together."""

    def __init__(
        self, max_request_bytes: int, max_pending_bytes: int, num_received: Callable[[str], int | None] = lambda _: None
    ) -> None:
        """Start without requests.

        Args:
            max_request_bytes: size of the largest request.
            max_pending_bytes: size of all requests together: a third for those being received, a third for updates in
                progress, and a third for running evaluations. Each third has room for the largest request at least.
            num_received: returns how many bytes a connection has received; None where the system does not tell.
        """
        self._share = max(max_pending_bytes // 3, max_request_bytes)
        self._receiving = Receiving(self._share, num_received)
        num_small = max(_SMALL_MEMORY_BYTES // max_request_bytes, _NUM_ARRIVING)
        self._large = Kind("large", self._share // max_request_bytes, 30.0)
        self._small = Kind("small", num_small, 5.0, _SMALL_SECONDS)
        # Many clients give a server up that does not answer a health check within a second.
        self._name = Kind("name", num_small, 0.5, _SMALL_SECONDS)
        self._query = Kind("query", num_small, 1.0)  # streams of reflection stay open for further queries
        self._num_update_bytes = 0
        self._num_evaluation_bytes = 0
        self._update_ended = asyncio.Event()

    async def small_request(self, rpc: OpenRpc) -> bytes:
        """Receive a request without agents, parameters and environments.

        Raises:
            OverLimitError: more than 4 MiB.
            InvalidValueError: the client sent no request.
        """
        return await self._received(rpc, self._small, _MAX_SMALL_BYTES)

    async def name_request(self, rpc: OpenRpc) -> bytes:
        """Receive a request that holds a name, as health checks do. Requests of other kinds do not hold it up.

        Raises:
            OverLimitError: more than 4 KiB.
            InvalidValueError: the client sent no request.
        """
        return await self._received(rpc, self._name, _MAX_NAME_BYTES)

    async def next_query(self, rpc: OpenRpc) -> bytes | None:
        """Receive the next query of a stream of reflection; None after the last one.

        Raises:
            OverLimitError: more than 4 KiB.
            ClientStalledError: the client sent nothing for a while.
        """
        async with self._receiving.reading(rpc, self._query) as data:
            return None if data is grpc.aio.EOF else _within_size(_request_of(data, _MAX_NAME_BYTES), _MAX_NAME_BYTES)

    async def later_request(self, rpc: OpenRpc, max_bytes: int) -> bytes | None:
        """Receive a further request of a stream, which may come at any time; None after the last one.

        Raises:
            OverLimitError: more than `max_bytes`.
        """
        data = await rpc.read_any_time()
        return None if data is grpc.aio.EOF else _within_size(_request_of(data, max_bytes), max_bytes)

    async def update_request(self, rpc: OpenRpc) -> bytes:
        """Receive the request of an update, which has its share of the memory until the RPC ends.

        Waits while the updates in progress leave too little memory.

        Raises:
            OverLimitError: more than 4 MiB before the client compressed it.
            InvalidValueError: the client sent no request.
        """
        async with self._receiving.reading(rpc, self._large) as received:
            data = _request_of(received)
            while self._num_update_bytes + len(data) > self._share:
                self._update_ended.clear()
                await self._update_ended.wait()
            self._num_update_bytes += len(data)
            rpc.held.callback(self._end_update, len(data))
        return data

    async def evaluation_request(self, rpc: OpenRpc) -> bytes:
        """Receive the request of an evaluation, which has its share of the memory until the RPC ends.

        Raises:
            OverLimitError: the running evaluations leave too little memory, or more than 4 MiB before the client
                compressed it.
            InvalidValueError: the client sent no request.
        """
        async with self._receiving.reading(rpc, self._large) as received:
            data = _request_of(received)
        if self._num_evaluation_bytes + len(data) > self._share:
            raise OverLimitError.of(
                "",
                expected=f"at most {self._share} bytes in the requests of running evaluations",
                got=f"{len(data)} bytes more than their {self._num_evaluation_bytes}",
                hint="try again when an evaluation has ended",
                reason=Reason.TOO_MANY_REQUEST_BYTES,
            )
        self._num_evaluation_bytes += len(data)
        rpc.held.callback(self._end_evaluation, len(data))
        return data

    def _end_update(self, num_bytes: int) -> None:
        self._num_update_bytes -= num_bytes
        self._update_ended.set()

    def _end_evaluation(self, num_bytes: int) -> None:
        self._num_evaluation_bytes -= num_bytes

    async def _received(self, rpc: OpenRpc, kind: Kind, max_bytes: int) -> bytes:
        async with self._receiving.reading(rpc, kind) as received:
            return _within_size(_request_of(received, max_bytes), max_bytes)


def _request_of(received: Any, max_bytes: int = _MAX_SMALL_BYTES) -> bytes:
    """Return a request as it was before its client compressed it, if it did.

    Raises:
        InvalidValueError: the client has sent none, or bytes that begin as gzip's format and do not follow it.
        OverLimitError: a compressed request of more than `max_bytes` before its compression.
    """
    if received is grpc.aio.EOF:
        raise InvalidValueError.of("", expected="a request", got="the end of the stream")
    assert isinstance(received, bytes)  # noqa: S101
    return _decompressed(received, max_bytes) if received.startswith(_GZIP) else received


def _within_size(data: bytes, max_bytes: int) -> bytes:
    """Return a request; raise OverLimitError if it is too large."""
    if len(data) > max_bytes:
        expected, got = f"a request of at most {max_bytes} bytes", f"{len(data)} bytes"
        raise OverLimitError.of("", expected=expected, got=got, reason=Reason.REQUEST_TOO_LARGE)
    return data


def _decompressed(data: bytes, max_bytes: int) -> bytes:
    decompressor = zlib.decompressobj(_GZIP_WINDOW_BITS)
    try:
        content = decompressor.decompress(data, max_bytes + 1)
    except zlib.error as error:
        raise _malformed(str(error)) from None
    if len(content) > max_bytes:
        expected, hint = f"a compressed request of at most {max_bytes} bytes before compression", "send it uncompressed"
        raise OverLimitError.of("", expected=expected, got="more", hint=hint, reason=Reason.REQUEST_TOO_LARGE)
    if not decompressor.eof or decompressor.unused_data:
        raise _malformed("bytes that end too early" if not decompressor.eof else "bytes behind the end")
    return content


def _malformed(got: str) -> InvalidValueError:
    return InvalidValueError.of("", expected="a request in gzip's format", got=got)
