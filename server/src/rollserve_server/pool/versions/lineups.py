"""Lineups of evaluations: policies by maps of their own, which workers hold while the evaluation runs."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from rollserve_server.agents import (
    MEMBER_VERSION,
    PolicySet,
    check_exploration,
    check_map,
    content_bytes,
    lineups_of,
    members_in_place,
    prepare_for_env,
)
from rollserve_server.errors import InvalidValueError, within
from rollserve_server.futures import in_own_thread
from rollserve_server.pool.state.agent_version import AgentVersion
from rollserve_server.pool.versions.agent_updates import SHARED_BYTES
from rollserve_server.pool.workers.broadcast import Broadcast
from rollserve_server.sampling import Worker

if TYPE_CHECKING:
    from rollserve_server.agents import Exploration, PolicySpec
    from rollserve_server.pool.backends.backend import WorkerHandle
    from rollserve_server.pool.versions.versions import Versions
    from rollserve_server.sampling import EnvDescription
    from rollserve_server.settings import AgentSettings
    from rollserve_wire.policy_map import PolicyMap

__all__ = ["EvaluationLineups"]


class EvaluationLineups:
    """Gives workers the policies that evaluations name, under numbers below 0."""

    def __init__(self, versions: Versions, settings: AgentSettings) -> None:
        self._versions = versions
        self._settings = settings
        self._numbers = itertools.count(-1, -1)

    @contextlib.asynccontextmanager
    async def installed(
        self,
        policy_version: int,
        policy_maps: Sequence[PolicyMap],
        env: EnvDescription,
        exploration: Exploration,
        members: Sequence[str] = (),
    ) -> AsyncIterator[int]:
        """Have all workers hold the policies for the duration of the block, and return their number.

        Args:
            policy_version: version of the agent that versions in the maps count back from.
            policy_maps: the maps that episodes have by turns; none for the map of the version, if there are members.
            env: the environment.
            exploration: how freely the policies act.
            members: names of the policies in which the members of a population differ, as if each were made by an
                update; the version has them all.

        Raises:
            InvalidValueError: the environment has one agent, a map names what is not held or has a rule for none of the
                agents, or policies do not fit the agents that they are mapped to, or cannot explore like that; or no
                map names a policy of members.
            WorkerLostError: as of `Broadcast.answers`.
        """
        with within("options"):
            if not env.agents:
                expected = "none in an environment with one agent"
                raise InvalidValueError.of("policy_maps", expected=expected, got=f"{len(policy_maps)} maps")
            held = self._held(policy_version)
            lineups = await in_own_thread(self._prepared, held, policy_maps, env, members)
            with within("exploration"):
                check_exploration(lineups, exploration)
        _check_members(lineups, members)
        versions, number = self._versions, next(self._numbers)
        shared = await versions.workers.share(lineups) if content_bytes(lineups) >= SHARED_BYTES else lineups

        async def add_agent(_: int, worker: WorkerHandle) -> None:
            await worker.call_urgently(Worker.add_agent, number, shared)

        with versions.installing("agent", number):
            async with versions.updating:
                await Broadcast(versions.workers, add_agent, wait_for_lost=False).answers()
                versions.accept("agent", number, AgentVersion([lineups]))
            yield number

    def _prepared(
        self,
        held: Sequence[PolicySet[PolicySpec]],
        policy_maps: Sequence[PolicyMap],
        env: EnvDescription,
        members: Sequence[str],
    ) -> PolicySet[PolicySpec]:
        for position, policy_map in enumerate(policy_maps):
            with within(f"policy_maps[{position}]"):
                check_map(policy_map, env.agents)
        if members:
            held = [members_in_place(held[0], members), *held]
            policy_maps = policy_maps or [held[0].policy_map]
        wanted = lineups_of(held, policy_maps)
        prepared = prepare_for_env(wanted, env.observation_space, env.action_space, self._settings, env.agents)
        assert isinstance(prepared, PolicySet)  # noqa: S101  # as it was
        return prepared

    def _held(self, policy_version: int) -> list[PolicySet[PolicySpec]]:
        """Return the policies of a version and of all older ones that are kept, in falling order."""
        agents = self._versions.agents
        falling = sorted((number for number in agents if number <= policy_version), reverse=True)
        specs = [spec for number in falling for spec in agents.get(number) or ()]
        return [spec for spec in specs if isinstance(spec, PolicySet)]


def _check_members(lineups: PolicySet[PolicySpec], members: Sequence[str]) -> None:
    """Raise InvalidValueError if no map names the version of a policy that members take the place of."""
    for name in members:
        if all(each.version != MEMBER_VERSION for each in lineups.policies.get(name, ())):
            expected = "a policy whose current version (0) acts for an agent by one of the maps"
            raise InvalidValueError.of(f"policies[{name!r}]", expected=expected, got=f"{name!r}, which acts for none")
