"""Figures of the service as a chart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.service.results import Result

__all__ = ["save_chart"]

_COLOURS = {"workers": "#4c72b0", "gateway": "#dd8452", "ray": "#b0b0b0", "client": "#55a868"}
_PLAIN = "#4c72b0"
_NUM_COLUMNS = 2


def save_chart(results: Sequence[Result], path: Path) -> None:
    """Draw all panels that have figures into a PNG file."""
    panels: list[tuple[Callable[[Any, Sequence[Result]], None], list[Result]]] = [
        (_draw_speed, _having(results, "ratio_to_bare")),
        (_draw_cpu, _having(results, "bare_cpu_seconds_per_million_steps")),
        (_draw_data_plane, [result for result in results if result.workload.startswith("w4")]),
        (_draw_latency, [each for each in _having(results, "p50_seconds") if "ratio_to_echo" not in each.medians]),
        (_draw_driving, _having(results, "ratio_to_echo")),
        (_draw_iterations, _having(results, "ratio_to_processes")),
        (_draw_worker_counts, _having(results, "ratio_to_sleep")),
        (_draw_memory, _having(results, "megabytes_per_second")),
        (_draw_readers, _having(results, "ratio_to_minari")),
    ]
    panels = [(draw, shown) for draw, shown in panels if shown]
    num_rows = max(-(-len(panels) // _NUM_COLUMNS), 1)
    figure = Figure(figsize=(13, 3.6 * num_rows), layout="constrained")
    all_axes = figure.subplots(num_rows, _NUM_COLUMNS, squeeze=False)
    for axes, panel in zip(all_axes.flat, [*panels, None], strict=False):
        if panel is None:
            axes.set_axis_off()
        else:
            draw, shown = panel
            draw(axes, shown)
            axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def _having(results: Sequence[Result], figure: str) -> list[Result]:
    return [result for result in results if figure in result.medians]


def _draw_speed(axes: Any, results: Sequence[Result]) -> None:
    ratios = [result.medians["ratio_to_bare"] for result in results]
    labels = [f" {result.medians['steps_per_second']:,.0f}" for result in results]
    _draw_bars(axes, results, ratios, labels)
    axes.axvline(1, color="black", linewidth=0.8, linestyle="--")
    axes.set_title("steps/s at the client; as a share of the bare loop")


def _draw_cpu(axes: Any, results: Sequence[Result]) -> None:
    left = np.zeros(len(results))
    for group, colour in _COLOURS.items():
        name = f"{group}_cpu_seconds_per_million_steps"
        parts = [result.medians[name] / result.medians["bare_cpu_seconds_per_million_steps"] for result in results]
        axes.barh(_names(results), parts, left=left, color=colour, label="Ray" if group == "ray" else group)
        left += parts
    axes.invert_yaxis()
    axes.axvline(1, color="black", linewidth=0.8, linestyle="--")
    axes.legend(frameon=False, fontsize="small")
    axes.set_title("CPU time of a step; as a multiple of the bare loop's")


def _draw_data_plane(axes: Any, results: Sequence[Result]) -> None:
    rates = [result.medians["megabytes_per_second"] / 1e3 for result in results]
    _draw_bars(axes, results, rates, [f" {rate:.2f}" for rate in rates])
    axes.set_title("observations that take no time to make, GB/s at the client")


def _draw_latency(axes: Any, results: Sequence[Result]) -> None:
    positions = np.arange(len(results))
    for offset, name, colour in ((-0.2, "p50", _PLAIN), (0.2, "p99", "#a9bedb")):
        values = [result.medians[f"{name}_seconds"] * 1e3 for result in results]
        bars = axes.barh(positions + offset, values, 0.4, color=colour, label=name)
        axes.bar_label(bars, [f" {value:.1f}" for value in values], fontsize="small")
    axes.set_yticks(positions, _names(results))
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.legend(frameon=False, fontsize="small")
    axes.set_title("small calls, ms")


def _draw_driving(axes: Any, results: Sequence[Result]) -> None:
    positions = np.arange(len(results))
    names = {"p50_seconds": ("a step", _PLAIN), "echo_p50_seconds": ("an echo of as many bytes", "#a9bedb")}
    for offset, (name, (label, colour)) in zip((-0.2, 0.2), names.items(), strict=True):
        values = [result.medians[name] * 1e3 for result in results]
        bars = axes.barh(positions + offset, values, 0.4, color=colour, label=label)
        axes.bar_label(bars, [f" {value:.1f}" for value in values], fontsize="small")
    axes.set_yticks(positions, _names(results))
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.legend(frameon=False, fontsize="small")
    axes.set_title("steps of a session, ms")


def _draw_iterations(axes: Any, results: Sequence[Result]) -> None:
    ratios = [result.medians["ratio_to_processes"] for result in results]
    labels = [f" {result.medians['iteration_p50_seconds'] * 1e3:.1f} ms" for result in results]
    _draw_bars(axes, results, ratios, labels)
    axes.axvline(1, color="black", linewidth=0.8, linestyle="--")
    axes.set_title("iterations of a trainer; speed as a share of plain loops in as many processes")


def _draw_worker_counts(axes: Any, results: Sequence[Result]) -> None:
    counts = [result.settings["num_workers"] for result in results]
    rates = [result.medians["steps_per_second"] for result in results]
    bounds = [rate / result.medians["ratio_to_sleep"] for rate, result in zip(rates, results, strict=True)]
    axes.plot(counts, bounds, color="black", linewidth=0.8, linestyle="--", label="sleeping alone")
    axes.plot(counts, rates, color=_PLAIN, marker="o", label="at the client")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.minorticks_off()
    axes.set_xlabel("workers")
    axes.legend(frameon=False, fontsize="small")
    axes.set_title("steps/s of an environment that sleeps 100 ms")


def _draw_memory(axes: Any, results: Sequence[Result]) -> None:
    positions = np.arange(len(results))
    for number, group in enumerate(("workers", "gateway", "client")):
        values = [result.medians.get(f"{group}_growth_bytes", 0) / 1e6 for result in results]
        label = "a worker" if group == "workers" else group
        axes.barh(positions + (number - 1) * 0.27, values, 0.27, color=_COLOURS[group], label=label)
    sizes = [result.medians["num_bytes"] / 1e6 for result in results]
    axes.plot(sizes, positions, "k|", markersize=14, label="the result")
    axes.set_yticks(positions, _names(results), fontsize="small")
    axes.invert_yaxis()
    axes.legend(frameon=False, fontsize="small")
    axes.set_title("memory over idle, MB")


def _draw_readers(axes: Any, results: Sequence[Result]) -> None:
    ratios = [result.medians["ratio_to_minari"] for result in results]
    labels = [f" {result.medians['steps_per_second']:,.0f}" for result in results]
    _draw_bars(axes, results, ratios, labels)
    axes.set_title("reading Minari, steps per s of CPU time; as a multiple of Minari's own iterator")


def _draw_bars(axes: Any, results: Sequence[Result], values: Sequence[float], labels: Sequence[str]) -> None:
    bars = axes.barh(_names(results), values, color=_PLAIN)
    axes.bar_label(bars, labels, fontsize="small")
    axes.invert_yaxis()
    axes.margins(x=0.15)


def _names(results: Sequence[Result]) -> list[str]:
    return [result.workload for result in results]
