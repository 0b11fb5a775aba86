"""The gRPC server: where it listens, health, reflection, and its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from rollserve.v1 import sampler_service_pb2 as pb
from rollserve_server.errors import StoppingError
from rollserve_server.gateway.channel import channel_options
from rollserve_server.gateway.health import HEALTH_SERVICE, Health
from rollserve_server.gateway.reflection import REFLECTION_SERVICE, Reflection
from rollserve_server.gateway.requests.intake import Intake
from rollserve_server.gateway.rpcs import OpenRpcs
from rollserve_server.gateway.service import SamplerService
from rollserve_server.gateway.shared_memory import Rings

if TYPE_CHECKING:
    from rollserve_server.pool import Pool
    from rollserve_server.settings import GatewaySettings

__all__ = ["Gateway"]

_log = logging.getLogger(__name__)

_FLUSH_SECONDS = 1.0
"""How long clients have to hear that their calls have ended."""
_ACCEPTED_SECONDS = 0.2
"""How long calls that have come have to be begun with: gRPC cancels those that stand in its queue when it stops."""

_SERVICE = pb.DESCRIPTOR.services_by_name["SamplerService"].full_name


# gRPC logs a traceback when a client goes away while a message is being sent to it, which is the client's right.
logging.getLogger("grpc._cython.cygrpc").addFilter(lambda record: "ExecuteBatchError" not in record.getMessage())


class Gateway:
    """Serves samplers over gRPC.

    Attributes:
        port: where it listens, after `start`.
    """

    def __init__(
        self, settings: GatewaySettings, pools: Mapping[str, Pool], allowed_paths: Sequence[Path] = ()
    ) -> None:
        """Prepare to serve samplers.

        Args:
            settings: where to listen, and how much clients may take.
            pools: the samplers by name.
            allowed_paths: files and folders that requests may name in arguments of environments.

        Raises:
            OSError: there is no shared memory on this system.
        """
        self._settings = settings
        self._pools = pools
        limits = settings.clients
        self._server = grpc.aio.server(options=channel_options(settings), maximum_concurrent_rpcs=limits.max_rpcs)
        self._rpcs = OpenRpcs(limits.client_stall_seconds)
        intake = Intake(settings.max_request_bytes, limits.max_pending_request_bytes)
        rings = Rings(settings.shared_memory_bytes)
        service = SamplerService(pools, allowed_paths, rings, self._rpcs, intake)
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
            self.port = self._server.add_insecure_port(self._settings.listen)
        except RuntimeError as error:
            raise OSError(f"listen: {self._settings.listen}: cannot listen there: is the port in use?") from error
        await self._server.start()
        self._health.begin()

    async def stop(self, *, at_once: bool = False) -> None:
        """Takes no more calls, tells so, and ends when those that run have ended or the grace is over.

        Calls that wait for their turn are ended at once, those that run longer than the grace then.

        Args:
            at_once: whether there is no grace.
        """
        grace = 0.0 if at_once else self._settings.grace_seconds
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
