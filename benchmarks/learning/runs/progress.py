"""Progress of a trainer, as lines of JSON on standard output. Imports the standard library alone."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.learning.catalogue import Task
from benchmarks.shared.machine import package_versions
from benchmarks.shared.processes import claim_stdout

__all__ = ["Progress", "run"]


class Progress:
    """Prints how far a trainer is. The clock starts with the first step, and does not count imports and set-up."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._output, self._began = claim_stdout(), 0.0

    def start(self) -> None:
        """Start the clock."""
        self._began = time.perf_counter()

    def report(self, num_steps: int, mean_return: float, num_episodes: int = 100) -> bool:
        """Print the mean return of the last episodes, of at most 100; return whether the task is done.

        Args:
            num_steps: number of steps so far.
            mean_return: mean return of these episodes; NaN if none has ended.
            num_episodes: number of these episodes.
        """
        seconds = time.perf_counter() - self._began
        if not math.isnan(mean_return):
            line = {"seconds": seconds, "num_steps": num_steps, "mean_return": mean_return}
            print(json.dumps(line | {"num_episodes": num_episodes}), file=self._output, flush=True)
        return (num_episodes >= 100 and mean_return >= self.task.target) or num_steps >= self.task.max_steps

    def show_versions(self, packages: tuple[str, ...]) -> None:
        """Print the versions of packages."""
        print(json.dumps({"versions": package_versions(packages)}), file=self._output, flush=True)


def run(train: Callable[[Task, int, Progress, str], None], packages: tuple[str, ...]) -> None:
    """Train as the command line says: the task as JSON, a seed, and the address of Rollserve's server.

    The first line that is printed has the versions of packages.
    """
    values: dict[str, Any] = json.loads(sys.argv[1])
    task = Task(**values)
    progress = Progress(task)
    progress.show_versions(packages)
    train(task, int(sys.argv[2]), progress, sys.argv[3])
