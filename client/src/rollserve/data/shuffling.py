"""A buffer that gives segments back in random order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from rollserve.episode_batch import EpisodeBatch

__all__ = ["shuffled"]


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
