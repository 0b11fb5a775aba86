"""Linear recurrences that run backwards through each segment, or forwards.

All sums over the future of a step are recurrences x[t] = terms[t] + factors[t] * x[t + 1] within its segment: they
differ in their terms and factors only.

The steps at the same distance from their segments' ends are computed together, so that the loop is as long as the
longest segment. Segments of more than 256 steps are cut into blocks of 256, from their ends on. First, each block is
computed as if nothing followed it; then what follows each block is found, by the same recurrence over blocks; last, it
is added to the block's steps, times the product of the factors in between. One segment of 262,144 steps takes loops of
about 1,000 in all.

Blocks begin at a segment's end, and the last one is computed with what follows it. So a segment's numbers depend on the
segment alone, to the last bit, and its last 256 numbers equal the results of a plain loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["backward_recurrence", "forward_recurrence"]

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
        return _recurrence(_SideBySide.of(lengths), factors, terms, following)
    num_blocks = -(-lengths // _BLOCK)
    lasts = np.cumsum(num_blocks) - 1
    block_lengths = np.full(int(num_blocks.sum()), _BLOCK)
    block_lengths[lasts - num_blocks + 1] = lengths - (num_blocks - 1) * _BLOCK
    blocks = _SideBySide.of(block_lengths)
    after = np.zeros(len(block_lengths), terms.dtype)
    after[lasts] = following
    values = _recurrence(blocks, factors, terms, after)

    starts = np.cumsum(block_lengths) - block_lengths
    with np.errstate(all="ignore"):  # products of last blocks are not used
        products = _recurrence(blocks, factors, np.zeros_like(terms), np.ones_like(after))
        at_starts = products[starts]
        at_starts[lasts] = 0
        nothing = np.zeros(len(lengths), terms.dtype)
        after[:-1] = backward_recurrence(at_starts, values[starts], num_blocks, nothing)[1:]
        after[lasts] = 0
        products *= np.repeat(after, block_lengths)
    np.add(values, products, out=values, where=np.repeat(after != 0, block_lengths))
    return values


def forward_recurrence(factor: float, terms: np.ndarray, lengths: NDArray[np.int64], before: np.ndarray) -> np.ndarray:
    """Return x with x[t] = terms[t] + factor * x[t - 1] in each segment, (T,), of the dtype of the terms.

    Args:
        factor: the same for all steps.
        terms: (T,), floats.
        lengths: (N,), number of steps of each segment, at least 1.
        before: (N,), x before the first step of each segment.
    """
    return backward_recurrence(factor, terms[::-1], lengths[::-1], before[::-1])[::-1]


class _SideBySide(NamedTuple):
    """Order of steps in which those at the same distance from their segments' ends follow each other.

    Attributes:
        order: (N,), the segments, longest first: at each distance, the segments that are so long are the first ones.
        counts: number of steps at each distance.
        steps: (T,), rows of the steps, in this order.
    """

    order: NDArray[np.int64]
    counts: list[int]
    steps: NDArray[np.int64]

    @classmethod
    def of(cls, lengths: NDArray[np.int64]) -> _SideBySide:
        """Return the order for segments of these lengths, at least 1."""
        order = np.argsort(-lengths, kind="stable")
        counts = np.searchsorted(-lengths[order], -np.arange(lengths.max(initial=0))).tolist()
        ends = (np.cumsum(lengths) - 1)[order]
        steps = [ends[:0], *(ends[:count] - distance for distance, count in enumerate(counts))]
        return cls(order, counts, np.concatenate(steps))


def _recurrence(
    layout: _SideBySide, factors: np.ndarray | float, terms: np.ndarray, following: np.ndarray
) -> np.ndarray:
    """Return the recurrence of all segments, in a loop as long as the longest one; see `backward_recurrence`."""
    values = terms[layout.steps]
    by_step = factors[layout.steps] if isinstance(factors, np.ndarray) else None
    after, start = following[layout.order], 0
    for count in layout.counts:
        now = values[start : start + count]
        now += (factors if by_step is None else by_step[start : start + count]) * after[:count]
        after, start = now, start + count
    result = np.empty_like(values)
    result[layout.steps] = values
    return result
