"""A client that marks the moments of its updates and of its sampling calls, by `time.monotonic`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import rollserve
from rollserve_wire.protobuf import keys_of
from rollserve_wire.v1.sampler_service_pb2 import ObtainSamplesResponse

__all__ = ["MarkedSampler", "is_batch"]

_KEYS = keys_of(ObtainSamplesResponse.DESCRIPTOR)


def is_batch(message: bytes) -> bool:
    """Whether a serialized message of a sampling call has a batch, or is joined, as short results are.

    Field numbers up to 15 take one byte.
    """
    return message[0] in (_KEYS["batch"], _KEYS["joined"])


class MarkedSampler:
    """A sampler, and the moments of one call after the other.

    Attributes:
        sampler: sampler as `rollserve.connect` returns it.
    """

    def __init__(self, address: str, ca: str | None) -> None:
        self.sampler = rollserve.connect(address, ca=ca)
        self._sent = 0.0
        self._receipts: list[tuple[float, float, bool]] = []
        stub = self.sampler._stub  # gRPC's interceptors would add to the time
        stub.UpdateAgent = self._marked_update(stub.UpdateAgent)
        stub.ObtainSamples = self._marked_stream(stub.ObtainSamples)

    def timed(self, method: Callable[..., Any], *args: Any, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Call a method of the sampler.

        Returns:
            The result, and the moments: `began` and `ended`; `sent`, when the request was handed to gRPC; `receipts`,
            for each message of a stream and for its end, when the client began to wait, when it went on, and whether
            the message has a batch.
        """
        self._receipts = []
        began = time.monotonic()
        result = method(*args, **options)
        ended = time.monotonic()
        return result, {"began": began, "sent": self._sent, "receipts": self._receipts, "ended": ended}

    def _marked_update(self, update: Callable[..., Any]) -> Callable[..., Any]:
        def marked(request: Any, **options: Any) -> Any:
            self._sent = time.monotonic()
            return update(request, **options)

        return marked

    def _marked_stream(self, stream: Callable[..., Any]) -> Callable[..., Any]:
        def marked(request: Any, **options: Any) -> Any:
            self._sent = time.monotonic()
            return _MarkedCall(stream(request, **options), self._receipts)

        return marked


class _MarkedCall(Iterator[bytes]):
    def __init__(self, call: Any, receipts: list[tuple[float, float, bool]]) -> None:
        self._call = call
        self._receipts = receipts

    def __next__(self) -> bytes:
        waits = time.monotonic()
        try:
            message: bytes = next(self._call)
        except StopIteration:
            self._receipts.append((waits, time.monotonic(), False))
            raise
        self._receipts.append((waits, time.monotonic(), is_batch(message)))
        return message

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)
