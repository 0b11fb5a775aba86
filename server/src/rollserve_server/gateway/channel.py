"""Options of gRPC's server: limits of connections, and how gRPC notices that a client is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollserve_server.settings import ClientLimits

__all__ = ["channel_options"]

_FOREVER = 2**31 - 1
"""Number of milliseconds that gRPC takes for no limit."""
_MIN_PING_SECONDS = 0.5
"""Least time between the pings of a client; gRPC closes the connection of a client that pings more often. Clients are
told 1 s, which leaves room for pings that arrive closer together than they were sent."""

_IDENTITY, _GZIP = 1 << 0, 1 << 2
"""Compressions of requests, by gRPC's numbers. Others end with UNIMPLEMENTED, as gRPC specifies."""


def channel_options(limits: ClientLimits, max_request_bytes: int) -> list[tuple[str, int]]:
    """Return the options of a server of gRPC, by gRPC's names."""
    return [
        ("grpc.max_receive_message_length", max_request_bytes),
        # Requests are decompressed within their own limits, by `requests/decompression.py`.
        ("grpc.per_message_decompression", 0),
        ("grpc.compression_enabled_algorithms_bitset", _IDENTITY | _GZIP),
        ("grpc.so_reuseport", 0),
        ("grpc.max_allowed_incoming_connections", limits.max_connections),
        ("grpc.server_handshake_timeout_ms", _milliseconds(limits.handshake_seconds)),
        ("grpc.max_concurrent_streams", limits.max_connection_rpcs),
        ("grpc.keepalive_time_ms", _milliseconds(limits.keepalive_seconds)),
        ("grpc.keepalive_timeout_ms", _milliseconds(limits.keepalive_timeout_seconds)),
        ("grpc.http2.ping_timeout_ms", _milliseconds(limits.keepalive_timeout_seconds)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", _milliseconds(_MIN_PING_SECONDS)),
        # Off: with the probe, a connection moves megabytes of requests into memory before anything reads them.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.max_connection_idle_ms", _milliseconds(limits.max_connection_idle_seconds)),
        ("grpc.max_connection_age_ms", _milliseconds(limits.max_connection_age_seconds)),
        ("grpc.max_connection_age_grace_ms", _milliseconds(limits.max_connection_age_grace_seconds)),
    ]


def _milliseconds(seconds: float) -> int:
    """Return a limit in milliseconds; 0 seconds mean no limit."""
    return min(round(seconds * 1000), _FOREVER) or _FOREVER
