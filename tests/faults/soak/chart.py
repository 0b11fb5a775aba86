"""A chart of memory over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from faults.soak.watching import Track
from matplotlib.figure import Figure

__all__ = ["draw"]

_COLOURS = {"gateway": "#1f77b4", "worker": "#d62728", "client": "#2ca02c"}
_OTHERS = "#999999"


def draw(path: Path, tracks: Sequence[Track], title: str) -> None:
    """Draw the unshared memory of each process in MB over minutes."""
    with mpl.rc_context({"font.size": 11}):
        figure = Figure(figsize=(11, 6), layout="constrained")
        axes = figure.subplots()
        named: set[str] = set()
        for track in sorted(tracks, key=lambda each: each.name):
            kind = track.name.partition(" ")[0]
            label = kind if kind in _COLOURS else "Ray's own"
            minutes = [seconds / 60 for seconds in track.seconds]
            axes.plot(
                minutes,
                track.values("own_bytes") / 1e6,
                color=_COLOURS.get(kind, _OTHERS),
                linewidth=1.6 if kind in _COLOURS else 0.9,
                label=None if label in named else label,
            )
            rests = [position for position, rests in enumerate(track.at_rest) if rests]
            if kind in _COLOURS:
                at_rest = [minutes[position] for position in rests], track.values("own_bytes")[rests] / 1e6
                axes.plot(*at_rest, "o", color="black", markersize=4, label=None if "at rest" in named else "at rest")
                named.add("at rest")
            named.add(label)
        axes.set(xlabel="minutes", ylabel="MB, not shared", title=title)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        figure.legend(loc="outside right upper")
        figure.savefig(path, dpi=110)
