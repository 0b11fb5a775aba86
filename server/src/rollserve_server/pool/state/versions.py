"""Versions of the agents and of the environments."""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self, overload

from rollserve_server.agents import AgentSpec, content_bytes, content_hash, kind_of, parameters_bytes
from rollserve_server.envs import RowSpecs, WorkerSpecs, is_hosted, specs_of_rows
from rollserve_server.pool.plan.ledger import Placement, RoundRobin

if TYPE_CHECKING:
    from gymnasium import Space

    from rollserve_server.sampling import EnvDescription

__all__ = ["AgentSpaces", "AgentSummary", "AgentVersion", "EnvVersion"]

_MAX_CLIENTS = 1024
"""Clients that a version remembers."""


@dataclass(frozen=True)
class AgentSummary:
    """An agent's kind, the bytes of its parameters, and a hash of its content."""

    kind: str
    parameter_bytes: int
    content_hash: str


class AgentSpaces(NamedTuple):
    """The spaces that agents were accepted for.

    Attributes:
        observation_space: observation space of one row; of an environment with many agents, a Dict of theirs.
        action_space: action space, alike.
        agents: names of the possible agents; empty for an environment with one agent.
    """

    observation_space: Space[Any]
    action_space: Space[Any]
    agents: Sequence[str]

    @classmethod
    def of(cls, description: EnvDescription) -> Self:
        """Return the spaces of environments."""
        return cls(description.observation_space, description.action_space, description.agents)


class AgentVersion(Sequence[AgentSpec]):
    """The agents of one version: one for all workers, or one for each.

    Attributes:
        spaces: spaces that the agents were accepted for.
        updated_seconds: when the version was accepted, in seconds since 1970.
        num_bytes: bytes of memory it takes. Arrays that other versions share count in full, because workers hold each
            version separately.
        clients: ids of the clients that made the version: by its update, or by one that would have changed nothing.
    """

    def __init__(self, agents: Sequence[AgentSpec], spaces: AgentSpaces, client_id: str = "") -> None:
        self._agents = tuple(agents)
        self.spaces = spaces
        self.clients = deque([client_id], maxlen=_MAX_CLIENTS)
        self.updated_seconds = time.time()
        self.num_bytes = sum(map(content_bytes, self._agents))

    @classmethod
    def restored(
        cls, agents: Sequence[AgentSpec], spaces: AgentSpaces, clients: Iterable[str], updated_seconds: float
    ) -> AgentVersion:
        """Return a version that an earlier server has accepted."""
        version = cls(agents, spaces)
        version.clients = deque(clients, maxlen=_MAX_CLIENTS)
        version.updated_seconds = updated_seconds
        return version

    def __len__(self) -> int:
        return len(self._agents)

    @overload
    def __getitem__(self, index: int) -> AgentSpec: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[AgentSpec]: ...
    def __getitem__(self, index: int | slice) -> AgentSpec | Sequence[AgentSpec]:
        return self._agents[index]

    def add_client(self, client_id: str) -> None:
        """Record that an update by a client would have changed nothing."""
        if client_id not in self.clients:
            self.clients.append(client_id)

    @functools.cached_property
    def summaries(self) -> Sequence[AgentSummary]:
        """A summary of each agent. The first access takes some seconds per gigabyte, for the hashes."""
        return [AgentSummary(kind_of(agent), parameters_bytes(agent), content_hash(agent)) for agent in self._agents]


@dataclass(frozen=True)
class EnvVersion:
    """The environments of one version.

    Attributes:
        specs: one for all workers, or one for each.
        description: their spaces, and how rows are stepped.
        client_id: id of the client that made the version; empty for none in particular.
    """

    specs: Sequence[WorkerSpecs]
    description: EnvDescription
    client_id: str = ""

    @property
    def rows_differ(self) -> bool:
        """Whether the rows of a worker have environments of their own."""
        return any(isinstance(specs, RowSpecs) for specs in self.specs)

    @functools.cached_property
    def has_hosts(self) -> bool:
        """Whether hosts have some of the environments."""
        return any(is_hosted(spec) for specs in self.specs for spec in specs_of_rows(specs, num_rows=1))

    def unit_size(self, placement: Placement) -> int:
        """Return the number of episodes in a work unit: 1 where rows are stepped one by one."""
        num_episodes_per_row = self.description.num_episodes_per_row
        if num_episodes_per_row is None:
            return 1
        # Workers that differ take turns as often as possible.
        return self.description.num_rows * (1 if isinstance(placement, RoundRobin) else num_episodes_per_row)
