"""Time limits of calls, and the errors of calls that exceed them."""

from __future__ import annotations

import time

import grpc

from rollserve._calls.rpc_errors import error_from_rpc
from rollserve_wire.checks import check_seconds
from rollserve_wire.errors import DeadlineError, RollserveError
from rollserve_wire.reasons import Reason

__all__ = ["DEFAULT_RENDER_SECONDS", "DEFAULT_TIMEOUT", "TimeLimits", "countable"]

DEFAULT_TIMEOUT = 60.0
"""Seconds that a call may take without an answer or any progress."""

DEFAULT_RENDER_SECONDS = 600.0
"""Seconds that a video may take, with the episode that is sampled for it."""

_MAX_SECONDS = 1e9  # about thirty years; clocks that count nanoseconds in 64 bits overflow only beyond


class TimeLimits:
    """Time limits of a stream.

    Attributes:
        timeout: seconds without progress.
    """

    def __init__(self, timeout: float, deadline: float | None) -> None:
        """Start counting.

        Args:
            timeout: seconds without progress.
            deadline: seconds in total, or None for no limit.

        Raises:
            TypeError: not a number.
            InvalidArgumentError: a timeout that is not positive, or NaN.
        """
        check_seconds("timeout", timeout, positive=True)
        if deadline is not None:
            check_seconds("deadline", deadline, positive=False)
        self.timeout = float(timeout)
        self._deadline = deadline
        self._until = None if deadline is None else time.monotonic() + deadline

    def remaining(self) -> float | None:
        """Return the seconds that remain in total, or None for no limit."""
        return None if self._until is None else countable(max(self._until - time.monotonic(), 0.0))

    def silence_error(self, before: RollserveError | None = None, waiting_for: str = "") -> DeadlineError:
        """Return the error for a stream that made no progress for its timeout.

        Args:
            before: error of the attempt before, if the stream was interrupted.
            waiting_for: what the server last said that the call waits for; empty for nothing.
        """
        text = f"timeout: no progress for {self.timeout:g} s{_after(before, waiting_for)}"
        return DeadlineError(text, code="DEADLINE_EXCEEDED", reason=Reason.NO_PROGRESS, field="timeout")

    def error_from_rpc(
        self, error: grpc.RpcError, before: RollserveError | None = None, waiting_for: str = ""
    ) -> RollserveError:
        """Return the error for a stream that ended with an error of gRPC.

        Args:
            error: the error.
            before: error of the attempt before, if the stream was interrupted.
            waiting_for: what the server last said that the call waits for; empty for nothing.
        """
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and self._deadline is not None:
            text = f"deadline: the call was not over after {self._deadline:g} s{_after(before, waiting_for)}"
            return DeadlineError(text, code="DEADLINE_EXCEEDED", field="deadline")
        return error_from_rpc(error)


def countable(seconds: float) -> float | None:
    """Return seconds as gRPC and asyncio accept them: None if there are more than clocks can count."""
    return float(seconds) if seconds <= _MAX_SECONDS else None


def _after(before: RollserveError | None, waiting_for: str) -> str:
    if waiting_for:
        return f"; the server waits for {waiting_for}"
    return f"; an earlier attempt ended with: {before.message}" if before is not None else ""
