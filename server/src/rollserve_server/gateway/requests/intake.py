"""Intake: receives requests, within a bound on the memory that they take together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

import grpc.aio

from rollserve import Reason
from rollserve_server.admission import ConnectionAdmission
from rollserve_server.errors import InvalidValueError, OverLimitError
from rollserve_server.gateway.requests.decompression import decompressed

if TYPE_CHECKING:
    from rollserve_server.gateway.rpcs.open_rpc import OpenRpc

__all__ = ["Intake"]

_MAX_SMALL_BYTES = 4 << 20  # of a request without agents, parameters and environments
_MAX_NAME_BYTES = 4 << 10  # of a request that holds a name and nothing else

_MAX_SMALL, _SMALL_PATIENCE_SECONDS = 2, 5.0
"""Small requests that are received at a time, and how long others wait for one whose client stalls."""
_MAX_NAMES, _NAME_PATIENCE_SECONDS = 4, 0.5
"""Names that are received at a time, and how long others wait for one whose client stalls. Many clients give a server
up that does not answer a health check within a second."""
_MAX_QUERIES, _QUERY_PATIENCE_SECONDS = 2, 1.0
"""Queries of reflection that are received at a time, and how long others wait for one whose client stalls. Streams of
reflection stay open for further queries."""
_LARGE_PATIENCE_SECONDS = 30.0
"""How long others wait for a request with agents or environments whose client stalls."""
_MAX_WAITING = 1 << 20
"""Length of the queues, which no number of RPCs reaches."""


class Intake:
    """Receives requests, within a bound on the memory that they take together.

    gRPC knows the size of a request when all of it has arrived, and moves it into memory as soon as somebody reads. So
    a large request is read only while there is room for the largest one.
    """

    def __init__(self, max_request_bytes: int, max_pending_bytes: int) -> None:
        """Start without requests.

        Args:
            max_request_bytes: size of the largest request.
            max_pending_bytes: size of all requests together: a third for those being received, a third for updates in
                progress, and a third for running evaluations. Each third has room for the largest request at least.
        """
        self._share = max(max_pending_bytes // 3, max_request_bytes)
        # One at a time of each connection: a client that stalls holds up its own requests, and seldom other clients.
        self._large_admission = _admission(self._share // max_request_bytes, _LARGE_PATIENCE_SECONDS)
        self._small_admission = _admission(_MAX_SMALL, _SMALL_PATIENCE_SECONDS)
        self._name_admission = _admission(_MAX_NAMES, _NAME_PATIENCE_SECONDS)
        self._query_admission = _admission(_MAX_QUERIES, _QUERY_PATIENCE_SECONDS)
        self._num_update_bytes = 0
        self._num_evaluation_bytes = 0
        self._update_ended = asyncio.Condition()

    async def small_request(self, rpc: OpenRpc) -> bytes:
        """Receive a request without agents, parameters and environments.

        Raises:
            OverLimitError: more than 4 MiB.
            InvalidValueError: the client sent no request.
        """
        return await _receive_within(self._small_admission, rpc, _MAX_SMALL_BYTES)

    async def name_request(self, rpc: OpenRpc) -> bytes:
        """Receive a request that holds a name, as health checks do. Requests of other kinds do not hold it up.

        Raises:
            OverLimitError: more than 4 KiB.
            InvalidValueError: the client sent no request.
        """
        return await _receive_within(self._name_admission, rpc, _MAX_NAME_BYTES)

    async def next_query(self, rpc: OpenRpc) -> bytes | None:
        """Receive the next query of a stream of reflection; None after the last one.

        Raises:
            OverLimitError: more than 4 KiB.
            ClientStalledError: the client sent nothing for a while, and others wait.
        """
        async with contextlib.AsyncExitStack() as stack:
            await self._query_admission.admit(stack, rpc)
            data = await _read_next(rpc)
        return None if data is None else _within_size(data, _MAX_NAME_BYTES)

    async def later_request(self, rpc: OpenRpc) -> bytes | None:
        """Receive a further request of a stream, which may come at any time; None after the last one.

        Raises:
            OverLimitError: more than 4 KiB.
        """
        data = await rpc.read_any_time()
        return None if data is grpc.aio.EOF else _within_size(data, _MAX_NAME_BYTES)

    @contextlib.asynccontextmanager
    async def update_request(self, rpc: OpenRpc) -> AsyncGenerator[bytes, None]:
        """Receive the request of an update, and keep its share of the memory for the block.

        Waits while the updates in progress leave too little memory.

        Raises:
            OverLimitError: more than 4 MiB before the client compressed it.
            InvalidValueError: the client sent no request.
        """
        async with contextlib.AsyncExitStack() as stack:
            await self._large_admission.admit(stack, rpc)
            data = await _read_large(rpc)
            async with self._update_ended:
                await self._update_ended.wait_for(lambda: self._num_update_bytes + len(data) <= self._share)
                self._num_update_bytes += len(data)
        try:
            yield data
        finally:
            self._num_update_bytes -= len(data)
            async with self._update_ended:
                self._update_ended.notify_all()

    @contextlib.asynccontextmanager
    async def evaluation_request(self, rpc: OpenRpc) -> AsyncGenerator[bytes, None]:
        """Receive the request of an evaluation, and keep its share of the memory for the block.

        Raises:
            OverLimitError: the running evaluations leave too little memory, or more than 4 MiB before the client
                compressed it.
            InvalidValueError: the client sent no request.
        """
        async with contextlib.AsyncExitStack() as stack:
            await self._large_admission.admit(stack, rpc)
            data = await _read_large(rpc)
        if self._num_evaluation_bytes + len(data) > self._share:
            raise OverLimitError.of(
                "",
                expected=f"at most {self._share} bytes in the requests of running evaluations",
                got=f"{len(data)} bytes more than their {self._num_evaluation_bytes}",
                hint="try again when an evaluation has ended",
                reason=Reason.TOO_MANY_REQUEST_BYTES,
            )
        self._num_evaluation_bytes += len(data)
        try:
            yield data
        finally:
            self._num_evaluation_bytes -= len(data)


def _admission(max_running: int, patience_seconds: float) -> ConnectionAdmission:
    return ConnectionAdmission(max_running, 1, patience_seconds, max_waiting=_MAX_WAITING)


async def _receive_within(admission: ConnectionAdmission, rpc: OpenRpc, max_bytes: int) -> bytes:
    async with contextlib.AsyncExitStack() as stack:
        await admission.admit(stack, rpc)
        data = await _read(rpc)
    return _within_size(data, max_bytes)


async def _read_large(rpc: OpenRpc) -> bytes:
    """Return a request that may be large, unless it is compressed."""
    return decompressed(await _read(rpc), _MAX_SMALL_BYTES)


async def _read(rpc: OpenRpc) -> bytes:
    data = await _read_next(rpc)
    if data is None:
        raise InvalidValueError.of("", expected="a request", got="the end of the stream")
    return data


async def _read_next(rpc: OpenRpc) -> bytes | None:
    """Return the next request of a stream; None after the last one."""
    data = await rpc.read()
    if data is grpc.aio.EOF:
        return None
    assert isinstance(data, bytes)  # noqa: S101
    return data


def _within_size(data: bytes, max_bytes: int) -> bytes:
    """Return a request, without its compression if it has one; raise OverLimitError if it is too large."""
    data = decompressed(data, max_bytes)
    if len(data) > max_bytes:
        expected, got = f"a request of at most {max_bytes} bytes", f"{len(data)} bytes"
        raise OverLimitError.of("", expected=expected, got=got, reason=Reason.REQUEST_TOO_LARGE)
    return data
