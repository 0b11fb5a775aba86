"""Machine and software that a measurement ran on. Imports the standard library alone, as `shared.processes`."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.shared.processes import REPOSITORY

__all__ = ["machine", "package_versions", "versions"]

_PACKAGES = (
    "rollserve",
    "rollserve-server",
    "ray",
    "grpcio",
    "protobuf",
    "numpy",
    "gymnasium",
    "ale-py",
    "mujoco",
    "envpool",
    "onnxruntime",
)


def versions() -> dict[str, str]:
    """Return the versions of Python, of this repository, and of the packages that the service uses."""
    return {"revision": _revision(), **package_versions(_PACKAGES)}


def package_versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of Python and of those packages that are installed."""
    found = {"python": platform.python_version()}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def machine() -> dict[str, Any]:
    """Return the processor, the number of usable cores, the memory, the system, and the load of the last minute."""
    return {
        "processor": _processor(),
        "num_cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load_average": os.getloadavg()[0],
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor()


def _revision() -> str:
    """Return the checked-out commit, with a + if files differ from it; empty outside of a repository."""
    command = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        return ""
