"""Moments of episodes and fragments, as messages carry them beside their bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rollserve._codec.moments import segment_moments
from rollserve.learning.recurrences import forward_recurrence

if TYPE_CHECKING:
    from rollserve_server.sampling.protocol.orders import MomentsFormat
    from rollserve_server.sampling.record.columns import ColumnKey, Piece

__all__ = ["moments_of"]


def moments_of(segments: Sequence[Sequence[Piece]], form: MomentsFormat) -> tuple[bytes, ...]:
    """Return the moments of whole episodes or fragments; see `Message.moments`.

    Args:
        segments: for each of them, the pieces of column buffers that hold its steps.
        form: the moments.
    """
    if not segments:
        return ()
    moments = [
        segment_moments(
            [_arrays(pieces, _key_of(pieces, "observations", name)) for pieces in segments], math.prod(shape)
        )
        for name, shape in form.leaves
    ]
    if form.discount is not None:
        moments.append(segment_moments([[returns] for returns in _returns(segments, form.discount)], 1))
    return tuple(rows.tobytes() for rows in moments)


def _returns(segments: Sequence[Sequence[Piece]], discount: float) -> Iterator[np.ndarray]:
    """Yield the discounted returns of whole episodes, step by step."""
    rewards = [_arrays(pieces, _key_of(pieces, "rewards", "")) for pieces in segments]
    lengths = np.array([sum(map(len, arrays)) for arrays in rewards])
    terms = np.concatenate([array for arrays in rewards for array in arrays], dtype=np.float64)
    returns = forward_recurrence(discount, terms, lengths, np.zeros(len(lengths)))
    yield from np.split(returns, np.cumsum(lengths)[:-1])


def _arrays(pieces: Sequence[Piece], key: ColumnKey) -> list[np.ndarray]:
    return [array for piece in pieces for array in piece.arrays(key)]


def _key_of(pieces: Sequence[Piece], group: str, name: str) -> ColumnKey:
    columns = pieces[0].buffer.columns
    return next(key for key in columns if key[0] == group and key[1].name == name)
