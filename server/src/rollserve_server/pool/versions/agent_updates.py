"""Updates of agents: checked against the spaces, given to all workers, and then current; and queries about agents."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollserve_server.agents import (
    AgentSource,
    AgentSpec,
    PolicySet,
    PolicySource,
    PolicySpec,
    content_bytes,
    is_quick_to_prepare,
    is_same,
    kind_of,
    parameters_of,
    policies_after,
    prepare_for_env,
    with_kwargs,
    with_parameters,
)
from rollserve_server.errors import InvalidValueError, NotReadyError, listed, within
from rollserve_server.futures import in_own_thread, in_request_thread
from rollserve_server.pool.requests import AgentChange, PolicyUpdates
from rollserve_server.pool.results import AgentUpdated
from rollserve_server.pool.state.versions import AgentSpaces, AgentVersion
from rollserve_server.pool.versions.selection import check_expected_env, check_expected_policy, no_agent
from rollserve_server.pool.versions.versions import ALL_WORKERS, element_field
from rollserve_server.pool.workers.broadcast import Broadcast
from rollserve_server.sampling import Worker
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    import numpy as np

    from rollserve_server.pool.backends.backend import WorkerHandle
    from rollserve_server.pool.journal.journal import Journal
    from rollserve_server.pool.requests import AgentUpdate, Expectation
    from rollserve_server.pool.state.versions import AgentSummary
    from rollserve_server.pool.versions.selection import Selection
    from rollserve_server.pool.versions.versions import Versions
    from rollserve_server.settings import AgentSettings


__all__ = ["SHARED_BYTES", "AgentQueries", "AgentUpdates", "AgentVersionStatus"]

SHARED_BYTES = 1 << 18
"""Size from which an agent is copied once for all workers; a smaller one is sent to each sooner."""
_PARTIAL = Mapping, AgentChange, type(None), PolicyUpdates
"""Classes of updates that keep the present agent, or a part of it."""


class AgentUpdates:
    """Makes new versions of agents."""

    def __init__(self, versions: Versions, selection: Selection, journal: Journal, settings: AgentSettings) -> None:
        """Take the installed versions, where new ones are written, and the rules for accepting agents."""
        self._versions = versions
        self._selection = selection
        self._journal = journal
        self.settings = settings

    async def update(
        self,
        updates: Sequence[AgentUpdate | None],
        expected: Expectation,
        *,
        per_worker: bool,
        field: str = ALL_WORKERS,
        check: Callable[[AgentSpec], object] = lambda _: None,
    ) -> AgentUpdated:
        """Make a new version of the agents, as `Pool.update_agent` does.

        Args:
            updates: one for all workers, or one for each, None to keep the worker's agent.
            expected: versions that have to be current, and the client that makes the new one.
            per_worker: whether there is one for each worker.
            field: field of the request that has an update for all workers, for errors.
            check: raises an error for an agent that must not become current.
        """
        versions = self._versions
        field_of = functools.partial(element_field, per_worker=per_worker, field=field)

        async def prepare() -> tuple[Sequence[AgentSpec], Sequence[str]]:
            versions.check_count(updates, per_worker=per_worker)
            agents, fields = await self._prepared(updates, field_of)
            for agent in agents:
                check(agent)
            return agents, fields

        self._check_expected(expected)
        # Before the update's turn: a trial of foreign code may take minutes, in which others can make updates.
        basis, (agents, fields) = self._basis(updates), await prepare()
        async with versions.updating:
            self._check_expected(expected)
            if self._basis(updates) != basis:
                agents, fields = await prepare()
            number = versions.agents.number + 1
            spread, spread_fields = versions.spread(agents), versions.spread(fields)
            if len(agents) == 1 and content_bytes(agents[0]) >= SHARED_BYTES:
                spread = versions.spread([await versions.workers.share(agents[0])])

            async def add_agent(index: int, worker: WorkerHandle) -> None:
                with within(spread_fields[index]):
                    await worker.call_urgently(Worker.add_agent, number, spread[index])

            versions.workers.forgive()
            with versions.installing("agent", number):
                await Broadcast(versions.workers, add_agent, wait_for_lost=len(agents) > 1).answers()
                version = AgentVersion(agents, AgentSpaces.of(versions.description), expected.client_id)
                versions.accept("agent", number, version)
                await self._journal.write(agents=(number, version))
                replaced = versions.agents.current
                versions.agents.add(version)
            self._selection.remember_fit(number, versions.envs.number)
            return AgentUpdated(number, versions.envs.number, version, replaced)

    async def current_if_same(
        self, updates: Sequence[AgentUpdate | None], expected: Expectation, *, per_worker: bool
    ) -> AgentUpdated | None:
        """Return the current version if updates would change nothing, else None.

        Agents that do not fit the current environment any more count as changed: `update` raises the error. Errors as
        of `update`, which finds more of them.
        """
        async with self._versions.updating:
            self._check_expected(expected)
            self._versions.check_count(updates, per_worker=per_worker)
            version = self._versions.agents.current
            held: Sequence[AgentSpec] = version or ()
            field_of = functools.partial(element_field, per_worker=per_worker)
            wanted: Sequence[AgentSource] = self._resolve(updates, field_of)
            if len(held) != len(wanted):
                held, wanted = self._versions.spread(held), self._versions.spread(wanted)
            if not await in_request_thread(lambda: len(held) == len(wanted) and all(map(is_same, held, wanted))):
                return None
            number = self._versions.agents.number
            if version is None or await self._selection.misfit(number, self._versions.envs.number) is not None:
                return None
            version.add_client(expected.client_id)
            return AgentUpdated(number, self._versions.envs.number)

    def _basis(self, updates: Sequence[AgentUpdate | None]) -> tuple[int, ...]:
        """Return what prepared agents depend on: environments, number of workers, and the agents that are held."""
        versions = self._versions
        is_partial = any(isinstance(update, _PARTIAL) for update in updates)
        return versions.envs.number, len(versions.workers), versions.agents.number if is_partial else 0

    def _check_expected(self, expected: Expectation) -> None:
        check_expected_policy(self._versions, expected)
        check_expected_env(self._versions, expected)

    async def _prepared(
        self, updates: Sequence[AgentUpdate | None], field_of: Callable[[int], str]
    ) -> tuple[Sequence[AgentSpec], Sequence[str]]:
        """Return the agents after updates, checked, and the field of the request that each comes from."""
        agents, fields = [], []
        description = self._versions.description
        for index, (update, agent) in enumerate(
            zip(self._versions.spread(updates), self._resolve(updates, field_of), strict=False)
        ):
            fields.append(_field_in(field_of(index), update, agent))
            with within(fields[-1]):
                spaces = description.observation_space, description.action_space
                arguments = agent, *spaces, self.settings, description.agents
                if len(updates) == 1 and is_quick_to_prepare(agent):
                    agents.append(prepare_for_env(*arguments))
                else:
                    agents.append(await in_own_thread(prepare_for_env, *arguments))
        return agents, fields

    def _resolve(self, updates: Sequence[AgentUpdate | None], field_of: Callable[[int], str]) -> list[AgentSource]:
        """Return the whole agents that updates ask for: one for all workers, or one for each."""
        held = self._versions.agents.current or ()
        if len(held) > 1 and any(isinstance(update, _PARTIAL) for update in updates):
            updates = self._versions.spread(updates)
        agents: list[AgentSource] = []
        for index, update in enumerate(updates):
            with within(field_of(index)):
                if isinstance(update, PolicyUpdates):
                    agents.append(self._policies_after(update, len(updates)))
                elif update is None or isinstance(update, Mapping | AgentChange):
                    agents.append(_updated(self._versions.spread(held)[index] if held else None, update))
                else:
                    agents.append(update)
        return agents

    def _policies_after(self, update: PolicyUpdates, num_updates: int) -> PolicySet[PolicySource]:
        """Return the policies by name after an update of some of them, which is for all workers."""
        if num_updates > 1:
            raise InvalidValueError.of("policies", expected="one update for all workers", got="one for each")
        versions = self._versions.agents
        specs = [spec for _, version in sorted(versions.items(), reverse=True) for spec in version]
        held: list[PolicySet[PolicySpec]] = []
        if versions.current is not None and isinstance(specs[0], PolicySet):  # else an agent has replaced them
            held = [spec for spec in specs if isinstance(spec, PolicySet)]
        with within("policies"):
            sources: dict[str, PolicySource] = {}
            for name, each in update.policies.items():
                current = held[0].policies.get(name) if held else None
                with within(f"policies[{name!r}]"):
                    if isinstance(each, Mapping | AgentChange):
                        sources[name] = _updated(current[0].spec if current else None, each, name if held else "")
                    else:
                        sources[name] = each
            agents = self._versions.description.agents
            return policies_after(held, sources, update.policy_map, agents, versions.number + 1)


def _updated(held: AgentSpec | None, update: Mapping[str, np.ndarray] | AgentChange | None, policy: str = "") -> Any:
    """Return a worker's present agent, or a policy beside others, with an update of a part of it, or as it is."""
    if held is None:
        got = "none" if update is None else "a change" if isinstance(update, AgentChange) else "parameters alone"
        why = "there is none yet to keep or to change"
        if policy:
            why = f"no policy {policy!r} is held; a map that does not name a policy drops it"
        text = f"expected a whole agent, because {why}, got {got}"
        raise NotReadyError(text, reason=Reason.NO_AGENT)
    if update is None:
        return held
    if isinstance(held, PolicySet):
        expected = f"updates by name, because the present agent is the policies {listed(held.policies)}"
        raise InvalidValueError.of("", expected=expected, got="one without a name")
    if isinstance(update, AgentChange):
        with within("change"):
            return with_kwargs(held, update.kwargs, update.parameters)
    return with_parameters(held, update)


def _field_in(element: str, update: AgentUpdate | None, agent: AgentSource) -> str:
    """Return the field of an update, given the path of the update, that an agent after it comes from."""
    if isinstance(update, AgentChange):
        return f"{element}.change"
    if isinstance(update, PolicyUpdates):
        return f"{element}.policies"
    return element if isinstance(update, _PARTIAL) else f"{element}.agent.{kind_of(agent)}"


@dataclass(frozen=True)
class AgentVersionStatus:
    """A version of the agents that is kept.

    Attributes:
        number: number of the version.
        agents: a summary for all workers, or one for each.
        updated_seconds: when the version was accepted, in seconds since 1970.
        is_current: whether it is the current version.
        in_use: whether a call samples with it.
    """

    number: int
    agents: Sequence[AgentSummary]
    updated_seconds: float
    is_current: bool
    in_use: bool


class AgentQueries:
    """Answers queries about the agents that are kept."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions

    async def listed(self) -> Sequence[AgentVersionStatus]:
        """Return all versions that are kept, in rising order."""
        agents = self._versions.agents
        current, found = agents.number, [(number, each, agents.is_in_use(number)) for number, each in agents.items()]
        summaries = await in_request_thread(lambda: [version.summaries for _, version, _ in found])
        return [
            AgentVersionStatus(number, each, version.updated_seconds, number == current, in_use)
            for (number, version, in_use), each in zip(found, summaries, strict=True)
        ]

    def parameters(self, number: int | None, worker_index: int) -> tuple[int, Mapping[str, np.ndarray]]:
        """Return the number of a version, and the parameters of a worker's agent by name; raises as `agent`."""
        number, agent = self._held(number, worker_index)
        return number, parameters_of(agent)

    def agent(self, number: int | None, worker_index: int, policy: str) -> tuple[int, PolicySpec]:
        """Return the number of a version, and a worker's agent.

        Args:
            number: number of the version; None for the current one.
            worker_index: index of the worker.
            policy: name of the policy where there are several; empty for an agent.

        Raises:
            NotReadyError: there is no agent, or the version is not kept.
            InvalidValueError: there is no worker of that index, or no policy of that name.
        """
        number, agent = self._held(number, worker_index)
        if isinstance(agent, PolicySet):
            if policy not in agent.policies:
                expected = f"one of the policies {listed(agent.policies)}"
                raise InvalidValueError.of("policy", expected=expected, got=repr(policy) if policy else "none")
            return number, agent.policies[policy][0].spec
        if policy:
            raise InvalidValueError.of("policy", expected="none, because there is a single agent", got=repr(policy))
        return number, agent

    def _held(self, number: int | None, worker_index: int) -> tuple[int, AgentSpec]:
        """Return the number of a version, and a worker's agent, or policies by name."""
        versions, num_workers = self._versions.agents, len(self._versions.workers)
        if not versions.number:
            raise no_agent()
        number = versions.choose(number, Reason.POLICY_VERSION)
        agents = versions.get(number) or ()
        if len(agents) > 1:  # the number of workers may have changed since
            num_workers = len(agents)
        if not 0 <= worker_index < num_workers:
            expected = f"a number from 0 to {num_workers - 1}"
            raise InvalidValueError.of("worker_index", expected=expected, got=worker_index)
        return number, agents[worker_index if len(agents) > 1 else 0]
