"""Processes of a server and of its clients, and what they use."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import threading
from collections.abc import Sequence

import psutil

__all__ = ["Usage", "actor_class", "end_with_parent", "family", "is_host", "name_of", "still_running", "usage_of"]

_ROLES = {"WorkerActor": "worker", "JournalActor": "journal"}


@dataclasses.dataclass(frozen=True)
class Usage:
    """Resources that a process uses.

    Attributes:
        name: `gateway`, `worker`, `journal`, or the name of a program of Ray.
        rss_bytes: resident memory, shared memory included.
        own_bytes: resident memory without files and shared memory.
        num_threads: number of threads.
        num_files: number of open files and sockets.
    """

    name: str
    rss_bytes: int
    own_bytes: int
    num_threads: int
    num_files: int


def end_with_parent() -> None:
    """Send SIGTERM to this process once its parent has ended."""
    parent = psutil.Process(os.getppid())

    def wait() -> None:
        parent.wait()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="parent", daemon=True).start()


def family(pid: int) -> list[psutil.Process]:
    """Return a process and its descendants, or an empty list if it has ended."""
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def name_of(process: psutil.Process, gateway_pid: int) -> str:
    """Return the role of a process of a server, or an empty text if it has ended."""
    if process.pid == gateway_pid:
        return "gateway"
    with contextlib.suppress(psutil.Error):
        return _ROLES.get(actor_class(process)) or process.name()
    return ""


def actor_class(process: psutil.Process) -> str:
    """Return the class of an actor's process, or an empty text for processes that do not belong to Ray's workers.

    Ray names the process of an actor `ray::<class>`, or `ray::<class>.<method>` while it runs a method.
    """
    command = process.cmdline()
    name = command[0] if command else ""
    return name.removeprefix("ray::").partition(".")[0].strip() if name.startswith("ray::") else ""


def is_host(process: psutil.Process) -> bool:
    """Whether a process is a host of environments."""
    with contextlib.suppress(psutil.Error):
        return any(part.endswith("rollserve_env_host") for part in process.cmdline())
    return False


def usage_of(processes: Sequence[psutil.Process], gateway_pid: int) -> dict[int, Usage]:
    """Return the usage of each process of a server, by process id."""
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


def still_running(processes: Sequence[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Wait for processes to end, and return the ones that still run."""
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return [each for each in alive if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
