"""Reference for fragments: slices of whole episodes, in the order that the protos document."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from pools import sample

import rollserve
from rollserve_server.pool import AtLeast, Pool
from rollserve_wire.columns import leaves_of

FragmentPlace = tuple[int, int, int, bool]
"""Episode index, first step and length of a fragment, and whether the episode ends with it."""


def expected_places(
    lengths: Callable[[int], int], num_rows: Sequence[int], calls: Sequence[int]
) -> list[list[FragmentPlace]]:
    """Return the fragments of each call, in their order.

    Args:
        lengths: function from an episode index to the episode's length.
        num_rows: number of rows of each worker.
        calls: number of steps per row of each call.
    """
    stride = sum(num_rows)
    firsts = [0, *itertools.accumulate(num_rows)]
    rows = {row: (row, 0) for row in range(stride)}  # episode index and step of each row
    result = []
    for num_steps in calls:
        places: list[FragmentPlace] = []
        for worker, count in enumerate(num_rows):
            ended: list[tuple[int, int, FragmentPlace]] = []
            cut: list[FragmentPlace] = []
            for row in range(firsts[worker], firsts[worker] + count):
                (index, first), step = rows[row], 0
                while step < num_steps:
                    length = min(num_steps - step, lengths(index) - first)
                    step += length
                    over = first + length == lengths(index)
                    if over:
                        ended.append((step, row, (index, first, length, True)))
                        index, first = index + stride, 0
                    else:
                        cut.append((index, first, length, False))
                        first += length
                rows[row] = (index, first)
            places += [place for _, _, place in sorted(ended)] + cut
        result.append(places)
    return result


def places_of(batch: rollserve.EpisodeBatch) -> list[FragmentPlace]:
    columns = (batch.episode_indices, batch.first_steps, batch.lengths, batch.terminated | batch.truncated)
    return list(zip(*(column.tolist() for column in columns), strict=True))


class Truth:
    """Whole episodes of a seed, sampled when they are first needed."""

    def __init__(self, pool: Pool, seed: int, **options: Any) -> None:
        self._pool = pool
        self._options = {"seed": seed, **options}
        self._episodes: dict[int, rollserve.EpisodeBatch] = {}

    async def episode(self, index: int) -> rollserve.EpisodeBatch:
        if index not in self._episodes:
            batch = await sample(self._pool, AtLeast(1), first_index=index, **self._options)
            self._episodes[index] = batch.split()[0]
        return self._episodes[index]

    async def length(self, index: int) -> int:
        return (await self.episode(index)).num_steps

    async def check(self, batch: rollserve.EpisodeBatch) -> None:
        """Check that each fragment is a slice of its episode."""
        for fragment in batch.split():
            check_slice(fragment, await self.episode(int(fragment.episode_indices[0])))


def check_slice(fragment: rollserve.EpisodeBatch, episode: rollserve.EpisodeBatch) -> None:
    start = int(fragment.first_steps[0])
    stop = start + fragment.num_steps
    ends = stop == episode.num_steps
    assert bool(fragment.terminated[0]) == (ends and bool(episode.terminated[0]))
    assert bool(fragment.truncated[0]) == (ends and bool(episode.truncated[0]))
    for name in ("observations", "actions", "rewards", "agent_infos", "env_infos"):
        _check_equal(getattr(fragment, name), getattr(episode, name), slice(start, stop), name)
    _check_equal(fragment.last_observations, episode.next_observations, slice(stop - 1, stop), "last_observations")
    _check_equal(fragment.episode_infos, episode.episode_infos, slice(None), "episode_infos")
    assert fragment.env_seeds is not None
    assert episode.env_seeds is not None
    assert fragment.env_seeds[0] == episode.env_seeds[0]


def _check_equal(received: Any, expected: Any, rows: slice, name: str) -> None:
    ones, others = leaves_of(received), leaves_of(expected)
    masks = {leaf for leaf in others if leaf.startswith("_") and leaf[1:] in others}
    # An info that only other steps of the episode have is missing, and one that all steps have needs no mask.
    for leaf in others.keys() - masks:
        values = others[leaf][rows]
        present = others[f"_{leaf}"][rows] if f"_{leaf}" in masks else np.ones(len(values), np.bool_)
        if leaf not in ones:
            assert name in ("env_infos", "episode_infos"), (name, leaf)
            assert not present.any(), (name, leaf)
            continue
        assert ones[leaf].dtype == values.dtype, (name, leaf)
        mask = ones.get(f"_{leaf}", np.ones(len(values), np.bool_))
        assert np.array_equal(mask, present), (name, leaf)
        assert np.array_equal(ones[leaf][mask], values[present]), (name, leaf)
    for leaf in ones.keys() - others.keys() - masks:
        # Another fragment of the batch has the info, or its shape varies within the episode but not in the fragment.
        assert leaf.startswith("_") or leaf == "ragged" or not ones[f"_{leaf}"].any(), (name, leaf)
