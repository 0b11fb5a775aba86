"""Those who are measured in turns."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from benchmarks.peers.catalogue import MALLOC_RETAINS, PEERS, Entry
from benchmarks.peers.environments import SetUpError
from benchmarks.peers.lines import ROLLSERVE, SPEED, Line
from benchmarks.service.bulk import measure_bulk
from benchmarks.service.children import one_thread
from benchmarks.service.machine import versions
from benchmarks.service.results import Options
from benchmarks.service.sampling import measure_sampling
from benchmarks.service.workloads import SAMPLING

__all__ = ["PeerTurn", "RollserveTurn", "Turn", "rollserve_turns"]

_TIME_LIMIT_SECONDS = 240


class Turn(Protocol):
    """One who is measured."""

    @property
    def lines(self) -> list[Line]:
        """What came of it so far."""

    def take(self) -> None:
        """Adds a round to the lines; failures stand in them."""


@dataclass
class PeerTurn:
    """A peer, which is measured in a process of its own in each round, if it has an interpreter."""

    workload: str
    entry: Entry
    python: Path | SetUpError
    seconds: float
    lines: list[Line] = field(init=False)

    def __post_init__(self) -> None:
        peer = PEERS[self.entry.peer]
        self.lines = [Line(self.workload, peer.title, peer.kind, self.entry.title, self.entry.settings)]
        if isinstance(self.python, SetUpError):
            self.lines[0].failure = str(self.python)

    def take(self) -> None:
        """See Turn."""
        (line,) = self.lines
        if line.failure:
            return
        try:
            report = self._report()
        except (OSError, RuntimeError, ValueError) as error:
            line.failure = str(error)
            return
        line.versions = report["versions"]
        line.rounds.append(
            {
                SPEED: report["steps"] / report["seconds"],
                **{name: report[name] for name in ("steps", "seconds", "trainer_peak_bytes", "all_peak_bytes")},
            }
        )

    def _report(self) -> dict[str, dict[str, str]]:
        module = f"benchmarks.peers.runs.{self.entry.peer}"
        command = [str(self.python), "-m", module, self.workload, str(self.seconds), json.dumps(self.entry.settings)]
        variables = {**one_thread(), "RAY_USAGE_STATS_ENABLED": "0", **self.entry.variables}
        with tempfile.TemporaryDirectory(prefix="rollserve-bench-") as folder:  # for what it leaves about
            output, errors = _output(command, variables, folder)
        if not output:
            last = [text for text in errors.splitlines() if text.strip()]
            raise RuntimeError(f"did not run: {last[-1] if last else 'it ended without a word'}")
        report: dict[str, dict[str, str]] = json.loads(output)
        return report


@dataclass
class RollserveTurn:
    """Rollserve, by a workload of `benchmarks.service`: a server and a client, both started anew in each round."""

    workload: str
    name: str
    options: Options
    variables: Mapping[str, str] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    note: str = ""

    def take(self) -> None:
        """See Turn."""
        if any(line.failure for line in self.lines):
            return
        measure = measure_sampling if self.name in SAMPLING else measure_bulk
        try:
            with _environment(self.variables):
                results = measure(self.name, self.options)
        except Exception as error:  # as of peers: the others are to be measured all the same
            self.lines = self.lines or [Line(self.workload, ROLLSERVE, "service", self.name, {})]
            self.lines[0].failure = f"{type(error).__name__}: {error}"
            return
        self.lines = self.lines or [
            Line(self.workload, ROLLSERVE, "service", result.title + self.note, result.settings, versions())
            for result in results
        ]
        for line, result in zip(self.lines, results, strict=True):
            line.rounds.append({**result.medians, "trainer_peak_bytes": result.medians["client_peak_bytes"]})


def rollserve_turns(workload: str, options: Options) -> list[RollserveTurn]:
    """All ways in which Rollserve does a workload."""
    if workload == "w4":
        return [
            RollserveTurn(workload, "w4-bulk", options),
            RollserveTurn(workload, "w4-bulk", options, MALLOC_RETAINS, note=", MALLOC_ set"),
        ]
    return [RollserveTurn(workload, name, options) for name in SAMPLING if name.startswith(workload)]


def _output(command: Sequence[str], variables: Mapping[str, str], folder: str) -> tuple[str, str]:
    """What a command prints, and what it prints on standard error.

    Raises:
        RuntimeError: it took too long.
    """
    process = subprocess.Popen(  # noqa: S603  # modules of this package
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=variables,
        start_new_session=True,
    )
    try:
        return process.communicate(timeout=_TIME_LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"took more than {_TIME_LIMIT_SECONDS} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what it left behind


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Processes that are started in the block have these variables in their environment."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
