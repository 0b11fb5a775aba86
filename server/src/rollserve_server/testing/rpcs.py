"""RPCs between gRPC and the server's own handlers, for programs that see or change them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio

from rollserve_wire.v1 import sampler_service_pb2 as pb

__all__ = ["WrappedRpcs"]

_PREFIX = f"/{pb.DESCRIPTOR.services_by_name['SamplerService'].full_name}/"


class WrappedRpcs(grpc.aio.ServerInterceptor):
    """Base of interceptors that wrap each RPC of the sampler service.

    `handle` is the server's own handler. It takes its request from `context.read()`, sends what it streams by
    `context.write(message)`, and ends an RPC that fails by `context.abort(code, details, metadata)`: a context in the
    place of gRPC's sees all of it. Messages are bytes.
    """

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        """Return the handler of an RPC, wrapped unless it belongs to another service."""
        handler, method = await continuation(handler_call_details), handler_call_details.method
        if handler is None or not method.startswith(_PREFIX):
            return handler
        name = method.removeprefix(_PREFIX)

        async def answer(requests: object, context: Any) -> bytes:
            return await self.answer(name, handler.stream_unary, requests, context)

        async def stream(requests: object, context: Any) -> None:
            await self.stream(name, handler.stream_stream, requests, context)

        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(stream, None, None)
        return grpc.stream_unary_rpc_method_handler(answer, None, None)

    async def answer(
        self, name: str, handle: Callable[[object, Any], Awaitable[bytes]], requests: object, context: Any
    ) -> bytes:
        """Return the response of an RPC, which `handle` answers."""
        raise NotImplementedError

    async def stream(
        self, name: str, handle: Callable[[object, Any], Awaitable[None]], requests: object, context: Any
    ) -> None:
        """Send the responses of an RPC, which `handle` writes to the context."""
        raise NotImplementedError
