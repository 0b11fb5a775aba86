"""How long do calls wait while the server is upgraded and downgraded, and are their results the same?

    python -m benchmarks.studies.upgrades [--upgrades N]

A Ray cluster on this machine, a sampler of CartPole-v1 with two workers, and three clients that call one after the
other: episodes, fragments, and updates of the agent. Again and again, a server of another version stands by, the
present one is ended by SIGTERM, and the workers are replaced. Each call with a seed has to return what it returned
before the first upgrade.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

import rollserve
from benchmarks.shared.ray_nodes import free_port, single_node, wait_for_text

VERSIONS = ("0.0.1", "0.0.2")
NUM_WORKERS, NUM_ROWS = 2, 4
NUM_SEEDS = 4
QUIET_SECONDS = 2.0
"""Time before and after each upgrade in which nothing else happens."""
UPDATE_SECONDS = 1.0
"""Time between two updates. All versions are kept, and each costs a takeover a millisecond or two."""
PROGRAM = """
import runpy, sys
import rollserve_server

rollserve_server.__version__ = sys.argv.pop(1)
runpy.run_module("rollserve_server", run_name="__main__", alter_sys=True)
"""
"""A program that is a server of the version in its first argument, as far as others can tell."""


def digest(batch: rollserve.EpisodeBatch) -> str:
    """Return a digest of a batch's observations, actions and rewards."""
    columns = (batch.observations, batch.actions, batch.rewards)
    return hashlib.sha256(b"".join(column.tobytes() for column in columns)).hexdigest()


def _episodes(sampler: rollserve.Sampler, seed: int) -> str:
    return digest(sampler.obtain_samples(2000, seed=seed, policy_version=1))


def _fragments(sampler: rollserve.Sampler, seed: int) -> str:
    return digest(sampler.obtain_fragments(2048, seed=seed, row_step_count=0, policy_version=1))


def _updates(sampler: rollserve.Sampler, seed: int) -> str:
    sampler.update_agent(rollserve.RandomAgent())
    return ""


CALLS: dict[str, Callable[[rollserve.Sampler, int], str]] = {
    "episodes": _episodes,
    "fragments": _fragments,
    "updates": _updates,
}


class Pause(NamedTuple):
    """When a call ended, and how long it took."""

    at: float
    seconds: float


class Load:
    """A thread that makes calls of a kind one after the other.

    Attributes:
        num_calls: number of calls that ended well.
        num_failed: number of calls that failed.
        num_wrong: number of calls that returned something else than undisturbed.
        pauses: the times of all calls.
    """

    def __init__(self, address: str, kind: str) -> None:
        self.num_calls = self.num_failed = self.num_wrong = 0
        self.pauses: list[Pause] = []
        self._address, self._call = address, CALLS[kind]
        self._rest_seconds = UPDATE_SECONDS if kind == "updates" else 0.0
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        with rollserve.connect(self._address) as sampler:
            self._expected = [self._call(sampler, seed) for seed in range(NUM_SEEDS)]
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended.set()
        self._thread.join()

    def longest_seconds(self, since: float, until: float) -> float:
        """Return the longest time of a call that ended between two times."""
        return max((pause.seconds for pause in self.pauses if since <= pause.at <= until), default=until - since)

    def _run(self) -> None:
        with rollserve.connect(self._address) as sampler:
            while not self._has_ended.wait(self._rest_seconds):
                began, seed = time.monotonic(), self.num_calls % NUM_SEEDS
                try:
                    self.num_wrong += self._call(sampler, seed) != self._expected[seed]
                    self.num_calls += 1
                except rollserve.RollserveError as error:
                    sys.stderr.write(f"{error}\n")
                    self.num_failed += 1
                now = time.monotonic()
                self.pauses.append(Pause(now, now - began))


class Server:
    """A server of some version on a cluster, whose log is a file."""

    def __init__(self, version: str, cluster: str, listen: str, log: Path, environment: dict[str, str]) -> None:
        options = ["--env", "CartPole-v1", "--workers", str(NUM_WORKERS), "--rows", str(NUM_ROWS), "--seed", "7"]
        options += ["--keep-versions", "1000", "--keep-workers", "--worker-num-cpus", "0.25"]
        command = [sys.executable, "-c", PROGRAM, version, *options, "--ray-address", cluster, "--listen", listen]
        self._log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(command, stderr=file, env={**os.environ, **environment})  # noqa: S603  # this module

    def wait_for(self, event: str) -> None:
        """Wait for an event in the log."""
        wait_for_text(self._log, f" {event}", self.process)


def main() -> None:
    """Upgrade and downgrade, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upgrades", type=int, default=10, help="number of upgrades and downgrades")
    number = parser.parse_args().upgrades
    folder = Path(tempfile.mkdtemp(prefix="rs-", dir="/tmp"))  # names of sockets are short
    table = Table("upgrade", *(f"longest pause: {kind}" for kind in CALLS), "served again after", "workers new after")
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        cluster, environment = stack.enter_context(single_node(folder, NUM_WORKERS))
        listen = f"127.0.0.1:{free_port()}"

        servers: list[Server] = []
        stack.callback(lambda: [each.process.kill() for each in servers])  # after the loads have ended

        def new_server(position: int) -> Server:
            servers.append(
                Server(VERSIONS[position % 2], cluster, listen, folder / f"server-{position}.log", environment)
            )
            return servers[-1]

        server = new_server(0)
        server.wait_for("serving ")
        with rollserve.connect(listen) as sampler:
            sampler.update_agent(rollserve.RandomAgent())
        loads = {kind: stack.enter_context(Load(listen, kind)) for kind in CALLS}
        for position in range(1, number + 1):
            time.sleep(QUIET_SECONDS)
            following = new_server(position)
            following.wait_for("standing by ")
            began = time.monotonic()
            server.process.terminate()
            following.wait_for("serving ")
            served = time.monotonic()
            following.wait_for("all workers are of this version")
            renewed = time.monotonic()
            if server.process.wait() != 0:
                raise RuntimeError(f"the server ended with status {server.process.returncode}")
            time.sleep(QUIET_SECONDS)
            pauses = [load.longest_seconds(began, time.monotonic()) for load in loads.values()]
            times = [f"{seconds:.2f} s" for seconds in (*pauses, served - began, renewed - began)]
            table.add_row(f"{VERSIONS[(position - 1) % 2]} to {VERSIONS[position % 2]}", *times)
            server = following
    Console().print(table)
    for kind, load in loads.items():
        print(f"{kind}: {load.num_calls} calls, {load.num_failed} failed, {load.num_wrong} wrong")


if __name__ == "__main__":
    main()
