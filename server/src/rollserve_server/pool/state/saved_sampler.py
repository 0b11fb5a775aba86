"""A saved sampler: the state from which another server goes on as the sampler would have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollserve_server.agents import AgentSource
    from rollserve_server.envs import WorkerSpecs
    from rollserve_server.pool.state.row_sequence import RowSequenceState
    from rollserve_server.sampling import SequenceSpec

__all__ = [
    "SavedAgents",
    "SavedEnvs",
    "SavedOwnSequence",
    "SavedOwnSequences",
    "SavedRowSequence",
    "SavedRowSequences",
    "SavedSampler",
]


class SavedOwnSequence(NamedTuple):
    """An own sequence; the attributes are as of `OwnSequence`."""

    seed: int
    next_index: int
    spec: SequenceSpec | None


class SavedOwnSequences(NamedTuple):
    """The own sequences of whole episodes.

    Attributes:
        seed: root seed that the seeds of own sequences derive from.
        num_drawn: number of seeds that were derived.
        sequences: the sequences, the one first that calls use which come one after the other.
    """

    seed: int
    num_drawn: int
    sequences: Sequence[SavedOwnSequence]


class SavedRowSequence(NamedTuple):
    """A row sequence.

    Attributes:
        state: where its rows stand.
        is_own: whether calls that name no seed continue it.
    """

    state: RowSequenceState
    is_own: bool


class SavedRowSequences(NamedTuple):
    """The row sequences whose rows have made steps.

    Attributes:
        num_drawn: number of seeds that were derived for row sequences.
        sequences: the sequences, the last one used last.
    """

    num_drawn: int
    sequences: Sequence[SavedRowSequence]


class SavedAgents(NamedTuple):
    """A version of the agents.

    Attributes:
        agents: one for all workers, or one for each.
        updated_seconds: when the version was accepted, in seconds since 1970.
    """

    agents: Sequence[AgentSource]
    updated_seconds: float


class SavedEnvs(NamedTuple):
    """A version of the environments.

    Attributes:
        specs: one for all workers, or one for each, as a request names them.
        num_rows: number of rows of a worker.
        num_episodes_per_row: number of episodes of a row in a block; None where rows are stepped one by one.
    """

    specs: Sequence[WorkerSpecs]
    num_rows: int
    num_episodes_per_row: int | None


@dataclass(frozen=True)
class SavedSampler:
    """The state from which another server goes on as a sampler would have.

    Attributes:
        software: version of the server that saved it.
        saved_seconds: when, in seconds since 1970.
        seed: root seed that the sampler was started with.
        num_workers: number of its workers.
        max_episode_length: number of steps after which episodes are truncated by default; None for the environment's
            limit.
        counters: totals of its calls, by the attributes of `Counters`.
        envs: versions of the environments, by number.
        agents: versions of the agents that fit one of the environments, by number.
        policy_version: number of the current version of the agents; 0 before there is one.
        own: sequences of whole episodes that calls without a seed continue.
        rows: row sequences.
    """

    software: str
    saved_seconds: float
    seed: int
    num_workers: int
    max_episode_length: int | None
    counters: Mapping[str, int]
    envs: Mapping[int, SavedEnvs]
    agents: Mapping[int, SavedAgents]
    policy_version: int
    own: SavedOwnSequences
    rows: SavedRowSequences
