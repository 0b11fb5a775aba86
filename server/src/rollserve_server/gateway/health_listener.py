"""The health service at an address of its own, where clients of the sampler cannot hold it up."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import grpc.aio

from rollserve_server.gateway.channel import channel_options
from rollserve_server.gateway.health import MAX_CHECK_BYTES, Health
from rollserve_server.gateway.listening import listen
from rollserve_server.gateway.requests.intake import Intake

if TYPE_CHECKING:
    from rollserve_server.metrics import Metrics
    from rollserve_server.settings import ClientLimits

__all__ = ["HealthListener"]


class HealthListener:
    """A server of gRPC that has the health service alone, with connections and places of its own."""

    def __init__(self, address: str, limits: ClientLimits, services: Collection[str], metrics: Metrics) -> None:
        """Prepare to listen.

        Args:
            address: where to listen, as HOST:PORT.
            limits: limits of connections.
            services: names of the services.
            metrics: counts the RPCs.
        """
        self._address = address
        self._server = grpc.aio.server(options=channel_options(limits, MAX_CHECK_BYTES))
        self.health = Health(services, limits.client_stall_seconds, Intake(MAX_CHECK_BYTES, 0), metrics)
        self._server.add_generic_rpc_handlers((self.health.handler(),))

    async def start(self) -> None:
        """Start to listen.

        Raises:
            OSError: the server cannot listen there.
        """
        listen(self._server, self._address, "health_listen")
        await self._server.start()

    async def stop(self) -> None:
        """End all RPCs, and listen no more."""
        await self._server.stop(None)
