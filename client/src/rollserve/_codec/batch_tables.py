"""Descriptions of episode batches: a few statistics and a table of the columns, as text and as HTML."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from rollserve_wire.columns import COLUMNS, original
from rollserve_wire.representations import html_table

__all__ = ["batch_html", "batch_line", "batch_table", "range_text"]


_MAX_LEAVES = 8
"""Number of a field's leaves that are shown at most."""
_MAX_NAME = 60
"""Number of a name's characters that are shown at most."""
_BAR_PIXELS, _CHART_PIXELS = 10, 60

_BARS = "▁▂▃▄▅▆▇█"
_MAX_BINS = 24


def batch_line(batch: Any) -> str:
    """Return one line about an `EpisodeBatch`: how many episodes and steps it has, and how they ended."""
    return f"EpisodeBatch({_counts(batch)})"


def batch_table(batch: Any) -> str:
    """Return several lines about an `EpisodeBatch`: statistics, a histogram of the returns, and the columns."""
    lines = [batch_line(batch)]
    if len(batch):
        lines += [f"{name}: {text}" for name, text in _statistics(batch)]
        returns = histogram(_outcomes(batch)[1])
        if returns is not None:
            lines.insert(2, f"  {returns.low:.4g} {bars(returns.counts)} {returns.high:.4g}")
    columns = list(_columns(batch))
    width = max(len(name) for name, _, _ in columns)
    dtype_width = max(len(dtype) for _, dtype, _ in columns)
    lines += [f"  {name:{width}}  {dtype:{dtype_width}}  {shape}".rstrip() for name, dtype, shape in columns]
    return "\n".join(lines)


def batch_html(batch: Any) -> str:
    """Return the content of `batch_table` as HTML, which is legible on light and dark pages."""
    parts = [f"<div><strong>EpisodeBatch</strong>: {_counts(batch)}</div>"]
    if len(batch):
        parts.append(html_table((), _statistics(batch)))
        returns = histogram(_outcomes(batch)[1])
        if returns is not None:
            parts.append(_html_chart(returns))
    parts.append(html_table(("column", "dtype", "shape"), _columns(batch)))
    return f'<div class="rollserve-batch">{"".join(parts)}</div>'


def range_text(values: np.ndarray) -> str:
    """Return the smallest value, the median and the largest value of a non-empty array as text."""
    with np.errstate(all="ignore"):  # of infinite values
        low, middle, high = np.quantile(values, (0, 0.5, 1))
    return f"min {low:g}, median {middle:g}, max {high:g}"


def _counts(batch: Any) -> str:
    ended = f"{int(batch.terminated.sum())} terminated, {int(batch.truncated.sum())} truncated"
    whole = (batch.first_steps == 0) & (batch.terminated | batch.truncated)
    return f"{len(batch)} {'episodes' if whole.all() else 'segments'}, {batch.num_steps} steps, {ended}"


def _statistics(batch: Any) -> Iterator[tuple[str, str]]:
    """Yield the names and the texts of the statistics of a batch that is not empty."""
    label, returns, lengths = _outcomes(batch)
    raw = "" if original(batch, "rewards") is batch.rewards else "raw "
    for name, column in ((f"{raw}{label}returns", returns), (f"{label}lengths", lengths)):
        values = column.astype(np.float64)
        with np.errstate(all="ignore"):
            mean = values.mean()
        yield name, f"mean {mean:.4g}, {range_text(values)}"
    versions = _range_of_versions(batch.policy_versions)
    account = batch.account_or_none
    if account is not None:
        versions += f", environment {account.env_version}, seed {account.seed}"
    yield "versions", versions


def _outcomes(batch: Any) -> tuple[str, np.ndarray, np.ndarray]:
    """Return returns and lengths: of the whole episodes that have ended, or else of the segments; and how to call them.

    For fragments, ended episodes say how well the agent does; segments only say how they were cut.
    """
    ended = batch.terminated | batch.truncated
    returns, lengths = batch.episode_returns[ended], batch.episode_lengths[ended]
    if not ended.any() or np.isnan(batch.returns_before[ended]).any():
        return "", batch.raw_returns, batch.lengths
    return ("" if ended.all() and not batch.first_steps.any() else "episode "), returns, lengths


def _range_of_versions(versions: np.ndarray) -> str:
    low, high = int(versions.min()), int(versions.max())
    if high == 0:
        return "policy unknown"
    return f"policy {low}" if low == high else f"policy {low or 'unknown'} to {high}"


def _columns(batch: Any) -> Iterator[tuple[str, str, str]]:
    """Yield the name, the dtype and the shape of each column as text."""
    for field in COLUMNS:
        column = getattr(batch, field)
        if isinstance(column, Mapping):
            for leaf, array in itertools.islice(column.items(), _MAX_LEAVES):
                yield f"{field}/{_short(leaf)}", str(array.dtype), str(array.shape)
            if len(column) > _MAX_LEAVES:
                yield f"{field}/…", "", f"{len(column) - _MAX_LEAVES} more"
        elif column is not None:
            yield field, str(column.dtype), str(column.shape)


def _short(name: str) -> str:
    """Return a leaf's name in one line, cut if it is long."""
    name = name if name.isprintable() else repr(name)[1:-1]  # names come from environments
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 1]}…"


def _html_chart(returns: Histogram) -> str:
    """Return bars whose titles, shown under the pointer, say how many returns each stands for."""
    edges, largest = returns.edges, max(returns.counts)
    rectangles = []
    for position, count in enumerate(returns.counts):
        height = max(_CHART_PIXELS * count / largest, 1.0) if count else 0.0  # a single return is seen, too
        title = f"{count} returns from {edges[position]:.4g} to {edges[position + 1]:.4g}"
        rectangles.append(
            f'<rect x="{position * _BAR_PIXELS}" y="{_CHART_PIXELS - height:.1f}" width="{_BAR_PIXELS - 1}" '
            f'height="{height:.1f}"><title>{title}</title></rect>'
        )
    width = _BAR_PIXELS * len(returns.counts)
    chart = (
        f'<svg role="img" aria-label="histogram of the returns" width="{width}" height="{_CHART_PIXELS}" '
        f'fill="currentColor" fill-opacity="0.6">{"".join(rectangles)}</svg>'
    )
    labels = f"<span>{returns.low:.4g}</span><span>{returns.high:.4g}</span>"
    style = f"display: flex; justify-content: space-between; min-width: {width}px"
    caption = f'<div style="{style}">{labels}</div>'
    return f'<div style="display: inline-block; margin: 4px"><div>returns</div>{chart}{caption}</div>'


class Histogram(NamedTuple):
    """Counts of finite numbers in bins of equal width.

    Attributes:
        counts: number of values in each bin.
        low: smallest value, where the first bin begins.
        high: largest value, where the last bin ends.
    """

    counts: tuple[int, ...]
    low: float
    high: float

    @property
    def edges(self) -> tuple[float, ...]:
        """Ends of the bins: one more than there are bins."""
        parts = np.linspace(0, 1, len(self.counts) + 1)
        return tuple(float(self.low * (1 - part) + self.high * part) for part in parts)


def histogram(values: np.ndarray) -> Histogram | None:
    """Return the histogram of the finite values; None if there are not two different ones."""
    finite = values[np.isfinite(values)].astype(np.float64)
    if not len(finite) or finite.min() == finite.max():
        return None
    low, high = float(finite.min()), float(finite.max())
    num_bins = min(_MAX_BINS, max(2, int(np.ceil(np.sqrt(len(finite))))))
    scale = max(abs(low), abs(high))  # otherwise the difference of two numbers could overflow
    positions = (finite / scale - low / scale) / (high / scale - low / scale)
    bins = np.minimum((positions * num_bins).astype(np.int64), num_bins - 1)
    return Histogram(tuple(np.bincount(bins, minlength=num_bins).tolist()), low, high)


def bars(counts: Iterable[int]) -> str:
    """Return a bar for each count, as high as the count's part of the largest one; a blank for 0."""
    counts = list(counts)
    largest = max(counts, default=0)
    heights = [-(-count * len(_BARS) // largest) if largest else 0 for count in counts]  # rounded up
    return "".join(_BARS[height - 1] if height else " " for height in heights)
