"""The state of samplers, their ended episodes, and when proofs expire, as metrics; read whenever they are collected."""

from __future__ import annotations

import itertools
import os
import shutil
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import psutil
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

if TYPE_CHECKING:
    from pathlib import Path

    from prometheus_client import Metric

    from rollserve_server.identity import Expiry
    from rollserve_server.pool import Histogram, PoolStatus, WorkerStatus
    from rollserve_server.samplers import Sampler

__all__ = ["EndedEpisodeCollector", "ExpiryCollector", "FolderCollector", "HostCollector", "SamplerCollector"]


_OUTCOMES = ("completed", "failed", "cancelled")
_HEALTHS = ("healthy", "leaving", "given up", "lost")

_NUM_RECENT = 100
"""Episodes whose mean is shown: their returns may be negative, and then no rate of a sum gives a mean."""


class _Field(NamedTuple):
    """A metric of each sampler: its name without `rollserve_`, its description, and its attribute in the status."""

    name: str
    text: str
    attribute: str


_GAUGES = (
    _Field("policy_version", "Current version of the policy; 0 before there is one.", "policy_version"),
    _Field(
        "policy_updated_timestamp_seconds",
        "When the policy was set, in seconds since 1970; 0 before there is one.",
        "policy_updated_seconds",
    ),
    _Field("environment_version", "Current version of the environment.", "env_version"),
    _Field("running_calls", "Sampling calls and evaluations that run, stalled ones included.", "num_running_calls"),
    _Field("queued_calls", "Sampling calls and evaluations that queue or are paused.", "num_queued_calls"),
    _Field("sampler_uptime_seconds", "Age of the sampler, which may be older than its server.", "uptime_seconds"),
)


_COUNTERS = (
    _Field("simulated_steps", "Steps simulated.", "num_simulated_steps"),
    _Field("worker_restarts", "Attempts to replace a worker.", "num_worker_restarts"),
    _Field("busy_worker_seconds", "Time in which workers had work, of all calls together.", "busy_seconds"),
    _Field("delivered_steps", "Steps delivered, also by calls that did not complete.", "counters.num_steps"),
    _Field("delivered_episodes", "Episodes delivered; of fragments, the ended ones.", "counters.num_episodes"),
    _Field(
        "delivered_bytes",
        "Bytes of messages delivered, as they are sent, without what gRPC and TLS add.",
        "counters.message_bytes",
    ),
    _Field(
        "non_finite_steps",
        "Delivered steps with a NaN or an infinity in the reward or an observation.",
        "counters.num_non_finite_steps",
    ),
    _Field(
        "delivered_raw_bytes", "Bytes that delivered messages would have without compression.", "counters.raw_bytes"
    ),
    _Field("environment_failures", "Errors that environments raised.", "counters.num_env_failures"),
    _Field("retried_episodes", "Episodes retried because something had failed.", "counters.num_retried_episodes"),
    _Field("failed_episodes", "Episodes skipped because they failed.", "counters.num_failed_episodes"),
    _Field(
        "straggler_episodes",
        "Episodes started a second time although nothing failed.",
        "counters.num_straggler_episodes",
    ),
    _Field("discarded_rounds", "Rounds of streams sampled whole and not sent whole.", "counters.num_discarded_rounds"),
    _Field("discarded_round_steps", "Steps of discarded rounds.", "counters.num_discarded_steps"),
    _Field("discarded_round_episodes", "Episodes that ended in discarded rounds.", "counters.num_discarded_episodes"),
)


class SamplerCollector(Collector):
    """Yields the metrics of samplers. Use it where their pools may be used: on the event loop."""

    def __init__(self, samplers: Iterable[Sampler]) -> None:
        """Read from these samplers, which may change."""
        self._samplers = samplers

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics, as the samplers are now."""
        statuses = {sampler.name: sampler.pool.status() for sampler in self._samplers}
        for kind, fields in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
            for field in fields:
                family = kind(f"rollserve_{field.name}", field.text, labels=["sampler"])
                value_of = attrgetter(field.attribute)
                for name, status in statuses.items():
                    family.add_metric([name], value_of(status))
                yield family
        yield _calls(statuses)
        yield from _workers(statuses)
        yield from _scaling(statuses)


def _calls(statuses: Mapping[str, PoolStatus]) -> Metric:
    calls = CounterMetricFamily(
        "rollserve_calls",
        f"Sampling calls that ended, by outcome: {', '.join(_OUTCOMES)}.",
        labels=["sampler", "outcome"],
    )
    for name, status in statuses.items():
        for outcome in _OUTCOMES:
            calls.add_metric([name, outcome], getattr(status.counters, f"num_{outcome}_calls"))
    return calls


def _workers(statuses: Mapping[str, PoolStatus]) -> Iterator[Metric]:
    workers = GaugeMetricFamily(
        "rollserve_workers", f"Workers, by health: {', '.join(_HEALTHS)}.", labels=["sampler", "health"]
    )
    steps = CounterMetricFamily("rollserve_worker_steps", "Steps simulated, by worker.", labels=["sampler", "worker"])
    memory = GaugeMetricFamily(
        "rollserve_worker_resident_memory_bytes",
        "Memory of a worker's process, by worker; only of processes that the server's own process can see.",
        labels=["sampler", "worker"],
    )
    for name, status in statuses.items():
        numbers = Counter(map(_health, status.workers))
        for health in _HEALTHS:
            workers.add_metric([name, health], numbers[health])
        for worker in status.workers:
            steps.add_metric([name, str(worker.index)], worker.num_simulated_steps)
            if (num_bytes := _resident_bytes(worker)) is not None:
                memory.add_metric([name, str(worker.index)], num_bytes)
    yield workers
    yield steps
    yield memory


def _scaling(statuses: Mapping[str, PoolStatus]) -> Iterator[Metric]:
    scaled = {name: status.scaling for name, status in statuses.items() if status.scaling is not None}
    wanted = GaugeMetricFamily(
        "rollserve_wanted_workers",
        "Workers that there should be, where the number follows the load.",
        labels=["sampler"],
    )
    held = GaugeMetricFamily(
        "rollserve_workers_held",
        "1 while results depend on the number of workers, so that it stays.",
        labels=["sampler"],
    )
    changes = CounterMetricFamily(
        "rollserve_scalings",
        "Changes of the number of workers with the load, by direction.",
        labels=["sampler", "direction"],
    )
    for name, scaling in scaled.items():
        wanted.add_metric([name], scaling.num_wanted)
        held.add_metric([name], bool(scaling.held_by))
        changes.add_metric([name, "up"], scaling.num_grown)
        changes.add_metric([name, "down"], scaling.num_shrunk)
    yield from (wanted, held, changes)


def _resident_bytes(worker: WorkerStatus) -> int | None:
    """Return the memory of a worker's process; None if it is elsewhere, gone, or the server's own."""
    process_id, host = worker.identity.process_id, worker.identity.host
    if not worker.healthy or host != socket.gethostname() or process_id in (0, os.getpid()):
        return None
    try:
        return int(psutil.Process(process_id).memory_info().rss)
    except psutil.Error:
        return None


def _health(worker: WorkerStatus) -> str:
    if worker.is_leaving:
        return "leaving"
    if worker.healthy:
        return "healthy"
    return "given up" if worker.given_up else "lost"


class EndedEpisodeCollector(Collector):
    """Yields metrics of ended episodes. Use it where the samplers' pools may be used: on the event loop."""

    def __init__(self, samplers: Iterable[Sampler]) -> None:
        """Read from these samplers."""
        self._samplers = samplers

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics, as the samplers are now."""
        labels = ["sampler", "calls"]
        by_calls = "by the calls that delivered their ends: samples, exact_episodes, fragments or evaluation"
        returns = HistogramMetricFamily("rollserve_episode_return", f"Returns of episodes, {by_calls}.", labels=labels)
        lengths = HistogramMetricFamily("rollserve_episode_length", f"Lengths of episodes, {by_calls}.", labels=labels)
        recent = GaugeMetricFamily(
            "rollserve_recent_episodes",
            f"The last {_NUM_RECENT} episodes, without evaluations, by value (return, length) and statistic (mean, "
            "min, max).",
            labels=["sampler", "value", "statistic"],
        )
        for sampler in self._samplers:
            name, log = sampler.name, sampler.pool.episode_log
            for kind in log.returns:
                calls = kind.name.lower()
                _add(returns, [name, calls], log.returns[kind])
                _add(lengths, [name, calls], log.lengths[kind])
            latest = log.latest_sampled(_NUM_RECENT)
            for value, field in (("return", "total_reward"), ("length", "length")) if len(latest) else ():
                for statistic in ("mean", "min", "max"):
                    recent.add_metric([name, value, statistic], float(getattr(latest[field], statistic)()))
        yield from (returns, lengths, recent)


def _add(family: HistogramMetricFamily, labels: list[str], histogram: Histogram) -> None:
    bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
    counts = itertools.accumulate(histogram.counts.tolist())
    family.add_metric(labels, list(zip(bounds, counts, strict=True)), histogram.total)


class ExpiryCollector(Collector):
    """Yields when the first certificate, token or key of each file expires."""

    def __init__(self, expiries: Callable[[], Iterable[Expiry]]) -> None:
        """Read what expires by this function."""
        self._expiries = expiries

    def collect(self) -> Iterator[Metric]:
        """Yield the metric, as the files are now."""
        family = GaugeMetricFamily(
            "rollserve_certificate_expiry_seconds",
            "When the first certificate or token, or the last key, of a file expires, in seconds since 1970, by the "
            "setting that names the file. No series where nothing expires.",
            labels=["file"],
        )
        first: dict[str, float] = {}
        for each in self._expiries():
            expires = each.expires.timestamp()
            first[each.setting] = min(expires, first.get(each.setting, expires))
        for setting, expires in first.items():
            family.add_metric([setting], expires)
        yield family


class HostCollector(Collector):
    """Yields how many seats the hosts have that are connected."""

    def __init__(self, seats: Callable[[], Mapping[str, tuple[int, int]]]) -> None:
        """Read the numbers of free and taken seats, by the name of their hosts, by this function."""
        self._seats = seats

    def collect(self) -> Iterator[Metric]:
        """Yield the metric, as the seats are now."""
        family = GaugeMetricFamily(
            "rollserve_host_seats",
            "Seats of connected hosts of environments, by the hosts' name and state: free, or in use by a worker.",
            labels=["host", "state"],
        )
        for name, numbers in self._seats().items():
            for state, number in zip(("free", "in use"), numbers, strict=True):
                family.add_metric([name, state], number)
        yield family


class FolderCollector(Collector):
    """Yields the room in folders. A file system in the network may let it wait."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        """Look at these folders, by the setting that names each."""
        self._folders = folders

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; none of a folder that cannot be looked at."""
        of = "of the file system of a folder that the server writes to, by the setting that names it, or tmp"
        free = GaugeMetricFamily("rollserve_folder_free_bytes", f"Bytes left {of}.", labels=["folder"])
        size = GaugeMetricFamily("rollserve_folder_size_bytes", f"Bytes {of}.", labels=["folder"])
        for name, folder in self._folders.items():
            with suppress(OSError):
                usage = shutil.disk_usage(folder)
                free.add_metric([name], usage.free)
                size.add_metric([name], usage.total)
        yield from (free, size)
