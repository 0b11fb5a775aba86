"""The server as a process: starts backend, pool and gateway, serves until a signal, and closes them in order."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from rollserve import give_back_memory, hold_on_to_memory
from rollserve_server import __version__
from rollserve_server.errors import DomainError, SamplerLostError
from rollserve_server.logs import configure_logging
from rollserve_server.serving.backend_thread import BackendThread, watch_backend
from rollserve_server.serving.build import make_backend, make_gateway, start_pool, warn_of_settings
from rollserve_server.serving.parent import end_with_parent
from rollserve_server.serving.port_file import port_file
from rollserve_server.serving.signals import Stopping

if TYPE_CHECKING:
    from rollserve_server.pool import Backend
    from rollserve_server.settings import Settings

__all__ = ["run"]

_log = logging.getLogger(__name__)

_CONNECT_SECONDS = 1.0
_CLOSE_SECONDS = 3.0
"""How long Ray may go on connecting to a cluster, and leaving one, after a signal."""


def run(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; return the exit status of the process."""
    process, listen = settings.process, settings.gateway.listen
    (hold_on_to_memory if settings.pool.worker.hold_memory else give_back_memory)()
    configure_logging(process.log_level, process.log_json)
    if process.end_with_parent is not None:
        end_with_parent(process.end_with_parent)
    fields = {"version": __version__, "env": settings.environment.env, "backend": process.backend}
    _log.info("starting", extra=fields)
    warn_of_settings(settings.pool.allow, allow_pickle=settings.pool.agents.allow_pickle, listen=listen)
    thread, status = BackendThread(), 0
    try:
        asyncio.run(_serve(settings, thread))
        _log.info("ended")
    except (DomainError, OSError) as error:
        _log.error("cannot serve", extra={"error": str(error)})  # the text says all: no traceback
        status = 1
    if thread.is_busy:
        logging.shutdown()
        os._exit(status)
    return status


async def _serve(settings: Settings, thread: BackendThread) -> None:
    stopping = Stopping()
    with port_file(settings.process.port_file) as write_port:
        starting = thread.call(make_backend, settings)
        is_stopped = await stopping.comes_before(starting)
        stopping.listen()
        if is_stopped:
            # The server's own cluster has to be complete before it can be ended. Connecting to another one just stops.
            await asyncio.wait({starting}, timeout=_CONNECT_SECONDS if settings.ray.ray_address else None)
            if not starting.done():
                return
        backend = starting.result()
        try:
            if not is_stopped:
                await _serve_with(backend, settings, stopping, write_port)
        finally:
            closed, _ = await asyncio.wait({thread.call(backend.close)}, timeout=_CLOSE_SECONDS)
            for future in closed:
                future.result()


async def _serve_with(
    backend: Backend, settings: Settings, stopping: Stopping, write_port: Callable[[int], None]
) -> None:
    pool = await stopping.unless_stopped(asyncio.create_task(start_pool(backend, settings)))
    if pool is None:
        return
    gateway = make_gateway(settings, pool)
    backend_lost, sampler_lost = watch_backend(backend), asyncio.create_task(pool.lost())
    lost = asyncio.create_task(_first_of(backend_lost, sampler_lost))
    keep_workers = settings.ray.keep_workers
    keep = pool.is_taken_over or keep_workers  # a sampler that was taken over is kept, until this server serves it
    try:
        await gateway.start()
        write_port(gateway.port)
        keep = keep_workers
        host, status = settings.gateway.listen.rpartition(":")[0], pool.status()
        fields = {"listen": f"{host}:{gateway.port}", "workers": len(status.workers), "seed": status.seed}
        _log.info("serving", extra=fields)
        if not await stopping.comes_before(lost):
            keep = True  # another server has the workers now, or will have them
            raise SamplerLostError(lost.result())
        _log.info("stopping", extra={"grace_seconds": settings.gateway.grace_seconds})
    finally:
        is_lost, is_backend_lost = lost.done(), backend_lost.done()
        for future in (lost, backend_lost, sampler_lost):
            future.cancel()
        # Without backend or sampler no call can go on.
        await stopping.unless_stopped(asyncio.create_task(gateway.stop(at_once=is_lost)))
        if not is_backend_lost:  # a lost backend's workers do not answer
            await pool.close(keep=keep)


async def _first_of(*futures: asyncio.Future[str]) -> str:
    """Return the result of the future that is done first."""
    done, _ = await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    return done.pop().result()
