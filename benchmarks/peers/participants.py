"""Participants: Rollserve and its peers, each measured round by round."""

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
from typing import Any, Protocol

from benchmarks.peers.catalogue import MALLOC_RETAINS, PEERS, Variant
from benchmarks.peers.measurements import ROLLSERVE, SPEED, Measurement
from benchmarks.peers.virtual_environments import InstallError
from benchmarks.service.results import Options
from benchmarks.service.workloads.bulk import measure_bulk
from benchmarks.service.workloads.sampling import measure_sampling
from benchmarks.service.workloads.specs import SAMPLING
from benchmarks.shared.machine import versions
from benchmarks.shared.processes import one_thread

__all__ = ["Participant", "PeerParticipant", "RollserveParticipant", "rollserve_participants"]

_TIME_LIMIT_SECONDS = 240
_REPORTED = ("steps", "seconds", "trainer_peak_bytes", "all_peak_bytes")


class Participant(Protocol):
    """Rollserve or a peer, with its settings for a workload."""

    @property
    def measurements(self) -> list[Measurement]:
        """Measurements so far, one for each way in which the participant does the workload."""

    def measure_round(self) -> None:
        """Add a round to the measurements. Failures are recorded there; after one, nothing is measured."""


@dataclass
class PeerParticipant:
    """A peer. Each round runs in a process of its own."""

    workload: str
    variant: Variant
    python: Path | InstallError
    seconds: float
    measurements: list[Measurement] = field(init=False)

    def __post_init__(self) -> None:
        peer = PEERS[self.variant.peer]
        self.measurements = [
            Measurement(self.workload, peer.title, peer.kind, self.variant.title, self.variant.settings)
        ]
        if isinstance(self.python, InstallError):
            self.measurements[0].failure = str(self.python)

    def measure_round(self) -> None:
        """Run the peer once."""
        (measurement,) = self.measurements
        if measurement.failure:
            return
        try:
            report = self._run()
        except (OSError, RuntimeError, ValueError) as error:
            measurement.failure = str(error)
            return
        measurement.versions = report["versions"]
        speed = report["steps"] / report["seconds"]
        measurement.rounds.append({SPEED: speed, **{name: report[name] for name in _REPORTED}})

    def _run(self) -> dict[str, Any]:
        """Return the report of the peer's module in `runs`.

        Raises:
            RuntimeError: the module failed or took too long.
        """
        module, settings = f"benchmarks.peers.runs.{self.variant.peer}", json.dumps(self.variant.settings)
        command = [str(self.python), "-m", module, self.workload, str(self.seconds), settings]
        variables = {**one_thread(), "RAY_USAGE_STATS_ENABLED": "0", **self.variant.variables}
        with tempfile.TemporaryDirectory(prefix="rollserve-bench-") as folder:  # some peers write files
            output, errors = _run_command(command, variables, folder)
        if not output:
            lines = [line for line in errors.splitlines() if line.strip()]
            raise RuntimeError(f"did not run: {lines[-1] if lines else 'it ended without a message'}")
        report: dict[str, Any] = json.loads(output)
        return report


@dataclass
class RollserveParticipant:
    """Rollserve, by a workload of `benchmarks.service`. Each round starts a server and a client.

    Attributes:
        workload: name of the workload here.
        name: name of the workload in `benchmarks.service`.
        options: sizes of the workload.
        variables: environment variables of all processes.
        measurements: measurements of all results of the workload.
        note: end of the measurements' titles.
    """

    workload: str
    name: str
    options: Options
    variables: Mapping[str, str] = field(default_factory=dict)
    measurements: list[Measurement] = field(default_factory=list)
    note: str = ""

    def measure_round(self) -> None:
        """Run the workload once."""
        if any(measurement.failure for measurement in self.measurements):
            return
        measure = measure_sampling if self.name in SAMPLING else measure_bulk
        try:
            with _environment_variables(self.variables):
                results = measure(self.name, self.options)
        except Exception as error:  # the peers are still measured
            self.measurements = self.measurements or [
                Measurement(self.workload, ROLLSERVE, "service", self.name, settings={})
            ]
            self.measurements[0].failure = f"{type(error).__name__}: {error}"
            return
        self.measurements = self.measurements or [
            Measurement(self.workload, ROLLSERVE, "service", result.title + self.note, result.settings, versions())
            for result in results
        ]
        for measurement, result in zip(self.measurements, results, strict=True):
            trainer_peak = result.medians["client_peak_bytes"]
            measurement.rounds.append({**result.medians, "trainer_peak_bytes": trainer_peak})


def rollserve_participants(workload: str, options: Options) -> list[RollserveParticipant]:
    """Return all ways in which Rollserve does a workload."""
    if workload == "w4":
        return [
            RollserveParticipant(workload, "w4-bulk", options),
            RollserveParticipant(workload, "w4-bulk", options, MALLOC_RETAINS, note=", MALLOC_ set"),
        ]
    return [RollserveParticipant(workload, name, options) for name in SAMPLING if name.startswith(workload)]


def _run_command(command: Sequence[str], variables: Mapping[str, str], folder: str) -> tuple[str, str]:
    """Run a command in a folder; return its standard output and standard error.

    Raises:
        RuntimeError: the command took too long.
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
            os.killpg(process.pid, signal.SIGKILL)  # children may outlive their parent


@contextlib.contextmanager
def _environment_variables(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the processes that the block starts."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
