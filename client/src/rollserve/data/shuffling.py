"""Segments and fragments in random order, from a buffer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rollserve.episode_batch import EpisodeBatch, concatenated, derived
from rollserve.learning import Fragments
from rollserve_wire.checks import check_count, check_integer
from rollserve_wire.errors import InvalidArgumentError
from rollserve_wire.representations import briefly

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Shuffle", "checked_shuffle", "shuffled"]

_NUM_STEPS, _PAGE_STEPS = 1 << 17, 1 << 14
"""Steps of a buffer by default, and of what is copied at a time."""
_LEAST_SHARE = 0.25
"""Share of a batch below which its rest is copied, so that the whole need not stay."""


@briefly
class Shuffle(NamedTuple):
    """Seed of a random order, and the number of steps of the buffer that makes it."""

    seed: int
    num_steps: int


def checked_shuffle(prefix: str, seed: int | None, num_steps: int | None) -> Shuffle | None:
    """Return the shuffle that arguments ask for; None for the order of the files.

    Args:
        prefix: what errors put before `shuffle_seed` and `shuffle_steps`.
        seed: seed of the order; None for the order of the files.
        num_steps: number of steps of the buffer; None for the default.

    Raises:
        TypeError: an argument that is no integer.
        InvalidArgumentError: an integer out of range, or a number of steps without a seed.
    """
    if num_steps is not None:
        check_count(f"{prefix}shuffle_steps", num_steps)
    if seed is not None:
        check_integer(f"{prefix}shuffle_seed", seed, 64, signed=False)
        return Shuffle(seed, _NUM_STEPS if num_steps is None else num_steps)
    if num_steps is not None:
        expected = "none without shuffle_seed, because the order of the files takes no buffer"
        raise InvalidArgumentError.of(f"{prefix}shuffle_steps", expected=expected, got=num_steps)
    return None


def shuffled(
    batches: Iterable[EpisodeBatch],
    num_steps: int,
    generator: np.random.Generator,
    *,
    length: int | None = None,
    leaving: float = 0.5,
    page_size: int = 1,
) -> Iterator[EpisodeBatch]:
    """Yield the segments of all batches, or the fragments of them, in random order, by a buffer of a number of steps.

    Whenever the buffer holds as many steps, a random half of its segments leave it in random order. So each segment
    leaves at each turn with probability 1/2, none before the buffer was full once, and all at the end. A buffer as
    large as the data gives a uniform permutation.

    Columns stay where they are until their segments leave, and are copied then, about 16,384 steps at a time.

    Args:
        batches: at least one segment each.
        num_steps: number of steps of a full buffer. It is exceeded by less than a batch.
        generator: draws the order.
        length: number of steps of fragments that segments are cut into; None for whole segments.
        leaving: share of the buffer that leaves at a turn. With 1, batches in an order that is random already are
            shuffled among as many as the buffer holds.
        page_size: batches come in multiples of so many segments, except at ends of turns.
    """
    buffer = _Buffer(length, page_size)
    held: list[EpisodeBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.num_steps
        if size >= num_steps:
            buffer.add(held)
            yield from buffer.leave(leaving, generator)
            held, size = [], buffer.num_steps
    buffer.add(held)
    yield from buffer.leave(1.0, generator)


class _Part:
    """Fragments of one batch that are still in the buffer.

    Attributes:
        left: (M,), their positions, ascending.
        num_steps: number of their steps.
    """

    def __init__(self, batch: EpisodeBatch, length: int | None) -> None:
        self._batch, self._fragments = batch, Fragments(batch, length)
        self.left = np.arange(len(self._fragments.lengths))
        self.num_steps = batch.num_steps

    @property
    def is_thin(self) -> bool:
        """Whether most of the batch has left."""
        return self.num_steps < _LEAST_SHARE * self._batch.num_steps

    def take(self, positions: NDArray[np.int64]) -> EpisodeBatch:
        """Return some of the batch's fragments."""
        return derived(self._batch, self._fragments.take(positions))

    def keep(self, is_left: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Drop all but some of the fragments that are left; return the positions of all that were."""
        before = self.left
        self.left = before[is_left]
        self.num_steps = int(self._fragments.lengths[self.left].sum())
        return before


class _Buffer:
    """Buffer of fragments, which leave in random order."""

    def __init__(self, length: int | None, page_size: int) -> None:
        self._length, self._page_size = length, page_size
        self._parts: list[_Part] = []
        self._num_left = 0

    @property
    def num_steps(self) -> int:
        """Number of steps in the buffer."""
        return sum(part.num_steps for part in self._parts)

    def add(self, batches: Sequence[EpisodeBatch]) -> None:
        """Add the segments of batches."""
        if batches:
            self._parts.append(_Part(concatenated(batches), self._length))

    def leave(self, share: float, generator: np.random.Generator) -> Iterator[EpisodeBatch]:
        """Yield a share of the fragments, which leave the buffer at once."""
        parts = self._parts
        bounds = np.cumsum([0, *(len(part.left) for part in parts)])
        order = generator.permutation(bounds[-1])
        order = order[: int(np.ceil(len(order) * share))]
        is_left = np.ones(bounds[-1], np.bool_)
        is_left[order] = False
        mean_steps = self.num_steps / max(len(is_left), 1)
        positions = [
            part.keep(is_left[low:high]) for part, low, high in zip(parts, bounds[:-1], bounds[1:], strict=True)
        ]
        self._parts = _without_thin(parts)
        page = max(int(_PAGE_STEPS / max(mean_steps, 1)) // self._page_size, 1) * self._page_size
        start = 0
        while start < len(order):
            stop = start + page - (self._num_left + start) % page
            yield _page(parts, positions, bounds, order[start:stop])
            start = stop
        self._num_left += len(order)


def _page(
    parts: Sequence[_Part], positions: Sequence[NDArray[np.int64]], bounds: NDArray[np.int64], order: NDArray[np.int64]
) -> EpisodeBatch:
    """Return fragments in an order of positions, which count the fragments of all parts one behind the other."""
    if len(parts) == 1:
        return parts[0].take(positions[0][order])
    owners = np.searchsorted(bounds, order, side="right") - 1
    batches = []
    for number in np.unique(owners).tolist():
        own = order[owners == number] - bounds[number]
        batches.append(parts[number].take(positions[number][own]))
    places = np.empty(len(order), np.int64)
    places[np.argsort(owners, kind="stable")] = np.arange(len(order))
    page: EpisodeBatch = concatenated(batches).take(places)
    return page


def _without_thin(parts: Sequence[_Part]) -> list[_Part]:
    """Return the parts that are not thin, and what is left in the thin ones as one part."""
    thin = [part.take(part.left) for part in parts if part.is_thin and len(part.left)]
    return [part for part in parts if not part.is_thin] + ([_Part(concatenated(thin), None)] if thin else [])
