"""Handlers that gRPC calls for an RPC: with one response, or with a stream of them.

gRPC passes bytes on in both directions: bytes that cannot be parsed are an error like any other, and sampled messages
are bytes already. Every handler takes its request as a stream, because gRPC reads no more of a stream than it is asked
to; clients see no difference.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import grpc

from rollserve_server.errors import DomainError
from rollserve_server.futures import in_background
from rollserve_wire.protobuf import keys_of, length_delimited
from rollserve_wire.v1.sampler_service_pb2 import JoinedResponses, ObtainSamplesResponse

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from rollserve_server.gateway.rpcs.open_rpc import Context, OpenRpc
    from rollserve_server.gateway.rpcs.open_rpcs import OpenRpcs


__all__ = ["stream_handler", "unary_handler"]


_MAX_PART_BYTES, _MAX_JOINED_BYTES = 64 << 10, 256 << 10
_MAX_KEY_BYTES = 6  # key and size of a part, and of all of them
_MAX_SECONDS = 0.01
"""How long a response waits for others. In a call that takes longer, this does not count."""

_JOINED = keys_of(ObtainSamplesResponse.DESCRIPTOR)["joined"]
_RESPONSES = keys_of(JoinedResponses.DESCRIPTOR)["responses"]


def unary_handler(
    rpcs: OpenRpcs,
    name: str,
    respond: Callable[[OpenRpc], Awaitable[Message]],
    *,
    is_awaited: bool = True,
    why_late: str = "",
) -> grpc.RpcMethodHandler[Any, Any]:
    """Return the handler of an RPC with one response.

    Args:
        rpcs: registry of open RPCs.
        name: the RPC's name, without its service.
        respond: reads the request of an open RPC, and returns the response.
        is_awaited: whether a server that stops waits for the RPC.
        why_late: what may take longer than the client's time for the RPC, which it then hears; empty for nothing.
    """

    async def handle(_: object, context: Context) -> bytes:
        async with rpcs.open(name, context, is_awaited=is_awaited) as rpc:
            if why_late:
                rpc.end_before_deadline(why_late)
            return (await respond(rpc)).SerializeToString()

    return grpc.stream_unary_rpc_method_handler(handle, None, None)


def stream_handler(
    rpcs: OpenRpcs,
    name: str,
    respond: Callable[[OpenRpc], AsyncGenerator[bytes, None]],
    *,
    is_awaited: bool = True,
    limits_unread: bool = True,
) -> grpc.RpcMethodHandler[Any, Any]:
    """Return the handler of an RPC with a stream of responses.

    Args:
        rpcs: registry of open RPCs.
        name: the RPC's name, without its service.
        respond: reads the requests of an open RPC, and yields serialized responses.
        is_awaited: whether a server that stops waits for the RPC.
        limits_unread: whether the RPC is refused while clients leave too much of ended RPCs unread.
    """

    async def handle(_: object, context: Context) -> None:
        async with rpcs.open(name, context, is_awaited=is_awaited) as rpc:
            if limits_unread:
                rpcs.check_unread()
            await _write_all(respond(rpc), rpc)

    return grpc.stream_stream_rpc_method_handler(handle, None, None)


async def _write_all(responses: AsyncGenerator[bytes, None], rpc: OpenRpc) -> None:
    # Separate: `abort` frees the variables of functions that have failed, and the handler is still running then.
    async with contextlib.aclosing(responses):
        writer = _JoiningWriter(rpc)
        try:
            async for response in responses:
                await writer.write(response)
            await writer.flush()
        except DomainError:
            await writer.flush()  # what is ready, such as where a client may resume the stream
            raise
        finally:
            writer.close()


class _JoiningWriter:
    """Writes the responses of one RPC in their order."""

    def __init__(self, rpc: OpenRpc) -> None:
        self._rpc = rpc
        self._waiting: list[bytes] = []
        self._num_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._writing = asyncio.Lock()

    async def write(self, response: bytes) -> None:
        """Send a response; a small one within 10 ms, if the RPC's client accepts joined ones."""
        if not self._rpc.max_joined_bytes:
            await self._rpc.write(response)
            return
        max_bytes = min(self._rpc.max_joined_bytes, _MAX_JOINED_BYTES) - _MAX_KEY_BYTES
        num_bytes = len(response) + _MAX_KEY_BYTES
        is_large = num_bytes > min(max_bytes, _MAX_PART_BYTES)
        if is_large or self._num_bytes + num_bytes > max_bytes:
            await self.flush()
        if is_large:
            await self._rpc.write(response)
            return
        self._rpc.begin_response()  # meanwhile, so that the joined responses do not wait for it
        self._waiting.append(response)
        self._num_bytes += num_bytes
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_MAX_SECONDS, self._flush_soon)

    async def flush(self) -> None:
        """Send all responses that wait."""
        async with self._writing:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            waiting, self._waiting, self._num_bytes = self._waiting, [], 0
            if waiting:
                await self._rpc.write(waiting[0] if len(waiting) == 1 else _joined(waiting))

    def close(self) -> None:
        """Send nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    def _flush_soon(self) -> None:
        in_background(self.flush())  # an error comes again with the next response, or with the end of the RPC


def _joined(responses: list[bytes]) -> bytes:
    parts = [part for response in responses for part in length_delimited(_RESPONSES, [response])]
    return b"".join(length_delimited(_JOINED, parts))
