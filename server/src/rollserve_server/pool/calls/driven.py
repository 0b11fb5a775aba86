"""Driven calls: rounds of a session, whose steps are made when the client's actions come."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from typing import TYPE_CHECKING

from typing_extensions import override

from rollserve_server.futures import failure_of
from rollserve_server.pool.calls.fragments import FragmentCall

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rollserve_server.pool.backends.backend import WorkerHandle
    from rollserve_server.pool.calls.fragments import FragmentWorker
    from rollserve_server.pool.sequences.open_work import InFlight
    from rollserve_server.sampling import DrivenActions, DrivenRows, FragmentOrder, FragmentReport

__all__ = ["DrivenCall"]


class DrivenCall(FragmentCall):
    """A round of a session: a fragment call whose steps are made when their actions come.

    The call keeps the actions of its steps, so that a worker that is lost makes the same steps again.

    Attributes:
        num_steps: number of steps whose actions have come.
        show: called with what each worker has to show, once all workers have made all of these steps.
        continues: whether rows go on that the client has seen before the call.
    """

    show: Callable[[Sequence[DrivenRows]], None]
    continues: bool = False
    _has_stopped: bool = False

    def begin(self, show: Callable[[Sequence[DrivenRows]], None], *, continues: bool) -> None:
        """Set who gets to know of the steps, before the call starts."""
        num_workers = len(self._workers)
        self.show, self.continues = show, continues
        self._actions: list[Sequence[DrivenActions]] = []
        # For each worker: how many of them its rows have got since they were made, and what it has shown last.
        self._num_sent = [0] * num_workers
        self._rows: list[DrivenRows | None] = [None] * num_workers
        self._num_shown = -1

    @property
    def num_steps(self) -> int:
        """Number of steps whose actions have come."""
        return len(self._actions)

    def act(self, workers: Sequence[DrivenActions]) -> None:
        """Make the next step, with the actions of each worker's rows.

        Orders go to workers at once, and reports are taken as they come, because waking up whoever waits for them would
        take longer than the step. Where a worker is missing, or it is not the call's turn, its driver goes on with it.
        """
        self._actions.append(workers)
        were_ordered = [self._order_at_once(state) for state in self._workers]
        if not all(were_ordered):
            self._notify()

    def _order_at_once(self, state: FragmentWorker) -> bool:
        """Send a worker its next order; return whether that was possible."""
        location, step_rate = state.location, self._parts.step_rate
        is_delayed = self.turn.is_paused or (step_rate is not None and step_rate.is_exhausted)
        if location is None or state.in_flight or is_delayed or not self._uses(state.index, location.handle):
            return False
        order = self._next_order(state.index, location.handle)
        if order is None:
            return False
        sent = self._submit(state.index, location.handle, order)
        sent.report.add_done_callback(functools.partial(self._take_at_once, state, sent))
        return True

    def _take_at_once(
        self,
        state: FragmentWorker,
        sent: InFlight[FragmentOrder, FragmentReport],
        report: asyncio.Future[FragmentReport],
    ) -> None:
        """Take a report, unless the call has ended or the worker was lost."""
        if self._has_stopped or not state.in_flight or state.in_flight[0] is not sent:
            return
        if report.cancelled() or report.exception() is not None:
            self._notify()  # the worker's driver takes the error
            return
        try:
            self._take(state.index, sent, report.result())
        except BaseException as error:  # raised where the call is awaited
            self._failure = failure_of(error)
            self._notify()

    @override
    def stop(self) -> None:
        self._has_stopped = True
        super().stop()

    def end(self) -> None:
        """End the call with the last step, which has been shown."""
        if self._actions:
            self.cut()
            return
        self._num_row_steps = 0
        for state in self._workers:
            state.abandon()
        self._notify()

    @override
    def _next_order(self, worker: int, handle: WorkerHandle) -> FragmentOrder | None:
        state = self._workers[worker]
        if not (self._is_cutting or self._has_work(state)):
            return None
        order = super()._next_order(worker, handle)
        if order is None:
            return None
        new = [actions[worker] for actions in self._actions[self._num_sent[worker] :]]
        self._num_sent[worker] += len(new)
        return dataclasses.replace(order, actions=new) if new else order

    def _has_work(self, state: FragmentWorker) -> bool:
        """Whether a worker has rows to make, steps to make or to write, or something to show."""
        num_sent, rows = self._num_sent[state.index], self._rows[state.index]
        if num_sent < len(self._actions) or state.num_made >= state.num_steps:
            return True
        return not state.in_flight and (rows is None or rows.step < num_sent)

    @override
    def _take_report(self, worker: int, sent: InFlight[FragmentOrder, FragmentReport], report: FragmentReport) -> None:
        super()._take_report(worker, sent, report)
        self._check_restored(self._workers[worker])
        if report.driven is None or self._workers[worker].location is None:
            return
        self._rows[worker] = report.driven
        num_steps = len(self._actions)
        shown = [rows for rows in self._rows if rows is not None and rows.step == num_steps]
        if len(shown) == len(self._rows) and self._num_shown < num_steps:
            self._num_shown = num_steps
            self.show(shown)

    @override
    def _restart(self, state: FragmentWorker, reason: str) -> None:
        self._num_sent[state.index], self._rows[state.index] = 0, None
        super()._restart(state, reason)

    @override
    def _wakes(self, report: FragmentReport) -> bool:
        return bool(report.messages) or report.rows is not None or report.failure is not None

    @override
    def _is_seen(self, state: FragmentWorker) -> bool:
        return self.continues or bool(self._actions)
