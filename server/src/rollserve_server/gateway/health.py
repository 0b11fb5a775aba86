"""gRPC's health service: whether the server takes calls.

https://github.com/grpc/grpc/blob/master/doc/health-checking.md says what clients expect of it. The library's own waits
for each of its watchers before it goes on, and takes requests of any size.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Iterator
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health_pb2

from rollserve import Reason
from rollserve_server.errors import NotFoundError, OverLimitError
from rollserve_server.gateway.requests.parsing import parsed

if TYPE_CHECKING:
    from rollserve_server.gateway.requests.intake import Intake
    from rollserve_server.gateway.rpcs import OpenRpc, OpenRpcs

__all__ = ["HEALTH_SERVICE", "Health"]

HEALTH_SERVICE: str = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name

_Context = Any  # grpc.aio's is generic in the stubs only
_MOST_WATCHERS, _MOST_OF_CONNECTION = 256, 64
"""Each is one of the RPCs that may run at the same time, for as long as it likes."""
_CAN_LIST = hasattr(health_pb2, "HealthListResponse")
"""Older versions of grpcio-health-checking know of no such RPC."""


class Health:
    """`grpc.health.v1.Health` of services that are all as healthy as the server."""

    def __init__(self, services: Collection[str], rpcs: OpenRpcs, intake: Intake) -> None:
        """Begins with a server that does not serve.

        Args:
            services: whose health can be asked for, by their names; empty for that of the whole server.
            rpcs: keeps the RPCs.
            intake: receives requests.
        """
        self._services = services
        self._rpcs = rpcs
        self._intake = intake
        self._status: int = health_pb2.HealthCheckResponse.NOT_SERVING
        self._has_ended = False
        self._watchers: Counter[str] = Counter()
        # Whoever waits for the next change waits for this one: each change has its own.
        self._changed = asyncio.Event()

    def handler(self) -> grpc.GenericRpcHandler:
        """What a server needs to route calls here."""
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Check": grpc.stream_unary_rpc_method_handler(self._answer_check, None, None),
            "Watch": grpc.stream_stream_rpc_method_handler(self._write_watch, None, None),
        }
        if _CAN_LIST:
            handlers["List"] = grpc.stream_unary_rpc_method_handler(self._answer_list, None, None)
        return grpc.method_handlers_generic_handler(HEALTH_SERVICE, handlers)

    def begin(self) -> None:
        """Tells that the server serves, unless it has ended."""
        if not self._has_ended:
            self._set(health_pb2.HealthCheckResponse.SERVING)

    def end(self) -> None:
        """Tells that the server does not serve, from now on for good. Waits for nobody."""
        self._has_ended = True
        self._set(health_pb2.HealthCheckResponse.NOT_SERVING)

    async def check(self, rpc: OpenRpc) -> bytes:
        """Check: a serialized message.

        Raises:
            NotFoundError: there is no such service.
        """
        name = await self._name(rpc)
        if name not in self._services:
            known = ", ".join(map(repr, self._services))
            text = f"{name!r} came, one of {known} was expected"
            raise NotFoundError(text, reason=Reason.SERVICE_NOT_FOUND, field="service")
        return self._response(self._status)

    async def list(self, rpc: OpenRpc) -> bytes:
        """List: a serialized message."""
        parsed(health_pb2.HealthListRequest, await self._intake.name(rpc))
        status = health_pb2.HealthCheckResponse(status=self._status)
        response = health_pb2.HealthListResponse(statuses=dict.fromkeys(self._services, status))
        return bytes(response.SerializeToString())

    async def watch(self, rpc: OpenRpc) -> AsyncGenerator[bytes, None]:
        """Watch: serialized messages. Who takes one late gets the newest status next, and none in between.

        Raises:
            OverLimitError: too many watch already, through the same connection or in all.
        """
        with self._watching(rpc.peer):
            is_known = await self._name(rpc) in self._services
            told: int | None = None
            while True:
                changed = self._changed
                status = self._status if is_known else health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
                if status != told:
                    told = status
                    yield self._response(status)
                else:
                    await changed.wait()

    async def _name(self, rpc: OpenRpc) -> str:
        return str(parsed(health_pb2.HealthCheckRequest, await self._intake.name(rpc)).service)

    @contextlib.contextmanager
    def _watching(self, peer: str) -> Iterator[None]:
        if self._watchers[peer] >= _MOST_OF_CONNECTION or self._watchers.total() >= _MOST_WATCHERS:
            text = f"{self._watchers[peer]} watch health through this connection and {self._watchers.total()} in all"
            text = f"{text}, {_MOST_OF_CONNECTION} and {_MOST_WATCHERS} are the most"
            raise OverLimitError(text, reason=Reason.TOO_MANY_CALLS)
        self._watchers[peer] += 1
        try:
            yield
        finally:
            self._watchers[peer] -= 1
            if not self._watchers[peer]:
                del self._watchers[peer]

    def _response(self, status: int) -> bytes:
        return bytes(health_pb2.HealthCheckResponse(status=status).SerializeToString())

    def _set(self, status: int) -> None:
        self._status = status
        self._changed.set()
        self._changed = asyncio.Event()

    async def _answer_check(self, _: object, context: _Context) -> bytes:
        async with self._rpcs.open(context, is_awaited=False) as rpc:
            return await self.check(rpc)

    async def _answer_list(self, _: object, context: _Context) -> bytes:
        async with self._rpcs.open(context, is_awaited=False) as rpc:
            return await self.list(rpc)

    async def _write_watch(self, _: object, context: _Context) -> None:
        async with (
            self._rpcs.open(context, is_awaited=False) as rpc,
            contextlib.aclosing(self.watch(rpc)) as messages,
        ):
            async for message in messages:
                await rpc.write(message)
