"""What clients may take of a server, and how it finds out that one is gone."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ClientLimits"]

_FOREVER = 2**31 - 1
"""Of milliseconds: what gRPC takes for no limit."""
_SHORTEST_PING_SECONDS = 5.0
"""Clients that ask more often whether the server is there are taken to be broken."""


@dataclass(frozen=True)
class ClientLimits:
    """What clients may take of a server. Times are in seconds; 0 for no limit where it says so.

    Attributes:
        max_connections: how many connections it has.
        max_connection_rpcs: how many RPCs each of them has at the same time; more wait in the client.
        max_rpcs: how many there are at the same time in all; more are refused.
        max_pending_request_bytes: see Intake.
        client_stall_seconds: how long a call may wait for its client.
        keepalive_seconds: after how long a connection that nothing comes from is asked for a sign of life; 0 for never.
        keepalive_timeout_seconds: how long that may take.
        max_connection_idle_seconds: how long a connection may have no RPCs; 0 for no limit.
        max_connection_age_seconds: how long it may take new ones; 0 for no limit.
        max_connection_age_grace_seconds: how much longer its last ones may take; 0 for no limit.
    """

    max_connections: int = 1000
    max_connection_rpcs: int = 256
    max_rpcs: int = 1000
    max_pending_request_bytes: int = 1536 << 20
    client_stall_seconds: float = 600.0
    keepalive_seconds: float = 20.0
    keepalive_timeout_seconds: float = 10.0
    max_connection_idle_seconds: float = 3600.0
    max_connection_age_seconds: float = 0.0
    max_connection_age_grace_seconds: float = 0.0

    def channel_options(self) -> list[tuple[str, int]]:
        """As gRPC's server takes them."""
        return [
            ("grpc.max_allowed_incoming_connections", self.max_connections),
            ("grpc.max_concurrent_streams", self.max_connection_rpcs),
            ("grpc.keepalive_time_ms", _milliseconds(self.keepalive_seconds)),
            ("grpc.keepalive_timeout_ms", _milliseconds(self.keepalive_timeout_seconds)),
            ("grpc.http2.ping_timeout_ms", _milliseconds(self.keepalive_timeout_seconds)),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.http2.min_ping_interval_without_data_ms", _milliseconds(_SHORTEST_PING_SECONDS)),
            # Else a connection takes megabytes of requests into memory that nobody has asked for yet.
            ("grpc.http2.bdp_probe", 0),
            ("grpc.max_connection_idle_ms", _milliseconds(self.max_connection_idle_seconds)),
            ("grpc.max_connection_age_ms", _milliseconds(self.max_connection_age_seconds)),
            ("grpc.max_connection_age_grace_ms", _milliseconds(self.max_connection_age_grace_seconds)),
        ]


def _milliseconds(seconds: float) -> int:
    """Of a limit; 0 is none."""
    return min(round(seconds * 1000), _FOREVER) or _FOREVER
