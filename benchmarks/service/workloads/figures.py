"""Figures of calls, from a client's answers and a meter's costs. The end of a figure's name is its unit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["call_figures", "cost_figures", "latency_figures"]


def call_figures(answer: Mapping[str, Any], cost: Mapping[str, float]) -> dict[str, float]:
    """Return a call's rates, and its costs per step and per byte.

    Args:
        answer: `seconds`, `num_steps` and `num_bytes` of the call.
        cost: costs of the call, as `Meter.stop` returns them.
    """
    seconds, num_steps, num_bytes = answer["seconds"], answer["num_steps"], answer["num_bytes"]
    return {
        "seconds": seconds,
        "num_steps": num_steps,
        "num_bytes": num_bytes,
        "steps_per_second": num_steps / seconds,
        "megabytes_per_second": num_bytes / seconds / 1e6,
        **cost_figures(cost, num_steps, num_bytes),
    }


def cost_figures(cost: Mapping[str, float], num_steps: int, num_bytes: int | None = None) -> dict[str, float]:
    """Return CPU seconds per million steps, and per gigabyte if bytes are given; costs in memory as they are."""
    figures = {}
    for name, value in cost.items():
        if not name.endswith("_cpu_seconds"):
            figures[name] = value
            continue
        figures[f"{name}_per_million_steps"] = value / num_steps * 1e6
        if num_bytes is not None:
            figures[f"{name}_per_gigabyte"] = value / num_bytes * 1e9
    return figures


def latency_figures(latencies: Sequence[float]) -> dict[str, float]:
    """Return the quantiles and the rate of calls that ran one after the other, from their latencies in seconds."""
    p50, p99 = np.quantile(latencies, (0.5, 0.99))
    return {
        "p50_seconds": float(p50),
        "p99_seconds": float(p99),
        "calls_per_second": len(latencies) / float(np.sum(latencies)),
    }
