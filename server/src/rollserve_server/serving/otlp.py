"""Log events and metrics for a collector of OpenTelemetry. Importing this module imports OpenTelemetry."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs._internal import std_to_otel
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.environment_variables import OTEL_METRIC_EXPORT_INTERVAL
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from typing_extensions import override

from rollserve_server import __version__
from rollserve_server.request_context import RequestIdFilter
from rollserve_server.serving.logs import fields_of
from rollserve_server.spans import CLOSE_SECONDS, resource

if TYPE_CHECKING:
    from prometheus_client import Metric as Family
    from prometheus_client.registry import Collector
    from prometheus_client.samples import Sample

__all__ = ["MetricsSender", "sending_logs"]

_log = logging.getLogger(__name__)
_INTERVAL_MS = "60000"
"""Time between two deliveries of metrics, as OpenTelemetry has it by default."""
_CUMULATIVE = AggregationTemporality.CUMULATIVE


@contextmanager
def sending_logs(endpoint: str) -> Iterator[None]:
    """Send the events of the block to a collector, too, from a thread; events beyond a queue are dropped."""
    provider = LoggerProvider(resource(), shutdown_on_exit=False)
    provider.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter(endpoint)))
    handler = _LogHandler(provider)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        closing = threading.Thread(target=provider.shutdown, daemon=True)  # it may take half a minute
        closing.start()
        closing.join(CLOSE_SECONDS)


class _LogHandler(logging.Handler):
    """Gives events to OpenTelemetry, but for its own, which would follow one another for ever."""

    def __init__(self, provider: LoggerProvider) -> None:
        super().__init__()
        self._provider = provider
        self.addFilter(RequestIdFilter())
        self.addFilter(lambda record: not record.name.startswith("opentelemetry"))

    @override
    def emit(self, record: logging.LogRecord) -> None:
        attributes = {name: _plain(value) for name, value in fields_of(record).items()}
        if record.exc_info:
            attributes["exception.stacktrace"] = "".join(traceback.format_exception(*record.exc_info))
        self._provider.get_logger(record.name, __version__).emit(
            timestamp=int(record.created * 1e9),
            severity_number=std_to_otel(record.levelno),
            severity_text=record.levelname,
            body=record.getMessage(),
            attributes=attributes,
        )


def _plain(value: object) -> str | bool | int | float:
    return value if isinstance(value, str | bool | int | float) else str(value)


class MetricsSender:
    """Sends metrics to a collector at intervals, and when it is closed, from a thread."""

    def __init__(self, endpoint: str, metrics: Collector) -> None:
        """Begin to send metrics.

        Args:
            endpoint: URL of the collector.
            metrics: the metrics, which may be read in any thread.
        """
        self._exporter, self._metrics, self._began = OTLPMetricExporter(endpoint), metrics, time.time_ns()
        self._seconds = float(os.environ.get(OTEL_METRIC_EXPORT_INTERVAL, _INTERVAL_MS)) / 1000
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Send the last values, for at most 3 s."""
        self._ended.set()
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._ended.wait(self._seconds)
            try:
                self._exporter.export(_metrics_data(self._metrics, self._began))
            except Exception as error:  # whatever it is: later deliveries go on
                _log.warning("metrics not sent", extra={"error": str(error)})
        self._exporter.shutdown()


def _metrics_data(metrics: Collector, began: int) -> MetricsData:
    """Return the present values of all metrics, as OpenTelemetry has them.

    Args:
        metrics: the metrics.
        began: when counters began at zero, in nanoseconds since 1970.
    """
    now = time.time_ns()
    scope = ScopeMetrics(
        InstrumentationScope("rollserve_server", __version__),
        [Metric(each.name, each.documentation, each.unit, _data(each, began, now)) for each in metrics.collect()],
        schema_url="",
    )
    return MetricsData([ResourceMetrics(resource(), [scope], schema_url="")])


def _data(family: Family, began: int, now: int) -> Gauge | Sum | Histogram:
    if family.type == "histogram":
        series = itertools.groupby(family.samples, _labels_of)
        return Histogram(
            [_histogram_point(labels, list(samples), began, now) for labels, samples in series], _CUMULATIVE
        )
    points = [NumberDataPoint(sample.labels, began, now, float(sample.value)) for sample in family.samples]
    return Sum(points, _CUMULATIVE, is_monotonic=True) if family.type == "counter" else Gauge(points)


def _labels_of(sample: Sample) -> dict[str, str]:
    """Return the labels of a series of a histogram, without the bound of its bucket."""
    return {name: value for name, value in sample.labels.items() if name != "le"}


def _histogram_point(labels: dict[str, str], samples: list[Sample], began: int, now: int) -> HistogramDataPoint:
    up_to = [int(sample.value) for sample in samples if sample.name.endswith("_bucket")]
    bounds = [float(sample.labels["le"]) for sample in samples if sample.name.endswith("_bucket")]
    unknown: Any = None  # neither extremes, nor the sum of a histogram with negative bounds
    return HistogramDataPoint(
        labels,
        began,
        now,
        count=up_to[-1],
        sum=next((sample.value for sample in samples if sample.name.endswith("_sum")), unknown),
        bucket_counts=[after - before for before, after in itertools.pairwise([0, *up_to])],
        explicit_bounds=bounds[:-1],
        min=unknown,
        max=unknown,
    )
