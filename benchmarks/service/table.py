"""Figures of the service as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from benchmarks.service.results import Result
from benchmarks.service.workloads.phases import CALL_PHASES, UPDATE_PHASES
from benchmarks.shared.report import wide_console

__all__ = ["print_table"]

_MIN_WIDTH = 170
_MISSING = "-"
_LARGE_BYTES = 1e8
"""Size of results that the client's memory is compared with; for smaller ones, noise prevails."""


def print_table(results: Sequence[Result]) -> None:
    """Print the medians of all results: of iterations, of phases, and of everything else."""
    iterations = [result for result in results if "iteration_p50_seconds" in result.medians]
    tables = {
        _table: [result for result in results if result not in iterations],
        _iteration_table: iterations,
        _phase_table: [result for result in results if "update_ray_seconds" in result.medians],
    }
    for make, shown in tables.items():
        if shown:
            wide_console(_MIN_WIDTH).print(make(shown))


def _table(results: Sequence[Result]) -> Table:
    table = Table("workload", "steps/s", "MB/s", "of bare", title="medians", title_justify="left")
    table.add_column("CPU s per million steps\nworkers / gateway / Ray / client")
    table.add_column("peak MB of a\nworker / gateway / client")
    table.add_column("first\nmessage")
    table.add_column("notes")
    for column in table.columns[1:7]:
        column.justify = "right"
    for result in results:
        table.add_row(f"[bold]{result.workload}[/bold]\n{result.title}", *_cells(result.medians))
    return table


def _iteration_table(results: Sequence[Result]) -> Table:
    """Return the times of iterations and of the plain loops, and how they compare."""
    table = Table("workload", title="iterations of a trainer, medians in ms (p90)", title_justify="left")
    columns = {
        "iteration": "iteration",
        "update": "update",
        "call": "call",
        "one_process": "loop in\none process",
        "processes": "loop in as many\nas workers",
    }
    ratios = {"ratio_to_one_process": "of one\nprocess", "ratio_to_processes": "of as\nmany"}
    overheads = {"overhead_seconds": "overhead", "call_overhead_seconds": "of the call"}
    for heading in (
        *columns.values(),
        *ratios.values(),
        *overheads.values(),
        "peak MB of a\nworker / gateway / client",
    ):
        table.add_column(heading, justify="right")
    for result in results:
        figures = result.medians
        times = [
            f"{figures[f'{name}_p50_seconds'] * 1e3:.1f} ({figures[f'{name}_p90_seconds'] * 1e3:.1f})"
            for name in columns
        ]
        table.add_row(
            f"[bold]{result.workload}[/bold]\n{result.title}",
            *times,
            *(f"{figures[name]:.2f}" for name in ratios),
            *(f"{figures[name] * 1e3:.1f}" for name in overheads),
            _peaks(figures),
        )
    return table


def _phase_table(results: Sequence[Result]) -> Table:
    """Return the phases of updates, of calls, and of calls that update."""
    headings = dict.fromkeys((*CALL_PHASES, *UPDATE_PHASES))
    table = Table("workload", "what", title="phases, medians in ms", title_justify="left")
    for phase in headings:
        table.add_column("Ray" if phase == "ray" else phase, justify="right")
    for result in results:
        for what in ("update", "call", "iteration"):
            seconds = [result.medians.get(f"{what}_{phase}_seconds") for phase in headings]
            if any(value is not None for value in seconds):
                cells = (_MISSING if value is None else f"{value * 1e3:.2f}" for value in seconds)
                table.add_row(result.workload, what, *cells)
    return table


def _cells(figures: Mapping[str, float]) -> list[str]:
    ratio = figures.get("ratio_to_bare", figures.get("ratio_to_sleep"))
    first = figures.get("first_message_seconds")
    cpu = [figures.get(f"{group}_cpu_seconds_per_million_steps") for group in ("workers", "gateway", "ray", "client")]
    return [
        _number(figures.get("steps_per_second")),
        _number(figures.get("megabytes_per_second")),
        _MISSING if ratio is None else f"{ratio:.2f}",
        " / ".join(map(_number, cpu)),
        _peaks(figures),
        _MISSING if first is None else f"{first * 1e3:.0f} ms",
        "\n".join(_notes(figures)),
    ]


def _peaks(figures: Mapping[str, float]) -> str:
    peaks = [figures.get(f"{group}_peak_bytes") for group in ("workers", "gateway", "client")]
    return " / ".join(_number(None if peak is None else peak / 1e6) for peak in peaks)


def _notes(figures: Mapping[str, float]) -> list[str]:
    notes = []
    if "p50_seconds" in figures:
        notes.append(f"p50 {figures['p50_seconds'] * 1e3:.1f} ms, p99 {figures['p99_seconds'] * 1e3:.1f} ms")
        notes.append(f"{figures['calls_per_second']:.0f} calls/s")
    if "wire_bytes_per_byte" in figures:
        notes.append(f"on the wire {figures['wire_bytes_per_byte']:.1%}")
    if "ratio_to_sent" in figures:
        notes.append(f"{figures['ratio_to_sent']:.2f} x sent through gRPC")
    if "ratio_to_plain" in figures:
        notes.append(f"{figures['ratio_to_plain']:.2f} x plaintext")
    if "ratio_to_echo" in figures:
        notes.append(f"{figures['ratio_to_echo']:.2f} x an echo of the same bytes")
        notes.append(f"with TLS and a token {figures['secured_ratio_to_plain']:.2f} x plaintext")
    if "ratio_to_async" in figures:
        notes.append(f"{figures['ratio_to_async']:.2f} x AsyncVectorEnv")
    if "ratio_to_worker" in figures:
        notes.append(f"{figures['ratio_to_worker']:.2f} x in the worker")
    if "ratio_to_minari" in figures:
        chunked = f"{figures['chunked_ratio_to_minari']:.2f} x with files by Minari"
        notes.append(f"{figures['ratio_to_minari']:.2f} x Minari's iterator, {chunked}")
        notes.append(
            f"shuffled {figures['ratio_of_shuffled']:.2f} of ordered, of transitions "
            f"{figures['ratio_of_shuffled_transitions']:.2f}"
        )
    if "ratio_to_rllib" in figures:
        notes.append(
            f"{figures['ratio_to_rllib']:.1f} x RLlib's JsonReader, from JSON {figures['json_ratio_to_rllib']:.1f} x"
        )
    if "ratio_to_discarded" in figures:
        notes.append(f"{figures['ratio_to_discarded']:.2f} x without recording")
    if "ratio_to_untransformed" in figures:
        notes.append(f"{figures['ratio_to_untransformed']:.3f} x without transforms, by CPU time")
    if "ratio_to_raw" in figures:
        notes.append(f"{figures['ratio_to_raw']:.2f} x raw, {figures['stream_ratio_to_raw']:.2f} x as a stream")
    if "ratio_to_leg" in figures:
        notes.append(f"{figures['ratio_to_leg']:.2f} of the last leg alone")
    if "ratio_to_sleep" in figures or "ratio_to_leg" in figures or "gateway_growth_per_result_byte" in figures:
        notes.append(f"gateway {_number(figures['gateway_cpu_seconds_per_gigabyte'])} CPU s per GB")
    if "gateway_growth_per_result_byte" in figures:
        growth, share = figures["gateway_growth_bytes"], figures["gateway_growth_per_result_byte"]
        notes.append(f"gateway grows {growth / 1e6:.0f} MB, {share:.0%} of the result")
    if figures.get("num_bytes", 0) > _LARGE_BYTES and "client_growth_per_result_byte" in figures:
        notes.append(f"client grows {figures['client_growth_per_result_byte']:.1f} x result")
    return notes


def _number(value: float | None) -> str:
    if value is None:
        return _MISSING
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
