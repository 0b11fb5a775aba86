"""Evaluations: calls in environments of their own, which change nothing of the sampler's."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollserve_server.admission import Admission, Receiver
from rollserve_server.agents import (
    MEMBER_VERSION,
    PolicySet,
    check_exploration,
    check_map,
    check_members,
    check_population,
    content_bytes,
    lineups_of,
    members_in_place,
    prepare_for_env,
)
from rollserve_server.errors import InvalidValueError, OverLimitError, listed, within
from rollserve_server.futures import in_own_thread, in_request_thread, in_task, while_running
from rollserve_server.pool.calls.episodes import EpisodeCall
from rollserve_server.pool.calls.population import PopulationCall
from rollserve_server.pool.plan.estimates import LengthEstimate
from rollserve_server.pool.plan.ledger import Ledger
from rollserve_server.pool.requests import EvaluationRequest, InAll, PopulationRequest
from rollserve_server.pool.results import Beginning, Delivery, Evaluation, Progress
from rollserve_server.pool.sequences.open_work import OpenSequence
from rollserve_server.pool.sequences.sequences import derived_seed
from rollserve_server.pool.state.versions import AgentSpaces, AgentVersion
from rollserve_server.pool.versions.agent_updates import SHARED_BYTES
from rollserve_server.pool.workers.broadcast import Broadcast
from rollserve_server.sampling import Population, SequenceSpec, Worker
from rollserve_server.settings import MAX_EVALUATIONS
from rollserve_server.tracing import child_span
from rollserve_wire.environments import EnvSpec
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from rollserve_server.agents import Exploration, PolicySpec
    from rollserve_server.envs import WorkerSpecs
    from rollserve_server.pool.backends.backend import WorkerHandle
    from rollserve_server.pool.parts import PoolParts
    from rollserve_server.pool.state.versions import EnvVersion
    from rollserve_server.pool.workers.slots import Workforce
    from rollserve_server.sampling import EnvDescription, Members
    from rollserve_server.settings import CallSettings
    from rollserve_wire.policy_map import PolicyMap


__all__ = ["Evaluations"]

_MAX_OUTCOMES = 1 << 17
"""Largest number of outcomes of agents in an evaluation, whose result then stays below the size that gRPC's clients
accept by default."""
_SEED_KEY = (0,)
"""Key that derives the seed of evaluations from the pool's seed; no other seed derives by it."""
_Items = AsyncGenerator[Beginning | Delivery | Progress | Evaluation, None]


@dataclass(frozen=True)
class _Prepared:
    """Inputs that determine the episodes of an evaluation, beside their indices.

    Attributes:
        seed: their root seed.
        policy_version: version of the agent that acts.
        agent_number: number of what acts, as workers know it: of the version, or below 0 of lineups.
        env_number: number of the environments, as workers know them.
        env: the environments.
        env_version: version of the sampler's environments that they equal; 0 for none.
        num_members: number of members of a population; 1 else.
    """

    seed: int
    policy_version: int
    agent_number: int
    env_number: int
    env: EnvVersion
    env_version: int
    num_members: int


class Evaluations:
    """Runs evaluations, a few at a time, beside whatever else the workers do.

    Attributes:
        admission: lets a bounded number of evaluations run.
    """

    def __init__(self, parts: PoolParts) -> None:
        self._parts = parts
        calls = parts.settings.calls
        self.admission = Admission(MAX_EVALUATIONS, calls.progress_seconds, **_limits(calls))
        self._seed = derived_seed(parts.seed, _SEED_KEY)
        self._lineups = _Lineups(parts)

    def use_limits(self) -> None:
        """Use the limits that the pool's settings have by now."""
        self.admission.limit(MAX_EVALUATIONS, **_limits(self._parts.settings.calls))

    async def evaluate(self, request: EvaluationRequest | PopulationRequest, receiver: Receiver) -> _Items:
        """Run an evaluation, also of a population; see `Pool.evaluate` and `Pool.evaluate_population`."""
        parts = self._parts
        parts.workers.check_enough()
        arrived = time.monotonic()
        turn = self.admission.new_turn()
        async with contextlib.AsyncExitStack() as stack:
            with child_span("admission"):
                async with self.admission.admitting(stack, receiver, turn) as ticks:
                    async for _ in ticks:
                        yield Progress(0)
            queued_seconds = time.monotonic() - arrived
            with child_span("preparation"):
                stack.callback(parts.versions.evict)  # once nothing is being prepared any more
                preparing = await stack.enter_async_context(in_task(self._prepare(request, stack)))
                async for _ in while_running(preparing, parts.settings.calls.progress_seconds):
                    yield Progress(0)
                prepared = preparing.result()
            workforce = stack.enter_context(parts.workers.using_workforce())
            parts.selection.check_num_workers(prepared.policy_version, prepared.env_number, len(workforce))
            call: EpisodeCall | PopulationCall
            if isinstance(request, PopulationRequest):
                call = await self._population_call(request, prepared, workforce)
            else:
                call = self._evaluation_call(request, prepared, workforce)
            call.turn = turn
            call.account.queued_seconds = queued_seconds
            # The workers' own numbers mean nothing to clients.
            call.account.policy_version, call.account.env_version = prepared.policy_version, prepared.env_version
            try:
                async with call.running() as items:
                    yield call.beginning()
                    async for item in items:
                        yield item
            except OverLimitError as error:
                if error.reason is Reason.MESSAGE_TOO_SMALL:  # the limit has another place in requests for evaluations
                    error.field = "episodes.max_message_bytes"
                raise
            finally:
                parts.counters.count_faults(call.account)
        await parts.journal.write()
        agents = prepared.env.description.agents
        yield Evaluation(call.outcomes, call.account, call.reproducibility, prepared.num_members, agents)

    async def _prepare(self, request: EvaluationRequest | PopulationRequest, stack: AsyncExitStack) -> _Prepared:
        """Choose versions, which the stack keeps, and have the workers make environments."""
        versions, selection, options = self._parts.versions, self._parts.selection, request.options
        policy_maps = request.policy_maps
        members: tuple[str, ...] = ()
        self._parts.check_run(options.run)
        policy_version = selection.choose_policy(options)
        stack.enter_context(versions.agents.using(policy_version))
        if not policy_maps:
            selection.check_exploration(policy_version, options.exploration)
        env_version, own = 0, None
        if request.env is None:
            env_version = selection.choose_env(options)
            own = versions.envs.get(env_version)
        with within("options.environment") if own is None else contextlib.nullcontext():
            specs: Sequence[WorkerSpecs] = own.specs if own is not None else []
            if request.env is not None:
                profiles = self._parts.env_updates.profiles
                specs = [await in_request_thread(profiles.resolved, request.env)]
            if isinstance(request, PopulationRequest):
                specs = await self._stepped_by_rows(specs, own)
            number = await self._parts.env_updates.env_for_evaluation(specs)
        stack.enter_context(versions.evaluation_envs.using(-number))
        env = versions.env_in_use(number)
        if isinstance(request, PopulationRequest):
            _check_population_request(env.description, request)
        if not policy_maps:
            # The agent may have been checked against the sampler's own, and another check takes long for a large one.
            checked = number if own is None or env_version not in versions.envs else env_version
            await selection.check_fit(policy_version, checked)
        num_members = 1
        if isinstance(request, PopulationRequest):
            num_members = await in_request_thread(self._num_members, request, policy_version)
            members = tuple(request.policies)
        _check_num_outcomes(env.description, request.num_episodes, num_members)
        agent_number = policy_version
        if policy_maps or members:
            settings = policy_maps, env.description, options.exploration, members
            agent_number = await stack.enter_async_context(self._lineups.installed(policy_version, *settings))
        seed = self._seed if options.seed is None else options.seed
        return _Prepared(seed, policy_version, agent_number, number, env, env_version, num_members)

    def _num_members(self, request: PopulationRequest, policy_version: int) -> int:
        """Return the number of members of a population.

        Raises:
            InvalidValueError: the parameters do not fit the agent or its policies, or workers have agents of their own.
        """
        agents = self._parts.versions.agents.get(policy_version)
        assert agents is not None  # noqa: S101  # the call keeps them
        if request.policies:
            policies = agents[0].policies if isinstance(agents[0], PolicySet) else {}
            return check_members({name: held[0].spec for name, held in policies.items()}, request.policies)
        if len(agents) != 1:
            expected = "one agent for all workers, whose parameters the members replace"
            raise InvalidValueError.of("parameters", expected=expected, got="an agent for each worker")
        assert not isinstance(agents[0], PolicySet)  # noqa: S101  # those fit environments with many agents only
        return check_population(agents[0], request.parameters)

    async def _stepped_by_rows(self, specs: Sequence[WorkerSpecs], own: EnvVersion | None) -> Sequence[WorkerSpecs]:
        """Return the specs of the same environments, stepped one by one.

        Raises:
            InvalidValueError: single rows are not the same environment, or environments differ between workers or rows.
            DomainError: the request's environment cannot be made.
        """
        spec = specs[0]
        if len(specs) > 1 or not isinstance(spec, EnvSpec):
            expected = "an environment for all rows, because those of the sampler differ"
            raise InvalidValueError.of("options.environment", expected=expected, got="none")
        env_updates, versions = self._parts.env_updates, self._parts.versions
        env = own or versions.env_in_use(await env_updates.env_for_evaluation(specs))
        if env.description.num_episodes_per_row is None:
            return specs
        why_not = env.description.why_not_single
        if why_not and own is None:
            expected = "'rows', because members of a population act in rows that are stepped one by one"
            raise InvalidValueError.of("vectorization", expected=expected, got="rows stepped together", hint=why_not)
        if why_not:
            expected = "an environment for a population, whose members act in rows that are stepped one by one"
            got = f"none, and the rows of the sampler's {spec.id} are stepped together"
            raise InvalidValueError.of("options.environment", expected=expected, got=got, hint=why_not)
        return [dataclasses.replace(spec, vectorization="rows")]

    def _evaluation_call(self, request: EvaluationRequest, prepared: _Prepared, workforce: Workforce) -> EpisodeCall:
        options, limit = request.options, self._parts.max_episode_length(request.options)
        work_id, versions = next(self._parts.ids), (prepared.policy_version, prepared.env_number)
        workers_versions = prepared.agent_number, prepared.env_number
        spec = SequenceSpec(work_id, prepared.seed, *workers_versions, limit, options.exploration)
        placement = self._parts.selection.placement(*versions, len(workforce))
        return EpisodeCall(
            self._parts,
            request,
            InAll(request.num_episodes),
            OpenSequence(spec, placement, Ledger(options.first_index), workforce),
            prepared.env,
            LengthEstimate(prepared.env.description.max_episode_steps, limit),
        )

    async def _population_call(
        self, request: PopulationRequest, prepared: _Prepared, workforce: Workforce
    ) -> PopulationCall:
        parts, options = self._parts, request.options
        population = Population(
            work_id=next(parts.ids),
            root_seed=prepared.seed,
            policy_version=prepared.agent_number,
            env_version=prepared.env_number,
            num_members=prepared.num_members,
            num_episodes=request.num_episodes,
            first_index=options.first_index,
            shares_episodes=request.shares_episodes,
            max_episode_length=parts.max_episode_length(options),
            exploration=options.exploration,
        )
        members: Members = request.policies or {"": request.parameters}
        if sum(value.nbytes for stacked in members.values() for value in stacked.values()) >= SHARED_BYTES:
            members = await parts.workers.share(members)
        return PopulationCall(parts, request, population, members, prepared.env, workforce)


def _limits(calls: CallSettings) -> dict[str, int]:
    return {
        "max_stalled": MAX_EVALUATIONS,
        "max_waiting": calls.max_waiting_calls,
        "turn_steps": calls.turn_steps,
    }


class _Lineups:
    """Gives workers the policies that evaluations name, under numbers below 0."""

    def __init__(self, parts: PoolParts) -> None:
        self._versions = parts.versions
        self._parts = parts
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
                versions.accept("agent", number, AgentVersion([lineups], AgentSpaces.of(env)))
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
        prepared = prepare_for_env(
            wanted, env.observation_space, env.action_space, self._parts.settings.agents, env.agents
        )
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


def _check_population_request(description: EnvDescription, request: PopulationRequest) -> None:
    """Raise InvalidValueError unless members are by policy where there are many agents, and skip no episode."""
    if request.options.skip_failed:
        expected = "false for a population, whose members all have the same number of episodes"
        raise InvalidValueError.of("options.skip_failed_episodes", expected=expected, got="true")
    agents = description.agents
    if agents and not request.policies:
        expected = f"none beside `policies`, because the environment has the agents {listed(agents)}"
        got, hint = f"{listed(request.parameters)} of no policy", "name the policies that members have parameters for"
        raise InvalidValueError.of("parameters", expected=expected, got=got, hint=hint)
    if request.policies and not agents:
        expected, got = "none in an environment with one agent", listed(request.policies)
        raise InvalidValueError.of("policies", expected=expected, got=got, hint="take `parameters`")


def _check_num_outcomes(description: EnvDescription, num_episodes: int, num_members: int = 1) -> None:
    """Raise InvalidValueError if an evaluation, or one of a population, has more outcomes of agents than a result."""
    num_agents = len(description.agents)
    if num_agents * num_members * num_episodes > _MAX_OUTCOMES:
        of_members = "" if num_members == 1 else f" of each of {num_members} members"
        most = _MAX_OUTCOMES // (num_agents * num_members)
        expected = f"at most {most} episodes{of_members}, because each has {num_agents} agents"
        raise InvalidValueError.of("episode_count", expected=expected, got=num_episodes)
