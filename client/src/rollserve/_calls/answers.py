"""Parts of calls with a single answer: what collects the answer of a stream, and the attempts at one call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import grpc

from rollserve._calls.interruptions import Interruptions
from rollserve._calls.rpc_errors import error_from_rpc
from rollserve._calls.time_limits import TimeLimits
from rollserve_wire.errors import DeadlineError, RollserveError

if TYPE_CHECKING:
    from rollserve._calls.interruptions import Contact

__all__ = ["WORK_SECONDS", "Calls", "DataCollector", "ResponseCollector"]


WORK_SECONDS = 600.0
"""How long a server may make environments or try agents, while it can be reached."""

_Collected = TypeVar("_Collected", covariant=True)


class ResponseCollector(Protocol[_Collected]):
    """Collector of the responses of a stream."""

    def add(self, response: Any) -> None:
        """Add the next response; raise ServerError if it is malformed."""

    def result(self) -> _Collected:
        """Return what the responses are together; raise ServerError for an incomplete stream."""


class DataCollector:
    """Collector of responses with bytes in their field `data`."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def add(self, response: Any) -> None:
        """Add the bytes of a response."""
        self._parts.append(response.data)

    def result(self) -> bytes:
        """Return all bytes."""
        return b"".join(self._parts)


class Calls:
    """Attempts at one call."""

    def __init__(self, contact: Contact, timeout: float, work_seconds: float) -> None:
        """Start counting; for the arguments, see `receive_answer`."""
        self._limits, self._work_seconds = TimeLimits(timeout, timeout), work_seconds
        self._interruptions = Interruptions(self._limits, contact)

    def remaining(self) -> float | None:
        """Return the seconds that the next attempt may take; None for no limit."""
        seconds = self._limits.remaining()
        return None if seconds is None else seconds + self._work_seconds

    def pause(self, error: grpc.RpcError) -> float:
        """Return the seconds to wait before the next attempt; raise the client's error if there is none."""
        pause = self._interruptions.pause(error)
        if pause is None:
            raise self._error(error) from None
        return pause

    def _error(self, error: grpc.RpcError) -> RollserveError:
        told = error_from_rpc(error)
        if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED or told.reason:  # a server at work says so
            return told
        if self._interruptions.last is not None:  # the last attempt had only the rest of the time
            return self._interruptions.last
        text = f"timeout: no answer for {self._limits.timeout + self._work_seconds:g} s"
        return DeadlineError(text, code="DEADLINE_EXCEEDED", field="timeout")
