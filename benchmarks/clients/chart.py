"""Figures of the clients as a chart."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure

__all__ = ["save_chart"]

_COLOUR = "#4c72b0"


def save_chart(figures: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """Draw a panel for each workload into a PNG file.

    Args:
        figures: speeds of clients by workload, whose name has the unit.
        path: the file.
    """
    num_bars = max(map(len, figures.values()))
    figure = Figure(figsize=(5 * len(figures), 1.0 + 0.45 * num_bars), layout="constrained")
    panels = figure.subplots(1, len(figures), squeeze=False)[0]
    for axes, (title, speeds) in zip(panels, figures.items(), strict=True):
        bars = axes.barh(range(len(speeds)), list(speeds.values()), color=_COLOUR)
        axes.bar_label(bars, [f" {speed:,.0f}" for speed in speeds.values()], fontsize="small")
        axes.set_yticks(range(len(speeds)), list(speeds), fontsize="small")
        axes.set_title(title, fontsize="medium", loc="left")
        axes.set_xticks([])
        axes.margins(x=0.2)
        axes.invert_yaxis()
        for side in ("top", "right", "bottom"):
            axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=120)
