"""The trace of a call: a span for the call, and spans for its orders, made from what the reports say anyway."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rollserve_server.sampling import PopulationReport

if TYPE_CHECKING:
    from rollserve_server.errors import WorkerLostError
    from rollserve_server.pool.accounts.account import Account
    from rollserve_server.pool.accounts.episode_log import CallKind
    from rollserve_server.sampling import FragmentReport, Report
    from rollserve_server.spans import Span

__all__ = ["CallTrace"]

_MAX_ORDERS = 1000
"""Orders of a call with spans of their own, so that a long call makes no trace that nobody can look at."""


class CallTrace:
    """The span of a call that is traced.

    The span `order` is from the sending of an order to its report, and within it `work` the time in which the worker
    worked on it: before, it finished the previous order. Workers do not know of traces: `work` is as long as the report
    says, and taken to end when the report arrives.
    """

    def __init__(self, span: Span, kind: CallKind) -> None:
        """Trace a call of some kind, which begins now."""
        self._span = span
        self._began = time.monotonic()
        self._num_orders = 0
        span.set({"call_kind": kind.name.lower()})

    def add_report(self, worker: int, sent: float, report: Report | FragmentReport | PopulationReport) -> None:
        """Add the spans of an order that is answered.

        Args:
            worker: index of the worker.
            sent: when the order was sent (`time.monotonic`).
            report: the answer.
        """
        self._num_orders += 1
        if self._num_orders > _MAX_ORDERS:
            return
        # A previous call may have sent it.
        sent, now = max(sent, self._began), time.monotonic()
        encoding_seconds = 0.0 if isinstance(report, PopulationReport) else report.encoding_seconds
        sampling, environment, policy = report.sampling_seconds, report.environment_seconds, report.policy_seconds
        order = self._span.child("order", sent)
        order.set({"worker": worker, "steps": report.num_simulated_steps})
        work = order.child("work", max(now - sampling - encoding_seconds, sent))
        seconds = {
            "environment_seconds": environment,
            "policy_seconds": policy,
            "recording_seconds": max(sampling - environment - policy, 0.0),
            "encoding_seconds": encoding_seconds,
        }
        work.set(seconds)
        if report.failure is not None:
            order.fail(report.failure)
        for span in (work, order):
            span.end(now)

    def add_loss(self, worker: int, sent: float, error: WorkerLostError) -> None:
        """Add the span of an order whose worker is lost."""
        self._num_orders += 1
        if self._num_orders <= _MAX_ORDERS:
            order = self._span.child("order", max(sent, self._began))
            order.set({"worker": worker})
            order.fail(error)
            order.end()

    def describe(self, account: Account) -> None:
        """Add what became of the call."""
        counts = {
            "policy_version": account.policy_version,
            "environment_version": account.env_version,
            "workers": len(account.workers),
            "orders": self._num_orders,
            "simulated_steps": account.num_simulated_steps,
            "delivered_steps": account.num_steps,
            "delivered_episodes": account.num_episodes,
            "delivered_bytes": account.message_bytes,
            "retried_episodes": account.num_retried_episodes,
            "sending_seconds": account.sending_seconds,
            "paused_seconds": account.paused_seconds,
        }
        self._span.set(counts)
