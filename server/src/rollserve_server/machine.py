"""The machine that this process runs on, as far as the process may use it."""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib.metadata
import os
from collections.abc import Iterator
from pathlib import Path

from rollserve_wire.receipts import HASH_SEED_NAME, hash_seed

__all__ = ["data_bytes", "is_own_limit", "memory_bytes", "num_cores", "package_versions", "private_bytes"]

_LIMIT_FILES = {"": "memory.max", "memory": "memory/memory.limit_in_bytes"}
"""Files with the limit of a control group's memory, by the controllers that `/proc/self/cgroup` names it with."""

_PACKAGES = ("ale-py", "box2d", "envpool", "gymnasium", "mpe2", "mujoco", "numpy", "pettingzoo", "rollserve-server")


_OWN_LIMITS = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ENOSPC, errno.EADDRNOTAVAIL, errno.ETOOMANYREFS}
)


def is_own_limit(error: OSError) -> bool:
    """Return whether this process or machine lacks files, memory or ports, so that the error says nothing of a peer."""
    return error.errno in _OWN_LIMITS


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


@functools.cache
def memory_bytes(root: Path = Path("/")) -> int:
    """Return the memory that this process may use: the machine's, or what its control groups allow if that is less.

    Args:
        root: folder with `proc` and `sys`.
    """
    return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *_limits(root)])


@functools.cache
def package_versions() -> tuple[tuple[str, str], ...]:
    """Return the names and versions of what decides what environments do: installed packages, and the hash seed."""
    found = [(HASH_SEED_NAME, hash_seed())]
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append((name, importlib.metadata.version(name)))
    return tuple(found)


def private_bytes(root: Path = Path("/")) -> int:
    """Return the memory that this process shares with no other; 0 where the system does not say.

    Args:
        root: folder with `proc`.
    """
    try:
        _, resident, shared, *_ = (root / "proc/self/statm").read_text().split()
    except OSError:  # only Linux has the file
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def data_bytes(root: Path = Path("/")) -> int:
    """Return the size of this process's data segment, as `RLIMIT_DATA` counts it; 0 where the system does not say.

    Args:
        root: folder with `proc`.
    """
    try:
        lines = (root / "proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmData:")), 0)


def _limits(root: Path) -> Iterator[int]:
    """Yield the limits of the process's control groups, and of the groups around them."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        for controller in controllers.split(","):
            if controller not in _LIMIT_FILES:
                continue
            folder, name = os.path.split(_LIMIT_FILES[controller])
            base = root / "sys/fs/cgroup" / folder
            # A container may see its own group as the outermost one, whatever the group's name is outside.
            path = Path(group.lstrip("/"))
            for parent in (path, *path.parents):
                try:
                    text = (base / parent / name).read_text().strip()
                except OSError:
                    continue
                if text.isdigit():
                    yield int(text)
