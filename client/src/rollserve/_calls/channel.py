"""Options of the client's connection to a server."""

from __future__ import annotations

__all__ = ["channel_options"]

_GRPC_MESSAGE_BYTES = 4 << 20  # gRPC's own limit for messages that clients receive
_KEEPALIVE_MILLISECONDS = 20_000  # silence after which the server is pinged, while calls run
_KEEPALIVE_TIMEOUT_MILLISECONDS = 10_000  # time to answer before the connection is closed; the next call opens another

_FIRST_RECONNECT_MILLISECONDS, _MAX_RECONNECT_MILLISECONDS = 100, 2000  # pauses between attempts to connect


def channel_options(max_message_bytes: int | None) -> list[tuple[str, int]]:
    """Return the options of a channel that receives messages up to a size, or up to gRPC's default for None."""
    options = [
        ("SingleThreadedUnaryStream", 1),
        # Channels with the same options share connections, and the pause after a lost one: a new client would fail.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.keepalive_time_ms", _KEEPALIVE_MILLISECONDS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MILLISECONDS),
        ("grpc.http2.ping_timeout_ms", _KEEPALIVE_TIMEOUT_MILLISECONDS),
        # A server that is back should be noticed within seconds; gRPC's own pauses grow to two minutes.
        ("grpc.initial_reconnect_backoff_ms", _FIRST_RECONNECT_MILLISECONDS),
        ("grpc.max_reconnect_backoff_ms", _MAX_RECONNECT_MILLISECONDS),
        ("grpc.http2.max_pings_without_data", 0),  # no limit, because a long update brings no data
    ]
    if max_message_bytes is not None:
        # Messages that are not streamed may have gRPC's usual size.
        options.append(("grpc.max_receive_message_length", max(max_message_bytes, _GRPC_MESSAGE_BYTES)))
    return options
