"""The processes of a server: which there are, and what they take."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence

import psutil

__all__ = ["Usage", "family", "gone", "name_of", "usage_of"]

_ACTORS = {"ray::WorkerActor": "worker", "ray::JournalActor": "journal"}


@dataclasses.dataclass(frozen=True)
class Usage:
    """What a process takes.

    Attributes:
        name: what it does: `gateway`, `worker`, `journal`, or the name of a program of Ray's.
        rss_bytes: what is resident of it, with what it shares.
        own_bytes: of that, what is neither files nor shared memory: what others map does not change it.
        num_threads: its threads.
        num_files: its open files and sockets.
    """

    name: str
    rss_bytes: int
    own_bytes: int
    num_threads: int
    num_files: int


def family(pid: int) -> list[psutil.Process]:
    """The process and all that it has started; none if it is gone."""
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def name_of(process: psutil.Process, gateway_pid: int) -> str:
    """What a process of a server does; empty if it is gone."""
    if process.pid == gateway_pid:
        return "gateway"
    with contextlib.suppress(psutil.Error):
        command = process.cmdline()
        if command:
            return next((name for start, name in _ACTORS.items() if command[0].startswith(start)), process.name())
    return ""


def usage_of(processes: Sequence[psutil.Process], gateway_pid: int) -> dict[int, Usage]:
    """What each process of a server takes, by its number."""
    usages = {}
    for process in processes:
        with contextlib.suppress(psutil.Error):
            memory = process.memory_info()
            usages[process.pid] = Usage(
                name_of(process, gateway_pid),
                memory.rss,
                memory.rss - memory.shared,
                process.num_threads(),
                process.num_fds(),
            )
    return usages


def gone(processes: Sequence[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Waits for processes to end; returns those that have not."""
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return [each for each in alive if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
