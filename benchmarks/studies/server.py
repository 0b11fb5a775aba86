"""The server of a study, and what processes cost."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

import rollserve
from rollserve_server.local import LocalServer, local_server

__all__ = ["add_workers", "cartpole_server", "cpu_seconds"]


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Add the option for the number of workers."""
    parser.add_argument("--workers", type=int, default=2, help="number of workers (default: %(default)s)")


@contextlib.contextmanager
def cartpole_server(num_workers: int) -> Iterator[tuple[LocalServer, rollserve.Sampler]]:
    """Run a server with CartPole-v1 for as long as the block, and yield it with a sampler on it."""
    options = ("--env", "CartPole-v1", "--workers", str(num_workers))
    with (
        tempfile.TemporaryDirectory() as folder,
        local_server(*options, log=Path(folder) / "log") as server,
        rollserve.connect(server.address) as sampler,
    ):
        yield server, sampler


def cpu_seconds(processes: Sequence[psutil.Process]) -> float:
    """Return the CPU time of processes."""
    times = [process.cpu_times() for process in processes]
    return sum(each.user + each.system for each in times)
