"""Traces for OpenTelemetry: spans of RPCs and of their parts. Without a collector, nothing is recorded or imported."""

from rollserve_server.tracing.span import Span
from rollserve_server.tracing.tracing import Tracing, check_tracing, child_span

__all__ = ["Span", "Tracing", "check_tracing", "child_span"]
