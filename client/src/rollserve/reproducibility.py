"""What comes again when the same is asked for again."""

from __future__ import annotations

import enum

from rollserve.v1 import episode_batch_pb2

__all__ = ["Reproducibility", "reproducibility_from_proto", "reproducibility_to_proto"]


class Reproducibility(enum.Enum):
    """What the same seed, indices and versions bring again."""

    UNKNOWN = "unknown"
    """What a server says that is newer than this client."""
    EPISODE = "episode"
    """Every episode, to the last bit, however many workers there are and whatever ran before."""
    BLOCK = "block"
    """Every block of episodes, to the last bit, however many workers there are and whatever ran before: rows that are
    stepped together share their random numbers. Other numbers of rows make other episodes.
    """
    WORKER = "worker"
    """At best what one worker does from its start on: the environment is no function of its seed."""


_BY_NUMBER = {
    episode_batch_pb2.REPRODUCIBILITY_EPISODE: Reproducibility.EPISODE,
    episode_batch_pb2.REPRODUCIBILITY_BLOCK: Reproducibility.BLOCK,
    episode_batch_pb2.REPRODUCIBILITY_WORKER: Reproducibility.WORKER,
}


_NUMBERS = {value: number for number, value in _BY_NUMBER.items()}


def reproducibility_to_proto(value: Reproducibility) -> episode_batch_pb2.Reproducibility.ValueType:
    """The wire's number for a class that is known."""
    return _NUMBERS[value]


def reproducibility_from_proto(number: episode_batch_pb2.Reproducibility.ValueType) -> Reproducibility:
    """The class that the wire's number stands for."""
    return _BY_NUMBER.get(number, Reproducibility.UNKNOWN)
