"""A collector of OpenTelemetry that keeps the spans, log events and metrics it gets."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

__all__ = ["Collector", "ReceivedEvent", "ReceivedSpan", "collecting"]


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as it was received; times in nanoseconds since 1970."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start: int
    end: int
    attributes: dict[str, Any]
    resource: dict[str, Any]
    has_failed: bool
    error: str

    @property
    def seconds(self) -> float:
        """Time from start to end."""
        return (self.end - self.start) / 1e9

    def is_within(self, parent: ReceivedSpan) -> bool:
        """Whether another span is the parent, and lasted all the time of this one."""
        is_child = (self.trace_id, self.parent_id) == (parent.trace_id, parent.span_id)
        return is_child and parent.start <= self.start <= self.end <= parent.end


@dataclass(frozen=True)
class ReceivedEvent:
    """A log event as it was received; its time in seconds since 1970."""

    text: str
    severity: str
    seconds: float
    trace_id: str
    attributes: dict[str, Any]
    resource: dict[str, Any]


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps all spans and log events, and the last metrics.

    Attributes:
        endpoint: URL of the collector.
        events: log events.
        metrics: by name, the metrics that came last.
    """

    def __init__(self) -> None:
        self.endpoint = ""
        self.events: list[ReceivedEvent] = []
        self.metrics: dict[str, metrics_pb2.Metric] = {}
        self._spans: list[ReceivedSpan] = []
        self._changed = threading.Condition()

    def Export(  # noqa: N802  # gRPC's name
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        with self._changed:
            for part in request.resource_spans:
                resource = _values(part.resource.attributes)
                for scope in part.scope_spans:
                    self._spans += [_received(span, resource) for span in scope.spans]
            self._changed.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    def roots(self) -> list[ReceivedSpan]:
        """Return the spans of RPCs that have come so far."""
        with self._changed:
            return [span for span in self._spans if "rpc.method" in span.attributes]

    def trace(self, trace_id: str, seconds: float = 30) -> list[ReceivedSpan]:
        """Wait for the span of an RPC, which is the last one of its trace; return all spans of the trace."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while True:
                found = [span for span in self._spans if span.trace_id == trace_id]
                if any("rpc.method" in span.attributes for span in found):
                    return found
                assert self._changed.wait(deadline - time.monotonic()), f"no trace {trace_id}"


class _Logs(logs_service_pb2_grpc.LogsServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self._events = collector.events

    def Export(  # noqa: N802  # gRPC's name
        self, request: logs_service_pb2.ExportLogsServiceRequest, context: grpc.ServicerContext
    ) -> logs_service_pb2.ExportLogsServiceResponse:
        self._events += [
            ReceivedEvent(
                record.body.string_value,
                record.severity_text,
                record.time_unix_nano / 1e9,
                record.trace_id.hex(),
                _values(record.attributes),
                _values(part.resource.attributes),
            )
            for part in request.resource_logs
            for scope in part.scope_logs
            for record in scope.log_records
        ]
        return logs_service_pb2.ExportLogsServiceResponse()


class _Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self._metrics = collector.metrics

    def Export(  # noqa: N802  # gRPC's name
        self, request: metrics_service_pb2.ExportMetricsServiceRequest, context: grpc.ServicerContext
    ) -> metrics_service_pb2.ExportMetricsServiceResponse:
        for part in request.resource_metrics:
            for scope in part.scope_metrics:
                self._metrics.update({metric.name: metric for metric in scope.metrics})
        return metrics_service_pb2.ExportMetricsServiceResponse()


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    """Yield a collector that listens on a free port."""
    collector, server = Collector(), grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    logs_service_pb2_grpc.add_LogsServiceServicer_to_server(_Logs(collector), server)
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(_Metrics(collector), server)
    collector.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(None).wait()


def _received(span: trace_pb2.Span, resource: dict[str, Any]) -> ReceivedSpan:
    return ReceivedSpan(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _values(span.attributes),
        resource,
        span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
        span.status.message,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value") or "string_value") for pair in attributes}
