"""The health of a server that stands by: it waits for the end of the server that has its sampler."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

__all__ = ["healthy_on_standby"]


@contextlib.asynccontextmanager
async def healthy_on_standby(standing_by: asyncio.Event, address: str | None) -> AsyncGenerator[None, None]:
    """Tell a supervisor, in the block, that the server is healthy as soon as it stands by: a restart would not help.

    Args:
        standing_by: set as soon as the server stands by.
        address: where the supervisor asks, as `host:port`; None for nowhere.
    """

    async def answer(address: str) -> None:
        await standing_by.wait()
        servicer = health.aio.HealthServicer()
        await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        with contextlib.suppress(RuntimeError):  # the other server is on this machine, and listens there
            server.add_insecure_port(address)
            await server.start()

    if address is None:
        yield
        return
    server = grpc.aio.server()
    answering = asyncio.create_task(answer(address))
    try:
        yield
    finally:
        answering.cancel()
        await server.stop(0)
