"""Processes of a service, and their CPU time and peak memory."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence

import psutil

from benchmarks.shared.processes import peak_bytes, reset_peak

__all__ = ["Meter", "processes_of_server"]


def processes_of_server(pid: int, worker_pids: Collection[int]) -> dict[str, list[psutil.Process]]:
    """Return the groups of a server's processes: `gateway`, `workers`, and `ray` for all others.

    Raises:
        RuntimeError: a worker is not among the server's processes.
    """
    gateway = psutil.Process(pid)
    children = gateway.children(recursive=True)
    workers = [process for process in children if process.pid in worker_pids]
    if len(workers) != len(worker_pids):
        raise RuntimeError(f"worker processes: expected {len(worker_pids)}, got {len(workers)}")
    return {"gateway": [gateway], "workers": workers, "ray": [child for child in children if child not in workers]}


class Meter:
    """CPU time and peak memory of groups of processes.

    The memory of a process is its resident memory, shared pages included: pages of Ray's object store count for each
    process that has touched them. A process that has ended, as some of Ray's do, counts as when it was last seen.

    Attributes:
        idle_bytes: memory of the largest process of each group, when the meter was made.
    """

    def __init__(self, groups: Mapping[str, Sequence[psutil.Process]]) -> None:
        self._groups = groups
        self.idle_bytes = {
            name: max((_resident_bytes(process) for process in group), default=0) for name, group in groups.items()
        }
        self._cpu_seconds: dict[str, float] = {}
        self._seen: dict[int, float] = {}  # CPU seconds by process id

    def start(self) -> None:
        """Begin a measurement."""
        for group in self._groups.values():
            for process in group:
                reset_peak(process.pid)
        self._cpu_seconds = self._total_cpu_seconds()

    def stop(self) -> dict[str, float]:
        """Return the costs of each group since `start`.

        `<group>_cpu_seconds` is the CPU time of all its processes, `<group>_peak_bytes` the peak memory of its largest
        process, and `<group>_growth_bytes` the part of the peak above `idle_bytes`.
        """
        costs = {}
        for name, seconds in self._total_cpu_seconds().items():
            costs[f"{name}_cpu_seconds"] = seconds - self._cpu_seconds[name]
            peak = max((peak_bytes(process.pid) for process in self._groups[name]), default=0)
            costs[f"{name}_peak_bytes"] = peak
            costs[f"{name}_growth_bytes"] = max(peak - self.idle_bytes[name], 0)
        return costs

    def _total_cpu_seconds(self) -> dict[str, float]:
        return {name: sum(map(self._cpu_seconds_of, group)) for name, group in self._groups.items()}

    def _cpu_seconds_of(self, process: psutil.Process) -> float:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            self._seen[process.pid] = times.user + times.system
        return self._seen.get(process.pid, 0.0)


def _resident_bytes(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.NoSuchProcess):
        return int(process.memory_info().rss)
    return 0
