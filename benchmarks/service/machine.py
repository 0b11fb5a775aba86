"""What a measurement was made with, and on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import psutil

from benchmarks.service.children import REPOSITORY

__all__ = ["machine", "versions"]

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
    """Of Python, of the packages that matter and are there, and of this repository."""
    found = {"python": platform.python_version(), "revision": _revision()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """The processor, the cores that may be used, the memory, the system, and how busy it was before."""
    return {
        "processor": _processor(),
        "num_cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
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
    """The commit that is checked out, with a + if files differ from it; empty outside of a repository."""
    command = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        return ""
