"""Returns and lengths of ended episodes as metrics, read whenever they are collected."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

if TYPE_CHECKING:
    from prometheus_client import Metric

    from rollserve_server.pool import Histogram
    from rollserve_server.samplers import Sampler

__all__ = ["EpisodeCollector"]

_NUM_RECENT = 100
"""Episodes whose mean is shown: their returns may be negative, and then no rate of a sum gives a mean."""


class EpisodeCollector(Collector):
    """Yields metrics of ended episodes. Use it where the samplers' pools may be used: on the event loop."""

    def __init__(self, samplers: Iterable[Sampler]) -> None:
        """Read from these samplers."""
        self._samplers = samplers

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics, as the samplers are now."""
        labels = ["sampler", "calls"]
        returns = HistogramMetricFamily("rollserve_episode_return", "Returns of ended episodes.", labels=labels)
        lengths = HistogramMetricFamily("rollserve_episode_length", "Lengths of ended episodes.", labels=labels)
        recent = GaugeMetricFamily(
            "rollserve_recent_episodes",
            f"The last {_NUM_RECENT} episodes, without evaluations: their mean, least and largest return and length.",
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
