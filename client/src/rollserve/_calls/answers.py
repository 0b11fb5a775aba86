"""Calls with a single answer, which are made again if the connection is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from rollserve._calls.interruptions import Interruptions
from rollserve._calls.rpc_errors import error_from_rpc
from rollserve._calls.time_limits import TimeLimits
from rollserve.errors import DeadlineError, RollserveError

if TYPE_CHECKING:
    from rollserve._calls.contact import Contact

__all__ = ["receive_answer", "receive_answer_async"]

_Result = TypeVar("_Result")


def receive_answer(method: Callable[..., _Result], request: object, contact: Contact, seconds: float) -> _Result:
    """Call a method and return its answer.

    If a server that has answered before is away, or is lost before its answer, the call is made again. An update may
    then be made twice, with the same result and a version more.

    Args:
        method: method of a stub.
        request: its request.
        contact: contact with the server.
        seconds: time for all attempts together.

    Raises:
        RollserveError: the call failed.
    """
    calls = _Calls(contact, seconds)
    while True:
        try:
            answer = method(request, timeout=calls.limits.remaining())
        except grpc.RpcError as error:
            time.sleep(calls.pause(error))
        else:
            contact.was_made = True
            return answer


async def receive_answer_async(method: Callable[..., Any], request: object, contact: Contact, seconds: float) -> Any:
    """Call a method for asyncio and return its answer; see `receive_answer`."""
    calls = _Calls(contact, seconds)
    while True:
        try:
            answer = await method(request, timeout=calls.limits.remaining())
        except grpc.RpcError as error:
            await asyncio.sleep(calls.pause(error))
        else:
            contact.was_made = True
            return answer


class _Calls:
    """Attempts at one call.

    Attributes:
        limits: time limits of all attempts together.
    """

    def __init__(self, contact: Contact, timeout: float) -> None:
        self.limits = TimeLimits(timeout, timeout)
        self._interruptions = Interruptions(self.limits, contact)

    def pause(self, error: grpc.RpcError) -> float:
        """Return the seconds to wait before the next attempt; raise the client's error if there is none."""
        pause = self._interruptions.pause(error)
        if pause is None:
            raise self._error(error) from None
        return pause

    def _error(self, error: grpc.RpcError) -> RollserveError:
        if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
            return error_from_rpc(error)
        if self._interruptions.last is not None:  # the last attempt had only the rest of the time
            return self._interruptions.last
        text = f"timeout: no answer for {self.limits.timeout:g} s"
        return DeadlineError(text, code=error.code(), field="timeout")
