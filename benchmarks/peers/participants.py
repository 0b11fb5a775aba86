"""Participants: Rollserve and its peers, each measured round by round."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks.peers.catalogue import MALLOC_RETAINS, NUM_DRIVEN_ROWS, NUM_ITERATION_STEPS, PEERS, Variant
from benchmarks.peers.measurements import ROLLSERVE, SPEED, Measurement
from benchmarks.peers.virtual_environments import InstallError
from benchmarks.service.results import Options, Result
from benchmarks.service.workloads.bulk import measure_bulk
from benchmarks.service.workloads.iterations import measure_iterations
from benchmarks.service.workloads.many_agents import measure_many_agents
from benchmarks.service.workloads.sampling import measure_sampling
from benchmarks.service.workloads.specs import ITERATIONS, SAMPLING
from benchmarks.shared.machine import versions
from benchmarks.shared.processes import one_thread
from rollserve_server.local import local_server

__all__ = ["DrivingParticipant", "Participant", "PeerParticipant", "RollserveParticipant", "rollserve_participants"]

_TIME_LIMIT_SECONDS = 240
_REPORTED = ("steps", "seconds", "trainer_peak_bytes", "worker_peak_bytes", "all_peak_bytes")
_ENVIRONMENTS = {
    "w10-cartpole-rows": "w1",
    "w10-cartpole-native": "w1",
    "w10-cheetah-rows": "w2",
    "w11-cartpole": "w1",
    "w11-cheetah": "w2",
}
"""Workloads whose environment and policy w10 and w11 have, by the names in the peers' modules."""
_DRIVEN_ENVS = {"w11-cartpole": "CartPole-v1", "w11-cheetah": "HalfCheetah-v5"}


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
        """Run the peer once, in each of its processes."""
        (measurement,) = self.measurements
        if measurement.failure:
            return
        try:
            with ThreadPoolExecutor(self.variant.num_processes) as executor:
                reports = list(executor.map(lambda _: self._run(), range(self.variant.num_processes)))
        except (OSError, RuntimeError, ValueError) as error:
            measurement.failure = str(error)
            return
        measurement.versions = reports[0]["versions"]
        measurement.rounds.append(_joint(reports))

    def _run(self, **further: Any) -> dict[str, Any]:
        """Return the report of the peer's module in `runs`, with further settings.

        Raises:
            RuntimeError: the module failed or took too long.
        """
        module = f"benchmarks.peers.runs.{self.variant.peer}"
        settings = json.dumps({**self.variant.settings, **further})
        environment = _ENVIRONMENTS.get(self.workload, self.workload)
        command = [str(self.python), "-m", module, environment, str(self.seconds), settings]
        variables = {**one_thread(), "RAY_USAGE_STATS_ENABLED": "0", **self.variant.variables}
        with tempfile.TemporaryDirectory(prefix="rollserve-bench-") as folder:  # some peers write files
            output, errors = _run_command(command, variables, folder)
        if not output:
            lines = [line for line in errors.splitlines() if line.strip()]
            raise RuntimeError(f"did not run: {lines[-1] if lines else 'it ended without a message'}")
        report: dict[str, Any] = json.loads(output)
        return report


@dataclass
class DrivingParticipant(PeerParticipant):
    """A peer whose environments are Rollserve's rows. Each round starts a server, too."""

    num_workers: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        (measurement,) = self.measurements
        measurement.who, measurement.kind = ROLLSERVE, "service"

    def _run(self, **further: Any) -> dict[str, Any]:
        options = ("--env", _DRIVEN_ENVS[self.workload], "--vectorization", "rows", "--rows", str(NUM_DRIVEN_ROWS))
        options += ("--workers", str(self.num_workers))
        with (
            tempfile.TemporaryDirectory(prefix="rollserve-bench-") as folder,
            local_server(*options, log=Path(folder) / "log", environment=one_thread()) as server,
        ):
            return super()._run(address=server.address, **further)


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
        try:
            with _environment_variables(self.variables):
                results = self._measure()
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
            figures = result.medians
            peaks = {
                "trainer_peak_bytes": figures["client_peak_bytes"],
                "worker_peak_bytes": figures.get("workers_peak_bytes", 0.0),  # none on the last leg alone
            }
            measurement.rounds.append({**figures, **peaks})

    def _measure(self) -> list[Result]:
        if self.name in SAMPLING:
            return measure_sampling(self.name, self.options)
        if self.name == "w8-many":
            return measure_many_agents(self.name, self.options)
        if self.name in ITERATIONS:
            return measure_iterations(self.name, self.options, num_steps=NUM_ITERATION_STEPS)
        return measure_bulk(self.name, self.options)


def rollserve_participants(workload: str, options: Options) -> list[RollserveParticipant]:
    """Return all ways in which Rollserve does a workload."""
    if workload == "w4":
        return [
            RollserveParticipant(workload, "w4-bulk", options),
            RollserveParticipant(workload, "w4-bulk", options, MALLOC_RETAINS, note=", MALLOC_ set"),
        ]
    if workload == "w8":
        return [RollserveParticipant(workload, "w8-many", options)]
    if workload in ITERATIONS:
        return [RollserveParticipant(workload, workload, options)]
    return [RollserveParticipant(workload, name, options) for name in SAMPLING if name.startswith(f"{workload}-")]


def _joint(reports: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the figures of processes that ran at the same time: their joint speed, and the peaks of the largest."""
    figures = {name: max(report[name] for report in reports) for name in _REPORTED}
    figures["steps"] = sum(report["steps"] for report in reports)
    figures["all_peak_bytes"] = sum(report["all_peak_bytes"] for report in reports)
    return {SPEED: sum(report["steps"] / report["seconds"] for report in reports), **figures}


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
