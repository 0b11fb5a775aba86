"""The trace that the program is recording, for servers that continue it: W3C Trace Context."""

from __future__ import annotations

import sys

__all__ = ["trace_metadata"]


def trace_metadata() -> tuple[tuple[str, str], ...]:
    """Return the metadata that names the current span of OpenTelemetry; nothing in programs that do not use it."""
    if "opentelemetry.trace" not in sys.modules:
        return ()
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    metadata: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(metadata)
    return tuple(metadata.items())
