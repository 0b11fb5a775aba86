"""The server as a whole: starts what the settings ask for, serves until a signal comes, and ends it all."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
from typing import TYPE_CHECKING, TypeVar

from rollserve import EnvSpec, Wrapper
from rollserve_server import __version__
from rollserve_server.envs import module_of
from rollserve_server.errors import DomainError
from rollserve_server.gateway import DEFAULT_SAMPLER, Gateway, GatewayConfig
from rollserve_server.logs import configure_logging
from rollserve_server.pool import InProcessBackend, Pool, PoolConfig

if TYPE_CHECKING:
    from pathlib import Path

    from rollserve_server.pool import Backend
    from rollserve_server.settings import Settings

__all__ = ["run"]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

_SEED_BITS = 53
"""Of a random root seed: as many as a number has in JavaScript."""


def run(settings: Settings) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit status of the process."""
    configure_logging(settings.log_level, settings.log_json)
    _log.info("starting", extra={"version": __version__, "env": settings.env, "backend": settings.backend})
    backend: Backend | None = None
    try:
        backend = _start_backend(settings)
        asyncio.run(_serve(settings, backend))
    except (DomainError, OSError) as error:
        _log.error("cannot serve", extra={"error": str(error)})  # says all there is to say
        return 1
    except (KeyboardInterrupt, SystemExit):  # before there were handlers
        _log.info("interrupted")
        return 130
    finally:
        if backend is not None:
            backend.close()
    _log.info("ended")
    return 0


async def _serve(settings: Settings, backend: Backend) -> None:
    stopping = _Stopping()
    starting = asyncio.create_task(Pool.start(backend, _pool_config(settings), _env_spec(settings)))
    pool = await stopping.unless_stopped(starting)
    if pool is None:
        return
    gateway = Gateway(_gateway_config(settings), {DEFAULT_SAMPLER: pool})
    try:
        await gateway.start()
        host = settings.listen.rpartition(":")[0]
        if settings.port_file is not None:
            _write_whole(settings.port_file, f"{gateway.port}\n")
        status = pool.status()
        _log.info(
            "serving",
            extra={"listen": f"{host}:{gateway.port}", "workers": len(status.workers), "seed": status.seed},
        )
        await stopping.wait()
        _log.info("stopping", extra={"grace_seconds": settings.grace_seconds})
        await stopping.unless_stopped(asyncio.create_task(gateway.stop()))
    finally:
        await pool.close()


class _Stopping:
    """Waits for signals: the first asks for an orderly end, the next for one at once."""

    def __init__(self) -> None:
        self._signalled = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled.set)

    async def wait(self) -> None:
        """Waits for the next signal."""
        await self._signalled.wait()
        self._signalled.clear()

    async def unless_stopped(self, task: asyncio.Task[_T]) -> _T | None:
        """The task's result, or None if a signal comes first: the task is then cancelled."""
        signalled = asyncio.create_task(self._signalled.wait())
        await asyncio.wait({task, signalled}, return_when=asyncio.FIRST_COMPLETED)
        signalled.cancel()
        if task.done():
            return task.result()
        self._signalled.clear()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return None


def _start_backend(settings: Settings) -> Backend:
    if settings.backend == "in-process":
        return InProcessBackend()
    # Imported only where it is used: Ray takes its time.
    from rollserve_server.pool.ray_backend import RayBackend, RayOptions

    options = RayOptions(
        num_cpus=settings.worker_num_cpus,
        num_gpus=settings.worker_num_gpus,
        memory=settings.worker_memory_bytes,
        resources=settings.worker_resources,
    )
    return RayBackend(
        options,
        address=settings.ray_address,
        num_workers=settings.workers,
        object_store_bytes=settings.object_store_bytes,
    )


def _pool_config(settings: Settings) -> PoolConfig:
    module = module_of(settings.env)
    return PoolConfig(
        num_workers=settings.workers,
        num_rows=settings.rows,
        worker_buffer_bytes=settings.worker_buffer_bytes,
        window_bytes=settings.call_window_bytes,
        seed=secrets.randbits(_SEED_BITS) if settings.seed is None else settings.seed,
        max_episode_length=settings.max_episode_length,
        max_calls=settings.max_calls,
        num_kept_versions=settings.keep_versions,
        allowed_modules=frozenset((*settings.allow_module, *([module] if module else []))),
        allowed_methods=frozenset(settings.allow_method),
        start_seconds=settings.start_seconds,
    )


def _env_spec(settings: Settings) -> EnvSpec:
    wrappers = tuple(Wrapper(wrapper.name, wrapper.kwargs) for wrapper in settings.wrappers)
    return EnvSpec(settings.env, settings.env_kwargs, wrappers)


def _gateway_config(settings: Settings) -> GatewayConfig:
    return GatewayConfig(settings.listen, settings.max_request_bytes, settings.grace_seconds)


def _write_whole(path: Path, text: str) -> None:
    """Writes the file so that whoever sees it sees all of it."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(text)
    unfinished.replace(path)
