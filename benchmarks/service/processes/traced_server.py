"""A server that traces its RPCs: `python -m benchmarks.service.processes.traced_server LOG OPTION…`.

Serves as `rollserve-server` does with the same options, on a free port of this machine, until the end of standard
input. Commands ask for its port and for the events of the trace.

Events are wrapped around few methods of the gateway and of the pool, and cost about 1 µs each. Their times are of
`time.monotonic`, which all processes of a Linux machine share.

| event | moment | fields |
|---|---|---|
| `received` | a request has arrived | |
| `admitted` | a sampling call begins | |
| `ordered` | an order leaves for a worker | `order`, `worker` |
| `reported` | the report of an order has arrived | `order`, `sampling_seconds`, `encoding_seconds` |
| `written` | a message of a stream is handed to gRPC | `is_batch` |
| `asked`, `answered` | an agent leaves for a worker; the worker has it | |
| `updated` | an update is complete | |
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.service.processes.marked_sampler import is_batch
from benchmarks.shared.commands import answer_commands
from rollserve_server.cli import main as serve
from rollserve_server.gateway.requests.intake import Intake
from rollserve_server.gateway.rpcs.open_rpc import OpenRpc
from rollserve_server.pool.backends.ray.worker import RayWorker
from rollserve_server.pool.calls.samplings import Samplings

__all__: list[str] = []


class _Trace:
    """Events since the last look at them."""

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []
        self._orders = itertools.count()

    def install(self) -> None:
        """Wrap the methods whose moments are events."""
        self._wrap(Intake, "small_request", self._received)
        self._wrap(Intake, "update_request", self._update_received)
        self._wrap(Samplings, "begin", self._before("admitted"))
        self._wrap(RayWorker, "work", self._ordered)
        self._wrap(RayWorker, "call_urgently", self._asked)
        self._wrap(OpenRpc, "write", self._written)

    def take(self) -> dict[str, Any]:
        """Return the events, in their order, and forget them."""
        events, self._events = self._events, []
        return {"events": events}

    def _add(self, name: str, **fields: Any) -> None:
        self._events.append({"name": name, "time": time.monotonic(), **fields})

    def _wrap(self, owner: type, method: str, wrapper: Callable[..., Any]) -> None:
        original = getattr(owner, method)

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return wrapper(original, *args, **kwargs)

        setattr(owner, method, wrapped)

    def _before(self, name: str) -> Callable[..., Any]:
        def wrapper(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            self._add(name)
            return original(*args, **kwargs)

        return wrapper

    async def _received(self, original: Callable[..., Awaitable[bytes]], *args: Any) -> bytes:
        data = await original(*args)
        self._add("received")
        return data

    async def _update_received(self, original: Callable[..., Awaitable[bytes]], intake: Intake, rpc: OpenRpc) -> bytes:
        rpc.held.callback(self._add, "updated")
        return await self._received(original, intake, rpc)

    def _ordered(self, original: Callable[..., Any], worker: RayWorker, order: Any) -> Any:
        number = next(self._orders)
        self._add("ordered", order=number, worker=worker.index)
        report, buffer = original(worker, order)
        report.add_done_callback(functools.partial(self._reported, number))
        return report, buffer

    def _reported(self, number: int, done: asyncio.Future[Any]) -> None:
        if not (done.cancelled() or done.exception()):
            report = done.result()
            seconds = {"sampling_seconds": report.sampling_seconds, "encoding_seconds": report.encoding_seconds}
            self._add("reported", order=number, **seconds)

    async def _asked(
        self, original: Callable[..., Awaitable[Any]], worker: RayWorker, method: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if method.__name__ != "add_agent":
            return await original(worker, method, *args, **kwargs)
        self._add("asked")
        result = await original(worker, method, *args, **kwargs)
        self._add("answered")
        return result

    def _written(self, original: Callable[..., Awaitable[None]], rpc: OpenRpc, message: bytes) -> Awaitable[None]:
        self._add("written", is_batch=is_batch(message))
        return original(rpc, message)


class _Server:
    """The server, which runs in the main thread, as seen from the thread that answers commands."""

    def __init__(self, port_file: Path) -> None:
        self._port_file = port_file
        self._ended = threading.Event()

    def port(self) -> dict[str, Any]:
        """Return the port, once the server is ready."""
        while not self._port_file.exists():
            if self._ended.wait(0.05):
                raise RuntimeError("the server ended before it was ready")
        return {"port": int(self._port_file.read_text())}

    def run(self, *options: str) -> None:
        """Serve until a signal."""
        try:
            serve(["--listen", "127.0.0.1:0", "--port-file", str(self._port_file), *options], "rollserve-server")
        finally:
            self._ended.set()

    def stop(self) -> None:
        """Stop the server, unless it has ended."""
        if not self._ended.is_set():
            os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def _answering(trace: _Trace, server: _Server) -> Iterator[None]:
    """Answer commands in a thread until the end of standard input, and stop the server then."""

    def answer() -> None:
        answer_commands({"port": server.port, "take_events": trace.take})
        server.stop()

    thread = threading.Thread(target=answer)
    thread.start()
    yield
    thread.join()


def main() -> None:
    """Serve, and answer commands until the end of standard input."""
    with Path(sys.argv[1]).open("wb") as log:
        os.dup2(log.fileno(), sys.stderr.fileno())
    trace = _Trace()
    trace.install()
    with tempfile.TemporaryDirectory(prefix="rollserve-bench-") as folder:
        server = _Server(Path(folder, "port"))
        with _answering(trace, server), contextlib.suppress(SystemExit):
            server.run(*sys.argv[2:])


if __name__ == "__main__":
    main()
