"""The HTTP server that Prometheus reads metrics from."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client import start_http_server
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from prometheus_client import Metric

__all__ = ["MetricsListener", "MetricsOnLoop"]

_READ_SECONDS = 10.0
"""How long the event loop may take to read the metrics."""


class MetricsListener:
    """Serves metrics over HTTP, without encryption, in threads of its own.

    Attributes:
        address: where it listens, as `host:port`.
    """

    def __init__(self, address: str, metrics: MetricsOnLoop) -> None:
        """Start to serve metrics.

        Args:
            address: where to listen, as `host:port`; port 0 takes a free one.
            metrics: the metrics.

        Raises:
            OSError: the server cannot listen there.
        """
        host, _, port = address.rpartition(":")
        self._server, self._thread = start_http_server(int(port), host.strip("[]"), metrics)
        self.address = f"{host}:{self._server.server_port}"

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class MetricsOnLoop(Collector):
    """Metrics that an event loop reads for other threads, and some that the threads read themselves."""

    def __init__(self, metrics: Collector, loop: asyncio.AbstractEventLoop, beside: Collector) -> None:
        """Read metrics on an event loop.

        Args:
            metrics: the metrics.
            loop: the event loop.
            beside: metrics that may take long, which other threads read.
        """
        self._metrics = metrics
        self._loop = loop
        self._beside = beside

    def collect(self) -> Iterable[Metric]:
        """Return all metrics.

        Raises:
            TimeoutError: the event loop is busy, or has ended.
        """
        read = asyncio.run_coroutine_threadsafe(self._read(), self._loop).result(_READ_SECONDS)
        return [*read, *self._beside.collect()]

    async def _read(self) -> Iterable[Metric]:
        return list(self._metrics.collect())
