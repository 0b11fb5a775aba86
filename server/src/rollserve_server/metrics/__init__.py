"""Metrics for Prometheus: what is counted, and the HTTP server that shows it."""

from rollserve_server.metrics.listener import MetricsListener
from rollserve_server.metrics.metrics import Metrics, RpcEnd

__all__ = ["Metrics", "MetricsListener", "RpcEnd"]
