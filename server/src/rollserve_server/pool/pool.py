"""The pool: a sampler's workers with their agents and environments, and the calls that use them."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import time
from typing import TYPE_CHECKING

from rollserve_server.admission import NEVER_STALLED, Receiver
from rollserve_server.agents import kind_of, policy_versions
from rollserve_server.envs import pickle_uniform_boxes
from rollserve_server.errors import DomainError, InvalidValueError, NotFoundError, NotReadyError
from rollserve_server.pool.calls.driving import Drive
from rollserve_server.pool.calls.evaluations import Evaluations
from rollserve_server.pool.calls.samplings import Samplings
from rollserve_server.pool.calls.stream import Streams
from rollserve_server.pool.journal.journal import NextJournal
from rollserve_server.pool.parts import PoolParts, decide, reloaded
from rollserve_server.pool.requests import ANY_VERSIONS, DriveResumption, SessionReading
from rollserve_server.pool.resizing import Resizing
from rollserve_server.pool.results import PoolStatus, Recorder, WorkerStatus
from rollserve_server.pool.saving import journal_header, journal_state, restore_into, save, settings_of, take_over
from rollserve_server.pool.scaler import Scaler
from rollserve_server.pool.takeover import check_left, reconcile
from rollserve_server.pool.versions.agent_updates import AgentQueries
from rollserve_server.pool.versions.env_calls import EnvCalls
from rollserve_server.pool.versions.env_videos import EnvVideos
from rollserve_server.sampling import SequenceSpec
from rollserve_wire.environments import EnvSpec
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from rollserve_server.envs import MethodCall, VideoForm
    from rollserve_server.pool.accounts import Account
    from rollserve_server.pool.backends.backend import Backend
    from rollserve_server.pool.episode_log import EpisodeLog
    from rollserve_server.pool.requests import (
        AgentUpdate,
        DriveRequest,
        EnvUpdate,
        EvaluationRequest,
        Expectation,
        PopulationRequest,
        SampleRequest,
        SamplingOptions,
        StreamClient,
        StreamRequest,
        VideoRequest,
    )
    from rollserve_server.pool.results import (
        AgentUpdated,
        Beginning,
        Delivery,
        EnvUpdated,
        EnvValues,
        Evaluation,
        Progress,
        StreamRound,
    )
    from rollserve_server.pool.scaler import Granting
    from rollserve_server.pool.state.saved_sampler import SavedSampler
    from rollserve_server.pool.versions.env_videos import RenderedEnv
    from rollserve_server.settings import PoolSettings
    from rollserve_wire.replays import RecordedEpisode

__all__ = ["Pool"]

_log = logging.getLogger(__name__)


class Pool:
    """A sampler's workers.

    Several sampling calls run at a time, each as if alone; more queue in order of arrival. Updates do not wait for
    calls. Make a pool with `start`.

    Attributes:
        agents: answers queries about the agents that are kept.
        is_taken_over: whether an earlier server left the sampler.
    """

    def __init__(self, backend: Backend, parts: PoolParts, env: EnvSpec, *, is_taken_over: bool) -> None:
        self._backend = backend
        self._env, self._first_settings = env, parts.settings
        self.is_taken_over = is_taken_over
        self._refusal: DomainError | None = None
        self._scaler: Scaler | None = None
        self._granting: Granting | None = None
        self._beginning_again = asyncio.Lock()
        self._drives: dict[str, Drive] = {}  # those with a lease, by token
        self._use(parts)

    def _use(self, parts: PoolParts) -> None:
        """Begin to answer requests with these parts."""
        self._parts = parts
        self.agents = AgentQueries(parts.versions)
        self._samplings = Samplings(parts)
        self._streams = Streams(parts, self._samplings)
        self._evaluations = Evaluations(parts)
        self._env_calls = EnvCalls(parts.versions, parts.settings)
        self._env_videos = EnvVideos(parts.versions, parts.settings)
        self._resizing = Resizing(parts, self._samplings)
        self._scale()
        self._started = time.monotonic()
        if self._refusal is not None:  # it came while the parts were prepared
            self._refuse(self._refusal)

    def use(self, settings: PoolSettings) -> None:
        """Use the reloadable ones of the settings from now on; what runs goes on with the former ones."""
        self._first_settings = reloaded(self._first_settings, settings)
        self._parts.use(settings)
        self._samplings.use_limits()
        self._evaluations.use_limits()
        self._env_calls.allow = settings.allow
        self._env_videos.limits = settings.rendering

    def scale_within(self, granting: Granting) -> None:
        """Have the number of workers follow the load, if settings ask for that, within what a function grants."""
        self._granting = granting
        self._scale()

    def _scale(self) -> None:
        self._end_scaling()
        if self._granting is not None:
            self._scaler = Scaler(self._parts, self._resizing, self._granting)

    def _end_scaling(self) -> None:
        if self._scaler is not None:
            self._scaler.close()

    @property
    def versions(self) -> tuple[int, int]:
        """Numbers of the current versions of agents and environments; 0 before there is one."""
        return self._parts.versions.agents.number, self._parts.versions.envs.number

    @property
    def num_workers(self) -> int:
        """Number of workers for calls that begin now."""
        return len(self._parts.workers)

    @property
    def max_workers(self) -> int:
        """Number of workers that a resize may ask for."""
        return self._parts.settings.max_workers or self.num_workers

    def max_episode_length(self, options: SamplingOptions) -> int | None:
        """Return the number of steps after which a call's episodes are truncated; None for no limit."""
        return self._parts.max_episode_length(options)

    @classmethod
    async def start(
        cls, backend: Backend, settings: PoolSettings, env: EnvSpec, saved: SavedSampler | None = None
    ) -> Pool:
        """Start a pool whose workers all have this environment, or take over the one that an earlier server left.

        Where there is none to take over, a saved sampler goes on instead, if there is one.

        Raises:
            SamplerLostError: another server has it.
            WorkerLostError: a worker did not start in time, or none did.
            NotFoundError, InvalidValueError, NotAllowedError: the environment cannot be made, or the existing pool
                was made with other settings.
        """
        pickle_uniform_boxes()
        journal = await backend.open_journal(lambda state: check_left(settings, env, state))
        left = journal.state
        run = None if left is None else left.run
        try:
            if left is not None:
                settings = reconcile(settings, env, left)
            elif saved is not None:
                settings = settings_of(saved, settings)
            settings = decide(settings, backend.default_num_workers())
            parts = PoolParts(backend, settings, journal, run and run.name)
            pool = cls(backend, parts, env, is_taken_over=left is not None)
        except BaseException:
            await journal.close(keep=True)
            raise
        try:
            if left is not None and run is not None:
                await take_over(parts, left)
                pool._started -= max(time.time() - run.started_seconds, 0.0)
            elif saved is not None:
                await restore_into(parts, saved)
                ids = sorted({spec.id for spec in pool.status().env_specs})
                extra = {"env": ", ".join(ids), "workers": len(parts.workers), "seed": parts.seed}
                _log.info("sampler restored", extra=extra)
                if env.id not in ids:
                    event = "the saved sampler has another environment than the settings: --no-adopt begins anew"
                    _log.warning(event, extra={"env": env.id})
            else:
                await parts.begin(env)
            await journal.begin(pool._state, lambda: journal_header(parts))
            parts.workers.renew()
            if left is not None:
                version = parts.versions.agents.number
                _log.info("sampler taken over", extra={"epoch": journal.epoch, "policy_version": version})
            elif journal.follows_loss:
                event = "sampler lost with its journal: a new run begins, without versions, with other own sequences"
                _log.warning(event, extra={"run": parts.run, "epoch": journal.epoch})
        except BaseException:
            await pool.close(keep=left is not None)
            raise
        return pool

    async def close(self, *, keep: bool = False) -> None:
        """End the workers, or leave them to the next server. Running calls fail."""
        async with self._not_scaling():
            self._end_scaling()
        for drive in list(self._drives.values()):
            await drive.close()
        self._samplings.end_prefetch(drop=True)
        if keep:
            self._parts.workers.hand_over()
        else:
            await self._parts.workers.close()
        await self._parts.journal.close(keep=keep)

    def abandon(self) -> None:
        """Ask nothing more of workers and journal, whose backend is lost."""
        self._end_scaling()
        self._parts.workers.abandon()
        self._parts.journal.abandon()

    async def reset(self) -> None:
        """Begin a new run, as after a fresh start of the server: first environment, no agent, sequences at their start.

        Calls that run lose their workers, and queued calls fail. A reset that fails has changed nothing.

        Raises:
            WorkerLostError, NotFoundError, InvalidValueError, NotAllowedError: as of `start`.
        """
        await self._begin_again("reset", self._first_settings, lambda parts: parts.begin(self._env))
        _log.info("sampler reset", extra={"run": self._parts.run})

    async def save(self) -> SavedSampler:
        """Return all that another server needs to go on as the sampler would. Calls that run count as not begun."""
        return await save(self._parts)

    async def restore(self, saved: SavedSampler, client_id: str = "") -> None:
        """Go on as a saved sampler, in a new run; calls that run or wait fail, as of `reset`.

        Args:
            saved: the sampler.
            client_id: id of the client to whom its versions belong; empty for none in particular.

        Raises:
            NotReadyError: the saved sampler does not fit this server's settings.
            InvalidValueError, NotFoundError, NotAllowedError, OverLimitError, WorkerLostError: it is not accepted here;
                nothing has changed then.
        """
        self._check_open()
        settings = settings_of(saved, self._parts.settings)
        await self._begin_again("restored", settings, lambda parts: restore_into(parts, saved, client_id))
        _log.info(
            "sampler restored", extra={"run": self._parts.run, "policy_version": self._parts.versions.agents.number}
        )

    async def _begin_again(
        self, what: str, settings: PoolSettings, prepare: Callable[[PoolParts], Awaitable[None]]
    ) -> None:
        """Begin a new run, with parts that a function has prepared; errors say what was done."""
        async with self._beginning_again:
            self._check_open()
            old = self._parts
            async with old.versions.changing_envs, old.versions.updating:
                journal = NextJournal(old.journal)
                parts = PoolParts(self._backend, settings, journal)
                try:
                    await prepare(parts)
                except BaseException:
                    await parts.workers.close()
                    raise
                refusal = NotReadyError(f"the sampler was {what}", reason=Reason.SAMPLER_RUN)
                self._refuse(refusal)
                old.versions.refuse_updates(refusal)
                self._samplings.end_prefetch(drop=True)
                self._use(parts)
                try:
                    await journal.begin(self._state, lambda: journal_header(parts))
                    parts.workers.renew()
                finally:
                    await old.workers.close()

    async def lost(self) -> str:
        """Wait until another server has the sampler; return a text that says so."""
        return await self._parts.journal.lost()

    def drain(self, error: DomainError) -> None:
        """Let no further call or update begin: waiting and later ones fail with the error."""
        self._refusal = error
        self._refuse(error)

    def _refuse(self, error: DomainError) -> None:
        """Fail what waits for the present parts with the error, now and later: calls, streams, readers of episodes."""
        self._streams.refuse(error)
        self._samplings.admission.refuse(error)
        self._evaluations.admission.refuse(error)
        self._parts.episode_log.end(error)

    def _check_open(self) -> None:
        if self._refusal is not None:
            raise copy.copy(self._refusal)

    async def update_agent(
        self, updates: Sequence[AgentUpdate | None], expected: Expectation = ANY_VERSIONS, *, per_worker: bool = False
    ) -> AgentUpdated:
        """Give all workers new agents, or none.

        Args:
            updates: one for all workers, or one for each, None to keep the worker's agent.
            expected: versions that have to be current, and the client that makes the new one.
            per_worker: whether there is one for each worker.

        Returns:
            The new version, once every worker has its agent.

        Raises:
            InvalidValueError: there is not one for each worker, or one is malformed or does not fit the spaces.
            OverLimitError: a model is too large.
            NotFoundError, NotAllowedError: a Python agent is not installed, or comes as a pickle.
            NotReadyError: there is no agent to keep or to take parameters; or other versions are current.
            TooFewWorkersError: fewer workers are healthy than the pool requires.
            WorkerLostError: workers are lost or hang, and could not be replaced: all of them, or one of those with an
                update of their own.
        """
        self._check_open()
        self._parts.workers.check_enough()
        updated = await self._samplings.update_agent(updates, expected, per_worker=per_worker)
        self._parts.versions.evict()
        return updated

    async def current_if_same(
        self, updates: Sequence[AgentUpdate | None], expected: Expectation = ANY_VERSIONS, *, per_worker: bool = False
    ) -> AgentUpdated | None:
        """Return the current version if `update_agent` would change nothing, else None.

        Arguments and errors as of `update_agent`, which finds more errors.
        """
        return await self._parts.agent_updates.current_if_same(updates, expected, per_worker=per_worker)

    async def update_env(
        self,
        updates: Sequence[EnvUpdate | None],
        expected: Expectation = ANY_VERSIONS,
        *,
        per_worker: bool = False,
        may_be_free: bool = True,
    ) -> EnvUpdated:
        """Give all workers new or changed environments, or none.

        Args:
            updates: one for all workers, or one for each; each for all rows of a worker, one for each row, or
                None to keep a worker's environments.
            expected: as of `update_agent`.
            per_worker: whether there is one for each worker.
            may_be_free: whether environments may be of no profile.

        Returns:
            The new version and its spaces, once every worker has its environments.

        Raises:
            InvalidValueError: there is not one for each worker or row, an environment refuses its arguments, or spaces
                or numbers of rows differ between workers.
            NotFoundError, NotAllowedError: an id, profile, module, wrapper or method is unknown or not allowed.
            NotReadyError: another version is current.
            TooFewWorkersError, WorkerLostError: as of `update_agent`.
        """
        self._check_open()
        parts = self._parts
        parts.workers.check_enough()
        self._samplings.end_prefetch(drop=True)
        if not all(isinstance(update, EnvSpec) for update in updates):
            # So that environments are free to be changed in place.
            parts.free_rows()
        try:
            updated = await parts.env_updates.update(updates, expected, per_worker=per_worker, may_be_free=may_be_free)
            parts.sequences.drop_outdated(parts.versions.agents.number, parts.versions.envs.number)
            parts.row_sequences.end_own(updated.version)
            self._samplings.end_prefetch(drop=True)  # of a call that ended meanwhile
        finally:
            parts.versions.evict()
        return updated

    async def call_environments(
        self, call: MethodCall, env_version: int | None = None, expected: Expectation = ANY_VERSIONS
    ) -> EnvValues:
        """Call a method of the environments, and return its values. Environments are made for that, and thrown away.

        Args:
            call: the call.
            env_version: version of the environments; None for the current one.
            expected: as of `update_agent`.

        Raises:
            InvalidValueError: the environments are of a profile, cannot be stepped one by one, or have no such method;
                the method fails, or returns what JSON cannot hold.
            NotAllowedError: the operator does not allow the method.
            NotFoundError: an environment cannot be made.
            NotReadyError: another version is current, or the version is not kept.
            OverLimitError: an environment needs too much memory, or the values are too large.
            WorkerLostError: all workers are lost.
        """
        self._check_open()
        self._parts.workers.check_enough()
        return await self._env_calls.call(call, env_version, expected)

    def rendered_env(
        self, env_version: int | None = None, expected: Expectation = ANY_VERSIONS, *, sampled: bool
    ) -> RenderedEnv:
        """Return the environment of a version, to render episodes in.

        Args:
            env_version: version of the environments; None for the current one.
            expected: as of `update_agent`.
            sampled: whether episodes will be sampled for that, and not recorded.

        Raises:
            InvalidValueError: the environments cannot be replayed one by one, or differ.
            NotReadyError: another version is current, or the version is not kept.
        """
        self._check_open()
        return self._env_videos.env(env_version, expected, sampled=sampled)

    def render(
        self, env: RenderedEnv, episode: RecordedEpisode, request: VideoRequest
    ) -> AsyncGenerator[VideoForm | bytes, None]:
        """Replay an episode in an environment of its own, without workers; yield the video's form and its bytes.

        Closing the iterator early ends the work.

        Raises:
            InvalidValueError: the episode does not fit the environment, or the environment renders no pictures.
            NotReadyError: the replay differs from the episode.
            EnvFailedError: the environment raised an error.
            NotFoundError: a package is missing on the server.
            OverLimitError: the video is too large, or the environment needs too much memory.
            CallTooLongError: it takes too long.
        """
        return self._env_videos.render(env, episode, request)

    @property
    def own_seed(self) -> int:
        """Root seed of the sampler's own sequence."""
        return self._parts.sequences.first_own.seed

    async def resize(self, num_workers: int) -> int:
        """Change the number of workers: add some behind the last one, or remove the workers with the highest indices.

        Returns once added workers hold all that the others do, or once calls that begin do not use removed workers.
        Calls that run keep the workers that they began with; only then these are closed. From then on the number does
        not follow the load.

        Args:
            num_workers: the new number.

        Returns:
            The previous number.

        Raises:
            OverLimitError: more workers than allowed, or no room for the environments of all their rows.
            NotReadyError: workers have agents or environments of their own.
            WorkerLostError: a worker did not start in time. Nothing has changed then.
        """
        self._check_open()
        async with self._not_scaling():
            return await self._resizing.resize(num_workers)

    async def follow_load(self) -> int:
        """Have the number of workers follow the load again, if settings permit; return the present number.

        Raises:
            InvalidValueError: the number is not to follow the load.
        """
        self._check_open()
        if self._scaler is None or self._scaler.status is None:
            expected = "at least 1, because the number does not follow the load without --min-workers"
            raise InvalidValueError.of("worker_count", expected=expected, got=0)
        async with self._not_scaling():
            await self._resizing.follow_load()
        return self.num_workers

    def _not_scaling(self) -> AbstractAsyncContextManager[None]:
        """Leave the number of workers to whoever changes it in the block."""
        return contextlib.nullcontext() if self._scaler is None else self._scaler.paused()

    async def acting_version(self, options: SamplingOptions, num_workers: int | None = None) -> int:
        """Return the version of the agent that would act in calls with these options now.

        Args:
            options: options of the calls.
            num_workers: number of workers that they ask for; None for any number.

        Raises:
            InvalidValueError: the agent cannot act as freely as that.
            NotReadyError: as of `sample`.
        """
        return await self._samplings.acting_version(options, num_workers)

    def sample(
        self, request: SampleRequest, receiver: Receiver = NEVER_STALLED
    ) -> AsyncGenerator[AgentUpdated | Beginning | Delivery | Progress | Account, None]:
        """Sample episodes or fragments.

        Yields the update of the agent if the request has one, the beginning, then deliveries in the order of the
        episodes with progress between them, and at last the account. Closing the iterator early ends the work. While
        the receiver is stalled, another call may run instead.

        Raises:
            InvalidValueError: the request does not go with the pool as it is.
            DomainError: the update of the agent failed, as of `update_agent`.
            NotReadyError: there is no agent, it does not fit, versions are not the expected ones, a version is not kept
                any more, or rows do not stand where they are to go on.
            SamplerLostError: another server has the sampler now.
            EnvFailedError, AgentFailedError, OverLimitError, WorkerLostError: as of `Call.running`. A full queue
                is an OverLimitError, too.
            TooFewWorkersError: fewer workers are healthy than the pool requires.
        """
        return self._samplings.sample(request, receiver)

    def stream(
        self, request: StreamRequest, client: StreamClient, receiver: Receiver = NEVER_STALLED
    ) -> AsyncGenerator[AgentUpdated | Beginning | Delivery | StreamRound | Progress | Account, None]:
        """Sample round after round, until the client ends the stream or all its steps are sent.

        Yields the update of the agent if the request has one, the beginning, for each round its deliveries and then the
        round itself, with progress between them, and at last the account. Closing the iterator early ends the work.

        Raises:
            InvalidValueError, NotReadyError, DomainError: as of `sample`, also for a later round.
            OverLimitError: there are too many streams.
        """
        return self._streams.stream(request, client, receiver)

    def drive(
        self,
        request: DriveRequest | DriveResumption | SessionReading,
        max_idle_seconds: float,
        owner: Sequence[str] = (),
        recorder: Recorder | None = None,
    ) -> Drive:
        """Return a session, in which a client acts step by step: a new one, or one that another stream has begun.

        For the client that acts, its `items` are the beginning, a `DrivenStep` for each step that actions are wanted
        for, for each round its deliveries and then the round itself, with progress between them, and at last what was
        recorded, and the account. Closing the iterator early ends the session, unless it has a lease. For a client that
        reads, `read_items` has the rounds and the account.

        Args:
            request: the request.
            max_idle_seconds: how long the client may take for the actions of a step.
            owner: whom the session belongs to, who alone takes it up.
            recorder: what takes the rounds in place of the client, and ends with the session; None for nothing.

        Raises:
            NotFoundError: no session of the owner's has the token.
            InvalidValueError: there are no rounds for a reader.
            InvalidValueError, NotReadyError, DomainError: as of `sample`, from `items`, also for a later round.
        """
        self._check_open()
        if isinstance(request, DriveResumption | SessionReading):
            found = self._drives.get(request.token)
            if found is None or found.owner != owner:
                text = "expected the token of a session that has not ended, got another one"
                raise NotFoundError(text, reason=Reason.SESSION_NOT_FOUND)
            if isinstance(request, SessionReading) and found.rounds is None:
                expected, got = "the token of a session with to_reader", "one of a session without"
                raise InvalidValueError.of("reading.token", expected=expected, got=got)
            return found
        self._parts.workers.check_enough()
        drive = Drive(
            self._parts,
            self._samplings,
            request,
            owner,
            max_idle_seconds,
            recorder,
            forget=lambda drive: self._drives.pop(drive.token, None),
        )
        if drive.token:
            self._drives[drive.token] = drive
        return drive

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

    @property
    def episode_log(self) -> EpisodeLog:
        """The ended episodes of the sampler's present run."""
        return self._parts.episode_log

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
        agent, admissions = versions.agents.current, (self._samplings.admission, self._evaluations.admission)
        return PoolStatus(
            env_specs=versions.env_specs(env) if env else (),
            env_version=versions.envs.number,
            env=description,
            agent_kinds=[kind_of(agent) for agent in agent or ()],
            policy_version=versions.agents.number,
            policy_updated_seconds=0.0 if agent is None else agent.updated_seconds,
            seed=parts.sequences.first_own.seed,
            next_index=self._next_index(),
            workers=workers,
            counters=parts.counters,
            num_simulated_steps=totals.num_simulated_steps,
            num_worker_restarts=totals.num_restarts,
            uptime_seconds=time.monotonic() - self._started,
            num_running_calls=sum(admission.num_running for admission in admissions),
            num_queued_calls=sum(admission.num_queued for admission in admissions),
            min_healthy_workers=parts.settings.health.min_healthy_workers,
            profiles=parts.env_updates.profiles.descriptions,
            policies=policy_versions(agent[0]) if agent is not None else {},
            busy_seconds=parts.workers.load.busy_seconds,
            scaling=None if self._scaler is None else self._scaler.status,
        )

    def _next_index(self) -> int:
        """Return the index at which the next call begins that names no seed and sets no option."""
        versions, own = self._parts.versions, self._parts.sequences.first_own
        current = versions.agents.number, versions.envs.number
        placement = self._parts.selection.placement(*current, len(self._parts.workers))
        unit_size = versions.env_in_use(versions.envs.number).unit_size(placement)
        max_episode_length = self._parts.settings.worker.max_episode_length
        return own.first_index(SequenceSpec(0, own.seed, *current, max_episode_length), unit_size)

    def _state(self) -> SavedSampler:
        """Return all of the state that outlives this server."""
        return journal_state(self._parts, self._env, time.time() - (time.monotonic() - self._started))
