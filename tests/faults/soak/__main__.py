"""Run a steady load, print and draw the memory of each process, and exit with 1 if anything grows or is wrong."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from faults.chaos.catalogue import ENVS
from faults.chaos.checks import wrong_ends
from faults.chaos.events import EventLog
from faults.chaos.fleet import Fleet
from faults.chaos.injection import Injector
from faults.chaos.processes import Usage, family, usage_of
from faults.chaos.run import DEFAULT_ENVS
from faults.chaos.schedule import KINDS, schedule
from faults.chaos.service import Service
from faults.chaos.story import Story, read_story
from faults.chaos.updates import Updates
from faults.soak.chart import draw
from faults.soak.rests import resting
from faults.soak.watching import MAX_GROWTH, Track, Watch
from rich.console import Console
from rich.table import Table

_UPDATES = ("agent updated", "parameters updated", "env updated")
_OPTIONS = ("--no-hold-memory",)  # held memory would hide growth
_NUM_RESTS = 12
_MAX_SAMPLES = 720
_MIN_SECONDS = 1.0
_MAX_SHOWN = 12


def main() -> int:
    parser = argparse.ArgumentParser("soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0, help="duration of the load")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random choices")
    parser.add_argument(
        "--faults",
        default=",".join(_UPDATES),
        help=f"kinds of faults, separated by commas, among {', '.join(KINDS)}",
    )
    envs = ",".join(name for name in DEFAULT_ENVS if name not in ("dies", "hangs"))
    parser.add_argument("--envs", default=envs, help=f"environments, separated by commas, among {', '.join(ENVS)}")
    parser.add_argument("--workers", type=int, default=2, help="number of workers")
    parser.add_argument("--clients", type=int, default=3, help="number of clients at a time")
    parser.add_argument("--pause", type=float, default=0.1, help="mean seconds between two calls of a client")
    parser.add_argument(
        "--folder", type=Path, default=Path("soak-run"), help="folder for logs and chart; replaced if it exists"
    )
    given = parser.parse_args()
    shutil.rmtree(given.folder, ignore_errors=True)
    given.folder.mkdir(parents=True)
    given.folder = given.folder.resolve()
    story, tracks, problems = _soak(given)
    problems += [text for call in story.calls for text in wrong_ends(call)]
    whole = max(track.seconds[-1] for track in tracks)
    problems += [text for track in tracks for text in track.problems(whole)]
    _print(story, tracks, whole)
    chart = given.folder / "soak.png"
    draw(chart, tracks, f"{given.clients} clients and {given.workers} workers for {given.seconds / 60:.1f} minutes")
    sys.stdout.write(f"chart: {chart}\n")
    for text in problems[:_MAX_SHOWN]:
        sys.stdout.write(f"wrong: {text}\n")
    return bool(problems)


def _soak(given: argparse.Namespace) -> tuple[Story, Sequence[Track], list[str]]:
    """Run the load; returns its story, the usage of each process, and problems."""
    with contextlib.ExitStack() as stack:
        log = EventLog(given.folder / "events.jsonl")
        service = Service(given.folder, log, seed=given.seed, num_workers=given.workers, options=_OPTIONS)
        service.start()
        stack.callback(service.check_left_behind)
        stack.callback(service.stop)
        updates = Updates(service, log, given.envs.split(","))
        stack.callback(updates.close)
        updates.begin(0.0)
        config = {"seed": given.seed, "pause_seconds": given.pause, "in_full": False}
        fleet = Fleet(service, given.folder, log, given.clients, config)
        stack.callback(fleet.kill_all)
        every = max(_MIN_SECONDS, given.seconds / _MAX_SAMPLES)
        watch = Watch(lambda: _usages(service, fleet, given.clients), every)
        stack.callback(watch.end)
        injector = Injector(service, fleet, updates, log)
        stack.callback(injector.close)
        kinds = [kind for kind in given.faults.split(",") if kind]
        faults = schedule(given.seed, given.seconds, kinds)
        sampler = stack.enter_context(service.connect())
        for start, stop in itertools.pairwise(np.linspace(0, given.seconds, _NUM_RESTS + 1).tolist()):
            injector.run([fault for fault in faults if start <= fault.at_seconds < stop], stop)
            with injector.resting(), resting(given.folder, given.clients, updates, sampler):
                watch.measure_at_rest()
        tracks = watch.end()
        fleet.wait()
    story = read_story(given.folder / "events.jsonl", fleet.logs)
    return story, tracks, [*service.problems, *fleet.problems]


def _usages(service: Service, fleet: Fleet, num_clients: int) -> dict[int, Usage]:
    usages = service.usages()
    for number in range(num_clients):
        pid = fleet.pid(number)
        client = usage_of(family(pid), pid)
        usages |= {each: dataclasses.replace(usage, name="client") for each, usage in client.items()}
    return usages


def _print(story: Story, tracks: Sequence[Track], whole: float) -> None:
    console = Console()
    table = Table(
        "process",
        "MB, not shared\nfirst, last",
        "growth at rest,\nquarter 2 to 4",
        "threads",
        "files",
        title="processes",
    )
    for track in sorted(tracks, key=lambda each: each.name):
        first, last = track.usages[0], track.usages[-1]
        table.add_row(
            track.name,
            f"{first.own_bytes / 1e6:.0f} → {last.own_bytes / 1e6:.0f}",
            f"{track.growth('own_bytes', whole) / 1e6:+.2f} MB",
            f"{first.num_threads} → {last.num_threads}",
            f"{first.num_files} → {last.num_files}",
        )
    console.print(table)
    outcomes = Counter(call.outcome or "client killed" for call in story.calls)
    counts = ", ".join(f"{outcome} {count}" for outcome, count in outcomes.most_common())
    num_bytes = sum(call.num_bytes for call in story.calls)
    console.print(f"{len(story.calls)} calls ({counts}), {num_bytes / 1e6:.0f} MB")
    console.print(f"largest growth allowed from quarter 2 to 4: {MAX_GROWTH}", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
