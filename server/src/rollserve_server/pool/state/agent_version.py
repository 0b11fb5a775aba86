"""A version of the agents."""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import overload

from rollserve_server.agents import AgentSpec, content_bytes, content_hash, kind_of, parameters_bytes

__all__ = ["AgentSummary", "AgentVersion"]

_MAX_CLIENTS = 1024
"""Clients that a version remembers."""


@dataclass(frozen=True)
class AgentSummary:
    """An agent's kind, the bytes of its parameters, and a hash of its content."""

    kind: str
    parameter_bytes: int
    content_hash: str


class AgentVersion(Sequence[AgentSpec]):
    """The agents of one version: one for all workers, or one for each.

    Attributes:
        updated_seconds: when the version was accepted, in seconds since 1970.
        num_bytes: bytes of memory it takes. Arrays that other versions share count in full, because workers hold each
            version separately.
        clients: ids of the clients that made the version: by its update, or by one that would have changed nothing.
    """

    def __init__(self, agents: Sequence[AgentSpec], client_id: str = "") -> None:
        self._agents = tuple(agents)
        self.clients = deque([client_id], maxlen=_MAX_CLIENTS)
        self.updated_seconds = time.time()
        self.num_bytes = sum(map(content_bytes, self._agents))

    @classmethod
    def restored(cls, agents: Sequence[AgentSpec], clients: Iterable[str], updated_seconds: float) -> AgentVersion:
        """Return a version that an earlier server has accepted."""
        version = cls(agents)
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
