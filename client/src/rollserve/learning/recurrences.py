"""Linear recurrences that run backwards through each segment.

All sums over the future of a step are recurrences x[t] = terms[t] + factors[t] * x[t + 1] within its segment: they
differ in their terms and factors only.

The steps at the same distance from their segments' ends are computed together, so that the loop is as long as the
longest segment. Segments of more than 256 steps are cut into blocks of 256, from their ends on. First, each block is
computed as if nothing followed it; then what follows each block is found, by the same recurrence over blocks; last, it
is added to the block's steps, times the product of the factors in between. One segment of 262,144 steps takes loops of
about 1,000 in all.

Blocks begin at a segment's end, and the last one is computed with what follows it. So a segment's numbers depend on the
segment alone, to the last bit, and those of its last 256 steps equal the ones of a plain loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["backward_recurrence"]

_BLOCK = 256
"""Most steps of a segment that are computed one after the other."""


def backward_recurrence(
    factors: np.ndarray | float, terms: np.ndarray, lengths: NDArray[np.int64], following: np.ndarray
) -> np.ndarray:
    """Return x with x[t] = terms[t] + factors[t] * x[t + 1] in each segment, (T,), of the dtype of the terms.

    Args:
        factors: (T,), or one number for all steps.
        terms: (T,), floats.
        lengths: (N,), number of steps of each segment, at least 1.
        following: (N,), x after the last step of each segment.
    """
    if lengths.max(initial=0) <= _BLOCK:
        return _side_by_side(factors, terms, lengths, following)
    num_blocks = -(-lengths // _BLOCK)
    lasts = np.cumsum(num_blocks) - 1
    block_lengths = np.full(int(num_blocks.sum()), _BLOCK)
    block_lengths[lasts - num_blocks + 1] = lengths - (num_blocks - 1) * _BLOCK
    after = np.zeros(len(block_lengths), terms.dtype)
    after[lasts] = following
    values = _side_by_side(factors, terms, block_lengths, after)

    products = _side_by_side(factors, np.zeros_like(terms), block_lengths, np.ones_like(after))
    starts = np.cumsum(block_lengths) - block_lengths
    firsts = backward_recurrence(products[starts], values[starts], num_blocks, np.zeros(len(lengths), terms.dtype))
    is_last = np.zeros(len(block_lengths), np.bool_)
    is_last[lasts] = True
    inner = np.repeat(~is_last, block_lengths)
    values[inner] += products[inner] * np.repeat(firsts[1:][~is_last[:-1]], block_lengths[~is_last])
    return values


def _side_by_side(
    factors: np.ndarray | float, terms: np.ndarray, lengths: NDArray[np.int64], following: np.ndarray
) -> np.ndarray:
    """Return the recurrence of all segments, in a loop as long as the longest segment; see `backward_recurrence`."""
    if not len(lengths):
        return terms.copy()
    # Longest segments first: at each distance from the end, the segments that are so long are the first ones.
    order = np.argsort(-lengths, kind="stable")
    distances = np.arange(int(lengths[order[0]]))
    counts = np.searchsorted(-lengths[order], -distances)
    stops = np.cumsum(counts)
    ends = (np.cumsum(lengths) - 1)[order]
    steps = np.arange(len(terms)) - np.repeat(stops - counts, counts)
    steps = ends[steps] - np.repeat(distances, counts)

    values = terms[steps]
    by_step = factors[steps] if isinstance(factors, np.ndarray) else None
    after = following[order]
    for start, stop in zip((stops - counts).tolist(), stops.tolist(), strict=True):
        now = values[start:stop]
        now += (factors if by_step is None else by_step[start:stop]) * after[: stop - start]
        after = now
    result = np.empty_like(values)
    result[steps] = values
    return result
