"""How long calls may take, and the errors of those that took longer."""

from __future__ import annotations

import time

import grpc

from rollserve._checks import check_seconds
from rollserve.errors import DeadlineError, RollserveError, error_from_rpc
from rollserve.reasons import Reason

__all__ = ["DEFAULT_TIMEOUT", "TimeLimits", "answer_error", "countable"]

DEFAULT_TIMEOUT = 60.0
"""Seconds that a call may go without an answer or a sign of progress."""

_MOST_SECONDS = 1e9
"""About thirty years; clocks that count nanoseconds in 64 bits do not overflow yet."""


class TimeLimits:
    """How long a stream may take.

    Attributes:
        timeout: seconds without progress.
    """

    def __init__(self, timeout: float, deadline: float | None) -> None:
        """Takes the seconds without progress, and those in all, if they are limited, from now on.

        Raises:
            TypeError: one is not a number.
            InvalidArgumentError: the timeout is not positive, or one is no number.
        """
        check_seconds("timeout", timeout, positive=True)
        if deadline is not None:
            check_seconds("deadline", deadline, positive=False)
        self.timeout = float(timeout)
        self._deadline = deadline
        self._until = None if deadline is None else time.monotonic() + deadline

    def remaining(self) -> float | None:
        """Seconds that are left in all, or None if they are not limited."""
        return None if self._until is None else countable(max(self._until - time.monotonic(), 0.0))

    def silence_error(self) -> DeadlineError:
        """The error for a stream that made no progress for its timeout."""
        message = f"timeout: no progress for {self.timeout:g} s"
        return DeadlineError(message, code=grpc.StatusCode.DEADLINE_EXCEEDED, reason=Reason.NO_PROGRESS)

    def error_from_rpc(self, error: grpc.RpcError) -> RollserveError:
        """The error for a stream that ended with one of gRPC's."""
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and self._deadline is not None:
            return DeadlineError(f"deadline: the call was not over after {self._deadline:g} s", code=error.code())
        return error_from_rpc(error)


def answer_error(error: grpc.RpcError, timeout: float) -> RollserveError:
    """The error for a call with one answer that ended with one of gRPC's."""
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineError(f"timeout: no answer for {timeout:g} s", code=error.code())
    return error_from_rpc(error)


def countable(seconds: float) -> float | None:
    """Seconds as gRPC and asyncio take them: None where they are more than clocks count."""
    return float(seconds) if seconds <= _MOST_SECONDS else None
