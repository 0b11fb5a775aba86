"""The gRPC server: where it listens, health, reflection, and its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from rollserve.v1 import sampler_service_pb2 as pb
from rollserve_server.errors import StoppingError
from rollserve_server.gateway.client_limits import ClientLimits
from rollserve_server.gateway.health import HEALTH_SERVICE, Health
from rollserve_server.gateway.reflection import REFLECTION_SERVICE, Reflection
from rollserve_server.gateway.requests.intake import Intake
from rollserve_server.gateway.rpcs import OpenRpcs
from rollserve_server.gateway.service import SamplerService
from rollserve_server.gateway.shared_memory import Rings

if TYPE_CHECKING:
    from rollserve_server.pool import Pool

__all__ = ["Gateway", "GatewayConfig"]

_log = logging.getLogger(__name__)

_FLUSH_SECONDS = 1.0
"""How long clients have to hear that their calls have ended."""
_ACCEPTED_SECONDS = 0.2
"""How long calls that have come have to be begun with: gRPC cancels those that stand in its queue when it stops."""

_SERVICE = pb.DESCRIPTOR.services_by_name["SamplerService"].full_name


# gRPC logs a traceback when a client goes away while a message is being sent to it, which is the client's right.
logging.getLogger("grpc._cython.cygrpc").addFilter(lambda record: "ExecuteBatchError" not in record.getMessage())


@dataclass(frozen=True)
class GatewayConfig:
    """How a gateway is made.

    Attributes:
        listen: `host:port`; port 0 for any that is free.
        max_request_bytes: the largest request that is taken.
        grace_seconds: how long calls may go on after the end has begun.
        allowed_paths: files and folders that requests may name in the arguments of environments.
        shared_memory_bytes: how much shared memory streams may come through.
        limits: what clients may take of it, and how it finds out that they are gone.
    """

    listen: str
    max_request_bytes: int
    grace_seconds: float
    allowed_paths: tuple[Path, ...] = ()
    shared_memory_bytes: int = 0
    limits: ClientLimits = field(default_factory=ClientLimits)


class Gateway:
    """Serves samplers over gRPC.

    Attributes:
        port: where it listens, after `start`.
    """

    def __init__(self, config: GatewayConfig, pools: Mapping[str, Pool]) -> None:
        """Prepares to serve the samplers of these names.

        Raises:
            OSError: there is no shared memory here.
        """
        self._config = config
        self._pools = pools
        limits = config.limits
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", config.max_request_bytes),
                ("grpc.so_reuseport", 0),
                *limits.channel_options(),
            ],
            maximum_concurrent_rpcs=limits.max_rpcs,
        )
        self._rpcs = OpenRpcs(limits.client_stall_seconds)
        intake = Intake(config.max_request_bytes, limits.max_pending_request_bytes)
        rings = Rings(config.shared_memory_bytes)
        service = SamplerService(pools, config.allowed_paths, rings, self._rpcs, intake)
        self._health = Health(("", _SERVICE), self._rpcs, intake)
        reflection = Reflection((_SERVICE, HEALTH_SERVICE, REFLECTION_SERVICE), self._rpcs, intake)
        self._server.add_generic_rpc_handlers((service.handler(), self._health.handler(), reflection.handler()))
        self.port = 0

    async def start(self) -> None:
        """Begins to serve.

        Raises:
            OSError: it cannot listen there.
        """
        try:
            self.port = self._server.add_insecure_port(self._config.listen)
        except RuntimeError as error:
            raise OSError(f"listen: {self._config.listen}: cannot listen there: is the port in use?") from error
        await self._server.start()
        self._health.begin()

    async def stop(self, *, at_once: bool = False) -> None:
        """Takes no more calls, tells so, and ends when those that run have ended or the grace is over.

        Calls that wait for their turn are ended at once, those that run longer than the grace then.

        Args:
            at_once: whether there is no grace.
        """
        grace = 0.0 if at_once else self._config.grace_seconds
        self._health.end()
        for pool in self._pools.values():
            pool.drain(StoppingError("the server is stopping: it begins no more calls"))
        if grace:
            await asyncio.sleep(_ACCEPTED_SECONDS)
        # Takes no more connections and calls from now on.
        stopping = asyncio.create_task(self._server.stop(grace + _FLUSH_SECONDS))
        try:
            await self._rpcs.wait_until_none(grace)
            self._rpcs.end(StoppingError(f"the server is stopping, and has waited {grace:g} s for the call to end"))
            # Whoever watches its health goes on doing so.
            await asyncio.wait({stopping}, timeout=_FLUSH_SECONDS)
            await self._server.stop(None)
        finally:
            stopping.cancel()
