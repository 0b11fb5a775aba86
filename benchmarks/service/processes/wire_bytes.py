"""A client that counts the bytes of the messages it receives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc

import rollserve
from rollserve._calls.connection import Connection
from rollserve._calls.credentials import tls_of
from rollserve._calls.gateways import Gateways
from rollserve._calls.requests import DEFAULT_MESSAGE_BYTES, Reception
from rollserve._calls.time_limits import DEFAULT_TIMEOUT

__all__ = ["CountingSampler"]


class CountingSampler(grpc.UnaryStreamClientInterceptor):
    """A sampler, and the number of bytes of its streamed messages.

    Attributes:
        sampler: sampler as `rollserve.connect` returns it.
        num_wire_bytes: number of bytes since the caller last set it to 0.
    """

    def __init__(self, address: str, ca: str | None) -> None:
        # `rollserve.connect` takes no interceptors.
        reception, tls = Reception.of(DEFAULT_MESSAGE_BYTES, None), tls_of(None, {"ca": ca}, {})
        connection = Connection(address, "", DEFAULT_TIMEOUT, reception, False, tls)
        channel = connection.channel(Gateways(address))
        self.sampler = rollserve.Sampler(connection, rollserve.EpisodeBatch, grpc.intercept_channel(channel, self))
        self.num_wire_bytes = 0

    def intercept_unary_stream(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        """Return the call, whose messages are counted. gRPC calls this for each stream."""
        return _CountedCall(continuation(details, request), self)


class _CountedCall(Iterator[Any]):
    def __init__(self, call: Any, counter: CountingSampler) -> None:
        self._call = call
        self._counter = counter

    def __next__(self) -> Any:
        message = next(self._call)
        self._counter.num_wire_bytes += len(message)
        return message

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)
