"""What a pool holds of agents, and what it tells of that."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

from rollserve import Reason
from rollserve_server.agents import (
    AgentSpec,
    content_bytes,
    content_hash,
    kind_of,
    parameters_bytes,
    parameters_of,
)
from rollserve_server.errors import InvalidValueError, NotReadyError

if TYPE_CHECKING:
    import numpy as np

    from rollserve_server.pool.versions.versions import AgentUpdate, Versions
    from rollserve_server.pool.workers.workers import Workers

__all__ = ["AgentStatus", "AgentVersion", "AgentVersionStatus", "AgentVersions"]


class AgentVersion(Sequence[AgentSpec]):
    """A version of the agents: one for all workers, or one for each.

    Attributes:
        updated_seconds: when it came, since the beginning of 1970.
        num_bytes: how much memory it takes; arrays that other versions have too are counted in full, for workers have
            each version for itself.
    """

    def __init__(self, agents: Sequence[AgentSpec]) -> None:
        self._agents = tuple(agents)
        self.updated_seconds = time.time()
        self.num_bytes = sum(map(content_bytes, self._agents))

    def __len__(self) -> int:
        return len(self._agents)

    @overload
    def __getitem__(self, index: int) -> AgentSpec: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[AgentSpec]: ...
    def __getitem__(self, index: int | slice) -> AgentSpec | Sequence[AgentSpec]:
        return self._agents[index]

    @functools.cached_property
    def told(self) -> Sequence[AgentStatus]:
        """What is told of each of them. To find that out takes some seconds for each gigabyte, the first time."""
        return [AgentStatus(kind_of(agent), parameters_bytes(agent), content_hash(agent)) for agent in self._agents]


@dataclass(frozen=True)
class AgentStatus:
    """What is told of an agent: its kind, the size of its parameters, and a name for its content."""

    kind: str
    parameter_bytes: int
    content_hash: str


@dataclass(frozen=True)
class AgentVersionStatus:
    """A version of the agents that is held.

    Attributes:
        number: its number.
        agents: one for all workers, or one for each.
        updated_seconds: when it came, since the beginning of 1970.
        is_current: whether it is the current one.
        in_use: whether a call samples with it.
    """

    number: int
    agents: Sequence[AgentStatus]
    updated_seconds: float
    is_current: bool
    in_use: bool


class AgentVersions:
    """Tells what a pool holds of agents."""

    def __init__(self, versions: Versions, workers: Workers) -> None:
        self._versions = versions
        self._workers = workers

    async def listed(self) -> Sequence[AgentVersionStatus]:
        """All versions that are held, in rising order."""
        held = self._versions.agents
        current, found = held.number, [(number, version, held.is_in_use(number)) for number, version in held.items()]
        told = await asyncio.to_thread(lambda: [version.told for _, version, _ in found])
        return [
            AgentVersionStatus(number, agents, version.updated_seconds, number == current, in_use)
            for (number, version, in_use), agents in zip(found, told, strict=True)
        ]

    def parameters(self, number: int | None, worker_index: int) -> tuple[int, Mapping[str, np.ndarray]]:
        """The parameters of a worker's agent, by name, and the number of the version that they are of.

        Args:
            number: of the version; None for the current one.
            worker_index: which worker.

        Raises:
            NotReadyError: there is no agent, or the version is not held.
            InvalidValueError: there is no such worker.
        """
        held, num_workers = self._versions.agents, len(self._workers)
        if not held.number:
            raise NotReadyError("there is no agent yet: call UpdateAgent first", reason=Reason.NO_AGENT)
        number = held.choose(number, Reason.POLICY_VERSION)
        agents = held.get(number) or ()
        if len(agents) > 1:  # there may be more or fewer workers now
            num_workers = len(agents)
        if not 0 <= worker_index < num_workers:
            raise InvalidValueError.of(
                "worker_index", expected=f"a number from 0 to {num_workers - 1}", got=worker_index
            )
        return number, parameters_of(agents[worker_index if len(agents) > 1 else 0])

    async def current_if_same(self, updates: Sequence[AgentUpdate], *, per_worker: bool = False) -> int | None:
        """The current version, if updates would make it anew and change nothing; else None.

        Arguments and errors as of `Pool.update_agent`, which finds more errors.
        """
        return await self._versions.agent_version_if_same(updates, per_worker=per_worker)
