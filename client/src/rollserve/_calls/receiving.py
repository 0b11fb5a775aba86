# Generated from async_receiving.py by `make blocking`.
"""Calls that return when all is there, and are made again if the connection is lost."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from rollserve._calls.answers import Calls
from rollserve._calls.interruptions import Interruptions
from rollserve._calls.waiting import Waiting, answer_of, sleep

if TYPE_CHECKING:
    from rollserve._calls.answers import ResponseCollector
    from rollserve._calls.evaluation_readers import Reader
    from rollserve._calls.interruptions import Contact
    from rollserve._calls.time_limits import TimeLimits

__all__ = ["collected", "receive", "receive_answer"]


_Result = TypeVar("_Result")


def collected(method: Callable[..., Any], make: Callable[[], ResponseCollector[Any]]) -> Callable[..., Any]:
    """Wrap a method that streams responses so that it returns the result of a collector, made for each call."""

    def collect(*arguments: Any, **options: Any) -> Any:
        collector = make()
        for response in method(*arguments, **options):
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
        method: method of a stub; its type is the one for a channel that blocks.
        request: its request.
        contact: contact with the server.
        seconds: time for all attempts together.
        work_seconds: further time for an attempt that does not lose the connection.

    Raises:
        RollserveError: the call failed.
    """
    calls = Calls(contact, seconds, work_seconds)
    while True:
        try:
            answer: _Result = answer_of(method, request, calls.remaining())
        except grpc.RpcError as error:
            sleep(calls.pause(error))
        else:
            contact.was_made = True
            return answer


def receive(method: Callable[..., Any], reader: Reader[_Result], limits: TimeLimits, contact: Contact) -> _Result:
    """Make the call of a reader and return its result.

    If connection or server are lost, the call is repeated, up to `timeout` seconds after the first loss: nothing of an
    interrupted evaluation is kept.
    """
    interruptions, waiting = Interruptions(limits, contact), Waiting(limits.timeout, "sampler")
    with contextlib.closing(reader):
        while True:
            reader.begin()
            call = method(reader.request, timeout=limits.remaining())
            try:
                if _attempt(call, reader, contact, interruptions, waiting):
                    return reader.result()
            finally:
                call.cancel()


def _attempt(call: Any, reader: Reader[Any], contact: Contact, interruptions: Interruptions, waiting: Waiting) -> bool:
    """Read the responses of a call, and wait after an interruption; return whether the result is complete."""
    while True:
        try:
            response = waiting.message(call)
        except TimeoutError:
            raise interruptions.silence_error() from interruptions.last
        except grpc.RpcError as error:
            pause = interruptions.pause(error, has_begun=reader.has_begun, can_repeat=reader.can_repeat)
            if pause is None:
                raise interruptions.final_error(error) from interruptions.cause_of(error)
            waiting.pause(pause)
            return False
        if response is None:
            return True
        contact.was_made = True
        reader.read(response)
        interruptions.waiting_for = reader.waiting_for
        reader.report()
