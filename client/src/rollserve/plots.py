"""Pictures of episode batches, by matplotlib."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rollserve_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from rollserve.episode_batch import EpisodeBatch

__all__ = ["check_plot", "plot_batch"]

_MAX_BINS = 40
_MARKERS = {"terminated": ".", "truncated": "x", "goes on": "+"}


def check_plot(path: Path) -> None:
    """Raise InvalidArgumentError unless matplotlib is installed and knows the ending of a file's name."""
    if importlib.util.find_spec("matplotlib") is None:
        hint = "pip install 'rollserve[plot]'"
        raise InvalidArgumentError.of("plot", expected="the package matplotlib", got="none", hint=hint)
    from matplotlib.backend_bases import FigureCanvasBase  # an extra, and it takes half a second

    endings = FigureCanvasBase.get_supported_filetypes()
    if path.suffix[1:].lower() not in endings:
        raise InvalidArgumentError.of("plot", expected=f"a name that ends in .{', .'.join(sorted(endings))}", got=path)


def plot_batch(batch: EpisodeBatch, path: Path) -> None:
    """Write a picture of the returns and lengths of a batch: over the episodes, and as histograms.

    Args:
        batch: a batch with at least one segment.
        path: file to write, in the format that its ending names.

    Raises:
        OSError: a file that cannot be written.
    """
    from matplotlib.figure import Figure  # without pyplot, which would choose a backend for the whole process

    figure = Figure(figsize=(10, 6), layout="constrained")
    axes = figure.subplots(2, 2, sharey="row", width_ratios=(3, 1))
    unit = "episode" if (batch.terminated | batch.truncated).all() else "segment"
    for row, (name, values) in zip(axes, (("return", batch.returns), ("length", batch.lengths)), strict=True):
        _plot_over_segments(row[0], batch, values)
        row[0].set_ylabel(name)
        finite = values[np.isfinite(values)]
        if len(finite):
            row[1].hist(finite, bins=_bins(finite), orientation="horizontal", color="C0")
            row[1].axhline(finite.mean(), color="black", linewidth=1)
            row[1].set_title(f"mean {finite.mean():.4g}", fontsize="medium")
        for each in row:
            each.grid(alpha=0.3)
            each.xaxis.get_major_locator().set_params(integer=True)
    axes[1, 0].set_xlabel(unit)
    axes[1, 1].set_xlabel(f"number of {unit}s")
    axes[0, 0].legend(loc="best", fontsize="small")
    figure.suptitle(_title(batch, unit))
    figure.savefig(path, dpi=120)


def _plot_over_segments(axes: Axes, batch: EpisodeBatch, values: np.ndarray) -> None:
    """Plot a value of each segment, marked by how the segment ended, and a running mean of many whole episodes."""
    positions = np.arange(len(values))
    size = float(np.clip(3000 / len(values), 4, 40))
    ends = (
        batch.terminated,
        batch.truncated & ~batch.terminated,
        ~(batch.terminated | batch.truncated),
    )
    for (label, marker), chosen in zip(_MARKERS.items(), ends, strict=True):
        if chosen.any():
            shown = positions[chosen], values[chosen]
            axes.scatter(*shown, s=size, marker=marker, alpha=0.6, label=label, rasterized=True)
    width = len(values) // 20
    if width > 1 and not ends[-1].any():  # fragments are ordered by their ends, so that the mean would show that only
        kernel = np.full(width, 1 / width)
        means = np.convolve(values, kernel, mode="valid")
        axes.plot(positions[width - 1 :], means, color="black", linewidth=1, label=f"mean of the last {width}")


def _bins(values: np.ndarray) -> np.ndarray:
    """Return the edges of a histogram's bins. Whole values are spread evenly: each bin has as many whole numbers."""
    low, high = values.min(), values.max()
    if (values == np.round(values)).all() and high - low < np.iinfo(np.int32).max:
        width = -(-(high - low + 1) // _MAX_BINS)
        return np.arange(low - 0.5, high + width, width)
    return np.histogram_bin_edges(values, _MAX_BINS)


def _title(batch: EpisodeBatch, unit: str) -> str:
    text = f"{len(batch):,} {unit}s, {batch.num_steps:,} steps"
    if batch.account_or_none is not None:
        text += f", policy version {batch.account.policy_version}, seed {batch.account.seed}"
    return text
