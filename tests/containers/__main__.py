"""Bring the containers of docker-compose.yml up on a real engine, disturb them, and print what was seen.

    PYTHONPATH=tests python -m containers

The exit status is 1 if anything was wrong. `compose-run/` has the logs and pictures.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
import traceback
from pathlib import Path

from rich.console import Console
from rich.table import Table

from containers.engine import CommandError, Engine
from containers.scenario import Scenario

_ESSENTIAL = ("base image", "build", "compose up until healthy", "undisturbed calls")
"""Steps without which the others make no sense."""


def main() -> int:
    """Run all steps, print their table, and return the exit status."""
    parser = argparse.ArgumentParser(prog="containers", description="Test the containers on a real engine.")
    parser.add_argument("--docker", default="docker", metavar="COMMAND", help="the engine's client (default: docker)")
    parser.add_argument("--skip", action="append", default=[], metavar="STEP", help="a step to leave out. Repeatable")
    parser.add_argument(
        "--upgrades", type=int, default=2, metavar="N", help="an even number of upgrades and downgrades"
    )
    options = parser.parse_args()
    folder = Path("compose-run").absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        engine = Engine(options.docker, folder / "commands.log")
        engine.docker("info")
    except CommandError as error:
        parser.exit(1, f"docker: expected a running engine, got {error}\n")
    scenario, console = Scenario(engine, folder, options.upgrades), Console()
    rows, failed = [], False
    try:
        for name, step in scenario.steps.items():
            if name in options.skip:
                continue
            began, seen, is_wrong = time.monotonic(), "", False
            try:
                seen = step()
            except Exception as error:  # the other steps are still of interest
                is_wrong = failed = True
                seen = f"WRONG: {error}"
                (folder / "errors.log").open("a").write(traceback.format_exc())
            seconds = time.monotonic() - began
            rows.append((name, f"{seconds:.1f}", seen))
            console.print(f"{name} ({seconds:.1f} s): {seen}", markup=False, highlight=False)
            if is_wrong and name in _ESSENTIAL:
                break
    finally:
        _tidy_up(engine, folder)
    table = Table("step", "seconds", "seen")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    return int(failed)


def _tidy_up(engine: Engine, folder: Path) -> None:
    """Remove what a step that failed has left, and keep its logs."""
    if not engine.containers(all_states=True):
        return
    for command in (
        ["logs", "--no-color"],
        ["--profile", "monitoring", "--profile", "example", "--profile", "standby", "down", "--volumes"],
    ):
        try:
            printed = engine.compose(*command)
        except CommandError as error:
            printed = str(error)
        if "logs" in command:
            (folder / "containers.log").write_text(printed)


if __name__ == "__main__":
    sys.exit(main())
