"""A buffer that gives segments back in random order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from rollserve._checks import check_count, check_integer
from rollserve.episode_batch import EpisodeBatch
from rollserve.errors import InvalidArgumentError

__all__ = ["Shuffle", "checked_shuffle", "shuffled"]

_NUM_STEPS = 1 << 17


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


def shuffled(batches: Iterable[EpisodeBatch], num_steps: int, generator: np.random.Generator) -> Iterator[EpisodeBatch]:
    """Yield the segments of all batches in random order, with a buffer of a number of steps.

    Whenever the buffer holds as many steps, a random half of its segments leave it in random order. So each segment
    leaves at each turn with probability 1/2, none before the buffer was full once, and all at the end. A buffer as
    large as the data gives a uniform permutation. Turns copy columns with a few calls, whatever the number of segments.

    Args:
        batches: at least one segment each.
        num_steps: number of steps of a full buffer. It is exceeded by less than a batch.
        generator: draws the order.
    """
    held: list[EpisodeBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.num_steps
        if size >= num_steps:
            full = EpisodeBatch.concatenate(*held)
            order = generator.permutation(len(full))
            half = (len(full) + 1) // 2
            yield full.take(order[:half])
            rest = full.take(np.sort(order[half:]))  # in their order, which memory is read faster in
            held, size = ([rest], rest.num_steps) if len(rest) else ([], 0)
    if held:
        full = EpisodeBatch.concatenate(*held)
        yield full.take(generator.permutation(len(full)))
