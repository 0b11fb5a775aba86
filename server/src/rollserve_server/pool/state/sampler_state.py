"""What of a sampler outlives the server that runs it: enough for the next one to go on where it was."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollserve import EnvSpec
    from rollserve_server.pool.interface.status import Counters, WorkerTotals
    from rollserve_server.pool.sequences.row_sequences import RowSequenceKind
    from rollserve_server.pool.state.checkpoints import Checkpoint
    from rollserve_server.pool.versions.agent_versions import AgentVersion
    from rollserve_server.pool.versions.versions import EnvVersion
    from rollserve_server.sampling import RowProgress, WorkerConfig

__all__ = ["Entry", "Journal", "NoJournal", "RowsMoved", "SamplerState", "SequenceState", "Snapshot"]


@dataclass(frozen=True)
class SequenceState:
    """Where the rows of a sequence stand, and where they stood before its last call; see RowSequence."""

    seed: int
    kind: RowSequenceKind
    current: Checkpoint
    previous: Checkpoint | None

    def at(self, clock: int) -> Checkpoint | None:
        """Where the rows stand or stood at that clock, if that is known."""
        return next((each for each in (self.current, self.previous) if each and each.clock == clock), None)


@dataclass(frozen=True)
class RowsMoved:
    """A call that brought the rows of a sequence from where they stood to where they stand now.

    Attributes:
        number: the sequence's name.
        seed, kind: see RowSequence.
        start: where they stood, or just its clock, if the journal knows the sequence.
        num_row_steps: how many steps each has made.
        progress: what each worker told of its rows.
    """

    number: int
    seed: int
    kind: RowSequenceKind
    start: Checkpoint | int
    num_row_steps: int
    progress: Sequence[Sequence[RowProgress]]


@dataclass(frozen=True)
class Snapshot:
    """What is small enough to be written anew each time.

    Attributes:
        counters: the pool's.
        workers: of the worker in each place.
        departed: of all those whose places are gone, or go soon.
        policy_versions, env_versions: those that are held.
        row_sequences: the names of those that are kept.
    """

    counters: Counters
    workers: Sequence[WorkerTotals]
    departed: WorkerTotals
    policy_versions: frozenset[int]
    env_versions: frozenset[int]
    row_sequences: frozenset[int]


@dataclass(frozen=True)
class Entry:
    """What has changed.

    Attributes:
        snapshot: all of them.
        agents: a version of the agents that the workers hold now, with its number.
        env: the same of the environments.
        moved: a call for fragments that is complete.
    """

    snapshot: Snapshot
    agents: tuple[int, AgentVersion] | None = None
    env: tuple[int, EnvVersion] | None = None
    moved: RowsMoved | None = None


@dataclass
class SamplerState:
    """All that is to outlive a server.

    Attributes:
        software: the version of the software that its workers run.
        run: the name of the pool's run.
        seed: the root seed of its own sequences.
        worker_config: what its workers were made with.
        first_env: the environment that it began with.
        started_seconds: when that was, since the beginning of 1970.
        snapshot: see there.
        agents, envs: by number, the versions that are held.
        row_sequences: by name, those whose rows have made steps.
    """

    software: str
    run: str
    seed: int
    worker_config: WorkerConfig
    first_env: EnvSpec
    started_seconds: float
    snapshot: Snapshot
    agents: dict[int, AgentVersion] = field(default_factory=dict)
    envs: dict[int, EnvVersion] = field(default_factory=dict)
    row_sequences: dict[int, SequenceState] = field(default_factory=dict)

    def apply(self, entry: Entry) -> None:
        """Takes in what has changed. The same entry may come twice."""
        snapshot = self.snapshot = entry.snapshot
        policy_versions, env_versions = set(snapshot.policy_versions), set(snapshot.env_versions)
        if entry.agents is not None:
            number, agents = entry.agents
            self.agents[number] = agents
            policy_versions.add(number)
        if entry.env is not None:
            number, env = entry.env
            self.envs[number] = env
            env_versions.add(number)
        if entry.moved is not None:
            self._move(entry.moved)
        self.agents = {number: each for number, each in self.agents.items() if number in policy_versions}
        self.envs = {number: each for number, each in self.envs.items() if number in env_versions}
        self.row_sequences = {
            number: each for number, each in self.row_sequences.items() if number in snapshot.row_sequences
        }

    def _move(self, moved: RowsMoved) -> None:
        start: Checkpoint | None
        known = self.row_sequences.pop(moved.number, None)
        if not isinstance(moved.start, int):
            start = moved.start
        else:
            start = known.at(moved.start) if known is not None else None
        if start is not None:
            current = start.after(moved.num_row_steps, moved.progress)
            self.row_sequences[moved.number] = SequenceState(moved.seed, moved.kind, current, start)


class Journal(Protocol):
    """Keeps a sampler's state where its workers are. It belongs to one server at a time.

    Attributes:
        epoch: how many servers have had it, this one among them.
        state: what the one before has left; None if there was none.
    """

    epoch: int
    state: SamplerState | None

    async def begin(self, state: Callable[[], SamplerState], snapshot: Callable[[], Snapshot]) -> None:
        """Has it keep the state from now on; what comes before is not written.

        Args:
            state: asked for all, now and whenever the journal itself was lost.
            snapshot: asked for them with each entry, and once in a while.
        """
        ...

    async def write(
        self,
        *,
        agents: tuple[int, AgentVersion] | None = None,
        env: tuple[int, EnvVersion] | None = None,
        moved: RowsMoved | None = None,
    ) -> None:
        """Writes what has changed, with all figures; see Entry. What is written is known to the next server.

        Raises:
            SamplerLostError: the sampler is another server's now, or the journal cannot be reached.
        """
        ...

    async def lost(self) -> str:
        """Waits until the sampler is another server's; returns a text that says so."""
        ...

    async def close(self, *, keep: bool) -> None:
        """Leaves the sampler to the next server, if it is to be kept; else ends the journal."""
        ...


class NoJournal:
    """Of a sampler whose workers end with their server. See Journal."""

    def __init__(self) -> None:
        self.epoch = 1
        self.state: SamplerState | None = None

    async def begin(self, state: Callable[[], SamplerState], snapshot: Callable[[], Snapshot]) -> None:
        """See Journal."""

    async def write(
        self,
        *,
        agents: tuple[int, AgentVersion] | None = None,
        env: tuple[int, EnvVersion] | None = None,
        moved: RowsMoved | None = None,
    ) -> None:
        """See Journal."""

    async def lost(self) -> str:
        """See Journal."""
        await asyncio.get_running_loop().create_future()
        raise AssertionError("nobody ends it")

    async def close(self, *, keep: bool) -> None:
        """See Journal."""
