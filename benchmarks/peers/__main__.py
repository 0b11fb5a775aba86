"""Measure Rollserve and its peers: `python -m benchmarks.peers`, or `make bench-peers`.

Installs the peers first, each in a virtual environment of its own; a peer that cannot be installed or run is in the
table with the reason. Prints a table, and writes all figures to a JSON file and a chart to a PNG file. Takes about half
an hour.

All figures are medians of rounds. In each round, Rollserve and its peers are measured one at a time, in processes that
end with the measurement. The policy is evaluated at every step, and actions are drawn from its output; a step counts
when its arrays are in the trainer's process. Peers are warmed up first, and have the fastest of the settings that were
tried, with as many processes or threads as Rollserve has workers. A peer of kind "library" collects by itself. The
environments of a peer of kind "loop" are stepped by a loop in the trainer's own process, as fast as numpy allows.
Rollserve's client is a process of its own, timed as in `make bench`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from rich.console import Console

from benchmarks.peers.catalogue import PEERS, WORKLOADS, driven_variants, variants_of
from benchmarks.peers.chart import save_chart
from benchmarks.peers.measurements import SPEED, Measurement
from benchmarks.peers.participants import DrivingParticipant, Participant, PeerParticipant, rollserve_participants
from benchmarks.peers.table import print_table, ratios
from benchmarks.peers.virtual_environments import InstallError, python_of
from benchmarks.service.environments import Bulk
from benchmarks.service.results import Options
from benchmarks.service.workloads.bulk import NUM_BULK_STEPS
from benchmarks.shared.command_line import add_measurement_options, add_names
from benchmarks.shared.report import new_report, write_report

__all__: list[str] = []


def main() -> int:
    """Measure the workloads and peers of the command line; return the exit status."""
    arguments = _parse_arguments()
    console = Console(stderr=True)
    log = partial(console.print, highlight=False, markup=False)
    pythons = {peer: _install(peer, log) for peer in arguments.peers}
    report = new_report(arguments)
    measurements: list[Measurement] = []
    for workload in arguments.workloads:
        participants, earlier = _participants(workload, arguments, pythons, log), measurements
        for number in range(arguments.rounds):
            log(f"{workload}, round {number + 1} of {arguments.rounds}")
            for participant in participants:
                participant.measure_round()
                _log_round(participant, log)
            measurements = [*earlier, *(each for one in participants for each in one.measurements)]
            # The report grows with each round, because all rounds take half an hour.
            report |= {"results": [each.to_json() for each in measurements], "ratios": ratios(measurements)}
            write_report(report, arguments.json)
    save_chart(measurements, arguments.chart)
    print_table(measurements)
    log(f"figures in {arguments.json}, chart in {arguments.chart}")
    return 0


def _install(peer: str, log: Callable[[str], None]) -> Path | InstallError:
    """Return the interpreter that has a peer, or why there is none."""
    log(f"{PEERS[peer].title} …")
    try:
        return python_of(peer)
    except InstallError as error:
        log(str(error))
        return error


def _participants(
    workload: str,
    arguments: argparse.Namespace,
    pythons: Mapping[str, Path | InstallError],
    log: Callable[[str], None],
) -> list[Participant]:
    """Return Rollserve's ways to do a workload, and all variants of the chosen peers."""
    options = Options(num_workers=arguments.workers, num_rounds=1, scale=arguments.scale, worker_counts=(), log=log)
    variants = variants_of(workload, arguments.workers, options.scaled(NUM_BULK_STEPS, Bulk.num_steps))
    return [
        *rollserve_participants(workload, options),
        *(
            DrivingParticipant(workload, variant, pythons[variant.peer], arguments.seconds, arguments.workers)
            for variant in driven_variants(workload, arguments.workers)
            if variant.peer in pythons
        ),
        *(
            PeerParticipant(workload, variant, pythons[variant.peer], arguments.seconds)
            for variant in variants
            if variant.peer in pythons
        ),
    ]


def _log_round(participant: Participant, log: Callable[[str], None]) -> None:
    for measurement in participant.measurements:
        outcome = measurement.failure or format(measurement.rounds[-1][SPEED], ",.0f")
        log(f"  {measurement.who}, {measurement.title}: {outcome}")


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description="Measure Rollserve and its peers.")
    add_names(parser, "--peers", PEERS)
    add_names(parser, "--workloads", WORKLOADS)
    add_measurement_options(parser, file_name="bench-peers")
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="seconds of each peer in a round (default: %(default)s)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
