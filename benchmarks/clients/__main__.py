"""Measure the clients of all languages: `python -m benchmarks.clients`, or `make bench-clients`.

Each client's adapter for the conformance kit is asked for batches of one server on Ray, in turns with the others, and
says by its own clock how long each call took: from the request to the joined batch. A client whose tools are not
installed is left out by name. Prints a table, and writes all figures to a JSON file and a chart to a PNG file.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich.table import Table

from benchmarks.clients.chart import save_chart
from benchmarks.service.environments import Bulk
from benchmarks.shared.client_adapters import CLIENTS, AdapterBuildError, adapter_of
from benchmarks.shared.command_line import add_measurement_options, add_names
from benchmarks.shared.report import new_report, wide_console, write_report
from rollserve_conformance.adapter import Adapter, running_adapter
from rollserve_server.local import local_server

__all__: list[str] = []

_SECONDS = 300.0
_BULK_BYTES = 1 << 20


class _Workload(NamedTuple):
    """What is sampled: the update of the environment, the steps of a call, and the unit of a step's speed."""

    env: Mapping[str, Any]
    num_steps: int
    factor: float
    unit: str


_WORKLOADS = {
    "cartpole": _Workload(
        {"id": "CartPole-v1", "vectorization": "native", "num_rows": 64}, 400_000, 1.0, "CartPole-v1, steps/s"
    ),
    "bulk": _Workload(
        {"id": f"{Bulk.__module__}:Bulk", "vectorization": "rows", "num_rows": 1},
        Bulk.num_steps * 36,
        _BULK_BYTES / 1e6,
        "observations of 1 MiB, MB/s",
    ),
}


def main() -> int:
    """Measure the clients and workloads of the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_measurement_options(parser, file_name="bench-clients")
    add_names(parser, "--clients", CLIENTS)
    add_names(parser, "--workloads", _WORKLOADS)
    arguments = parser.parse_args()
    commands = _commands(arguments.clients)
    options = ("--workers", str(arguments.workers), "--env", "CartPole-v1", "--allow-module", Bulk.__module__)
    rounds: dict[str, dict[str, list[float]]] = {}
    with local_server(*options, "--log-level", "WARNING") as server, contextlib.ExitStack() as stack:
        adapters = {client: stack.enter_context(running_adapter(command)) for client, command in commands.items()}
        for name in arguments.workloads:
            workload = _WORKLOADS[name]
            speeds = rounds.setdefault(name, {client: [] for client in adapters})
            for number in range(arguments.rounds + 1):
                for client, adapter in adapters.items():
                    speed = _speed(adapter, server.address, workload, arguments.scale)
                    if number:  # the first one warms up
                        speeds[client].append(speed)
    figures = {
        _WORKLOADS[name].unit: {client: statistics.median(each) for client, each in speeds.items()}
        for name, speeds in rounds.items()
    }
    write_report({**new_report(arguments), "rounds": rounds, "medians": figures}, arguments.json)
    save_chart(figures, arguments.chart)
    _print(figures)
    return 0


def _commands(clients: Sequence[str]) -> dict[str, Sequence[str]]:
    """Return the commands of the adapters that can be built here, by language; names the others."""
    commands = {}
    for client in clients:
        try:
            commands[CLIENTS[client]] = adapter_of(client)
        except AdapterBuildError as error:
            sys.stderr.write(f"left out: {error}\n")
    return commands


def _speed(adapter: Adapter, target: str, workload: _Workload, scale: float) -> float:
    """Return how fast a client gets a batch, in the workload's unit."""
    num_steps = max(int(workload.num_steps * scale), 1)
    operations = [
        {"do": "update_env", **workload.env},
        {"do": "update_agent", "agent": {"kind": "random"}},
        {"do": "obtain_samples", "num_steps": num_steps, "options": {"seed": "1"}},
    ]
    answer = adapter.answer({"case": "speed", "connect": {"target": target}, "operations": operations}, _SECONDS)
    results = answer["results"]
    if failures := [result for result in results if result.keys() & {"error", "unsupported"}]:
        raise RuntimeError(f"the client has failed: {failures}")
    result = results[-1]
    return float(sum(result["batch"]["lengths"]) * workload.factor / result["seconds"])


def _print(figures: Mapping[str, Mapping[str, float]]) -> None:
    clients = list(dict.fromkeys(client for speeds in figures.values() for client in speeds))
    table = Table("client", *figures)
    for client in clients:
        table.add_row(client, *(f"{speeds[client]:,.0f}" for speeds in figures.values()))
    wide_console(80).print(table)


if __name__ == "__main__":
    sys.exit(main())
