"""A gateway that answers with a recording: `python -m benchmarks.service.recorded_gateway ENVIRONMENT`.

The first sampling call that takes columns in some way is what it is; each later one gets the same messages, by the
server's own code for the gateway. So the leg from there to a client can be measured alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncGenerator
from typing import Any

from benchmarks.service.children import answer_commands
from rollserve import EnvSpec, hold_on_to_memory
from rollserve_server.agents import RandomSpec
from rollserve_server.envs import RowSettings
from rollserve_server.gateway import DEFAULT_SAMPLER, Gateway, GatewayConfig
from rollserve_server.pool import InProcessBackend, Pool, PoolConfig, SampleRequest
from rollserve_server.sampling import ColumnFormat

__all__: list[str] = []

_CONFIG = PoolConfig(
    num_workers=1,
    rows=RowSettings("rows", num_rows=1),
    worker_buffer_bytes=1 << 28,
    window_bytes=1 << 26,
    seed=0,
    allowed_modules=frozenset({"benchmarks.service.environments"}),
)


class _RecordingPool:
    """Gives what a pool gives to the first request of a kind, and the same to all later ones."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._items: dict[ColumnFormat, list[Any]] = {}

    async def sample(self, request: SampleRequest, *_: object) -> AsyncGenerator[Any, None]:
        """As of a pool."""
        if request.columns not in self._items:
            async with contextlib.aclosing(self._pool.sample(request)) as items:
                self._items[request.columns] = [item async for item in items]
        for item in self._items[request.columns]:
            yield item

    def drain(self, error: Exception) -> None:
        """Has nothing that waits."""


async def _serve(ready: threading.Event, ports: list[int], done: asyncio.Event) -> None:
    """Serves until it is done; adds its port to the list when it is ready."""
    pool = await Pool.start(InProcessBackend(), _CONFIG, EnvSpec(sys.argv[1]))
    await pool.update_agent([RandomSpec()], per_worker=False)
    recording: Any = _RecordingPool(pool)
    config = GatewayConfig("127.0.0.1:0", 1 << 20, grace_seconds=1.0, shared_memory_bytes=1 << 26)
    gateway = Gateway(config, {DEFAULT_SAMPLER: recording})
    await gateway.start()
    ports.append(gateway.port)
    ready.set()
    await done.wait()
    await gateway.stop()
    await pool.close()


def main() -> None:
    """Serves, and answers with its port."""
    hold_on_to_memory()  # as a server does
    loop, ready, done = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    ports: list[int] = []
    threading.Thread(target=loop.run_forever, daemon=True).start()
    serving = asyncio.run_coroutine_threadsafe(_serve(ready, ports, done), loop)
    serving.add_done_callback(lambda _: ready.set())
    ready.wait()
    if serving.done():
        serving.result()
    answer_commands({"port": lambda: {"port": ports[0]}})
    loop.call_soon_threadsafe(done.set)
    serving.result()


if __name__ == "__main__":
    main()
