"""A gateway that replays recorded messages: `python -m benchmarks.service.processes.recorded_gateway ENVIRONMENT`.

The first sampling call with a column format samples and is recorded; later calls with that format get the same
messages, by the server's own code for the gateway. So the last leg, from gateway to client, can be measured alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncGenerator
from typing import Any

from benchmarks.shared.commands import answer_commands
from rollserve import EnvSpec, hold_on_to_memory
from rollserve_server.agents import RandomSpec
from rollserve_server.gateway import Gateway
from rollserve_server.pool import InProcessBackend, Pool, SampleRequest
from rollserve_server.samplers import Samplers
from rollserve_server.sampling import ColumnFormat
from rollserve_server.settings import GatewaySettings, PoolSettings, SamplerSettings

__all__: list[str] = []

_POOL_SETTINGS = PoolSettings.from_flat(
    {
        "workers": 1,
        "seed": 0,
        "vectorization": "rows",
        "rows": 1,
        "worker_buffer_bytes": 1 << 28,
        "call_window_bytes": 1 << 26,
        "allow_module": ("benchmarks.service.environments",),
    }
)
_GATEWAY_SETTINGS = GatewaySettings.from_flat(
    {
        "listen": "127.0.0.1:0",
        "max_request_bytes": 1 << 20,
        "shared_memory_bytes": 1 << 26,
        "grace_seconds": 1.0,
    }
)


class _RecordingPool:
    """A pool that samples for the first request with a column format, and replays the results for later ones."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._recordings: dict[ColumnFormat | None, list[Any]] = {}

    async def sample(self, request: SampleRequest, *_: object) -> AsyncGenerator[Any, None]:
        """Yield what `Pool.sample` yielded for the first request with these columns."""
        columns = request.messages.columns
        if columns not in self._recordings:
            async with contextlib.aclosing(self._pool.sample(request)) as items:
                self._recordings[columns] = [item async for item in items]
        for item in self._recordings[columns]:
            yield item

    def drain(self, error: Exception) -> None:
        """Do nothing: no call waits here."""


class _Serving:
    """A gateway that runs in a thread's event loop."""

    def __init__(self, env_id: str) -> None:
        self._env_id = env_id
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self.port = 0

    def start(self) -> None:
        """Return when the gateway listens at `port`; raise what kept it from that."""
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._served = asyncio.run_coroutine_threadsafe(self._serve(), self._loop)
        self._served.add_done_callback(lambda _: self._ready.set())
        self._ready.wait()
        if self._served.done():
            self._served.result()

    def stop(self) -> None:
        """Stop the gateway and close the pool."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._served.result()

    async def _serve(self) -> None:
        env = EnvSpec(self._env_id)
        samplers = await Samplers.start(InProcessBackend(), SamplerSettings(), _POOL_SETTINGS, env, adopt=False)
        pool = samplers.default.pool
        await pool.update_agent([RandomSpec()], per_worker=False)
        recording: Any = _RecordingPool(pool)
        samplers.default.pool = recording
        gateway = Gateway(_GATEWAY_SETTINGS, samplers, env)
        await gateway.start()
        self.port = gateway.port
        self._ready.set()
        await self._stop.wait()
        await gateway.stop()
        await pool.close()


def main() -> None:
    """Serve, and answer commands until the end of standard input."""
    hold_on_to_memory()  # as a server does
    serving = _Serving(sys.argv[1])
    serving.start()
    answer_commands({"port": lambda: {"port": serving.port}})
    serving.stop()


if __name__ == "__main__":
    main()
