"""Calls with a single answer, or whose whole stream is the answer, which are made again if the connection is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import grpc

from rollserve._calls.interruptions import Interruptions
from rollserve._calls.rpc_errors import error_from_rpc
from rollserve._calls.time_limits import TimeLimits
from rollserve_wire.errors import DeadlineError, RollserveError

if TYPE_CHECKING:
    from rollserve._calls.interruptions import Contact

__all__ = [
    "WORK_SECONDS",
    "DataCollector",
    "ResponseCollector",
    "collected",
    "collected_async",
    "receive_answer",
    "receive_answer_async",
]


WORK_SECONDS = 600.0
"""How long a server may make environments or try agents, while it can be reached."""

_Result = TypeVar("_Result")
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


def collected(method: Callable[..., Any], make: Callable[[], ResponseCollector[_Result]]) -> Callable[..., _Result]:
    """Wrap a method that streams responses so that it returns the result of a collector, made for each call."""

    def collect(*arguments: Any, **options: Any) -> _Result:
        collector = make()
        for response in method(*arguments, **options):
            collector.add(response)
        return collector.result()

    return collect


def collected_async(method: Callable[..., Any], make: Callable[[], ResponseCollector[_Result]]) -> Callable[..., Any]:
    """Wrap a method for asyncio that streams responses; see `collected`."""

    async def collect(*arguments: Any, **options: Any) -> _Result:
        collector = make()
        async for response in method(*arguments, **options):
            collector.add(response)
        return collector.result()

    return collect


def receive_answer(
    method: Callable[..., _Result], request: object, contact: Contact, seconds: float, work_seconds: float = 0.0
) -> _Result:
    """Call a method and return its answer.

    If a server that has answered before is away, or is lost before its answer, the call is made again. An update may
    then be made twice, with the same result and a version more.

    Args:
        method: method of a stub.
        request: its request.
        contact: contact with the server.
        seconds: time for all attempts together.
        work_seconds: further time for an attempt that does not lose the connection.

    Raises:
        RollserveError: the call failed.
    """
    calls = _Calls(contact, seconds, work_seconds)
    while True:
        try:
            answer = method(request, timeout=calls.remaining())
        except grpc.RpcError as error:
            time.sleep(calls.pause(error))
        else:
            contact.was_made = True
            return answer


async def receive_answer_async(
    method: Callable[..., Any], request: object, contact: Contact, seconds: float, work_seconds: float = 0.0
) -> Any:
    """Call a method for asyncio and return its answer; see `receive_answer`."""
    calls = _Calls(contact, seconds, work_seconds)
    while True:
        try:
            answer = await method(request, timeout=calls.remaining())
        except grpc.RpcError as error:
            await asyncio.sleep(calls.pause(error))
        else:
            contact.was_made = True
            return answer


class _Calls:
    """Attempts at one call."""

    def __init__(self, contact: Contact, timeout: float, work_seconds: float) -> None:
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
