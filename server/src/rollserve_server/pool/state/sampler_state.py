"""The state of a sampler that outlives its server, and the entries that change it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollserve_server.pool.state.row_sequence import RowSequenceState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollserve_server.pool.accounts import Counters, WorkerTotals
    from rollserve_server.pool.state.agent_version import AgentVersion
    from rollserve_server.pool.state.checkpoints import Checkpoint
    from rollserve_server.pool.state.env_version import EnvVersion
    from rollserve_server.pool.state.row_sequence import RowsMoved
    from rollserve_server.settings import WorkerSettings
    from rollserve_wire.environments import EnvSpec

__all__ = ["Entry", "SamplerState", "Snapshot"]


@dataclass(frozen=True)
class Snapshot:
    """The part of a sampler's state that is small enough to be written whole with each entry.

    Attributes:
        counters: totals of calls.
        workers: totals of the workers in each slot.
        departed: totals of all slots that are gone, or leaving.
        policy_versions: versions of agents that are kept.
        env_versions: versions of environments that are kept.
        row_sequences: names of the row sequences that are kept.
    """

    counters: Counters
    workers: Sequence[WorkerTotals]
    departed: WorkerTotals
    policy_versions: frozenset[int]
    env_versions: frozenset[int]
    row_sequences: frozenset[int]


@dataclass(frozen=True)
class Entry:
    """A change of a sampler's state.

    Attributes:
        snapshot: the small part of the state after the change.
        agents: a new version of the agents, with its number.
        env: a new version of the environments, with its number.
        moved: a completed fragment call.
    """

    snapshot: Snapshot
    agents: tuple[int, AgentVersion] | None = None
    env: tuple[int, EnvVersion] | None = None
    moved: RowsMoved | None = None


@dataclass
class SamplerState:
    """The state of a sampler that outlives its server.

    The journal keeps it, and the next server may be of another version: a change of the layout of this class, or of any
    class within it, needs another journal format (`JOURNAL_FORMAT` in `backends/ray/names.py`).

    Attributes:
        software: version of the software that the sampler's workers run.
        run: name of the sampler's run.
        seed: root seed that its own sequences derive from.
        worker_settings: what its workers were made with.
        first_env: environment that it started with.
        started_seconds: when it started, in seconds since 1970.
        snapshot: the small part of the state.
        agents: by number, the versions of agents that are kept.
        envs: by number, the versions of environments that are kept.
        row_sequences: by name, the row sequences whose rows have made steps.
    """

    software: str
    run: str
    seed: int
    worker_settings: WorkerSettings
    first_env: EnvSpec
    started_seconds: float
    snapshot: Snapshot
    agents: dict[int, AgentVersion] = field(default_factory=dict)
    envs: dict[int, EnvVersion] = field(default_factory=dict)
    row_sequences: dict[int, RowSequenceState] = field(default_factory=dict)

    def apply(self, entry: Entry) -> None:
        """Apply a change. Applying the same entry twice is the same as once."""
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
        kept = snapshot.row_sequences
        self.row_sequences = {number: each for number, each in self.row_sequences.items() if number in kept}

    def _move(self, moved: RowsMoved) -> None:
        start: Checkpoint | None
        known = self.row_sequences.pop(moved.number, None)
        if not isinstance(moved.start, int):
            start = moved.start
        else:
            start = known.at(moved.start) if known is not None else None
        if start is not None:
            current = start.after(moved.num_row_steps, moved.progress)
            self.row_sequences[moved.number] = RowSequenceState(moved.seed, moved.kind, current, start)
