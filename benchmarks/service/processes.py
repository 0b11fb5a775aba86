"""Which processes a service consists of, and what time and memory they take."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

__all__ = ["Meter", "processes_of_server"]

_WORKER_NAME = "ray::_Actor"


def processes_of_server(pid: int) -> dict[str, list[psutil.Process]]:
    """The processes of a server: the gateway, the workers, and what Ray runs beside them."""
    gateway = psutil.Process(pid)
    others = gateway.children(recursive=True)
    workers = [process for process in others if process.cmdline()[:1] and process.cmdline()[0].startswith(_WORKER_NAME)]
    ray = [process for process in others if process not in workers]
    return {"gateway": [gateway], "workers": workers, "ray": ray}


class Meter:
    """CPU time and peak memory of groups of processes.

    The memory of a process is what is resident of it, with what it shares with others: pages of Ray's object store
    count for each process that touched them.

    Attributes:
        idle_bytes: by group, what its largest process had when the meter was made.
    """

    def __init__(self, groups: Mapping[str, Sequence[psutil.Process]]) -> None:
        self._groups = groups
        self.idle_bytes = {
            name: max((process.memory_info().rss for process in group), default=0) for name, group in groups.items()
        }
        self._cpu_seconds: dict[str, float] = {}

    def start(self) -> None:
        """Begins to count."""
        for group in self._groups.values():
            for process in group:
                _reset_peak(process.pid)
        self._cpu_seconds = self._all_cpu_seconds()

    def stop(self) -> dict[str, float]:
        """Of each group the CPU seconds since the start, and the peak of its largest process and its growth over idle.

        The names are `<group>_cpu_seconds`, `<group>_peak_bytes` and `<group>_growth_bytes`.
        """
        figures = {}
        for name, seconds in self._all_cpu_seconds().items():
            figures[f"{name}_cpu_seconds"] = seconds - self._cpu_seconds[name]
            peak = max((_peak_bytes(process.pid) for process in self._groups[name]), default=0)
            figures[f"{name}_peak_bytes"] = peak
            figures[f"{name}_growth_bytes"] = max(peak - self.idle_bytes[name], 0)
        return figures

    def _all_cpu_seconds(self) -> dict[str, float]:
        return {name: sum(map(_cpu_seconds, group)) for name, group in self._groups.items()}


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _peak_bytes(pid: int) -> int:
    """The most that was resident of a process since it began, or since `_reset_peak`."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, amount = line.partition(":")
        if name == "VmHWM":
            return int(amount.split()[0]) * 1024
    return 0


def _reset_peak(pid: int) -> None:
    """Has the peak of a process begin anew with what is resident now, where the machine allows it."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")
