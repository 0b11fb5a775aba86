"""The metrics of a server: of its process, its RPCs and its samplers."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics

from rollserve_server import __version__
from rollserve_server.metrics.collectors import (
    EndedEpisodeCollector,
    ExpiryCollector,
    FolderCollector,
    HostCollector,
    SamplerCollector,
)
from rollserve_server.metrics.figures import call_seconds, worker_seconds

if TYPE_CHECKING:
    from prometheus_client import Metric

    from rollserve_server.identity import Expiry
    from rollserve_server.pool import Account
    from rollserve_server.samplers import Sampler

__all__ = ["Metrics", "RpcEnd", "known_metrics"]

disable_created_metrics()  # type: ignore[no-untyped-call]  # they would double the number of series

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
_OTHER_FATES = ("kept", "superseded", "cancelled", "lost", "idle", "discarded")
"""Fates of steps that are not delivered. An account has a count for each, such as `num_kept_steps`."""

_SAVE_OUTCOMES = "saved", "failed"


def known_metrics() -> list[Metric]:
    """Return all metrics that servers have, without values of samplers and folders."""
    return [family for each in (Metrics(()).registry, FolderCollector({})) for family in each.collect()]


class RpcEnd:
    """How an RPC ended: the name of its status, and the reason of its error, or an empty text."""

    status, reason = "OK", ""


class Metrics:
    """Counts what a server does, for Prometheus; each metric has its meaning as a text.

    The event loop of the server uses it. `registry` may be read in other threads.

    Attributes:
        registry: all metrics.
    """

    def __init__(
        self,
        samplers: Iterable[Sampler],
        expiries: Callable[[], Iterable[Expiry]] = tuple,
        seats: Callable[[], Mapping[str, tuple[int, int]]] = dict,
    ) -> None:
        """Start with nothing counted.

        Args:
            samplers: the samplers, whenever it is iterated over.
            expiries: returns what expires in the files of the settings.
            seats: returns how many free and taken seats hosts have, by their name.
        """
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(SamplerCollector(samplers))
        registry.register(EndedEpisodeCollector(samplers))
        registry.register(ExpiryCollector(expiries))
        registry.register(HostCollector(seats))
        info = Gauge("rollserve_server_info", "1, labelled with the version.", ["version"], registry=registry)
        info.labels(__version__).set(1)
        self._open = Gauge(
            "rollserve_open_rpcs",
            "RPCs that are open, health checks and reflection included.",
            ["rpc"],
            registry=registry,
        )
        self._seconds = Histogram(
            "rollserve_rpc_seconds",
            "Time from the start of an RPC to its status, such as OK or CANCELLED.",
            ["rpc", "status"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self._errors = Counter(
            "rollserve_rpc_errors",
            "RPCs that ended with an error, by its reason.",
            ["rpc", "reason"],
            registry=registry,
        )
        self._fetches = Counter(
            "rollserve_issuer_fetches",
            "Fetches of the keys of --jwt-issuer, by outcome: fetched or failed.",
            ["outcome"],
            registry=registry,
        )
        self._call_seconds = Counter(
            "rollserve_call_seconds",
            "Time of successful calls, by phase: queued, paused, waiting for workers, or sending to their clients.",
            ["sampler", "rpc", "phase"],
            registry=registry,
        )
        self._call_pauses = Counter(
            "rollserve_call_pauses",
            "Pauses of successful calls while calls of other clients had their turns.",
            ["sampler", "rpc"],
            registry=registry,
        )
        self._call_steps = Counter(
            "rollserve_call_steps",
            f"Steps of successful calls, by fate: delivered, {', '.join(_OTHER_FATES)}.",
            ["sampler", "rpc", "fate"],
            registry=registry,
        )
        self._saves = Counter(
            "rollserve_saves", "Saves to --save-path, by outcome: saved or failed.", ["outcome"], registry=registry
        )
        for outcome in _SAVE_OUTCOMES:
            self._saves.labels(outcome)
        self._worker_seconds = Counter(
            "rollserve_worker_seconds",
            "Time of all workers in successful calls, by phase: environment, policy, recording (steps as columns), "
            "encoding (columns as messages), or idle.",
            ["sampler", "rpc", "phase"],
            registry=registry,
        )

    def count_fetch(self, outcome: str) -> None:
        """Count a fetch of the keys of `--jwt-issuer`, which is `fetched` or `failed`."""
        self._fetches.labels(outcome).inc()

    @contextmanager
    def counting(self, rpc: str) -> Generator[RpcEnd, None, None]:
        """Count an RPC for the duration of the block, which says how it ended.

        Args:
            rpc: name of the RPC.
        """
        end, began = RpcEnd(), time.perf_counter()
        is_open = self._open.labels(rpc)
        is_open.inc()
        try:
            yield end
        finally:
            is_open.dec()
            self._seconds.labels(rpc, end.status).observe(time.perf_counter() - began)
            if end.reason:
                self._errors.labels(rpc, end.reason).inc()

    def count_save(self, *, is_saved: bool) -> None:
        """Count a save of the default sampler, or an attempt that failed."""
        self._saves.labels(_SAVE_OUTCOMES[not is_saved]).inc()

    def forget(self, sampler: str) -> None:
        """Drop what was counted for a sampler that does not exist any more."""
        for metric in (self._call_seconds, self._call_pauses, self._call_steps, self._worker_seconds):
            metric.remove_by_labels({"sampler": sampler})

    def count_call(self, sampler: str, rpc: str, account: Account) -> None:
        """Count a successful call.

        Args:
            sampler: name of the sampler that ran it.
            rpc: name of the RPC.
            account: what became of all steps, and of the time.
        """
        labels = sampler, rpc
        for phase, value in call_seconds(account).items():
            self._call_seconds.labels(*labels, phase).inc(value)
        self._call_pauses.labels(*labels).inc(account.num_pauses)
        self._call_steps.labels(*labels, "delivered").inc(account.num_steps)
        for fate in _OTHER_FATES:
            self._call_steps.labels(*labels, fate).inc(getattr(account, f"num_{fate}_steps"))
        for phase, value in worker_seconds(account).items():
            self._worker_seconds.labels(*labels, phase).inc(value)
