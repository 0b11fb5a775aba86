"""Traces for OpenTelemetry: which RPCs are traced, and where traces are sent."""

from __future__ import annotations

from urllib.parse import urlsplit

from pydantic import Field, field_validator

from rollserve_server.settings.groups import Group

__all__ = ["TracingSettings"]


class TracingSettings(Group):
    """Settings of traces; without an endpoint there are none."""

    otlp_endpoint: str | None = Field(
        default=None,
        description="Where to send traces of RPCs: a collector for OpenTelemetry that accepts OTLP over gRPC, as "
        "http://HOST:PORT without encryption, or https://HOST:PORT. Without it, nowhere.",
    )
    trace_ratio: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="Share of the RPCs that are traced. Where a client sends the traceparent of a trace, it decides.",
    )

    @field_validator("otlp_endpoint")
    @classmethod
    def _check_endpoint(cls, value: str | None) -> str | None:
        if value is not None and not _is_endpoint(value):
            raise ValueError("expected http://HOST:PORT or https://HOST:PORT, such as http://127.0.0.1:4317")
        return value


def _is_endpoint(value: str) -> bool:
    try:
        parts = urlsplit(value)
        has_port = parts.port is not None
    except ValueError:
        return False
    is_bare = parts.path in ("", "/") and not (parts.query or parts.fragment or parts.username)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and has_port and is_bare
