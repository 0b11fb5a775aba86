"""Metrics for Prometheus: what is counted, and the HTTP server that shows it."""

from rollserve_server.metrics.collectors import FolderCollector
from rollserve_server.metrics.figures import figures_of
from rollserve_server.metrics.listener import MetricsListener, MetricsOnLoop
from rollserve_server.metrics.metrics import Metrics, RpcEnd, known_metrics

__all__ = ["FolderCollector", "Metrics", "MetricsListener", "MetricsOnLoop", "RpcEnd", "figures_of", "known_metrics"]
