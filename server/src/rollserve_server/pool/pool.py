"""The pool: a sampler's workers with their agents and environments, and the calls that use them."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING

from rollserve import EnvSpec
from rollserve_server import __version__
from rollserve_server.admission import NEVER_STALLED, Receiver
from rollserve_server.agents import kind_of
from rollserve_server.errors import DomainError, InvalidValueError
from rollserve_server.pool.calls.evaluations import Evaluations
from rollserve_server.pool.calls.pool_parts import PoolParts
from rollserve_server.pool.calls.samplings import Samplings
from rollserve_server.pool.interface.status import PoolStatus, WorkerStatus
from rollserve_server.pool.interface.updates import EnvUpdated
from rollserve_server.pool.resizing import resize
from rollserve_server.pool.sequences.row_sequences import RowSequences
from rollserve_server.pool.sequences.sequences import Sequences
from rollserve_server.pool.state.sampler_state import SamplerState, Snapshot
from rollserve_server.pool.takeover import own_seed, reconcile
from rollserve_server.pool.versions.agent_queries import AgentQueries
from rollserve_server.pool.versions.agent_updates import AgentUpdates
from rollserve_server.pool.versions.env_updates import EnvUpdates
from rollserve_server.pool.versions.eviction import Eviction
from rollserve_server.pool.versions.selection import Selection
from rollserve_server.pool.versions.versions import Versions
from rollserve_server.pool.workers.broadcast import Broadcast
from rollserve_server.sampling import SequenceSpec

if TYPE_CHECKING:
    from rollserve_server.pool.accounts.account import Account
    from rollserve_server.pool.backends.backend import Backend
    from rollserve_server.pool.interface.requests import EvaluationRequest, PopulationRequest, SampleRequest
    from rollserve_server.pool.interface.results import Beginning, Delivery, Evaluation, Progress
    from rollserve_server.pool.interface.updates import AgentUpdate, EnvUpdate
    from rollserve_server.pool.journal.journal import Journal
    from rollserve_server.settings import PoolSettings

__all__ = ["Pool"]

_log = logging.getLogger(__name__)

_DEFAULT_FACTOR = 4
"""Workers per core that clients may ask for by default: more would fill a machine that has no cores for them."""
_EPOCH_BITS = 40
"""Bits of the numbers that name work; the epoch stands above them, so that servers of one sampler use different
names."""
_SEED_BITS = 53
"""Bits of a random root seed: as many as an integer has in JavaScript."""


class Pool:
    """A sampler's workers.

    Several sampling calls run at a time, each as if alone; more queue in order of arrival. Updates do not wait for
    calls. Make a pool with `start`.

    Attributes:
        agents: answers queries about the agents that are kept.
        is_taken_over: whether an earlier server left the sampler.
    """

    def __init__(self, parts: PoolParts, state: SamplerState | None) -> None:
        self._parts = parts
        self.is_taken_over = state is not None
        self.agents = AgentQueries(parts.versions)
        self._agent_updates = AgentUpdates(parts.versions, parts.selection, parts.journal, parts.settings.agents)
        self._samplings = Samplings(parts)
        self._evaluations = Evaluations(parts)
        self._started = time.monotonic()
        if state is not None:
            parts.row_sequences.restore(state.row_sequences)
            parts.counters = state.snapshot.counters
            self._started -= max(time.time() - state.started_seconds, 0.0)

    @classmethod
    async def start(cls, backend: Backend, settings: PoolSettings, env: EnvSpec) -> Pool:
        """Start a pool whose workers all have this environment, or take over the one that an earlier server left.

        Raises:
            SamplerLostError: another server has it.
            WorkerLostError: a worker did not start in time, or none did.
            NotFoundError, InvalidValueError, NotAllowedError: the environment cannot be made, or the existing pool
                was made with other settings.
        """
        journal = await backend.open_journal()
        state = journal.state
        try:
            if state is not None:
                settings = reconcile(settings, env, state)
            settings = _decided(settings, backend.default_num_workers())
            pool = cls(_parts(backend, settings, journal), state)
        except BaseException:
            await journal.close(keep=True)
            raise
        try:
            await pool._start_workers(env, state)
            await journal.begin(lambda: pool._state(env), pool._snapshot)
            if state is not None:
                version = pool._parts.versions.agents.number
                _log.info("sampler taken over", extra={"epoch": journal.epoch, "policy_version": version})
        except BaseException:
            await pool.close(keep=state is not None)
            raise
        return pool

    async def _start_workers(self, env: EnvSpec, state: SamplerState | None) -> None:
        parts, num_workers = self._parts, self._parts.settings.workers
        assert num_workers is not None  # noqa: S101  # decided at the start
        min_healthy = parts.settings.health.min_healthy_workers
        if min_healthy > num_workers:
            whose = "the number of workers" if state is None else "the number of workers that the sampler has"
            expected = f"at most {num_workers}, {whose}"
            raise InvalidValueError.of("min_healthy_workers", expected=expected, got=min_healthy)
        await parts.workers.start(num_workers)
        if state is None:
            await parts.env_updates.update([env], per_worker=False)
        else:
            take_over = parts.versions.take_over
            await Broadcast(parts.workers, take_over, wait_for_lost=False, isolate_failures=True).answers()
            parts.workers.resume_totals(state.snapshot.workers, state.snapshot.departed)

    async def close(self, *, keep: bool = False) -> None:
        """End the workers, or leave them to the next server. Running calls fail."""
        await self._samplings.prefetcher.end(drop=True)
        if keep:
            self._parts.workers.hand_over()
        else:
            await self._parts.workers.close()
        await self._parts.journal.close(keep=keep)

    async def lost(self) -> str:
        """Wait until another server has the sampler; return a text that says so."""
        return await self._parts.journal.lost()

    def drain(self, error: DomainError) -> None:
        """Let no further call begin: waiting and later calls fail with the error."""
        self._samplings.admission.refuse(error)
        self._evaluations.admission.refuse(error)

    async def update_agent(self, updates: Sequence[AgentUpdate], *, per_worker: bool = False) -> int:
        """Give all workers new agents, or none.

        Args:
            updates: one for all workers, or one for each.
            per_worker: whether there is one for each worker.

        Returns:
            The new policy version, once every worker has its agent.

        Raises:
            InvalidValueError: there is not one for each worker, or one is malformed or does not fit the spaces.
            OverLimitError: a model is too large.
            NotFoundError, NotAllowedError: a Python agent is not installed, or comes as a pickle.
            NotReadyError: there are parameters, and no agent to take them.
            TooFewWorkersError: fewer workers are healthy than the pool requires.
            WorkerLostError: workers are lost or hang, and could not be replaced: all of them, or one of those with an
                update of their own.
        """
        self._parts.workers.check_enough()
        self._parts.eviction.reset()
        prefetcher = self._samplings.prefetcher
        await prefetcher.end(drop=True)
        version = await self._agent_updates.update(updates, per_worker=per_worker)
        await prefetcher.end(drop=True)  # of a call that ended meanwhile
        self._samplings.estimates.fade()
        self._parts.eviction.run()
        return version

    async def current_if_same(self, updates: Sequence[AgentUpdate], *, per_worker: bool = False) -> int | None:
        """Return the current policy version if `update_agent` would change nothing, else None.

        Arguments and errors as of `update_agent`, which finds more errors.
        """
        return await self._agent_updates.current_if_same(updates, per_worker=per_worker)

    async def update_env(self, updates: Sequence[EnvUpdate], *, per_worker: bool = False) -> EnvUpdated:
        """Give all workers new or changed environments, or none.

        Args:
            updates: one for all workers, or one for each; each for all rows of a worker, or one for each row.
            per_worker: whether there is one for each worker.

        Returns:
            The new version and its spaces, once every worker has its environments.

        Raises:
            InvalidValueError: there is not one for each worker or row, an environment refuses its arguments, or spaces
                or numbers of rows differ between workers.
            NotFoundError, NotAllowedError: an id, module, wrapper or method is unknown or not allowed.
            TooFewWorkersError, WorkerLostError: as of `update_agent`.
        """
        parts, prefetcher = self._parts, self._samplings.prefetcher
        parts.workers.check_enough()
        parts.eviction.reset()
        await prefetcher.end(drop=True)
        if not all(isinstance(update, EnvSpec) for update in updates):
            # So that environments are free to be changed in place.
            parts.sequences.drop_kept()
            parts.row_sequences.free_rows()
        try:
            version, env = await parts.env_updates.update(updates, per_worker=per_worker)
            parts.row_sequences.end_own(version)
            await prefetcher.end(drop=True)  # of a call that ended meanwhile
        finally:
            parts.eviction.run()
        return EnvUpdated(version, parts.versions.env_specs(env), env.description)

    async def resize(self, num_workers: int) -> int:
        """Change the number of workers: add some behind the last one, or remove the workers with the highest indices.

        Returns once added workers hold all that the others do, or once calls that begin do not use removed workers.
        Calls that run keep the workers that they began with; only then these are closed.

        Args:
            num_workers: the new number.

        Returns:
            The previous number.

        Raises:
            OverLimitError: more workers than allowed, or no room for the environments of all their rows.
            NotReadyError: workers have agents or environments of their own.
            WorkerLostError: a worker did not start in time. Nothing has changed then.
        """
        previous = await resize(self._parts, self._samplings.prefetcher, num_workers)
        await self._parts.journal.write()
        return previous

    def sample(
        self, request: SampleRequest, receiver: Receiver = NEVER_STALLED
    ) -> AsyncGenerator[Beginning | Delivery | Progress | Account, None]:
        """Sample episodes or fragments.

        Yields the beginning, then deliveries in the order of the episodes with progress between them, and at last the
        account. Closing the iterator early ends the work. While the receiver is stalled, another call may run instead.

        Raises:
            InvalidValueError: the request does not go with the pool as it is.
            NotReadyError: there is no agent, it does not fit, its version is not the expected one, a version is not
                kept any more, or rows do not stand where they are to go on.
            SamplerLostError: another server has the sampler now.
            EnvFailedError, AgentFailedError, OverLimitError, WorkerLostError: as of `Call.running`. A full queue
                is an OverLimitError, too.
            TooFewWorkersError: fewer workers are healthy than the pool requires.
        """
        return self._samplings.sample(request, receiver)

    def evaluate(
        self, request: EvaluationRequest, receiver: Receiver = NEVER_STALLED
    ) -> AsyncGenerator[Beginning | Delivery | Progress | Evaluation, None]:
        """Sample episodes beside everything else, for their returns and lengths.

        Yields the beginning, then progress, and deliveries if they are wanted, and at last the evaluation. Closing the
        iterator early ends the work.

        Raises:
            InvalidValueError, NotFoundError, NotAllowedError: the request, or its environment, is invalid; see
                `update_env`.
            NotReadyError, EnvFailedError, AgentFailedError, OverLimitError, WorkerLostError: as of `sample`.
        """
        return self._evaluations.evaluate(request, receiver)

    def evaluate_population(
        self, request: PopulationRequest, receiver: Receiver = NEVER_STALLED
    ) -> AsyncGenerator[Beginning | Delivery | Progress | Evaluation, None]:
        """Evaluate many parameter sets of the agent; yields as `evaluate` does, without deliveries.

        Raises:
            InvalidValueError: as of `evaluate`; or there are no such parameters, workers differ, or rows cannot be
                stepped one by one.
        """
        return self._evaluations.evaluate(request, receiver)

    def status(self) -> PoolStatus:
        """Return the state of the pool now."""
        parts, versions = self._parts, self._parts.versions
        env, description = versions.envs.current, versions.description
        workers = [
            WorkerStatus(
                index=slot.index,
                healthy=slot.healthy,
                is_leaving=not parts.workers.workforce.has(slot),
                given_up=slot.given_up,
                identity=slot.identity,
                num_rows=description.num_rows,
                **vars(slot.totals),
            )
            for slot in parts.workers.with_leaving
        ]
        totals = parts.workers.departed.plus(*workers)
        return PoolStatus(
            env_specs=versions.env_specs(env) if env else (),
            env_version=versions.envs.number,
            env=description,
            agent_kinds=[kind_of(agent) for agent in versions.agents.current or ()],
            policy_version=versions.agents.number,
            seed=parts.sequences.first_own.seed,
            next_index=self._next_index(),
            workers=workers,
            counters=parts.counters,
            num_simulated_steps=totals.num_simulated_steps,
            num_worker_restarts=totals.num_restarts,
            uptime_seconds=time.monotonic() - self._started,
            min_healthy_workers=parts.settings.health.min_healthy_workers,
        )

    def _next_index(self) -> int:
        """Return the index at which the next call begins that names no seed and sets no option."""
        versions, own = self._parts.versions, self._parts.sequences.first_own
        current = versions.agents.number, versions.envs.number
        placement = self._parts.selection.placement(*current, len(self._parts.workers))
        unit_size = versions.env_in_use(versions.envs.number).unit_size(placement)
        max_episode_length = self._parts.settings.worker.max_episode_length
        return own.first_index(SequenceSpec(0, own.seed, *current, max_episode_length), unit_size)

    def _state(self, first_env: EnvSpec) -> SamplerState:
        """Return all of the state that outlives this server."""
        parts = self._parts
        return SamplerState(
            __version__,
            parts.run,
            parts.seed,
            parts.settings.worker,
            first_env,
            time.time() - (time.monotonic() - self._started),
            self._snapshot(),
            dict(parts.versions.agents.items()),
            dict(parts.versions.envs.items()),
            parts.row_sequences.states(),
        )

    def _snapshot(self) -> Snapshot:
        """Return the small part of the state that outlives this server."""
        parts, kept = self._parts, self._parts.versions.kept()
        return Snapshot(
            dataclasses.replace(parts.counters),
            [slot.totals for slot in parts.workers],
            parts.workers.departed.plus(*(slot.totals for slot in parts.workers.leaving)),
            frozenset(kept.agents),
            frozenset(kept.envs),
            parts.row_sequences.numbers(),
        )


def _decided(settings: PoolSettings, default: int) -> PoolSettings:
    """Return settings with a seed and numbers of workers, given one worker for each core by default."""
    num_workers = settings.workers or min(default, settings.max_workers or default)
    max_workers = settings.max_workers or max(_DEFAULT_FACTOR * default, num_workers)
    seed = secrets.randbits(_SEED_BITS) if settings.seed is None else settings.seed
    return settings.model_copy(update={"workers": num_workers, "max_workers": max_workers, "seed": seed})


def _parts(backend: Backend, settings: PoolSettings, journal: Journal) -> PoolParts:
    """Make the parts of a pool, without workers."""
    state = journal.state
    versions = Versions(backend, settings, state)
    assert settings.seed is not None  # noqa: S101  # decided at the start
    seed = settings.seed if state is None else own_seed(settings.seed, journal.epoch)
    ids, max_kept = itertools.count((journal.epoch - 1 << _EPOCH_BITS) + 1), settings.calls.max_calls
    return PoolParts(
        settings,
        run=secrets.token_hex(8) if state is None else state.run,
        seed=settings.seed,
        ids=ids,
        workers=versions.workers,
        versions=versions,
        selection=Selection(versions, settings.agents),
        env_updates=EnvUpdates(versions, journal, settings.allow),
        eviction=Eviction(versions),
        sequences=Sequences(seed, max_kept, ids),
        row_sequences=RowSequences(seed, max_kept, ids),
        journal=journal,
    )
