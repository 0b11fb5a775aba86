"""Moments of episodes and fragments, as messages carry them beside their bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rollserve_wire.moments import segment_moments
from rollserve_wire.recurrences import forward_recurrence

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rollserve_server.sampling.encode.many_content import ManyContent
    from rollserve_server.sampling.encode.segment_content import SegmentContent
    from rollserve_server.sampling.encode.table_content import TableContent
    from rollserve_server.sampling.protocol.orders import MomentsFormat
    from rollserve_server.sampling.record.columns import ColumnKey, Piece

__all__ = ["moments_of"]


def moments_of(
    content: SegmentContent | TableContent | ManyContent, forms: Sequence[MomentsFormat]
) -> tuple[bytes, ...]:
    """Return the moments of the whole episodes or fragments that end in a message; see `Message.moments`."""
    found: list[bytes] = []
    for form in forms:
        found += _moments(content.ending_pieces(form.policy), content.ending_discounted_before(form.policy), form)
    return tuple(found)


def _moments(segments: Sequence[Sequence[Piece]], before: NDArray[np.float64], form: MomentsFormat) -> Iterator[bytes]:
    """Yield the moments of each leaf, and then of the returns, of whole episodes or fragments."""
    if not segments:
        yield from [b""] * (len(form.leaves) + (form.discount is not None))
        return
    moments = [
        segment_moments(
            [_arrays(pieces, _key_of(pieces, "observations", name)) for pieces in segments], math.prod(shape)
        )
        for name, shape in form.leaves
    ]
    if form.discount is not None:
        moments.append(segment_moments([[returns] for returns in _returns(segments, form.discount, before)], 1))
    yield from (rows.tobytes() for rows in moments)


def _returns(segments: Sequence[Sequence[Piece]], discount: float, before: NDArray[np.float64]) -> Iterator[np.ndarray]:
    """Yield the discounted return after each step of whole episodes or fragments, given those before them, (N,)."""
    rewards = [_arrays(pieces, _key_of(pieces, "rewards", "")) for pieces in segments]
    lengths = np.array([sum(map(len, arrays)) for arrays in rewards])
    terms = np.concatenate([array for arrays in rewards for array in arrays], dtype=np.float64)
    returns = forward_recurrence(discount, terms, lengths, before)
    yield from np.split(returns, np.cumsum(lengths)[:-1])


def _arrays(pieces: Sequence[Piece], key: ColumnKey) -> list[np.ndarray]:
    return [array for piece in pieces for array in piece.arrays(key)]


def _key_of(pieces: Sequence[Piece], group: str, name: str) -> ColumnKey:
    columns = pieces[0].buffer.columns
    return next(key for key in columns if key[0] == group and key[1].name == name)
