"""The server as a process: starts backend, pool and gateway, serves until a signal, and closes them in order."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import logging
import os
import signal
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from rollserve_server import __version__
from rollserve_server.errors import (
    DomainError,
    InvalidValueError,
    SamplerLostError,
    TooFewWorkersError,
    WorkerLostError,
)
from rollserve_server.gateway import Relay, healthy_on_standby
from rollserve_server.metrics import FolderCollector, MetricsListener, MetricsOnLoop
from rollserve_server.serving.build import Extras, host_names, make_gateway, start_samplers, warn_of_settings
from rollserve_server.serving.checks import check_environment, check_settings
from rollserve_server.serving.logs import configure_logging
from rollserve_server.serving.parent import PortFile, answering_control, end_with_parent
from rollserve_server.serving.reloading import Reloading
from rollserve_server.serving.save_file import SaveFile
from rollserve_server.serving.watching import watched
from rollserve_wire.errors import mismatch
from rollserve_wire.memory import give_back_memory, hold_on_to_memory

if TYPE_CHECKING:
    from rollserve_server.gateway import Gateway
    from rollserve_server.pool import Backend, ServerBackend
    from rollserve_server.samplers import Samplers
    from rollserve_server.serving.reloading import ReadSettings
    from rollserve_server.settings import Settings

__all__ = ["BackendThread", "Stopping", "run", "watch_backend"]

_NO_EXTRAS = Extras()
_log = logging.getLogger(__name__)
_RAY_LIMIT_SECONDS = 10.0
"""Time of an attempt to start Ray from which on it has failed by a time limit of Ray, about 20 or 30 s each."""
_CONNECT_SECONDS = 1.0
_CLOSE_SECONDS = 3.0
"""How long Ray may go on connecting to a cluster, and leaving one, after a signal."""
_T = TypeVar("_T")
_P = ParamSpec("_P")
_LAST_SECONDS = 5.0
"""How long the server may take to end in order once its backend is lost."""
_PASSING = (SamplerLostError, TooFewWorkersError, WorkerLostError)
"""Errors that another start may not meet. Others are of the settings, or of a sampler that does not go with them."""


def run(settings: Settings, read: ReadSettings, extras: Extras = _NO_EXTRAS) -> int:
    """Serve until SIGTERM or SIGINT; return the exit status of the process.

    The status is 0 after a signal, 2 if another start with these settings would fail again, else 1.

    Args:
        settings: settings of the server.
        read: reads them again, while the server runs.
        extras: what a test server has beyond others.
    """
    process = settings.process
    gc.freeze()  # modules stay: collections would traverse them for 0.1 s each, and twice at the process's end
    (hold_on_to_memory if settings.pool.worker.hold_memory else give_back_memory)()
    configure_logging(process.log_level, as_json=process.log_json)
    if process.end_with_parent is not None:
        end_with_parent(process.end_with_parent)
    fields = {"version": __version__, "env": settings.environment.env, "backend": process.backend}
    _log.info("starting", extra=fields)
    warn_of_settings(settings)
    thread, status = BackendThread(), 0
    try:
        with PortFile(process.port_file) as port_file:
            check_settings(settings)
            with _sending_logs(settings):
                asyncio.run(_serve(settings, read, thread, port_file, extras))
                _log.info("ended")
    except (DomainError, OSError) as error:
        _log.error("cannot serve", extra={"error": str(error)})  # the text says all: no traceback
        status = 1 if isinstance(error, (OSError, *_PASSING)) else 2
    if thread.is_busy:
        logging.shutdown()
        os._exit(status)
    return status


async def _serve(
    settings: Settings, read: ReadSettings, thread: BackendThread, port_file: PortFile, extras: Extras
) -> None:
    stopping = Stopping()
    async with watched(settings.process.watchdog_seconds):
        checking = asyncio.create_task(_check_environment(settings, thread))
        if await stopping.comes_before(checking):
            checking.cancel()
            return
        checking.result()
        starting = asyncio.create_task(_start_backend(settings, thread, stopping, extras))
        is_stopped = await stopping.comes_before(starting)
        stopping.listen()
        if is_stopped:
            # The server's own cluster has to be complete before it can be ended. Connecting to another one just stops.
            await asyncio.wait({starting}, timeout=_CONNECT_SECONDS if settings.ray.ray_address else None)
            if not starting.done():
                starting.cancel()
                return
        backend = starting.result()
        try:
            if not is_stopped:
                with contextlib.closing(Relay(backend.own_address())) as relay:
                    await relay.allow(host_names(settings))
                    backend.relay = relay.place
                    await _serve_with(backend, relay, settings, read, stopping, port_file, extras)
        finally:
            closed, _ = await asyncio.wait({thread.call(backend.close)}, timeout=_CLOSE_SECONDS)
            for future in closed:
                future.result()


async def _check_environment(settings: Settings, thread: BackendThread) -> None:
    """Raise DomainError if the environment cannot be made, as far as that shows before workers start."""
    seconds = settings.pool.health.reset_seconds
    try:
        async with asyncio.timeout(seconds):
            await thread.call(check_environment, settings)
    except TimeoutError:
        expected = f"an environment that is made within {seconds:g} s (--reset-seconds)"
        raise InvalidValueError.of("env", expected=expected, got=f"none of {settings.environment.env!r}") from None


async def _start_backend(
    settings: Settings, thread: BackendThread, stopping: Stopping, extras: Extras
) -> ServerBackend:
    """Start the backend. A Ray that is still starting at its own time limit, as on a busy machine, starts again.

    Raises:
        OSError: Ray does not start, or does not answer at the address of an existing cluster in time.
    """
    seconds, address = settings.pool.health.start_seconds, settings.ray.ray_address
    until = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        try:
            with _timed("backend", address=address):
                async with asyncio.timeout(None if address is None else seconds):
                    return await thread.call(extras.make_backend, settings)
        except TimeoutError:
            expected = f"a Ray cluster that answers within {seconds:g} s (--start-seconds)"
            raise OSError(f"ray_address: {mismatch(expected, f'none at {address}')}") from None
        except OSError as error:
            now = time.monotonic()
            may_retry = address is None and now < until and not stopping.has_begun
            if now - began < _RAY_LIMIT_SECONDS or not may_retry:
                raise
            _log.warning("Ray did not start in time and starts again", extra={"error": str(error)})
            thread.renew()


async def _serve_with(
    backend: ServerBackend,
    relay: Relay,
    settings: Settings,
    read: ReadSettings,
    stopping: Stopping,
    port_file: PortFile,
    extras: Extras,
) -> None:
    async with healthy_on_standby(backend.standing_by, settings.gateway.health_listen):
        samplers = await stopping.unless_stopped(asyncio.create_task(_start_samplers(backend, settings)))
    if samplers is None:
        return
    gateway, pool = make_gateway(settings, samplers, relay, extras.interceptors), samplers.default.pool
    backend_lost, sampler_lost = watch_backend(backend, port_file.remove), asyncio.create_task(samplers.lost())
    lost = asyncio.create_task(_first_of(backend_lost, sampler_lost))
    keep_workers, save_file = settings.ray.keep_workers, SaveFile.of(settings)
    keep = pool.is_taken_over or keep_workers  # a sampler that was taken over is kept, until this server serves it

    async def reset(_: str) -> str:
        await samplers.reset()
        return ""

    stopping.on_hang_up = Reloading(settings, read, samplers, gateway, relay).on_hang_up
    try:
        await gateway.start()
        async with (
            _serving_metrics(settings, gateway),
            save_file.saving(pool, gateway.metrics),
            answering_control(settings.process.control_fd, {"reset": reset, **extras.answers}),
        ):
            port_file.write(gateway.port)
            keep = keep_workers
            host, status = settings.gateway.listen.rpartition(":")[0], pool.status()
            fields = {"listen": f"{host}:{gateway.port}", "workers": len(status.workers), "seed": status.seed}
            _log.info("serving", extra=fields)
            if not await stopping.comes_before(lost):
                keep = True  # another server has the workers now, or will have them
                raise SamplerLostError(lost.result())
        _log.info("stopping", extra={"grace_seconds": gateway.grace_seconds})
    finally:
        port_file.remove()
        is_lost, is_backend_lost = lost.done(), backend_lost.done()
        for future in (lost, backend_lost, sampler_lost):
            future.cancel()
        if is_lost:
            gateway.hurry()  # without backend or sampler no call can go on
        ending = asyncio.create_task(gateway.stop())
        if await stopping.comes_before(ending):
            gateway.hurry()
        await ending
        if is_backend_lost:  # a lost backend's workers do not answer
            samplers.abandon()
        else:
            if not is_lost:
                await save_file.save(pool, gateway.metrics)
            await samplers.close(keep=keep)


async def _start_samplers(backend: ServerBackend, settings: Settings) -> Samplers:
    with _timed("workers", num_workers=settings.pool.workers):
        return await start_samplers(backend, settings)


@contextlib.contextmanager
def _timed(part: str, **fields: object) -> Iterator[None]:
    """Log that a part of the server starts, which may take many seconds, and once it has started."""
    began = time.monotonic()
    _log.info(f"starting {part}", extra={name: value for name, value in fields.items() if value is not None})
    yield
    _log.info(f"started {part}", extra={"seconds": round(time.monotonic() - began, 1)})


@contextlib.asynccontextmanager
async def _serving_metrics(settings: Settings, gateway: Gateway) -> AsyncGenerator[None, None]:
    """Serve the gateway's metrics, and send them to a collector, during the block, as far as the settings say so.

    Both are closed in a thread, because the event loop reads the last metrics.
    """
    address, endpoint = settings.process.metrics_listen, settings.gateway.tracing.endpoint_of("metrics")
    metrics = MetricsOnLoop(
        gateway.metrics.registry, asyncio.get_running_loop(), beside=FolderCollector(_folders(settings))
    )
    async with contextlib.AsyncExitStack() as stack:
        if address is not None:
            listener = MetricsListener(address, metrics)
            _log.info("serving metrics", extra={"listen": listener.address})
            stack.push_async_callback(asyncio.to_thread, listener.close)
        if endpoint is not None:
            from rollserve_server.serving.otlp import MetricsSender  # not before, because it imports OpenTelemetry

            stack.push_async_callback(asyncio.to_thread, MetricsSender(endpoint, metrics).close)
        yield


def _folders(settings: Settings) -> dict[str, Path]:
    """Return the folders that the server writes to, by the settings that name them."""
    files = {"audit_log": settings.gateway.audit_log, "save_path": settings.process.save_path}
    folders = {"data_dir": settings.gateway.data_dir, **{name: file and file.parent for name, file in files.items()}}
    named = {name: folder for name, folder in folders.items() if folder is not None}
    return {**named, "tmp": Path(tempfile.gettempdir())}


@contextlib.contextmanager
def _sending_logs(settings: Settings) -> Iterator[None]:
    """Send the events of the block to a collector, too, if the settings say so."""
    endpoint = settings.gateway.tracing.endpoint_of("logs")
    if endpoint is None:
        yield
        return
    from rollserve_server.serving.otlp import sending_logs  # not before, because it imports OpenTelemetry

    with sending_logs(endpoint):
        yield


async def _first_of(*futures: asyncio.Future[str]) -> str:
    """Return the result of the future that is done first."""
    done, _ = await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    return done.pop().result()


class Stopping:
    """Waits for SIGTERM and SIGINT beside other work of the server, and for the end of its terminal.

    Attributes:
        has_begun: whether a signal has been received.
        on_hang_up: called on SIGHUP, unless that is the end of the terminal.
    """

    def __init__(self) -> None:
        self._signalled = asyncio.Event()
        self.has_begun = False
        self.on_hang_up: Callable[[], object] = lambda: None
        self._ends_with_terminal = _has_terminal() and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN  # nohup
        self.listen()

    def listen(self) -> None:
        """Handle the signals from now on, also if something else, such as Ray, has set handlers since."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled.set)
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)

    def _hang_up(self) -> None:
        if self._ends_with_terminal and not _has_terminal():
            self._signalled.set()
        else:
            self.on_hang_up()

    async def comes_before(self, future: asyncio.Future[Any]) -> bool:
        """Wait for the future or the next signal; return whether the signal was first."""
        signalled = asyncio.create_task(self._signalled.wait())
        await asyncio.wait({future, signalled}, return_when=asyncio.FIRST_COMPLETED)
        signalled.cancel()
        if future.done():
            return False
        self._signalled.clear()
        self.has_begun = True
        return True

    async def unless_stopped(self, task: asyncio.Task[_T]) -> _T | None:
        """Return the task's result; or cancel the task and return None if a signal comes first."""
        if not await self.comes_before(task):
            return task.result()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return None


class BackendThread:
    """A thread of its own for the backend: whatever Ray starts ends with the thread that started it.

    Ray's functions cannot be interrupted, and may wait long for a cluster that is gone or out of reach. The process
    need not wait for them: when it ends, everything that Ray started for it ends, too.
    """

    def __init__(self) -> None:
        self._executor = _new_executor()
        self._last: concurrent.futures.Future[Any] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a call has not returned yet."""
        return self._last is not None and not self._last.done()

    def call(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> asyncio.Future[_T]:
        """Call a function in the thread, after all earlier calls."""
        self._last = future = self._executor.submit(function, *args, **kwargs)
        return asyncio.wrap_future(future)

    def renew(self) -> None:
        """End the thread, with what Ray has started there, and use another one."""
        self._executor.shutdown(wait=False)
        self._executor = _new_executor()


def _has_terminal() -> bool:
    """Whether the process has a terminal that is still there."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def watch_backend(backend: Backend, on_lost: Callable[[], None]) -> asyncio.Future[str]:
    """Return a future whose result is the reason once the backend is lost. Cancel it when the server stops.

    The process ends soon after a loss in any case: calls of a lost backend may never return, also in this process.

    Args:
        backend: the backend.
        on_lost: called at once from any thread, because Ray may end the process.
    """
    loop = asyncio.get_running_loop()
    lost: asyncio.Future[str] = loop.create_future()

    def settle(reason: str) -> None:
        if not lost.done():
            lost.set_result(reason)

    def report(reason: str) -> None:
        if lost.cancelled():
            return
        on_lost()
        _log.error("backend lost", extra={"error": reason})
        timer = threading.Timer(_LAST_SECONDS, _end_at_once)
        timer.daemon = True
        timer.start()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, reason)

    backend.watch(report)
    return lost


def _new_executor() -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="backend")


def _end_at_once() -> None:
    logging.shutdown()
    os._exit(1)
