"""How soon do workers follow the load?

    python -m benchmarks.studies.scaling [--max-workers N] [--trainers N] [--scale-down-seconds X]

Trainers begin to sample CartPole-v1 at the same time, call after call, and stop once there are N workers. Shown is when
each worker had joined since the load began, and when each had left since it ended, of which the given seconds are the
time for which fewer workers have to be enough.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

import rollserve
from rollserve_server.local import local_server

NUM_STEPS = 20_000
LOOK_SECONDS = 0.1


def keep_sampling(address: str, has_ended: threading.Event) -> None:
    """Sample call after call until the event is set."""
    with rollserve.connect(address, shared=True) as sampler:
        while not has_ended.is_set():
            with sampler.stream_samples(NUM_STEPS, blackhole=True) as stream:
                for _ in stream:
                    pass


def times_of(sampler: rollserve.Sampler, numbers: Sequence[int]) -> dict[int, float]:
    """Return after how many seconds from now each number of workers was there."""
    began, seconds = time.monotonic(), {}
    for number in numbers:
        while (sampler.status().num_workers - number) * (numbers[-1] - numbers[0]) < 0:
            time.sleep(LOOK_SECONDS)
        seconds[number] = time.monotonic() - began
    return seconds


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description="Measure how soon workers follow the load.")
    parser.add_argument("--max-workers", type=int, default=4, help="number of workers (default: %(default)s)")
    parser.add_argument("--trainers", type=int, default=4, help="number of trainers (default: %(default)s)")
    parser.add_argument(
        "--scale-down-seconds", type=float, default=30.0, help="the setting of the server (default: %(default)s)"
    )
    arguments = parser.parse_args()
    options = ["--env", "CartPole-v1", "--min-workers", "1", "--max-workers", str(arguments.max_workers)]
    options += ["--scale-down-seconds", str(arguments.scale_down_seconds)]
    with (
        tempfile.TemporaryDirectory() as folder,
        local_server(*options, log=Path(folder, "log")) as server,
        rollserve.connect(server.address) as sampler,
    ):
        sampler.update_agent(rollserve.RandomAgent())
        has_ended = threading.Event()
        trainers = [
            threading.Thread(target=keep_sampling, args=(server.address, has_ended)) for _ in range(arguments.trainers)
        ]
        for trainer in trainers:
            trainer.start()
        joined = times_of(sampler, range(1, arguments.max_workers + 1))
        has_ended.set()
        for trainer in trainers:
            trainer.join()
        left = times_of(sampler, range(arguments.max_workers, 0, -1))
    table = Table("workers", "joined after, s", "left after, s")
    for number in range(2, arguments.max_workers + 1):
        table.add_row(str(number), f"{joined[number]:.1f}", f"{left[number - 1]:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
