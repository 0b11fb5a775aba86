"""The server as a whole: starts what the settings ask for, serves until a signal comes, and ends it all."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import importlib.util
import logging
import os
import secrets
import signal
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from rollserve import EnvSpec, Wrapper, give_back_memory, hold_on_to_memory
from rollserve_server import __version__
from rollserve_server.agents import OnnxSettings, PythonSettings
from rollserve_server.envs import RowSettings, module_of, paths_in
from rollserve_server.errors import DomainError, SamplerLostError
from rollserve_server.gateway import DEFAULT_SAMPLER, ClientLimits, Gateway, GatewayConfig
from rollserve_server.logs import configure_logging
from rollserve_server.pool import MOST_EVALUATIONS, InProcessBackend, Pool, PoolConfig
from rollserve_server.serving.parent import end_with_parent

if TYPE_CHECKING:
    from pathlib import Path

    from rollserve_server.pool import Backend
    from rollserve_server.settings import Settings

__all__ = ["run"]

_log = logging.getLogger(__name__)
_P = ParamSpec("_P")
_T = TypeVar("_T")

_SEED_BITS = 53
"""Of a random root seed: as many as a number has in JavaScript."""
_SETTING_NAMES = {
    "": "env",
    "id": "env",
    "kwargs_json": "env_kwargs",
    "rows.vectorization": "vectorization",
    "rows.num_rows": "rows",
    "rows.num_native_rows": "native_rows",
    "rows.num_episodes_per_row": "episodes_per_row",
    "buffer_bytes": "worker_buffer_bytes",
    "holds_memory": "hold_memory",
}
"""By the fields that errors of a pool's start are about."""
_CONNECT_SECONDS = 1.0
_CLOSE_SECONDS = 3.0
"""How long Ray may go on connecting to a cluster, or taking leave of one, when the server is to stop."""
_LAST_SECONDS = 5.0
"""How long the server may take to end in order when its backend is lost."""


def run(settings: Settings) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit status of the process."""
    (hold_on_to_memory if settings.hold_memory else give_back_memory)()
    configure_logging(settings.log_level, settings.log_json)
    if settings.end_with_parent is not None:
        end_with_parent(settings.end_with_parent)
    _log.info("starting", extra={"version": __version__, "env": settings.env, "backend": settings.backend})
    for name in settings.allow_module:
        if not _is_there(name):
            _log.warning("module not found", extra={"allow_module": name})
    if settings.allow_pickle:
        _log.warning("pickled agents are allowed: clients can run code here", extra={"listen": settings.listen})
    thread, status = _BackendThread(), 0
    try:
        asyncio.run(_serve(settings, thread))
        _log.info("ended")
    except (DomainError, OSError) as error:
        _log.error("cannot serve", extra={"error": str(error)})  # says all there is to say
        status = 1
    if thread.is_busy:
        logging.shutdown()
        os._exit(status)
    return status


async def _serve(settings: Settings, thread: _BackendThread) -> None:
    stopping = _Stopping()
    with _port_file(settings.port_file) as write_port:
        starting = thread.call(_make_backend, settings)
        stopped = await stopping.come_before(starting)
        stopping.listen()
        if stopped:
            # A cluster of our own has to be complete before it can be ended. Connecting to another just stops.
            await asyncio.wait({starting}, timeout=_CONNECT_SECONDS if settings.ray_address else None)
            if not starting.done():
                return
        backend = starting.result()
        try:
            if not stopped:
                await _serve_on(backend, settings, stopping, write_port)
        finally:
            closed, _ = await asyncio.wait({thread.call(backend.close)}, timeout=_CLOSE_SECONDS)
            for future in closed:
                future.result()


async def _serve_on(
    backend: Backend, settings: Settings, stopping: _Stopping, write_port: Callable[[int], None]
) -> None:
    pool = await stopping.unless_stopped(asyncio.create_task(_start_pool(backend, settings)))
    if pool is None:
        return
    gateway = Gateway(_gateway_config(settings), {DEFAULT_SAMPLER: pool})
    gone, taken = _watch(backend), asyncio.create_task(pool.lost())
    lost = asyncio.create_task(_first_of(gone, taken))
    keep = pool.is_taken_over or settings.keep_workers  # what was there stays as it was until this server serves it
    try:
        await gateway.start()
        write_port(gateway.port)
        keep = settings.keep_workers
        host, status = settings.listen.rpartition(":")[0], pool.status()
        _log.info(
            "serving",
            extra={"listen": f"{host}:{gateway.port}", "workers": len(status.workers), "seed": status.seed},
        )
        if not await stopping.come_before(lost):
            keep = True  # for whoever has it now, or gets at it again
            raise SamplerLostError(lost.result())
        _log.info("stopping", extra={"grace_seconds": settings.grace_seconds})
    finally:
        is_lost, is_gone = lost.done(), gone.done()
        for future in (lost, gone, taken):
            future.cancel()
        # Calls cannot go on without backend and sampler.
        await stopping.unless_stopped(asyncio.create_task(gateway.stop(at_once=is_lost)))
        if not is_gone:  # else nothing would answer
            await pool.close(keep=keep)


async def _first_of(*futures: asyncio.Future[str]) -> str:
    """The result of whichever is done first."""
    done, _ = await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    return done.pop().result()


def _watch(backend: Backend) -> asyncio.Future[str]:
    """What is lost, once the backend is. Cancelled when the server is to stop, for which the backend may have to, too.

    The process ends soon after a loss in any case: what is asked of a lost backend may never return, here either.
    """
    loop = asyncio.get_running_loop()
    lost: asyncio.Future[str] = loop.create_future()

    def settle(reason: str) -> None:
        if not lost.done():
            lost.set_result(reason)

    def tell(reason: str) -> None:
        if lost.cancelled():
            return
        _log.error("backend lost", extra={"error": reason})
        timer = threading.Timer(_LAST_SECONDS, _end_at_once)
        timer.daemon = True
        timer.start()
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, reason)

    backend.watch(tell)
    return lost


def _end_at_once() -> None:
    logging.shutdown()
    os._exit(1)


class _Stopping:
    """Waits for signals: the first asks for an orderly end, the next for one at once."""

    def __init__(self) -> None:
        self._signalled = asyncio.Event()
        self.listen()

    def listen(self) -> None:
        """Takes signals, again if something else has begun to do so."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled.set)

    async def come_before(self, future: asyncio.Future[Any]) -> bool:
        """Waits for the future or the next signal; tells whether it was the signal."""
        signalled = asyncio.create_task(self._signalled.wait())
        await asyncio.wait({future, signalled}, return_when=asyncio.FIRST_COMPLETED)
        signalled.cancel()
        if future.done():
            return False
        self._signalled.clear()
        return True

    async def unless_stopped(self, task: asyncio.Task[_T]) -> _T | None:
        """The task's result, or None if a signal comes first: the task is then cancelled."""
        if not await self.come_before(task):
            return task.result()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return None


class _BackendThread:
    """Starts and ends the backend: what Ray starts ends with the thread that started it.

    Ray's functions cannot be interrupted, and may wait long for what is out of reach or gone. The process does not have
    to wait with them: when it ends, all that Ray has started for it ends too.
    """

    def __init__(self) -> None:
        self._executor = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="backend")
        self._last: concurrent.futures.Future[Any] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a call has not returned yet."""
        return self._last is not None and not self._last.done()

    def call(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> asyncio.Future[_T]:
        """Calls it, after those before."""
        self._last = future = self._executor.submit(function, *args, **kwargs)
        return asyncio.wrap_future(future)


def _make_backend(settings: Settings) -> Backend:
    if settings.backend == "in-process":
        return InProcessBackend()
    # Imported only where it is used: Ray takes its time.
    from rollserve_server.pool.backends.ray.backend import DetachedOptions, RayBackend, RayOptions

    options = RayOptions(
        num_cpus=settings.worker_num_cpus,
        num_gpus=settings.worker_num_gpus,
        memory=settings.worker_memory_bytes,
        resources=settings.worker_resources,
    )
    adopt_seconds = min(settings.start_seconds, DetachedOptions.adopt_seconds)
    detached = DetachedOptions(settings.ray_namespace, settings.orphan_seconds, settings.adopt, adopt_seconds)
    backend = RayBackend(
        options,
        address=settings.ray_address,
        num_workers=settings.workers,
        object_store_bytes=settings.object_store_bytes,
        detached=detached if settings.ray_address else None,
    )
    backend.check_store(settings.max_calls * settings.call_window_bytes)
    return backend


async def _start_pool(backend: Backend, settings: Settings) -> Pool:
    """The pool. Errors of its environment name the settings that it comes from."""
    try:
        return await Pool.start(backend, _pool_config(settings), _env_spec(settings))
    except DomainError as error:
        field = error.field.removeprefix("all_workers.environment").removeprefix(".")
        name = _SETTING_NAMES.get(field, field.replace("kwargs_json", "kwargs"))
        error.field = name if error.field else ""
        raise


def _pool_config(settings: Settings) -> PoolConfig:
    module = module_of(settings.env)
    return PoolConfig(
        num_workers=settings.workers,
        max_workers=settings.max_workers,
        rows=RowSettings(
            vectorization=None if settings.vectorization == "auto" else settings.vectorization,
            num_rows=settings.rows,
            num_native_rows=settings.native_rows,
            num_episodes_per_row=settings.episodes_per_row,
        ),
        worker_buffer_bytes=settings.worker_buffer_bytes,
        window_bytes=_window_bytes(settings),
        seed=secrets.randbits(_SEED_BITS) if settings.seed is None else settings.seed,
        seed_is_random=settings.seed is None,
        max_episode_length=settings.max_episode_length,
        max_calls=settings.max_calls,
        max_stalled_calls=settings.max_stalled_calls,
        max_waiting_calls=settings.max_waiting_calls,
        num_kept_versions=settings.keep_versions,
        max_kept_agent_bytes=settings.max_kept_agent_bytes,
        allowed_modules=frozenset((*settings.allow_module, *([module] if module else []))),
        allowed_methods=frozenset(settings.allow_method),
        start_seconds=settings.start_seconds,
        env_retries=settings.env_retries,
        straggler_factor=settings.straggler_factor,
        step_seconds=settings.step_seconds,
        reset_seconds=settings.reset_seconds,
        unit_retries=settings.unit_retries,
        worker_restarts_per_hour=settings.worker_restarts_per_hour,
        min_healthy_workers=settings.min_healthy_workers,
        check_observations=settings.check_observations,
        holds_memory=settings.hold_memory,
        onnx=OnnxSettings(settings.max_model_bytes, settings.onnx_providers),
        python=PythonSettings(settings.allow_pickle, settings.max_model_bytes),
    )


def _window_bytes(settings: Settings) -> int:
    """How much of a call may be on its way, so that all together keep to their limit."""
    most_calls = settings.max_calls + settings.max_stalled_calls + 2 * MOST_EVALUATIONS
    return max(min(settings.call_window_bytes, settings.gateway_buffer_bytes // most_calls), 1)


def _env_spec(settings: Settings) -> EnvSpec:
    wrappers = tuple(Wrapper(wrapper.name, wrapper.kwargs) for wrapper in settings.wrappers)
    return EnvSpec(settings.env, settings.env_kwargs, wrappers)


def _gateway_config(settings: Settings) -> GatewayConfig:
    allowed_paths = (*settings.allow_path, *paths_in(_env_spec(settings)))
    return GatewayConfig(
        settings.listen,
        settings.max_request_bytes,
        settings.grace_seconds,
        allowed_paths,
        settings.shared_memory_bytes,
        ClientLimits(**{each.name: getattr(settings, each.name) for each in dataclasses.fields(ClientLimits)}),
    )


@contextlib.contextmanager
def _port_file(path: Path | None) -> Iterator[Callable[[int], None]]:
    """Sees to it that the file is there only while somebody listens at the port that it names.

    Gives what writes it, so that whoever sees the file sees all of it.

    Raises:
        OSError: it cannot be written.
    """
    if path is None:
        yield lambda port: None
        return
    unfinished = path.parent / f".{path.name}.{os.getpid()}"

    def write(port: int) -> None:
        with _about_port_file(path):
            unfinished.write_text(f"{port}\n")
            unfinished.replace(path)

    try:
        with _about_port_file(path):
            path.unlink(missing_ok=True)  # of a server before this one
            unfinished.write_text("none\n")  # a full disk is to be seen now
            unfinished.unlink()
        yield write
    finally:
        for leftover in (unfinished, path):
            with contextlib.suppress(OSError):
                leftover.unlink()


@contextlib.contextmanager
def _about_port_file(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(f"port_file: {path} came, a file that can be written was expected: {error.strerror}") from None


def _is_there(module: str) -> bool:
    """Whether Python finds a module, or the package that it is in: looking further would import that."""
    try:
        return importlib.util.find_spec(module.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False
