"""Figures as a chart: all ways of Rollserve, and the best way of each peer."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import NullLocator

from benchmarks.peers.catalogue import WORKLOADS
from benchmarks.peers.measurements import Measurement, best_of

__all__ = ["save_chart"]

_COLOURS = {"service": "#4c72b0", "library": "#dd8452", "loop": "#c8c8c8", "transport": "#8c8c8c"}
_LABELS = {
    "service": "Rollserve, to a client process",
    "library": "libraries that collect",
    "loop": "loops in the trainer's own process",
    "transport": "transport from memory",
}
_MAX_COLUMNS = 2
_TITLE_INCHES = 0.8
_BAR_INCHES = 0.42
_LABEL_CHARACTERS, _TITLE_CHARACTERS = 52, 64
_LOG_SCALE_RATIO = 20
"""Ratio of the longest bar to the shortest from which the scale is logarithmic."""


def save_chart(measurements: Sequence[Measurement], path: Path) -> None:
    """Draw a panel for each workload that has figures into a PNG file."""
    panels = [
        (workload, _shown([each for each in measurements if each.workload == workload])) for workload in WORKLOADS
    ]
    panels = [(workload, shown) for workload, shown in panels if shown] or [("", [])]
    num_columns = min(len(panels), _MAX_COLUMNS)
    rows = [panels[begin : begin + num_columns] for begin in range(0, len(panels), num_columns)]
    num_bars = [max(len(shown) for _, shown in row) for row in rows]
    heights = [_TITLE_INCHES + _BAR_INCHES * count for count in num_bars]
    figure = Figure(figsize=(7.5 * num_columns, sum(heights)), layout="constrained")
    all_axes = figure.subplots(len(rows), num_columns, height_ratios=heights, squeeze=False)
    for axes in all_axes.flat:
        axes.set_axis_off()
    for number, (axes, (workload, shown)) in enumerate(zip(all_axes.flat, panels, strict=False)):
        if shown:
            _draw(axes, workload, shown)
            axes.set_ylim(num_bars[number // num_columns] - 0.5, -0.5)  # bars of a row are equally wide
    _add_legend(figure, {each.kind for _, shown in panels for each in shown})
    figure.savefig(path, dpi=120)


def _shown(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Return all measurements of Rollserve and of transports, and the best one of each other peer, fastest first."""
    shown = [each for each in measurements if each.kind in ("service", "transport") and each.speed]
    for who in {each.who for each in measurements} - {each.who for each in shown}:
        best = best_of((each for each in measurements if each.who == who), tuple(_COLOURS))
        shown += [best] if best else []
    return sorted(shown, key=lambda each: -each.speed)


def _draw(axes: Any, workload: str, measurements: Sequence[Measurement]) -> None:
    factor, unit = ((1 << 20) / 1e9, "GB/s") if workload == "w4" else (1, "steps/s")
    values = [each.speed * factor for each in measurements]
    names = [f"{each.who}\n{textwrap.fill(_short_title(each), _LABEL_CHARACTERS)}" for each in measurements]
    axes.set_axis_on()
    bars = axes.barh(range(len(values)), values, color=[_COLOURS[each.kind] for each in measurements])
    axes.bar_label(bars, [f" {value:,.0f}" if value >= 100 else f" {value:.2f}" for value in values], fontsize="small")
    axes.set_yticks(range(len(values)), names, fontsize="small")
    axes.set_xticks([])
    axes.margins(x=0.15)
    is_log = max(values) / min(values) > _LOG_SCALE_RATIO
    if is_log:
        axes.set_xscale("log")
        axes.set_xlim(left=min(values) / 2, right=max(values) * 3)
        axes.xaxis.set_major_locator(NullLocator())
        axes.xaxis.set_minor_locator(NullLocator())
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    title = f"{WORKLOADS[workload]}: {unit}{', log scale' if is_log else ''}"
    axes.set_title(textwrap.fill(title, _TITLE_CHARACTERS), loc="left", x=-0.5, fontsize="medium")


def _short_title(measurement: Measurement) -> str:
    """Return the measurement's title without the parts that the panel's title has."""
    title = measurement.title
    for part in (*WORKLOADS[measurement.workload].split(", "), "MLP", "plain loop"):
        title = title.removeprefix(f"{part}, ").removesuffix(f", {part}")
    return title


def _add_legend(figure: Figure, shown_kinds: set[str]) -> None:
    handles = [Patch(color=colour, label=_LABELS[kind]) for kind, colour in _COLOURS.items() if kind in shown_kinds]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
