"""The figures as a chart: Rollserve's ways, and the best of each peer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

from benchmarks.peers.catalogue import WORKLOADS
from benchmarks.peers.lines import Line, best_of

__all__ = ["save_chart"]

_COLOURS = {"service": "#4c72b0", "library": "#dd8452", "loop": "#c8c8c8", "transport": "#8c8c8c"}
_LABELS = {
    "service": "Rollserve, to a client process",
    "library": "libraries that collect",
    "loop": "loops in the trainer's own process",
    "transport": "transport from memory",
}
_MOST_COLUMNS = 2
_TITLE_INCHES = 0.8
_BAR_INCHES = 0.42
_LOG_FROM = 20


def save_chart(lines: Sequence[Line], path: Path) -> None:
    """Draws what there are figures for into a PNG file."""
    mpl.use("Agg")
    import matplotlib.pyplot as plt  # after the choice of how to draw

    panels = [(workload, _shown([line for line in lines if line.workload == workload])) for workload in WORKLOADS]
    panels = [(workload, shown) for workload, shown in panels if shown] or [("", [])]
    num_columns = min(len(panels), _MOST_COLUMNS)
    heights = [
        _TITLE_INCHES + _BAR_INCHES * max(len(shown) for _, shown in panels[begin : begin + num_columns])
        for begin in range(0, len(panels), num_columns)
    ]
    figure, all_axes = plt.subplots(
        len(heights),
        num_columns,
        figsize=(7.5 * num_columns, sum(heights)),
        height_ratios=heights,
        layout="constrained",
        squeeze=False,
    )
    for axes in all_axes.flat:
        axes.set_axis_off()
    for number, (axes, (workload, shown)) in enumerate(zip(all_axes.flat, panels, strict=False)):
        if shown:
            _draw(axes, workload, shown)
            beside = panels[number // num_columns * num_columns :][:num_columns]
            axes.set_ylim(max(len(of_panel) for _, of_panel in beside) - 0.5, -0.5)
    kinds = [kind for kind in _COLOURS if any(line.kind == kind for _, shown in panels for line in shown)]
    handles = [mpl.patches.Patch(color=_COLOURS[kind], label=_LABELS[kind]) for kind in kinds]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _shown(lines: Sequence[Line]) -> list[Line]:
    """All of Rollserve's and of mere transport, and the best of each other peer; the fastest first."""
    shown = [line for line in lines if line.kind in ("service", "transport") and line.speed]
    for who in {line.who for line in lines} - {line.who for line in shown}:
        best = best_of((line for line in lines if line.who == who), tuple(_COLOURS))
        shown += [best] if best else []
    return sorted(shown, key=lambda line: -line.speed)


def _draw(axes: Any, workload: str, lines: Sequence[Line]) -> None:
    factor, unit = ((1 << 20) / 1e9, "GB/s") if workload == "w4" else (1, "steps/s")
    values = [line.speed * factor for line in lines]
    names = [f"{line.who}\n{_way(line)}" for line in lines]
    axes.set_axis_on()
    bars = axes.barh(range(len(lines)), values, color=[_COLOURS[line.kind] for line in lines])
    axes.bar_label(bars, [f" {value:,.0f}" if value >= 100 else f" {value:.2f}" for value in values], fontsize="small")
    axes.set_yticks(range(len(lines)), names, fontsize="small")
    axes.set_xticks([])
    log = max(values) / min(values) > _LOG_FROM
    axes.margins(x=0.15)
    if log:
        axes.set_xscale("log")
        axes.set_xlim(left=min(values) / 2, right=max(values) * 3)
        axes.xaxis.set_major_locator(mpl.ticker.NullLocator())
        axes.xaxis.set_minor_locator(mpl.ticker.NullLocator())
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.set_title(
        f"{WORKLOADS[workload]}: {unit}{', log scale' if log else ''}", loc="left", x=-0.5, fontsize="medium"
    )


def _way(line: Line) -> str:
    """Its title, without what the panel's title says."""
    title = line.title
    for part in (*WORKLOADS[line.workload].split(", "), "MLP", "plain loop"):
        title = title.removeprefix(f"{part}, ").removesuffix(f", {part}")
    return title
