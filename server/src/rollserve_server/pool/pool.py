"""The pool: a sampler's workers with their agents and environments, and the calls that use them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from rollserve_server.agents import AgentSpec, build_agent, kind_of, with_parameters
from rollserve_server.envs import check_allowed
from rollserve_server.errors import DomainError, InvalidValueError, NotReadyError, WorkerLostError, within
from rollserve_server.pool.call import Account, Call, CallSettings, Delivery, Progress
from rollserve_server.pool.plan import (
    Anywhere,
    Blocks,
    Exactly,
    LengthEstimate,
    Placement,
    RoundRobin,
    Target,
)
from rollserve_server.pool.slots import Slots
from rollserve_server.pool.status import Counters, PoolStatus, WorkerStatus
from rollserve_server.pool.streams import Streams
from rollserve_server.sampling import EnvDescription, Worker, WorkerConfig

if TYPE_CHECKING:
    import numpy as np

    from rollserve import EnvSpec
    from rollserve_server.pool.backend import Backend, WorkerHandle

__all__ = ["AgentUpdate", "EnvUpdated", "Pool", "PoolConfig", "SampleRequest"]

_T = TypeVar("_T")

AgentUpdate = AgentSpec | Mapping[str, "np.ndarray"]
"""A whole agent, or all parameters of the one that is there."""

_EPISODES_REMEMBERED = 8.0
"""The weight that the lengths of episodes of the policies before have, in episodes."""


@dataclass(frozen=True)
class PoolConfig:
    """How a pool is made.

    Attributes:
        num_workers: how many workers; None for one for each core.
        num_rows: how many environments each of them steps at once.
        worker_buffer_bytes: how much finished, undelivered data each of them holds.
        window_bytes: how much of a call may be on its way from the workers to the client.
        seed: the root seed of the pool's own sequence of episodes.
        allowed_modules: modules that environments may come from.
        progress_seconds: how often a call that delivers nothing tells of its progress.
        start_seconds: how long workers may take to start.
    """

    num_workers: int | None
    num_rows: int
    worker_buffer_bytes: int
    window_bytes: int
    seed: int
    allowed_modules: frozenset[str] = frozenset()
    progress_seconds: float = 2.0
    start_seconds: float = 120.0


@dataclass(frozen=True)
class SampleRequest:
    """What a sampling call asks for.

    Attributes:
        target: which episodes.
        max_message_bytes: the size that no message may exceed.
        expected_policy_version: fail if the current one is another; None for any.
        seed: the root seed of the episodes; None for the pool's own sequence.
        first_index: the index of the first episode in the sequence of `seed`.
    """

    target: Target
    max_message_bytes: int
    expected_policy_version: int | None = None
    seed: int | None = None
    first_index: int = 0


@dataclass(frozen=True)
class EnvUpdated:
    """The workers' new environments: their version, and what is known of them."""

    version: int
    description: EnvDescription


class Pool:
    """A sampler's workers.

    One sampling call works at a time, in the order of their arrival; updates do not wait for it. Make a pool with
    `start`.
    """

    def __init__(self, config: PoolConfig, slots: Slots) -> None:
        self._config = config
        self._slots = slots
        self._envs: list[EnvSpec] = []
        self._env: EnvDescription
        self._env_version = 0
        self._agents: list[AgentSpec] = []
        self._policy_version = 0
        self._misfit: DomainError | None = None
        self._estimate = LengthEstimate(None)
        self._updating = asyncio.Lock()
        self._sampling = asyncio.Lock()
        self._call: Call | None = None
        self._streams = Streams(config.seed)
        self._counters = Counters()
        self._forgetting: set[asyncio.Task[object]] = set()
        self._started = time.monotonic()

    @classmethod
    async def start(cls, backend: Backend, config: PoolConfig, env: EnvSpec) -> Pool:
        """A pool with its workers, all with this environment.

        Raises:
            WorkerLostError: a worker did not start.
            NotFoundError, InvalidValueError, NotAllowedError: the environment cannot be made.
        """
        worker_config = WorkerConfig(config.num_rows, config.worker_buffer_bytes)
        slots = Slots(backend, worker_config, config.start_seconds)
        pool = cls(config, slots)
        try:
            await slots.start(config.num_workers or backend.default_num_workers())
            await pool.update_env([env])
        except BaseException:
            await slots.close()
            raise
        return pool

    async def close(self) -> None:
        """Ends the workers. Calls that run fail."""
        await self._slots.close()

    async def update_agent(self, updates: Sequence[AgentUpdate], *, per_worker: bool = False) -> int:
        """Gives all workers new agents, or none.

        Args:
            updates: one for all workers, or one for each.
            per_worker: which of the two.

        Returns:
            The new policy version, once every worker has its agent.

        Raises:
            InvalidValueError: not one for each worker, or one is malformed or does not fit the spaces.
            NotReadyError: parameters came, and there is no agent.
            WorkerLostError: a worker's process is gone.
        """
        async with self._updating:
            self._check_count("updates", updates, per_worker)
            agents = self._resolve(updates, per_worker)
            for position, (update, agent) in enumerate(zip(self._spread(updates), agents, strict=False)):
                element = _element("updates", position, per_worker)
                with within(element if isinstance(update, Mapping) else f"{element}.agent.{kind_of(agent)}"):
                    await asyncio.to_thread(self._check_fit, agent)
            version, spread = self._policy_version + 1, self._spread(agents)
            await self._ask_all(lambda index, worker: worker.call(Worker.add_agent, version, spread[index]))
            self._agents, self._policy_version, self._misfit = agents, version, None
            self._estimate.fade(_EPISODES_REMEMBERED)
            self._forget_old_versions()
        return version

    async def update_env(self, envs: Sequence[EnvSpec], *, per_worker: bool = False) -> EnvUpdated:
        """Gives all workers new environments, or none.

        Args:
            envs: one for all workers, or one for each.
            per_worker: which of the two.

        Returns:
            The new version and what is known of it, once every worker has its environments.

        Raises:
            InvalidValueError: not one for each worker, one refuses its arguments, or their spaces differ.
            NotFoundError, NotAllowedError: an id, module or wrapper is unknown or not allowed.
            WorkerLostError: a worker's process is gone.
        """
        async with self._updating:
            self._check_count("environments", envs, per_worker)
            for position, env in enumerate(envs):
                with within(_element("environments", position, per_worker)):
                    check_allowed(env, self._config.allowed_modules)
            version, spread = self._env_version + 1, self._spread(envs)

            async def add_env(index: int, worker: WorkerHandle) -> EnvDescription:
                with within(_element("environments", index, per_worker)):
                    return await worker.call(Worker.add_env, version, spread[index])

            try:
                descriptions = await self._ask_all(add_env)
                _check_same_spaces(descriptions)
            except DomainError:
                self._forget_old_versions()
                raise
            self._envs, self._env, self._env_version = list(envs), descriptions[0], version
            self._estimate = LengthEstimate(self._env.max_episode_steps)
            self._misfit = await asyncio.to_thread(self._find_misfit)
            self._forget_old_versions()
        return EnvUpdated(version, self._env)

    async def sample(self, request: SampleRequest) -> AsyncGenerator[Delivery | Progress | Account, None]:
        """Samples episodes: deliveries in the order of the episodes, and progress between them, then the account.

        Closing the iterator early ends the work.

        Raises:
            NotReadyError: there is no agent, it does not fit, or it has not the expected version.
            EnvFailedError, OverLimitError, WorkerLostError: see `Call.run`.
        """
        arrived = time.monotonic()
        async with self._sampling:
            try:
                call = self._call = self._begin_call(request)
                call.account.queued_seconds = time.monotonic() - arrived
                async with contextlib.aclosing(call.run()) as items:
                    async for item in items:
                        yield item
                self._complete(call)
            except BaseException as error:
                self._break_off(error)
                raise
            finally:
                self._end_call()
        yield call.account

    def status(self) -> PoolStatus:
        """The state now."""
        workers = [
            WorkerStatus(slot.healthy, slot.identity, self._config.num_rows, slot.num_simulated_steps)
            for slot in self._slots
        ]
        return PoolStatus(
            env_specs=self._envs,
            env_version=self._env_version,
            env=self._env,
            agent_kinds=[kind_of(agent) for agent in self._agents],
            policy_version=self._policy_version,
            seed=self._config.seed,
            next_index=self._streams.next_index,
            workers=workers,
            counters=self._counters,
            uptime_seconds=time.monotonic() - self._started,
        )

    def _check_count(self, name: str, updates: Sequence[object], per_worker: bool) -> None:
        expected = len(self._slots) if per_worker else 1
        if len(updates) != expected:
            wanted = f"one for each of the {expected} workers"
            raise InvalidValueError.of(f"per_worker.{name}", f"{len(updates)} elements", wanted)

    def _spread(self, values: Sequence[_T]) -> Sequence[_T]:
        """One value for each worker."""
        return values if len(values) == len(self._slots) else list(values) * len(self._slots)

    def _resolve(self, updates: Sequence[AgentUpdate], per_worker: bool) -> list[AgentSpec]:
        """The agents after the updates: one for all workers, or one for each."""
        if any(isinstance(update, Mapping) for update in updates):
            if not self._agents:
                text = "parameters came, but there is no agent yet to take them: send a whole one first"
                raise NotReadyError(text, reason="NO_AGENT")
            if len(self._agents) > 1:
                updates = self._spread(updates)
        agents: list[AgentSpec] = []
        for position, update in enumerate(updates):
            with within(_element("updates", position, per_worker)):
                if isinstance(update, Mapping):
                    agents.append(with_parameters(self._spread(self._agents)[position], update))
                else:
                    agents.append(update)
        return agents

    def _check_fit(self, agent: AgentSpec) -> None:
        """Raises InvalidValueError if the agent is malformed or does not fit the environment's spaces."""
        build_agent(agent, self._env.observation_space, self._env.action_space, num_rows=1)

    def _find_misfit(self) -> DomainError | None:
        """Why the agents do not fit the environment, if they do not."""
        try:
            for agent in self._agents:
                with within(kind_of(agent)):
                    self._check_fit(agent)
        except DomainError as error:
            return error
        return None

    def _begin_call(self, request: SampleRequest) -> Call:
        self._check_ready(request.expected_policy_version)
        handles = self._slots.handles
        own = request.seed is None
        seed = self._streams.own_seed if request.seed is None else request.seed
        first = self._streams.next_index if own else request.first_index
        placement = self._placement(request.target, first)
        stream = self._streams.open(seed, first, self._policy_version, self._env_version, placement, handles)
        settings = CallSettings(
            max_message_bytes=request.max_message_bytes,
            bind_workers=not isinstance(placement, Anywhere),
            window_bytes=self._config.window_bytes,
            progress_seconds=self._config.progress_seconds,
        )
        return Call(request.target, stream, handles, self._config.num_rows, self._estimate, settings)

    def _check_ready(self, expected_policy_version: int | None) -> None:
        if not self._agents:
            raise NotReadyError("there is no agent yet: call UpdateAgent first", reason="NO_AGENT")
        if self._misfit is not None:
            text = f"the agent does not fit the environment since it was replaced: {self._misfit.message}"
            raise NotReadyError(text, reason="AGENT_MISFIT")
        if expected_policy_version not in (None, self._policy_version):
            text = f"{expected_policy_version} came, but the current version is {self._policy_version}"
            raise NotReadyError(text, reason="POLICY_VERSION", field="options.expected_policy_version")

    def _placement(self, target: Target, first_index: int) -> Placement:
        if isinstance(target, Exactly):
            return Blocks(first_index, target.num_episodes_per_worker)
        if len(self._agents) > 1 or len(self._envs) > 1:
            return RoundRobin(len(self._slots))
        return Anywhere()

    def _complete(self, call: Call) -> None:
        """Takes in that a call has delivered everything."""
        account, counters = call.account, self._counters
        account.num_dropped_steps = self._streams.take_num_dropped_steps()
        counters.num_completed_calls += 1
        counters.num_steps += account.num_steps
        counters.num_episodes += account.num_episodes
        counters.message_bytes += account.message_bytes

    def _break_off(self, error: BaseException) -> None:
        """Takes in that a call ended early: what its workers were doing is dropped."""
        if isinstance(error, Exception):
            self._counters.num_failed_calls += 1
        else:  # cancelled, or closed
            self._counters.num_cancelled_calls += 1
        if self._call is not None:
            self._streams.drop([slot.handle for slot in self._slots])
        if isinstance(error, WorkerLostError):
            self._replace(error)

    def _end_call(self) -> None:
        """Makes room for the next call."""
        if self._call is not None:
            self._streams.settle(self._call.stream)
            for slot, share in zip(self._slots, self._call.account.workers, strict=True):
                slot.num_simulated_steps += share.num_simulated_steps
        self._call = None
        self._forget_old_versions()

    async def _ask_all(self, ask: Callable[[int, WorkerHandle], Awaitable[_T]]) -> list[_T]:
        """See Slots; a worker that is lost is replaced."""
        try:
            return await self._slots.ask_all(ask)
        except WorkerLostError as error:
            self._replace(error)
            raise

    def _replace(self, error: WorkerLostError) -> None:
        self._slots.replace(error.worker_index, self._prepare)

    async def _prepare(self, index: int, worker: WorkerHandle) -> None:
        """Gives a new worker the agent and the environment of its place."""
        async with self._updating:
            await worker.call(Worker.add_env, self._env_version, self._spread(self._envs)[index])
            if self._agents:
                await worker.call(Worker.add_agent, self._policy_version, self._spread(self._agents)[index])

    def _forget_old_versions(self) -> None:
        """Has the workers forget, in the background, what neither the next call nor the running one needs."""
        envs, policies = {self._env_version}, {self._policy_version}
        if self._call is not None:
            envs.add(self._call.stream.stream.env_version)
            policies.add(self._call.stream.stream.policy_version)
        for slot in self._slots:
            if slot.healthy:
                task = asyncio.ensure_future(slot.handle.call(Worker.retain, envs, policies))
                self._forgetting.add(task)
                task.add_done_callback(self._forgotten)

    def _forgotten(self, task: asyncio.Task[object]) -> None:
        self._forgetting.discard(task)
        if not task.cancelled():
            task.exception()  # a worker that is lost is found out when it is needed


def _element(name: str, index: int, per_worker: bool) -> str:
    """The field of the request that an update comes from."""
    return f"per_worker.{name}[{index}]" if per_worker else "all_workers"


def _check_same_spaces(descriptions: Sequence[EnvDescription]) -> None:
    first = descriptions[0]
    for position, other in enumerate(descriptions):
        for name in ("observation_space", "action_space"):
            came, expected = getattr(other, name), getattr(first, name)
            if came != expected:
                raise InvalidValueError.of(
                    f"per_worker.environments[{position}]: {name}", came, f"{expected}, as of the first,"
                )
