"""Classes of reproducibility: which unit of work the same seed gives again."""

from __future__ import annotations

import enum

from rollserve.v1 import episode_batch_pb2

__all__ = ["Reproducibility", "reproducibility_from_proto", "reproducibility_to_proto"]


class Reproducibility(enum.Enum):
    """Unit of work that the same seed, indices and versions give again."""

    UNKNOWN = "unknown"
    """A class that only newer clients know."""
    EPISODE = "episode"
    """Every episode is the same, bit for bit, with any number of workers and whatever ran before."""
    BLOCK = "block"
    """Every block of episodes is the same, bit for bit, with any number of workers and whatever ran before. Rows that
    are stepped together share their random numbers, so another number of rows gives other episodes."""
    WORKER = "worker"
    """Work since a worker's start, at best, is the same: the environment is not a function of its seed."""


_BY_NUMBER = {
    episode_batch_pb2.REPRODUCIBILITY_EPISODE: Reproducibility.EPISODE,
    episode_batch_pb2.REPRODUCIBILITY_BLOCK: Reproducibility.BLOCK,
    episode_batch_pb2.REPRODUCIBILITY_WORKER: Reproducibility.WORKER,
}


_NUMBERS = {value: number for number, value in _BY_NUMBER.items()}


def reproducibility_to_proto(value: Reproducibility) -> episode_batch_pb2.Reproducibility.ValueType:
    """Return the number that stands for a class on the wire; KeyError for UNKNOWN."""
    return _NUMBERS[value]


def reproducibility_from_proto(number: episode_batch_pb2.Reproducibility.ValueType) -> Reproducibility:
    """Return the class that a number of the wire stands for; UNKNOWN for other numbers."""
    return _BY_NUMBER.get(number, Reproducibility.UNKNOWN)
