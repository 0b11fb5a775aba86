"""When certificates, tokens and keys expire, as a metric, read whenever it is collected."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from prometheus_client import Metric

    from rollserve_server.identity import Expiry

__all__ = ["ExpiryCollector"]


class ExpiryCollector(Collector):
    """Yields when the first certificate, token or key of each file expires."""

    def __init__(self, expiries: Callable[[], Iterable[Expiry]]) -> None:
        """Read what expires by this function."""
        self._expiries = expiries

    def collect(self) -> Iterator[Metric]:
        """Yield the metric, as the files are now."""
        family = GaugeMetricFamily(
            "rollserve_certificate_expiry_seconds",
            "When the first certificate, token or key of a setting's file expires, since 1970.",
            labels=["file"],
        )
        first: dict[str, float] = {}
        for each in self._expiries():
            expires = each.expires.timestamp()
            first[each.setting] = min(expires, first.get(each.setting, expires))
        for setting, expires in first.items():
            family.add_metric([setting], expires)
        yield family
