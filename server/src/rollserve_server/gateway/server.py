"""The gRPC server: its services, where it listens, and its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from rollserve.errors import mismatch
from rollserve_server.errors import StoppingError
from rollserve_server.gateway.channel import channel_options
from rollserve_server.gateway.health import HEALTH_SERVICE, Health
from rollserve_server.gateway.reflection import REFLECTION_SERVICES, Reflection
from rollserve_server.gateway.requests.intake import Intake
from rollserve_server.gateway.requests.reader import RequestReader
from rollserve_server.gateway.rpcs.open_rpcs import OpenRpcs
from rollserve_server.gateway.service import SAMPLER_SERVICE, SamplerService
from rollserve_server.gateway.shared_memory import Rings

if TYPE_CHECKING:
    from rollserve_server.pool import Pool
    from rollserve_server.settings import GatewaySettings

__all__ = ["Gateway"]

_FLUSH_SECONDS = 1.0
"""How long the statuses of ended RPCs may take to reach their clients."""
_ACCEPTED_SECONDS = 0.2
"""How long gRPC may take to start the RPCs in its queue; when the server stops, it cancels those left there."""

# gRPC logs a traceback when a client leaves while a message is being sent to it, which is the client's right.
logging.getLogger("grpc._cython.cygrpc").addFilter(lambda record: "ExecuteBatchError" not in record.getMessage())


class Gateway:
    """Serves samplers over gRPC.

    Attributes:
        port: port where the server listens, after `start`.
    """

    def __init__(
        self, settings: GatewaySettings, pools: Mapping[str, Pool], allowed_paths: Sequence[Path] = ()
    ) -> None:
        """Prepare to serve samplers.

        Args:
            settings: where to listen, and limits for clients.
            pools: the pools by the names of their samplers.
            allowed_paths: files and folders that arguments of environments and agents may name.

        Raises:
            OSError: the settings ask for shared memory, which this system does not have.
        """
        self._settings = settings
        self._pools = pools
        limits = settings.clients
        self._server = grpc.aio.server(options=channel_options(settings), maximum_concurrent_rpcs=limits.max_rpcs)
        self._rpcs = OpenRpcs(limits.client_stall_seconds)
        intake = Intake(settings.max_request_bytes, limits.max_pending_request_bytes)
        rings = Rings(settings.shared_memory_bytes)
        service = SamplerService(self._rpcs, intake, RequestReader(pools, allowed_paths), rings)
        self._health = Health(("", SAMPLER_SERVICE), self._rpcs, intake)
        reflection = Reflection((SAMPLER_SERVICE, HEALTH_SERVICE, *REFLECTION_SERVICES), self._rpcs, intake)
        self._server.add_generic_rpc_handlers((service.handler(), self._health.handler(), *reflection.handlers()))
        self._hurried = asyncio.Event()
        self.port = 0

    async def start(self) -> None:
        """Start to listen and to serve.

        Raises:
            OSError: the server cannot listen there.
        """
        address = self._settings.listen
        try:
            self.port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            text = mismatch("an address to listen at", address, "is the port in use?")
            raise OSError(f"listen: {text}") from error
        await self._server.start()
        self._health.start_serving()

    def hurry(self) -> None:
        """End the grace period: calls that still run get their status now, or as soon as `stop` is called."""
        self._hurried.set()

    async def stop(self) -> None:
        """Stop serving: accept no more calls, wait for the running ones, and end what is left after the grace period.

        Queued calls end at once. Health reports at once that the server does not serve.
        """
        grace = 0.0 if self._hurried.is_set() else self._settings.grace_seconds
        self._health.stop_serving()
        for pool in self._pools.values():
            pool.drain(StoppingError("the server is stopping and starts no more calls"))
        if grace:
            await asyncio.sleep(_ACCEPTED_SECONDS)
        # From here on gRPC accepts no more connections and RPCs.
        stopping = asyncio.create_task(self._server.stop(grace + _FLUSH_SECONDS))
        try:
            await self._wait_for_calls(grace)
            self._rpcs.end(StoppingError("the server is stopping, and the call has not ended in its grace period"))
            # Watchers of health never end by themselves.
            await asyncio.wait({stopping}, timeout=_FLUSH_SECONDS)
            await self._server.stop(None)
        finally:
            stopping.cancel()

    async def _wait_for_calls(self, seconds: float) -> None:
        """Wait until no call runs, the time is over, or `hurry` is called."""
        ended, hurried = (
            asyncio.create_task(self._rpcs.wait_until_none(seconds)),
            asyncio.create_task(self._hurried.wait()),
        )
        await asyncio.wait({ended, hurried}, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        hurried.cancel()
