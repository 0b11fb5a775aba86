"""gRPC's health service: whether the server accepts calls.

See https://github.com/grpc/grpc/blob/master/doc/health-checking.md for what clients expect. The service of gRPC's own
library waits for each of its watchers before it goes on, and accepts requests of any size.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health_pb2

from rollserve_server.errors import NotFoundError
from rollserve_server.gateway.requests.parsing import parse
from rollserve_server.gateway.rpcs.open_rpcs import OpenRpcs
from rollserve_server.gateway.rpcs.places import Places
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from rollserve_server.gateway.requests.intake import Intake
    from rollserve_server.gateway.rpcs.open_rpc import OpenRpc
    from rollserve_server.metrics import Metrics

__all__ = ["HEALTH_SERVICE", "MAX_CHECK_BYTES", "Health"]

HEALTH_SERVICE: str = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name

MAX_CHECK_BYTES = 4 << 10
"""Size of the largest request."""
_MAX_RPCS, _PATIENCE_SECONDS = 512, 0.5
"""RPCs at a time, watchers included, and how long a request may take to arrive when another RPC needs the place."""
_MAX_WATCHERS, _MAX_CLIENT_WATCHERS = 256, 64
"""Watchers at a time, in all and by client. Each is an open RPC, for as long as its client likes."""
_HAS_LIST = hasattr(health_pb2, "HealthListResponse")
"""Whether the installed grpcio-health-checking knows the RPC `List`; older ones do not."""


class Health:
    """`grpc.health.v1.Health` of services that are all as healthy as the server.

    Its RPCs have places of their own, so that it answers when other services refuse RPCs.
    """

    def __init__(self, services: Collection[str], stall_seconds: float, intake: Intake, metrics: Metrics) -> None:
        """Report a server that does not serve yet.

        Args:
            services: names of the services; an empty name stands for the whole server.
            stall_seconds: how long an RPC may wait for its client at a time.
            intake: receives requests.
            metrics: counts the RPCs.
        """
        self._services = services
        self._rpcs = OpenRpcs(stall_seconds, Places("RPCs", _MAX_RPCS, patience_seconds=_PATIENCE_SECONDS), metrics)
        self._intake = intake
        self._status: int = health_pb2.HealthCheckResponse.NOT_SERVING
        self._places = Places("watchers", _MAX_WATCHERS, max_of_client=_MAX_CLIENT_WATCHERS)
        # Set at the next change of the status; each change makes another event.
        self._changed = asyncio.Event()

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler that routes RPCs to the methods."""
        handlers = {
            "Check": self._rpcs.unary_handler("Check", self.check, is_awaited=False),
            "Watch": self._rpcs.stream_handler("Watch", self.watch, is_awaited=False, limits_unread=False),
        }
        if _HAS_LIST:
            handlers["List"] = self._rpcs.unary_handler("List", self.list, is_awaited=False)
        return grpc.method_handlers_generic_handler(HEALTH_SERVICE, handlers)

    def limit(self, stall_seconds: float) -> None:
        """Change how long a new RPC may wait for its client at a time."""
        self._rpcs.stall_seconds = stall_seconds

    def start_serving(self) -> None:
        """Report from now on that the server serves."""
        self._set(health_pb2.HealthCheckResponse.SERVING)

    def stop_serving(self) -> None:
        """Report from now on that the server does not serve. Waits for no watcher."""
        self._set(health_pb2.HealthCheckResponse.NOT_SERVING)

    async def check(self, rpc: OpenRpc) -> Any:
        """Answer `Check`.

        Raises:
            NotFoundError: no service has that name.
        """
        name = await self._requested_service(rpc)
        if name not in self._services:
            expected = f"one of {', '.join(map(repr, self._services))}"
            raise NotFoundError.of("service", expected=expected, got=repr(name), reason=Reason.SERVICE_NOT_FOUND)
        return health_pb2.HealthCheckResponse(status=self._status)

    async def list(self, rpc: OpenRpc) -> Any:
        """Answer `List`."""
        parse(health_pb2.HealthListRequest, await self._intake.name_request(rpc))
        status = health_pb2.HealthCheckResponse(status=self._status)
        return health_pb2.HealthListResponse(statuses=dict.fromkeys(self._services, status))

    async def watch(self, rpc: OpenRpc) -> None:
        """Answer `Watch`. A client that reads late gets the newest status next, and none of those in between.

        Raises:
            OverLimitError: too many watchers, of the same client or in all.
        """
        with self._places.held_by(rpc):
            is_known = await self._requested_service(rpc) in self._services
            reported: int | None = None
            while True:
                changed = self._changed
                status = self._status if is_known else health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
                if status != reported:
                    reported = status
                    await rpc.write(health_pb2.HealthCheckResponse(status=status).SerializeToString())
                else:
                    await changed.wait()

    async def _requested_service(self, rpc: OpenRpc) -> str:
        return str(parse(health_pb2.HealthCheckRequest, await self._intake.name_request(rpc)).service)

    def _set(self, status: int) -> None:
        self._status = status
        self._changed.set()
        self._changed = asyncio.Event()
