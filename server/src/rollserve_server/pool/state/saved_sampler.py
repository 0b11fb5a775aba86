"""The state from which another server goes on as a sampler would have: saved in a file, or left in a journal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollserve_server.agents import AgentSource
    from rollserve_server.envs import WorkerSpecs
    from rollserve_server.pool.accounts import WorkerTotals
    from rollserve_server.pool.state.row_sequence import RowSequenceState
    from rollserve_server.pool.state.versions import AgentSpaces, AgentVersion, EnvVersion
    from rollserve_server.sampling import SequenceSpec
    from rollserve_wire.environments import EnvSpec

__all__ = [
    "SavedAgents",
    "SavedEnvs",
    "SavedHeader",
    "SavedOwnSequence",
    "SavedOwnSequences",
    "SavedPool",
    "SavedRowSequence",
    "SavedRun",
    "SavedSampler",
]


class SavedOwnSequence(NamedTuple):
    """An own sequence; the attributes are as of `OwnSequence`."""

    seed: int
    next_index: int
    spec: SequenceSpec | None


class SavedOwnSequences(NamedTuple):
    """The own sequences of whole episodes, and which seeds were derived for sequences.

    Attributes:
        seed: root seed that the seeds of own sequences derive from.
        num_drawn: number of seeds that were derived.
        sequences: the sequences, the one first that calls use which come one after the other.
        num_row_seeds: number of seeds that were derived for row sequences.
    """

    seed: int
    num_drawn: int
    sequences: Sequence[SavedOwnSequence]
    num_row_seeds: int


class SavedPool(NamedTuple):
    """The workers, and what the journal keeps.

    Attributes:
        workers: totals of the workers in each slot.
        departed: totals of all slots that are gone, or leaving.
        policy_versions: versions of agents that are kept.
        env_versions: versions of environments that are kept.
        row_sequences: numbers of the row sequences that are kept.
        orders_format: format of what server and workers exchange; 0 for another than any server's.
    """

    workers: Sequence[WorkerTotals]
    departed: WorkerTotals
    policy_versions: Sequence[int]
    env_versions: Sequence[int]
    row_sequences: Sequence[int]
    orders_format: int = 0


@dataclass(frozen=True)
class SavedHeader:
    """The part of the state that is small enough to be written with each entry of a journal.

    Attributes:
        software: version of the server.
        saved_seconds: when it was written, in seconds since 1970.
        seed: root seed that the sampler was started with.
        num_workers: number of its workers.
        max_episode_length: number of steps after which episodes are truncated by default; None for the environment's
            limit.
        counters: totals of its calls, by the attributes of `Counters`.
        policy_version: number of the current version of the agents; 0 before there is one.
        number_is_set: whether a client has set the number of workers, so that it does not follow the load.
        own: sequences of whole episodes that calls without a seed continue; None in a journal.
        pool: the workers, and what is kept; None in a file.
    """

    software: str
    saved_seconds: float
    seed: int
    num_workers: int
    max_episode_length: int | None
    counters: Mapping[str, int]
    policy_version: int
    number_is_set: bool = False
    own: SavedOwnSequences | None = None
    pool: SavedPool | None = None


class SavedRun(NamedTuple):
    """The run of a sampler that outlives its server.

    Attributes:
        name: name of the run.
        started_seconds: when the sampler was started, in seconds since 1970.
        worker_settings: what its workers were made with, as JSON has it.
        first_env: environment that it was started with.
    """

    name: str
    started_seconds: float
    worker_settings: Mapping[str, object]
    first_env: EnvSpec


class SavedEnvs(NamedTuple):
    """A version of the environments.

    Attributes:
        specs: one for all workers, or one for each; of a file, as a request names them.
        num_rows: number of rows of a worker.
        num_episodes_per_row: number of episodes of a row in a block; None where rows are stepped one by one.
        version: what the workers hold; None of a file, whose environments have to be made.
    """

    specs: Sequence[WorkerSpecs]
    num_rows: int
    num_episodes_per_row: int | None
    version: EnvVersion | None = None

    @classmethod
    def of(cls, version: EnvVersion) -> SavedEnvs:
        """Return a version that the workers hold."""
        description = version.description
        return cls(version.specs, description.num_rows, description.num_episodes_per_row, version)


class SavedAgents(NamedTuple):
    """A version of the agents.

    Attributes:
        agents: one for all workers, or one for each.
        updated_seconds: when the version was accepted, in seconds since 1970.
        clients: ids of the clients that made the version; none in a file.
        spaces: spaces that the agents were accepted for; None in a file.
    """

    agents: Sequence[AgentSource]
    updated_seconds: float
    clients: Sequence[str] = ()
    spaces: AgentSpaces | None = None

    @classmethod
    def of(cls, version: AgentVersion) -> SavedAgents:
        """Return a version that the workers hold."""
        return cls(tuple(version), version.updated_seconds, tuple(version.clients), version.spaces)


class SavedRowSequence(NamedTuple):
    """A row sequence whose rows have made steps.

    Attributes:
        state: where its rows stand.
        is_own: whether calls that name no seed continue it.
        number: number of the sequence in the run; 0 in a file.
    """

    state: RowSequenceState
    is_own: bool = False
    number: int = 0


@dataclass(frozen=True)
class SavedSampler:
    """The state from which another server goes on as a sampler would have.

    Attributes:
        header: the single values.
        envs: versions of the environments, by number.
        agents: versions of the agents, by number; a file has only versions that fit one of the environments.
        rows: row sequences, the last one used last.
        run: the run that goes on; None of a file, from which a new run begins.
    """

    header: SavedHeader
    envs: Mapping[int, SavedEnvs]
    agents: Mapping[int, SavedAgents]
    rows: Sequence[SavedRowSequence]
    run: SavedRun | None = None
