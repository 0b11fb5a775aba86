"""Handlers that gRPC calls for an RPC: with one response, or with a stream of them.

gRPC passes bytes on in both directions: bytes that cannot be parsed are an error like any other, and sampled messages
are bytes already. Every handler takes its request as a stream, because gRPC reads no more of a stream than it is asked
to; clients see no difference.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import grpc

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from rollserve_server.gateway.rpcs.open_rpc import Context, OpenRpc
    from rollserve_server.gateway.rpcs.open_rpcs import OpenRpcs


__all__ = ["stream_handler", "unary_handler"]


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
    respond: Callable[[OpenRpc], Awaitable[None]],
    *,
    is_awaited: bool = True,
    limits_unread: bool = True,
) -> grpc.RpcMethodHandler[Any, Any]:
    """Return the handler of an RPC with a stream of responses.

    Args:
        rpcs: registry of open RPCs.
        name: the RPC's name, without its service.
        respond: reads the requests of an open RPC, and writes the responses.
        is_awaited: whether a server that stops waits for the RPC.
        limits_unread: whether the RPC is refused while clients leave too much of ended RPCs unread.
    """

    async def handle(_: object, context: Context) -> None:
        async with rpcs.open(name, context, is_awaited=is_awaited) as rpc:
            if limits_unread:
                rpcs.check_unread()
            await respond(rpc)

    return grpc.stream_stream_rpc_method_handler(handle, None, None)
