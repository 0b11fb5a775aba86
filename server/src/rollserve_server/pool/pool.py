"""The pool: a sampler's workers with their agents and environments, and the calls that use them."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from rollserve import EnvSpec, Reason
from rollserve_server import __version__
from rollserve_server.admission import NEVER_STALLED, Admission, Receiver
from rollserve_server.agents import kind_of
from rollserve_server.errors import DomainError, InvalidValueError, NotReadyError, within
from rollserve_server.pool.calls.driver import CallDriver, CallSettings, Delivery, Progress
from rollserve_server.pool.calls.episodes import EpisodeCall
from rollserve_server.pool.calls.evaluations import Evaluations
from rollserve_server.pool.calls.fragments import FragmentCall
from rollserve_server.pool.calls.prefetch import Prefetch, Prefetcher
from rollserve_server.pool.calls.settlement import EpisodeSettlement, FragmentSettlement, Settlement
from rollserve_server.pool.interface.beginning import Beginning, check_run, check_size
from rollserve_server.pool.interface.evaluation import Evaluation
from rollserve_server.pool.interface.fragments import Fragments, check_fragments
from rollserve_server.pool.interface.status import Counters, PoolStatus, WorkerStatus
from rollserve_server.pool.plan.length_estimate import LengthEstimates
from rollserve_server.pool.plan.placement import PerWorker
from rollserve_server.pool.plan.plan import Exactly
from rollserve_server.pool.resizing import Resizing
from rollserve_server.pool.sequences.row_sequences import RowSequenceKind, RowSequences
from rollserve_server.pool.sequences.sequences import SequenceKind, Sequences
from rollserve_server.pool.state.checkpoints import Checkpoint
from rollserve_server.pool.state.sampler_state import SamplerState, Snapshot
from rollserve_server.pool.takeover import own_seed, reconcile_config
from rollserve_server.pool.versions.agent_versions import AgentVersions
from rollserve_server.pool.versions.eviction import Eviction
from rollserve_server.pool.versions.versions import Versions
from rollserve_server.pool.workers.workers import Workers
from rollserve_server.sampling import EnvDescription, SequenceSpec, WorkerConfig

if TYPE_CHECKING:
    from rollserve_server.pool.accounts.account import Account
    from rollserve_server.pool.backends.backend import Backend
    from rollserve_server.pool.config import PoolConfig, SampleRequest
    from rollserve_server.pool.interface.evaluation import EvaluationRequest, PopulationRequest
    from rollserve_server.pool.sequences.sequences import OwnSequence
    from rollserve_server.pool.state.sampler_state import Journal
    from rollserve_server.pool.versions.env_updates import EnvUpdate
    from rollserve_server.pool.versions.versions import AgentUpdate, EnvVersion

__all__ = ["EnvUpdated", "Pool"]

_log = logging.getLogger(__name__)
_Call = TypeVar("_Call", bound=EpisodeCall)
_Item = TypeVar("_Item")

_MOST_WORKERS_OF_DEFAULT = 4
"""Clients are not to fill a machine or a cluster with workers that it has no cores for, unless the operator says so."""
_EPOCH_BITS = 40
"""Of the names of streams, so that those of several servers differ: each may have so many of its own."""


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
        is_taken_over: whether an earlier server has left it.
    """

    def __init__(self, config: PoolConfig, workers: Workers, versions: Versions, journal: Journal) -> None:
        self._config = config
        self._journal = journal
        self._workers = workers
        self._versions = versions
        self.agent_versions = AgentVersions(versions, workers)
        self._estimates = LengthEstimates()
        self._num_running = 0
        self._admission = Admission(
            config.max_calls,
            config.progress_seconds,
            max_stalled=config.max_stalled_calls,
            max_waiting=config.max_waiting_calls,
        )
        left = journal.state
        self.is_taken_over = left is not None
        ids = itertools.count((journal.epoch - 1 << _EPOCH_BITS) + 1)
        seed = own_seed(config.seed, journal.epoch) if left else config.seed
        self._sequences = Sequences(seed, config.max_calls, ids)
        self._row_sequences = RowSequences(seed, config.max_calls, ids)
        self._prefetcher = Prefetcher(self._sequences)
        self._resizing = Resizing(
            workers,
            versions,
            self._sequences,
            self._row_sequences,
            self._prefetcher,
            config.max_workers,
            config.min_healthy_workers,
        )
        self._counters = Counters()
        self._eviction = Eviction(workers)
        self._run = secrets.token_hex(8)
        self._started = time.monotonic()
        if left is not None:
            self._row_sequences.restore(left.row_sequences)
            self._counters = left.snapshot.counters
            self._run = left.run
            self._started -= max(time.time() - left.started_seconds, 0.0)
        self._evaluations = Evaluations(
            config, workers, versions, self._eviction, ids, self._run, self._num_calls, self._counters
        )

    @classmethod
    async def start(cls, backend: Backend, config: PoolConfig, env: EnvSpec) -> Pool:
        """A pool with its workers, all with this environment; or the one that an earlier server has left.

        Raises:
            SamplerLostError: another server has it.
            WorkerLostError: a worker did not start in time, or none did.
            NotFoundError, InvalidValueError, NotAllowedError: the environment cannot be made, or the pool that is there
                was made otherwise.
        """
        worker_config = WorkerConfig(
            config.rows,
            config.worker_buffer_bytes,
            config.max_episode_length,
            config.holds_memory,
            config.env_retries,
            config.check_observations,
        )
        journal = await backend.open_journal()
        left = journal.state
        try:
            if left is not None:
                config = reconcile_config(config, worker_config, env, left)
            pool = cls._around(backend, config, worker_config, journal)
        except BaseException:
            await journal.close(keep=True)
            raise
        try:
            await pool._start_workers(env, left)
            await journal.begin(lambda: pool._state(worker_config, env), pool._snapshot)
            if left is not None:
                version = pool._versions.agents.number
                _log.info("sampler adopted", extra={"epoch": journal.epoch, "policy_version": version})
        except BaseException:
            await pool.close(keep=left is not None)
            raise
        return pool

    @classmethod
    def _around(cls, backend: Backend, config: PoolConfig, worker_config: WorkerConfig, journal: Journal) -> Pool:
        """A pool without workers."""
        default = backend.default_num_workers()
        num_workers = config.num_workers or min(default, config.max_workers or default)
        max_workers = config.max_workers or max(_MOST_WORKERS_OF_DEFAULT * default, num_workers)
        config = dataclasses.replace(config, num_workers=num_workers, max_workers=max_workers)
        versions = Versions(
            config.num_kept_versions,
            config.allowed_modules,
            config.allowed_methods,
            config.onnx,
            config.python,
            config.max_kept_agent_bytes,
            journal,
        )
        workers = Workers(backend, worker_config, config.health, versions.prepare)
        versions.attach(workers)
        return cls(config, workers, versions, journal)

    async def _start_workers(self, env: EnvSpec, left: SamplerState | None) -> None:
        config, num_workers = self._config, self._config.num_workers
        assert num_workers is not None  # noqa: S101  # a pool has decided
        if config.min_healthy_workers > num_workers:
            whose = "the number of workers" if left is None else "the number of workers that the sampler has"
            expected = f"at most {whose}, {num_workers}"
            raise InvalidValueError.of("min_healthy_workers", expected=expected, got=config.min_healthy_workers)
        await self._workers.start(num_workers)
        if left is None:
            await self._versions.update_env([env], per_worker=False)
        else:
            await self._workers.broadcast(self._versions.take_over, wait_for_lost=False, isolate_failures=True)
            self._workers.go_on(left.snapshot.workers, left.snapshot.departed)

    async def close(self, *, keep: bool = False) -> None:
        """Ends the workers, or leaves them to the next server. Calls that run fail."""
        await self._prefetcher.end(drop=True)
        if keep:
            self._workers.leave()
        else:
            await self._workers.close()
        await self._journal.close(keep=keep)

    async def lost(self) -> str:
        """Waits until the sampler is another server's; returns a text that says so."""
        return await self._journal.lost()

    def drain(self, error: DomainError) -> None:
        """Lets no further call begin: those that wait for their turn, or come later, fail with the error."""
        self._admission.refuse(error)
        self._evaluations.drain(error)

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
            TooFewWorkersError: fewer workers are there than the pool wants.
            WorkerLostError: all workers are lost or hang, or of an update for each one; and could not be replaced.
        """
        self._workers.check_enough()
        self._eviction.reset()
        await self._prefetcher.end(drop=True)
        version = await self._versions.update_agent(updates, per_worker=per_worker)
        await self._prefetcher.end(drop=True)  # of a call that ended meanwhile
        self._estimates.fade()
        self._evict_old_versions()
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
            TooFewWorkersError, WorkerLostError: see `update_agent`.
        """
        self._workers.check_enough()
        self._eviction.reset()
        await self._prefetcher.end(drop=True)
        if not all(isinstance(update, EnvSpec) for update in updates):
            # So that the environments are free to be changed in place.
            self._sequences.drop_kept()
            self._row_sequences.free_rows()
        try:
            version, env = await self._versions.update_env(updates, per_worker=per_worker)
            self._row_sequences.end_own(version)
            await self._prefetcher.end(drop=True)  # of a call that ended meanwhile
        finally:
            self._evict_old_versions()
        return EnvUpdated(version, self._versions.listed(env), env.description)

    async def resize(self, num_workers: int) -> int:
        """Has so many workers from now on: adds some behind the last one, or takes away those of the highest indices.

        Returns once those that are added hold all that the others do, or once calls that begin use no more those that
        go. Calls that run keep the workers that they began with to their end: only then do these go.

        Args:
            num_workers: how many.

        Returns:
            How many there were.

        Raises:
            OverLimitError: more than the pool is to have, or there is no room for the environments of all their rows.
            NotReadyError: workers have agents or environments of their own.
            WorkerLostError: not all did start in time. Nothing has changed then.
        """
        previous = await self._resizing.resize(num_workers)
        await self._journal.write()
        return previous

    async def sample(
        self, request: SampleRequest, receiver: Receiver = NEVER_STALLED
    ) -> AsyncGenerator[Beginning | Delivery | Progress | Account, None]:
        """Samples episodes, or fragments of some.

        First comes what they are a function of, then deliveries in the order of the episodes and progress between
        them, at last the account.

        Closing the iterator early ends the work. While the receiver does not take what is there for it, another call
        may have this one's turn.

        Raises:
            InvalidValueError: the request does not go with the pool as it is.
            NotReadyError: there is no agent, it does not fit, it has not the expected version, a version is not held
                any more, or rows are not where they are to go on.
            SamplerLostError: another server has the sampler now.
            EnvFailedError, AgentFailedError, OverLimitError, WorkerLostError: see `CallDriver.running`. Too many
                waiting calls are an OverLimitError, too.
            TooFewWorkersError: fewer workers are there than the pool wants.
        """
        self._workers.check_enough()
        arrived = time.monotonic()
        async with contextlib.AsyncExitStack() as stack:
            async with self._admission.admitting(stack, receiver) as ticks:
                async for _ in ticks:
                    yield Progress(0)
            stack.callback(self._evict_old_versions)  # those that the call was the last to use
            try:
                policy_version, env_version = self._choose_versions(request)
                stack.enter_context(self._versions.agents.using(policy_version))
                stack.enter_context(self._versions.envs.using(env_version))
                await self._check_fit(policy_version, env_version)
                self._versions.check_exploration(policy_version, request.exploration)
                await self._prefetcher.end(drop=False)
                # Nothing is awaited from here until the call is made: what is kept for it is of this team.
                workforce = stack.enter_context(self._workers.workforce.using())
                check_size(request.num_workers, len(workforce))
                self._versions.check_size(policy_version, env_version, len(workforce))
                call: CallDriver
                if isinstance(request.target, Fragments):
                    fragment_call = call = self._begin_fragments(request, request.target, policy_version, env_version)
                    settlement: Settlement = FragmentSettlement(self._row_sequences, fragment_call)
                else:
                    own = stack.enter_context(self._sequences.own()) if request.seed is None else None
                    episode_call = call = self._begin_call(request, own, policy_version, env_version, EpisodeCall)
                    settlement = EpisodeSettlement(self._sequences, episode_call, own)
            except DomainError:
                self._counters.num_failed_calls += 1
                raise
            account = call.account
            account.queued_seconds = time.monotonic() - arrived
            async with self._running(call, settlement) as items:
                yield self._beginning(call)
                async for item in items:
                    yield item
        self._begin_prefetch(request, account)
        yield account

    def evaluate(
        self, request: EvaluationRequest, receiver: Receiver = NEVER_STALLED
    ) -> AsyncGenerator[Beginning | Delivery | Progress | Evaluation, None]:
        """Samples episodes beside everything else, for what they come to.

        First comes what they are a function of, then progress, and deliveries if they are wanted, at last the
        evaluation. Closing the iterator early ends the work.

        Raises:
            InvalidValueError, NotFoundError, NotAllowedError: the request, or the environment that it brings, is of no
                use; see `update_env`.
            NotReadyError, EnvFailedError, AgentFailedError, OverLimitError, WorkerLostError: see `sample`.
        """
        return self._written(self._evaluations.evaluate(request, receiver))

    def evaluate_population(
        self, request: PopulationRequest, receiver: Receiver = NEVER_STALLED
    ) -> AsyncGenerator[Beginning | Delivery | Progress | Evaluation, None]:
        """The same for many parameter sets of an agent, without deliveries.

        Raises:
            InvalidValueError: also if there are no such parameters, workers differ, or rows cannot be stepped one by
                one.
        """
        return self._written(self._evaluations.evaluate_population(request, receiver))

    def status(self) -> PoolStatus:
        """The state now."""
        workers = [
            WorkerStatus(
                slot.index,
                slot.healthy,
                not self._workers.workforce.has(slot),
                slot.identity,
                self._versions.description.num_rows,
                slot.num_simulated_steps,
                slot.given_up,
                slot.restarts.count,
                slot.last_failure,
            )
            for slot in self._workers.everyone
        ]
        versions, env = self._versions, self._versions.envs.current
        counted = self._workers.departed.plus(*(slot.totals for slot in self._workers.everyone))
        return PoolStatus(
            env_specs=versions.listed(env) if env else (),
            env_version=versions.envs.number,
            env=versions.description,
            agent_kinds=[kind_of(agent) for agent in versions.agents.current or ()],
            policy_version=versions.agents.number,
            seed=self._sequences.first_own.seed,
            next_index=self._next_index(),
            workers=workers,
            counters=self._counters,
            num_simulated_steps=counted.num_simulated_steps,
            num_worker_restarts=counted.num_restarts,
            uptime_seconds=time.monotonic() - self._started,
            min_healthy_workers=self._config.min_healthy_workers,
        )

    def _state(self, worker_config: WorkerConfig, first_env: EnvSpec) -> SamplerState:
        """All that is to outlive this server."""
        return SamplerState(
            __version__,
            self._run,
            self._config.seed,
            worker_config,
            first_env,
            time.time() - (time.monotonic() - self._started),
            self._snapshot(),
            dict(self._versions.agents.items()),
            dict(self._versions.envs.items()),
            self._row_sequences.states(),
        )

    def _snapshot(self) -> Snapshot:
        env_versions, policy_versions = self._versions.to_keep()
        return Snapshot(
            dataclasses.replace(self._counters),
            [slot.totals for slot in self._workers],
            self._workers.departed.plus(*(slot.totals for slot in self._workers.leaving)),
            frozenset(policy_versions),
            frozenset(env_versions),
            self._row_sequences.numbers(),
        )

    async def _written(self, items: AsyncGenerator[_Item, None]) -> AsyncGenerator[_Item, None]:
        """What an evaluation gives; what it has counted is written before its end."""
        async with contextlib.aclosing(items):
            async for item in items:
                if isinstance(item, Evaluation):
                    await self._journal.write()
                yield item

    def _num_calls(self) -> int:
        """How many calls share the workers' time."""
        return self._num_running + self._evaluations.num_running

    def _choose_versions(self, request: SampleRequest) -> tuple[int, int]:
        """The versions of the agent and the environment that a call is to sample with."""
        check_run(request.run, self._run)
        policy_version = self._versions.choose_policy(request)
        with within("options"):
            return policy_version, self._versions.envs.choose(request.env_version, Reason.ENVIRONMENT_VERSION)

    async def _check_fit(self, policy_version: int, env_version: int) -> None:
        misfit = await self._versions.misfit(policy_version, env_version)
        if misfit is not None:
            text = f"the agent does not fit the environment since it was replaced: {misfit.message}"
            raise NotReadyError(text, reason=Reason.AGENT_MISFIT)

    def _begin_prefetch(self, request: SampleRequest, account: Account) -> None:
        """Begins with what the request that this is the account of would ask for next, if it is to be and none runs."""
        versions = self._versions
        current = versions.agents.number, versions.envs.number
        is_current = (account.policy_version, account.env_version) == current
        if request.prefetch and is_current and not (self._num_running or self._prefetcher.is_running):
            with self._sequences.own() as own:
                self._prefetcher.begin(self._begin_call(request, own, *current, Prefetch))

    def _begin_call(
        self,
        request: SampleRequest,
        own: OwnSequence | None,
        policy_version: int,
        env_version: int,
        make: type[_Call],
    ) -> _Call:
        config, target = self._config, request.target
        assert not isinstance(target, Fragments)  # noqa: S101
        env = self._env(env_version)
        rows = env.rows
        max_episode_length = request.max_episode_length or config.max_episode_length
        workforce = self._workers.workforce
        placement = self._versions.placement(policy_version, env_version, len(workforce))
        seed, first, skipped = request.seed, request.first_index, 0
        if own is not None:
            kind = SequenceKind(policy_version, env_version, max_episode_length, request.exploration)
            seed, first = own.seed, own.first_index(kind, rows.unit_size(placement))
        if isinstance(target, Exactly):
            num_episodes = target.num_episodes_per_worker * len(workforce)
            if target.num_skipped > num_episodes:
                expected = f"at most the number of all, {num_episodes}"
                raise InvalidValueError.of("skip_episode_count", expected=expected, got=target.num_skipped)
            placement, skipped = PerWorker(first, target.num_episodes_per_worker), target.num_skipped
        assert seed is not None  # noqa: S101  # either the request has one, or the lane
        self._sequences.drop_outdated(self._versions.agents.number, self._versions.envs.number)
        wanted = SequenceSpec(0, seed, policy_version, env_version, max_episode_length, request.exploration)
        sequence = self._sequences.open(wanted, first + skipped, placement, workforce)
        settings = CallSettings.of(request, config, self._num_calls)
        max_episode_steps, env_versions = env.description.max_episode_steps, self._versions.envs
        estimate = self._estimates.of(env_version, max_episode_steps, max_episode_length, env_versions)
        return make(target, sequence, workforce, rows, estimate, settings, env.description.reproducibility)

    def _next_index(self) -> int:
        """Where the next call begins that says nothing of itself."""
        versions, own = self._versions, self._sequences.first_own
        current = versions.agents.number, versions.envs.number
        placement = versions.placement(*current, len(self._workers))
        unit_size = self._env(versions.envs.number).rows.unit_size(placement)
        return own.first_index(SequenceKind(*current, self._config.max_episode_length), unit_size)

    def _begin_fragments(
        self, request: SampleRequest, target: Fragments, policy_version: int, env_version: int
    ) -> FragmentCall:
        config, workforce = self._config, self._workers.workforce
        num_rows = self._env(env_version).description.num_rows
        check_fragments(request, target, len(workforce) * num_rows, config.max_episode_length)
        kind = RowSequenceKind(
            env_version, request.max_episode_length or config.max_episode_length, target.soft_horizon
        )
        initial = Checkpoint.initial(len(workforce), num_rows)
        if request.seed is None:
            sequence, start = self._row_sequences.begin_own(kind, initial)
        else:
            sequence, start = self._row_sequences.begin(request.seed, kind, target.row_step_count, initial)
        settings = CallSettings.of(request, config, self._num_calls)
        ids, reproducibility = self._row_sequences.ids, self._env(env_version).description.reproducibility
        return FragmentCall(target, sequence, start, policy_version, ids, workforce, settings, reproducibility)

    def _env(self, version: int) -> EnvVersion:
        """A version of the environments, which has been checked."""
        env = self._versions.envs.get(version)
        assert env is not None  # noqa: S101
        return env

    def _beginning(self, call: CallDriver) -> Beginning:
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
            num_workers=len(account.workers),
        )

    @contextlib.asynccontextmanager
    async def _running(
        self, call: CallDriver, settlement: Settlement
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
            settlement.cancel(error)
            raise
        else:
            self._sequences.take_dropped(call.account)
            self._row_sequences.take_dropped(call.account)
            moved = settlement.complete()
            counters.num_completed_calls += 1
        finally:
            self._num_running -= 1
            call.count_simulated()
            counters.count_delivered(call.account)
            counters.count_faults(call.account)
        await self._journal.write(moved=moved)

    def _evict_old_versions(self) -> None:
        """Has the workers forget, in the background, what neither another call nor a running one needs."""
        self._eviction.evict_except(*self._versions.to_keep())
