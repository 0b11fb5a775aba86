"""Workloads of the service by name. A new kind of workload is a module in `workloads` and a line here."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.service.results import Options, Result
from benchmarks.service.workloads.agent_updates import measure_updates
from benchmarks.service.workloads.bulk import measure_bulk
from benchmarks.service.workloads.datasets import DATASETS, measure_datasets
from benchmarks.service.workloads.driving import DRIVING, measure_driving
from benchmarks.service.workloads.encrypted import measure_encrypted
from benchmarks.service.workloads.hosts import HOSTS, measure_hosts
from benchmarks.service.workloads.iterations import measure_iterations
from benchmarks.service.workloads.many_agents import measure_many_agents
from benchmarks.service.workloads.many_workers import measure_many_workers
from benchmarks.service.workloads.recording import RECORDINGS, measure_recording
from benchmarks.service.workloads.round_trips import measure_round_trips
from benchmarks.service.workloads.sampling import measure_sampling
from benchmarks.service.workloads.slow_client import measure_slow_client
from benchmarks.service.workloads.specs import ITERATIONS, SAMPLING
from benchmarks.service.workloads.stacks import measure_stacks
from benchmarks.service.workloads.transformed import TRANSFORMED, measure_transformed

__all__ = ["WORKLOADS"]

WORKLOADS: dict[str, Callable[[str, Options], list[Result]]] = {
    **dict.fromkeys(SAMPLING, measure_sampling),
    **dict.fromkeys(TRANSFORMED, measure_transformed),
    "w4-bulk": measure_bulk,
    "w4-stacks": measure_stacks,
    "w5-round-trips": measure_round_trips,
    "w5-update": measure_updates,
    "w6-workers": measure_many_workers,
    "w6-slow-client": measure_slow_client,
    "w7-tls": measure_encrypted,
    "w8-many": measure_many_agents,
    **dict.fromkeys(DATASETS, measure_datasets),
    **dict.fromkeys(RECORDINGS, measure_recording),
    **dict.fromkeys(ITERATIONS, measure_iterations),
    **dict.fromkeys(DRIVING, measure_driving),
    **dict.fromkeys(HOSTS, measure_hosts),
}
"""Functions that measure workloads, called with the workload's name."""
