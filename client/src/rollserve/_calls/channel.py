"""Options of the client's connection to a server."""

from __future__ import annotations

__all__ = ["channel_options"]

_USUAL_MESSAGE_BYTES = 4 << 20
"""What clients of gRPC take unless they are told otherwise."""
_KEEPALIVE_MILLISECONDS = 20_000
"""After how long without any sign of life the server is asked for one, while calls run."""
_KEEPALIVE_TIMEOUT_MILLISECONDS = 10_000
"""How long it may take to give one, before the connection is closed: the next call makes another."""


def channel_options(max_message_bytes: int | None) -> list[tuple[str, int]]:
    """The options of a channel that takes messages of streams of that size, and others of usual size."""
    options = [
        ("grpc.keepalive_time_ms", _KEEPALIVE_MILLISECONDS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MILLISECONDS),
        ("grpc.http2.ping_timeout_ms", _KEEPALIVE_TIMEOUT_MILLISECONDS),
        ("grpc.http2.max_pings_without_data", 0),  # as many as it takes: a long update brings none
    ]
    if max_message_bytes is not None:
        options.append(("grpc.max_receive_message_length", max(max_message_bytes, _USUAL_MESSAGE_BYTES)))
    return options
