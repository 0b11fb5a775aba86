"""The pool: a sampler's workers with their agents and environments, and the calls that use them."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from rollserve import EnvSpec
from rollserve_server.agents import kind_of
from rollserve_server.errors import InvalidValueError, NotReadyError, within
from rollserve_server.pool.agent_versions import AgentVersions
from rollserve_server.pool.ahead import Ahead, Prefetching
from rollserve_server.pool.beginning import Beginning, check_run
from rollserve_server.pool.call import Call
from rollserve_server.pool.checkpoints import Checkpoint
from rollserve_server.pool.deliveries import CallSettings, Deliveries, Delivery, Progress
from rollserve_server.pool.endings import Ending, EpisodesEnding, FragmentsEnding
from rollserve_server.pool.evaluations import Evaluations
from rollserve_server.pool.forgetting import Forgetting
from rollserve_server.pool.fragment_call import FragmentCall
from rollserve_server.pool.fragments import Fragments, check_fragments
from rollserve_server.pool.holdings import Holdings
from rollserve_server.pool.length_estimate import LengthEstimates
from rollserve_server.pool.placement import Blocks
from rollserve_server.pool.plan import Exactly
from rollserve_server.pool.sequences import SequenceKind, Sequences
from rollserve_server.pool.slots import Slots
from rollserve_server.pool.status import Counters, PoolStatus, WorkerStatus
from rollserve_server.pool.streams import LaneKind, Streams
from rollserve_server.pool.turns import Turns
from rollserve_server.sampling import EnvDescription, Stream, WorkerConfig

if TYPE_CHECKING:
    from rollserve_server.pool.account import Account
    from rollserve_server.pool.backend import Backend
    from rollserve_server.pool.config import PoolConfig, SampleRequest
    from rollserve_server.pool.env_updates import EnvUpdate
    from rollserve_server.pool.evaluation import Evaluation, EvaluationRequest, PopulationRequest
    from rollserve_server.pool.holdings import AgentUpdate, EnvVersion
    from rollserve_server.pool.streams import Lane

__all__ = ["EnvUpdated", "Pool"]

_Call = TypeVar("_Call", bound=Call)


@dataclass(frozen=True)
class EnvUpdated:
    """The workers' new environments.

    Attributes:
        version: their number.
        specs: one for all, one for each worker, or one for each row of each worker.
        description: what is known of them.
    """

    version: int
    specs: Sequence[EnvSpec]
    description: EnvDescription


class Pool:
    """A sampler's workers.

    Several sampling calls work at a time, each as if alone; more wait in the order of their arrival. Updates do not
    wait for calls. Make a pool with `start`.

    Attributes:
        agent_versions: what it holds of agents.
    """

    def __init__(self, config: PoolConfig, slots: Slots, holdings: Holdings) -> None:
        self._config = config
        self._slots = slots
        self._holdings = holdings
        self.agent_versions = AgentVersions(holdings, slots)
        self._estimates = LengthEstimates()
        self._num_running = 0
        self._turns = Turns(config.max_calls, config.progress_seconds)
        ids = itertools.count(1)
        self._streams = Streams(config.seed, config.max_calls, ids)
        self._sequences = Sequences(config.seed, config.max_calls, ids)
        self._prefetching = Prefetching(self._streams, slots)
        self._counters = Counters()
        self._forgetting = Forgetting(slots)
        self._run = secrets.token_hex(8)
        self._started = time.monotonic()
        self._evaluations = Evaluations(config, slots, holdings, self._forgetting, ids, self._run, self._num_calls)

    @classmethod
    async def start(cls, backend: Backend, config: PoolConfig, env: EnvSpec) -> Pool:
        """A pool with its workers, all with this environment.

        Raises:
            WorkerLostError: a worker did not start.
            NotFoundError, InvalidValueError, NotAllowedError: the environment cannot be made.
        """
        worker_config = WorkerConfig(
            config.rows, config.worker_buffer_bytes, config.max_episode_length, config.holds_memory
        )
        allowed = config.allowed_modules, config.allowed_methods
        holdings = Holdings(config.num_kept_versions, *allowed, config.onnx, config.python, config.max_kept_agent_bytes)
        slots = Slots(backend, worker_config, config.start_seconds, holdings.prepare)
        holdings.attach(slots)
        pool = cls(config, slots, holdings)
        try:
            await slots.start(config.num_workers or backend.default_num_workers())
            await pool.update_env([env])
        except BaseException:
            await slots.close()
            raise
        return pool

    async def close(self) -> None:
        """Ends the workers. Calls that run fail."""
        await self._prefetching.end(drop=True)
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
            OverLimitError: a model is too large.
            NotFoundError, NotAllowedError: an agent in Python is not installed, or comes as a pickle.
            NotReadyError: parameters came, and there is no agent.
            WorkerLostError: a worker is lost and could not be replaced.
        """
        self._forgetting.expect_new()
        await self._prefetching.end(drop=True)
        version = await self._holdings.update_agent(updates, per_worker=per_worker)
        await self._prefetching.end(drop=True)  # of a call that ended meanwhile
        self._estimates.fade()
        self._forget_old_versions()
        return version

    async def update_env(self, updates: Sequence[EnvUpdate], *, per_worker: bool = False) -> EnvUpdated:
        """Gives all workers new or changed environments, or none.

        Args:
            updates: one for all workers, or one for each; each of them for all rows of a worker, or one for each.
            per_worker: whether there is one for each worker.

        Returns:
            The new version and what is known of it, once every worker has its environments.

        Raises:
            InvalidValueError: not one for each worker or row, one refuses its arguments, or their spaces or numbers of
                rows differ.
            NotFoundError, NotAllowedError: an id, module, wrapper or method is unknown or not allowed.
            WorkerLostError: a worker is lost and could not be replaced.
        """
        self._forgetting.expect_new()
        await self._prefetching.end(drop=True)
        if not all(isinstance(update, EnvSpec) for update in updates):
            # So that the environments are free to be changed in place.
            self._streams.drop_kept()
            self._sequences.free_rows()
        try:
            version, env = await self._holdings.update_env(updates, per_worker=per_worker)
            self._sequences.end_own(version)
            await self._prefetching.end(drop=True)  # of a call that ended meanwhile
        finally:
            self._forget_old_versions()
        return EnvUpdated(version, self._holdings.listed(env), env.description)

    async def sample(self, request: SampleRequest) -> AsyncGenerator[Beginning | Delivery | Progress | Account, None]:
        """Samples episodes, or fragments of some.

        First comes what they are a function of, then deliveries in the order of the episodes and progress between
        them, at last the account.

        Closing the iterator early ends the work.

        Raises:
            InvalidValueError: the request does not go with the pool as it is.
            NotReadyError: there is no agent, it does not fit, it has not the expected version, a version is not held
                any more, or rows are not where they are to go on.
            EnvFailedError, AgentFailedError, OverLimitError, WorkerLostError: see `Deliveries.running`.
        """
        arrived = time.monotonic()
        async with contextlib.AsyncExitStack() as stack:
            async with self._turns.waiting(stack) as signs:
                async for sign in signs:
                    yield sign
            stack.callback(self._forget_old_versions)  # those that the call was the last to use
            try:
                policy_version, env_version = self._choose_versions(request)
                stack.enter_context(self._holdings.agents.using(policy_version))
                stack.enter_context(self._holdings.envs.using(env_version))
                await self._check_fit(policy_version, env_version)
                self._holdings.check_exploration(policy_version, request.exploration)
                await self._prefetching.end(drop=False)
            except (NotReadyError, InvalidValueError):
                self._counters.num_failed_calls += 1
                raise
            call: Deliveries
            if isinstance(request.target, Fragments):
                fragment_call = call = self._begin_fragments(request, request.target, policy_version, env_version)
                ending: Ending = FragmentsEnding(self._sequences, fragment_call)
            else:
                lane = stack.enter_context(self._streams.lane()) if request.seed is None else None
                episode_call = call = self._begin_call(request, lane, policy_version, env_version, Call)
                ending = EpisodesEnding(self._streams, episode_call, lane)
            account = call.account
            account.queued_seconds = time.monotonic() - arrived
            async with self._running(call, ending) as items:
                yield self._beginning(call)
                async for item in items:
                    yield item
        self._begin_ahead(request, account)
        yield account

    def evaluate(
        self, request: EvaluationRequest
    ) -> AsyncGenerator[Beginning | Delivery | Progress | Evaluation, None]:
        """Samples episodes beside everything else, for what they come to.

        First comes what they are a function of, then progress, and deliveries if they are wanted, at last the
        evaluation. Closing the iterator early ends the work.

        Raises:
            InvalidValueError, NotFoundError, NotAllowedError: the request, or the environment that it brings, is of no
                use; see `update_env`.
            NotReadyError, EnvFailedError, AgentFailedError, OverLimitError, WorkerLostError: see `sample`.
        """
        return self._evaluations.evaluate(request)

    def evaluate_population(
        self, request: PopulationRequest
    ) -> AsyncGenerator[Beginning | Delivery | Progress | Evaluation, None]:
        """The same for many parameter sets of an agent, without deliveries.

        Raises:
            InvalidValueError: also if there are no such parameters, workers differ, or rows cannot be stepped one by
                one.
        """
        return self._evaluations.evaluate_population(request)

    def status(self) -> PoolStatus:
        """The state now."""
        workers = [
            WorkerStatus(slot.healthy, slot.identity, self._holdings.description.num_rows, slot.num_simulated_steps)
            for slot in self._slots
        ]
        holdings, env = self._holdings, self._holdings.envs.current
        return PoolStatus(
            env_specs=holdings.listed(env) if env else (),
            env_version=holdings.envs.number,
            env=holdings.description,
            agent_kinds=[kind_of(agent) for agent in holdings.agents.current or ()],
            policy_version=holdings.agents.number,
            seed=self._streams.first_lane.seed,
            next_index=self._next_index(),
            workers=workers,
            counters=self._counters,
            uptime_seconds=time.monotonic() - self._started,
        )

    def _num_calls(self) -> int:
        """How many calls share the workers' time."""
        return self._num_running + self._evaluations.num_running

    def _choose_versions(self, request: SampleRequest) -> tuple[int, int]:
        """The versions of the agent and the environment that a call is to sample with."""
        check_run(request.run, self._run)
        policy_version = self._holdings.choose_policy(request)
        with within("options"):
            return policy_version, self._holdings.envs.choose(request.env_version, "environment")

    async def _check_fit(self, policy_version: int, env_version: int) -> None:
        misfit = await self._holdings.misfit(policy_version, env_version)
        if misfit is not None:
            text = f"the agent does not fit the environment since it was replaced: {misfit.message}"
            raise NotReadyError(text, reason="AGENT_MISFIT")

    def _begin_ahead(self, request: SampleRequest, account: Account) -> None:
        """Begins with what the request that this is the account of would ask for next, if it is to be and none runs."""
        holdings = self._holdings
        versions = holdings.agents.number, holdings.envs.number
        is_current = (account.policy_version, account.env_version) == versions
        if request.prefetch and is_current and not self._num_running:
            with self._streams.lane() as lane:
                self._prefetching.begin(self._begin_call(request, lane, *versions, Ahead))

    def _begin_call(
        self,
        request: SampleRequest,
        lane: Lane | None,
        policy_version: int,
        env_version: int,
        make: type[_Call],
    ) -> _Call:
        config, target = self._config, request.target
        assert not isinstance(target, Fragments)  # noqa: S101
        env = self._env(env_version)
        rows = env.rows
        max_episode_length = request.max_episode_length or config.max_episode_length
        placement = self._holdings.placement(policy_version, env_version)
        seed, first, skipped = request.seed, request.first_index, 0
        if lane is not None:
            kind = LaneKind(policy_version, env_version, max_episode_length, request.exploration)
            seed, first = lane.seed, lane.first_index(kind, rows.unit_size(placement))
        if isinstance(target, Exactly):
            num_episodes = target.num_episodes_per_worker * len(self._slots)
            if target.num_skipped > num_episodes:
                expected = f"at most the number of all, {num_episodes}"
                raise InvalidValueError.of("skip_episode_count", target.num_skipped, expected)
            placement, skipped = Blocks(first, target.num_episodes_per_worker), target.num_skipped
        assert seed is not None  # noqa: S101  # either the request has one, or the lane
        self._streams.drop_outdated(self._holdings.agents.number, self._holdings.envs.number)
        wanted = Stream(0, seed, policy_version, env_version, max_episode_length, request.exploration)
        stream = self._streams.open(wanted, first + skipped, placement, len(self._slots))
        settings = CallSettings.of(request, config, self._num_calls)
        max_episode_steps, env_versions = env.description.max_episode_steps, self._holdings.envs
        estimate = self._estimates.of(env_version, max_episode_steps, max_episode_length, env_versions)
        return make(target, stream, self._slots, rows, estimate, settings, env.description.reproducibility)

    def _next_index(self) -> int:
        """Where the next call begins that says nothing of itself."""
        holdings, lane = self._holdings, self._streams.first_lane
        versions = holdings.agents.number, holdings.envs.number
        unit_size = self._env(holdings.envs.number).rows.unit_size(self._holdings.placement(*versions))
        return lane.first_index(LaneKind(*versions, self._config.max_episode_length), unit_size)

    def _begin_fragments(
        self, request: SampleRequest, target: Fragments, policy_version: int, env_version: int
    ) -> FragmentCall:
        config = self._config
        num_rows = self._env(env_version).description.num_rows
        check_fragments(request, target, len(self._slots) * num_rows, config.max_episode_length)
        kind = SequenceKind(env_version, request.max_episode_length or config.max_episode_length, target.soft_horizon)
        initial = Checkpoint.initial(len(self._slots), num_rows)
        if request.seed is None:
            sequence, start = self._sequences.begin_own(kind, initial)
        else:
            sequence, start = self._sequences.begin(request.seed, kind, target.row_step_count, initial)
        settings = CallSettings.of(request, config, self._num_calls)
        ids, reproducibility = self._sequences.ids, self._env(env_version).description.reproducibility
        return FragmentCall(target, sequence, start, policy_version, ids, self._slots, settings, reproducibility)

    def _env(self, version: int) -> EnvVersion:
        """A version of the environments, which has been checked."""
        env = self._holdings.envs.get(version)
        assert env is not None  # noqa: S101
        return env

    def _beginning(self, call: Deliveries) -> Beginning:
        account = call.account
        return Beginning(
            account.seed,
            account.first_episode_index,
            account.policy_version,
            account.env_version,
            call.reproducibility,
            self._run,
            num_rows=call.start.stride if isinstance(call, FragmentCall) else 0,
            row_step_count=account.row_step_count,
        )

    @contextlib.asynccontextmanager
    async def _running(
        self, call: Deliveries, ending: Ending
    ) -> AsyncGenerator[AsyncGenerator[Delivery | Progress, None], None]:
        """Runs a call, and takes in how it ends."""
        counters = self._counters
        self._num_running += 1
        try:
            async with call.running() as items:
                yield items
        except BaseException as error:
            if isinstance(error, Exception):
                counters.num_failed_calls += 1
            else:  # cancelled, or closed
                counters.num_cancelled_calls += 1
            ending.cancel(error)
            raise
        else:
            self._streams.take_dropped(call.account)
            self._sequences.take_dropped(call.account)
            ending.complete()
            counters.num_completed_calls += 1
            counters.num_steps += call.account.num_steps
            counters.num_episodes += call.account.num_episodes
            counters.message_bytes += call.account.message_bytes
        finally:
            self._num_running -= 1
            self._slots.count_simulated(call.account)

    def _forget_old_versions(self) -> None:
        """Has the workers forget, in the background, what neither another call nor a running one needs."""
        self._forgetting.keep(*self._holdings.to_keep())
