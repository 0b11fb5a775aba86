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
    from collections.abc import Callable

    from rollserve_server.pool.backends.backend import WorkerHandle
    from rollserve_server.pool.calls.fragments import FragmentWorker
    from rollserve_server.pool.sequences.open_work import InFlight
    from rollserve_server.sampling import DrivenActions, DrivenRows, FragmentOrder, FragmentReport

__all__ = ["DrivenCall"]


class DrivenCall(FragmentCall):
    """A round of a session: a fragment call whose steps are made when their actions come.

    The rows of a worker step together, and workers without waiting for each other. The call keeps the actions of its
    steps, so that a worker that is lost makes the same steps again.

    Attributes:
        show: called with a worker and what it has to show, once it has made all steps whose actions have come.
        continues: whether rows go on that the client has seen before the call.
        policy_version: version of the client's policy, which all steps of the call have; None before the first one.
    """

    show: Callable[[int, DrivenRows], None]
    continues: bool = False
    policy_version: int | None = None
    _has_stopped: bool = False

    def begin(self, show: Callable[[int, DrivenRows], None], *, continues: bool) -> None:
        """Set who gets to know of the steps, before the call starts."""
        num_workers = len(self._workers)
        self.show, self.continues = show, continues
        # For each worker: the actions of its steps; how many of them its rows have got since they were made; the last
        # step that it has shown, also since then; and the last one that it has shown at all.
        self._actions: list[list[DrivenActions]] = [[] for _ in range(num_workers)]
        self._num_sent, self._num_shown, self._furthest = [0] * num_workers, [-1] * num_workers, [0] * num_workers
        self._has_ended = False

    @property
    def has_steps(self) -> bool:
        """Whether actions have come."""
        return any(self._actions)

    @property
    def is_idle(self) -> bool:
        """Whether all workers have shown all steps whose actions have come."""
        return all(map(self._has_shown_all, range(len(self._workers))))

    def takes_actions(self, worker: int) -> bool:
        """Whether a worker's rows have steps left to make."""
        return not self._has_ended and len(self._actions[worker]) < self._num_row_steps

    def act(self, worker: int, actions: DrivenActions, policy_version: int) -> None:
        """Make the next step of a worker's rows; all steps have the same version of the policy.

        The order goes to the worker at once, and its report is taken as it comes, because waking up whoever waits for
        it would take longer than the step. Where the worker is missing, or it is not the call's turn, its driver goes
        on with it.
        """
        if self.policy_version is None:
            self._use_version(policy_version)
        self._actions[worker].append(actions)
        if not self._order_at_once(self._workers[worker]):
            self._notify()

    def _use_version(self, policy_version: int) -> None:
        external = self._request.external
        assert external is not None  # noqa: S101  # the request is a client's
        self.policy_version = policy_version
        self._request = dataclasses.replace(self._request, external=external._replace(policy_version=policy_version))
        if not self._policy_version:  # no policy of the sampler acts beside the client's
            self.account.policy_version = policy_version

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
        """End the call, which is idle: rows stop where they are."""
        self._has_ended = True
        self._num_row_steps = max(map(len, self._actions))
        for state in self._workers:
            if not self.has_steps:
                state.abandon()
            elif state.progress is None:
                state.num_row_steps = len(self._actions[state.index])
        self._notify()

    @override
    def _next_order(self, worker: int, handle: WorkerHandle) -> FragmentOrder | None:
        state = self._workers[worker]
        if not self._has_work(state):
            return None
        order = super()._next_order(worker, handle)
        if order is None:
            return None
        new = self._actions[worker][self._num_sent[worker] :]
        self._num_sent[worker] += len(new)
        enough = state.num_row_steps if self._has_ended else None
        return dataclasses.replace(order, actions=new, enough_row_steps=enough)

    def _has_work(self, state: FragmentWorker) -> bool:
        """Whether a worker has rows to make, steps to make or to write, or something to show."""
        num_sent = self._num_sent[state.index]
        if num_sent < len(self._actions[state.index]) or state.num_made >= state.num_steps:
            return True
        return not state.in_flight and self._num_shown[state.index] < num_sent

    def _has_shown_all(self, worker: int) -> bool:
        return self._num_shown[worker] == len(self._actions[worker])

    @override
    def _take_report(self, worker: int, sent: InFlight[FragmentOrder, FragmentReport], report: FragmentReport) -> None:
        super()._take_report(worker, sent, report)
        self._workers[worker].num_steps_per_report = 0  # where a worker was lost is known to the step
        self._check_restored(self._workers[worker])
        if report.driven is None or self._workers[worker].location is None:
            return
        has_news = self._num_shown[worker] < report.driven.step
        self._num_shown[worker] = report.driven.step
        self._furthest[worker] = max(report.driven.step, self._furthest[worker])
        if has_news and self._has_shown_all(worker):
            self.show(worker, report.driven)

    @override
    def _restart(self, state: FragmentWorker, reason: str) -> None:
        self._num_sent[state.index], self._num_shown[state.index] = 0, -1
        super()._restart(state, reason)
        if self._has_ended:
            state.num_row_steps = len(self._actions[state.index])

    @override
    def _num_made_before_loss(self, state: FragmentWorker) -> int:
        # Where it makes its steps again, all actions are one order, and it is lost before it reports any of them.
        return self._furthest[state.index] * state.num_rows

    @override
    def _wakes(self, report: FragmentReport) -> bool:
        return bool(report.messages) or report.rows is not None or report.failure is not None

    @override
    def _is_seen(self, state: FragmentWorker) -> bool:
        return self.continues or bool(self._actions[state.index])
