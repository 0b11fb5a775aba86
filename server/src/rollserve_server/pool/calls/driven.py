"""Driven calls: rounds of a session, whose steps are made when the client's actions come."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

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
        num_steps: number of steps that there are actions for.
        show: called with what each worker has to show, once all workers have made all of these steps.
        continues: whether rows go on that the client has seen before the call.
    """

    show: Callable[[Sequence[DrivenRows]], None]
    continues: bool = False

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
        """Number of steps that there are actions for."""
        return len(self._actions)

    def act(self, workers: Sequence[DrivenActions]) -> None:
        """Make the next step, with the actions of each worker's rows."""
        self._actions.append(workers)
        self._notify()

    def end(self) -> None:
        """End the call with the last step, which has been shown."""
        if self._actions:
            self.cut()
            return
        self._num_row_steps = 0
        for state in self._workers:
            state.abandon()
        self._notify()

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

    def _restart(self, state: FragmentWorker, reason: str) -> None:
        self._num_sent[state.index], self._rows[state.index] = 0, None
        super()._restart(state, reason)

    def _is_seen(self, state: FragmentWorker) -> bool:
        return self.continues or bool(self._actions)
