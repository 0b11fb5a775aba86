"""The measurement of a peer: command line, warm-up, clock and report."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path

from benchmarks.shared.machine import package_versions
from benchmarks.shared.processes import claim_stdout, peak_bytes

__all__ = ["Collecting", "run"]

Collecting = Callable[..., AbstractContextManager[Callable[[], int]]]
"""A function of a workload and settings that sets a peer up for a block, and yields the function `collect`.

`collect` returns when more data has arrived: the number of steps whose arrays are in the trainer's process now.
"""

_NUM_WARM_UP_DELIVERIES = 3
_MIN_DELIVERIES = 6
_WARM_UP_SHARE = 0.5


def run(collecting: Collecting, packages: Iterable[str]) -> None:
    """Measure a peer as the command line says, and print the report as a line of JSON.

    Args:
        collecting: sets the peer up.
        packages: packages whose versions the report has, beside numpy.
    """
    workload, seconds, settings = sys.argv[1], float(sys.argv[2]), json.loads(sys.argv[3])
    output = claim_stdout()
    with collecting(workload, **settings) as collect:
        _collect_for(collect, seconds * _WARM_UP_SHARE, _NUM_WARM_UP_DELIVERIES)
        num_steps, measured_seconds = _collect_for(collect, seconds, _MIN_DELIVERIES)
        own_peak, *other_peaks = map(peak_bytes, _process_tree())
        report = {
            "steps": num_steps,
            "seconds": measured_seconds,
            "settings": settings,
            "versions": package_versions(("numpy", *packages)),
            "trainer_peak_bytes": own_peak,
            "worker_peak_bytes": max(other_peaks, default=0),
            "all_peak_bytes": own_peak + sum(other_peaks),
        }
        print(json.dumps(report), file=output, flush=True)


def _collect_for(collect: Callable[[], int], min_seconds: float, min_deliveries: int) -> tuple[int, float]:
    """Collect for at least some time and some deliveries; return the number of steps, and the seconds they took.

    The time ends with a delivery. Calls of asynchronous peers may deliver nothing.
    """
    num_steps = num_deliveries = 0
    began = now = time.perf_counter()
    while num_deliveries < min_deliveries or now - began < min_seconds:
        num_new_steps = collect()
        if num_new_steps:
            num_steps += num_new_steps
            num_deliveries += 1
            now = time.perf_counter()
    return num_steps, now - began


def _process_tree() -> list[int]:
    """Return the ids of this process and of all its descendants."""
    parents: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
    tree = [os.getpid()]
    for pid in tree:  # grows while it is read
        tree += [child for child, parent in parents.items() if parent == pid]
    return tree
