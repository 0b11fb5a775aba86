"""Slices of work: steps for a limited time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from rollserve_server.sampling.collect.attempts import Attempts

__all__ = ["run_slice"]

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)


class _Collector(Protocol[_T_co]):
    """Methods and attributes of collectors that a slice needs."""

    @property
    def attempts(self) -> Attempts: ...

    @property
    def num_waiting(self) -> int: ...

    def step(self) -> Sequence[_T_co]: ...


def run_slice(
    collector: _Collector[_T],
    begin: Callable[[], bool],
    seconds: float,
    is_stopped: Callable[[], bool],
    is_urgent: Callable[[], bool],
    *,
    ends_dry: bool = True,
) -> Iterator[Sequence[_T]]:
    """Yield what ends with each step, until the time is over, nothing runs, or rows become idle and nothing waits.

    Args:
        collector: steps the rows.
        begin: begins episodes that wait, before each step; returns whether there are rows to step.
        seconds: upper bound for the time; if anything runs, at least one step is made.
        is_stopped: called before each step; ends the slice when it returns True.
        is_urgent: called after each step; ends the slice when it returns True.
        ends_dry: whether the slice ends when rows become idle and nothing waits, because there may be more to begin.

    Raises:
        AgentFailedError: the agent failed.
    """
    until = time.perf_counter() + seconds
    had_waiting = ends_dry and collector.num_waiting > 0
    num_failures = collector.attempts.num_failures
    while not is_stopped():
        ended: Sequence[_T] = ()
        if begin():
            ended = collector.step()
        elif collector.attempts.num_failures == num_failures:  # else a reset failed, and the next may succeed
            return
        num_failures = collector.attempts.num_failures
        yield ended
        ran_dry = ended and had_waiting and not collector.num_waiting
        if ran_dry or time.perf_counter() >= until or is_urgent():
            return
