"""Measure the time to a return: `python -m benchmarks.learning`, or `make bench-learning`.

Each participant learns each task once in each round, one after the other, with another seed in each round. Rollserve's
trainers are those in `examples`; its server, with two workers on Ray, is started before. The clock of everybody starts
when training does, and stops when the last 100 episodes that ended in training returned the target on average. Prints a
table, and writes all curves to a JSON file and a chart to a PNG file.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.learning.attempts import Attempt, learn
from benchmarks.learning.catalogue import PARTICIPANTS, TASKS
from benchmarks.learning.chart import save_chart
from benchmarks.peers.virtual_environments import InstallError, python_of
from benchmarks.shared.command_line import add_measurement_options, add_names
from benchmarks.shared.processes import REPOSITORY
from benchmarks.shared.report import new_report, wide_console, write_report
from rollserve_server.local import local_server

__all__: list[str] = []

_BRIDGES = REPOSITORY / ".venv-bridges" / "bin" / "python"


def main() -> int:
    """Measure what the command line asks for; return the exit status."""
    arguments = _parse_arguments()
    console = Console(stderr=True)
    log = partial(console.print, highlight=False, markup=False)
    report, attempts = new_report(arguments), list[Attempt]()
    for number in range(arguments.rounds):
        for name in arguments.tasks:
            for participant in arguments.participants:
                attempt = _attempt(name, participant, number, arguments)
                if attempt is None:
                    continue
                attempts.append(attempt)
                log(f"{name}, round {number + 1}, {attempt.who}: {attempt.failure or _outcome(attempt)}")
                write_report(report | {"attempts": [asdict(each) for each in attempts]}, arguments.json)
    save_chart(attempts, arguments.chart)
    _print_table(attempts)
    log(f"figures in {arguments.json}, chart in {arguments.chart}")
    return 0


def _attempt(name: str, participant: str, number: int, arguments: argparse.Namespace) -> Attempt | None:
    """Let a participant learn a task, with a new server if it needs one; return None if it does not do such tasks."""
    task, who = TASKS[name], PARTICIPANTS[participant]
    if task.algorithm not in who.module:
        return None
    if who.environment is not None:
        try:
            python = python_of(who.environment)
        except InstallError as error:
            return Attempt(who.title, name, number, failure=str(error))
        return learn(name, task, who, python, number, "", arguments.limit_seconds)
    with tempfile.TemporaryDirectory(prefix="rollserve-bench-") as folder:
        options = ("--env", task.env, "--workers", str(arguments.workers))
        with local_server(*options, log=Path(folder, "server.log")) as server:
            return learn(name, task, who, _BRIDGES, number, server.address, arguments.limit_seconds)


def _outcome(attempt: Attempt) -> str:
    reached, last = attempt.time_to(TASKS[attempt.task].target), attempt.curve[-1]
    if reached is None:
        return f"{last['mean_return']:.0f} after {last['seconds']:.0f} s and {last['num_steps']:,} steps"
    return f"{reached['seconds']:.1f} s, {reached['num_steps']:,} steps"


def _print_table(attempts: Sequence[Attempt]) -> None:
    """Print the medians of the rounds that reached the target."""
    table = Table(title="time to a return")
    for column in ("task", "who", "reached", "seconds", "steps", "steps/s"):
        table.add_column(column, justify="left" if column in ("task", "who") else "right")
    for task, who in dict.fromkeys((each.task, each.who) for each in attempts):
        mine = [each for each in attempts if (each.task, each.who) == (task, who)]
        reached = [found for each in mine if (found := each.time_to(TASKS[task].target))]
        ends = [each.curve[-1] for each in mine if each.curve]
        medians = [
            f"{statistics.median(each[key] for each in reached):,.1f}" for key in ("seconds", "num_steps") if reached
        ]
        speed = f"{statistics.median(each['num_steps'] / each['seconds'] for each in ends):,.0f}" if ends else ""
        table.add_row(task, who, f"{len(reached)} of {len(mine)}", *(medians or ["", ""]), speed)
    wide_console(100).print(table)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning", description="Measure the time to a return.")
    add_names(parser, "--participants", PARTICIPANTS)
    add_names(parser, "--tasks", TASKS)
    add_measurement_options(parser, file_name="bench-learning")
    parser.add_argument(
        "--limit-seconds",
        type=float,
        default=3600.0,
        help="seconds of one attempt, set-up included (default: %(default)s)",
    )
    parser.set_defaults(tasks=[next(iter(TASKS))])
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
