"""Evaluations: calls in environments of their own, which leave alone what belongs to the sampler."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollserve import EnvSpec, Reason
from rollserve_server.admission import Admission, Receiver
from rollserve_server.agents import check_population
from rollserve_server.errors import InvalidValueError, NotReadyError, within
from rollserve_server.pool.calls.driver import CallSettings, Delivery, Progress, ignore_answer
from rollserve_server.pool.calls.evaluation import EvaluationCall
from rollserve_server.pool.calls.population import PopulationCall
from rollserve_server.pool.interface.beginning import Beginning, check_run
from rollserve_server.pool.interface.evaluation import Evaluation
from rollserve_server.pool.plan.length_estimate import LengthEstimate
from rollserve_server.pool.plan.plan import InAll, Ledger
from rollserve_server.pool.sequences.open_sequence import OpenSequence
from rollserve_server.pool.sequences.root_seeds import derived_seed
from rollserve_server.sampling import Population, SequenceSpec, Worker

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from rollserve_server.envs import WorkerSpecs
    from rollserve_server.errors import DomainError
    from rollserve_server.pool.config import PoolConfig
    from rollserve_server.pool.interface.evaluation import (
        EpisodeDelivery,
        EvaluationOptions,
        EvaluationRequest,
        PopulationRequest,
    )
    from rollserve_server.pool.interface.status import Counters
    from rollserve_server.pool.versions.eviction import Eviction
    from rollserve_server.pool.versions.versions import EnvVersion, Versions
    from rollserve_server.pool.workers.workers import Workers
    from rollserve_server.pool.workers.workforce import Workforce

__all__ = ["MOST_EVALUATIONS", "Evaluations"]

MOST_EVALUATIONS = 2
"""At a time, and as many again whose clients take nothing. Each has environments of its own on every worker; two, so
that one which goes wrong does not hold up the next."""
_SEED_KEY = (0,)
"""What the seed of evaluations derives from the pool's by; no other seed does by that."""

_Items = AsyncGenerator[Beginning | Delivery | Progress | Evaluation, None]
_AnyCall = EvaluationCall | PopulationCall
_Change = Callable[[Sequence["WorkerSpecs"], "EnvVersion | None"], Sequence["WorkerSpecs"]]
"""What is made of the specs of environments, given also those of the pool if they are its own."""


@dataclass(frozen=True)
class _Setting:
    """What an evaluation's episodes are a function of, beside their indices.

    Attributes:
        seed: their root seed.
        policy_version: which policy acts.
        env_number: the environments, by the number that workers know them by.
        env: the environments.
        env_version: which of the pool's environments they are like; 0 for none.
    """

    seed: int
    policy_version: int
    env_number: int
    env: EnvVersion
    env_version: int


class Evaluations:
    """Runs evaluations, a few at a time, each with workers' time beside whatever else they do.

    Attributes:
        num_running: how many are running.
    """

    def __init__(
        self,
        config: PoolConfig,
        workers: Workers,
        versions: Versions,
        eviction: Eviction,
        ids: Iterator[int],
        run: str,
        num_calls: Callable[[], int],
        counters: Counters,
    ) -> None:
        """Takes parts of the pool.

        Args:
            config: see there.
            workers: the workers.
            versions: what they hold.
            eviction: has them forget.
            ids: names for streams.
            run: the name of the pool's run.
            num_calls: asked for how many calls are running, evaluations among them.
            counters: of the pool.
        """
        self._counters = counters
        self.num_running = 0
        self._config = config
        self._workers = workers
        self._versions = versions
        self._eviction = eviction
        self._ids = ids
        self._run = run
        self._num_calls = num_calls
        self._admission = Admission(
            MOST_EVALUATIONS,
            config.progress_seconds,
            max_stalled=MOST_EVALUATIONS,
            max_waiting=config.max_waiting_calls,
        )
        self._seed = derived_seed(config.seed, _SEED_KEY)
        self._closing: set[asyncio.Future[None]] = set()

    def drain(self, error: DomainError) -> None:
        """See `Pool.drain`."""
        self._admission.refuse(error)

    def evaluate(self, request: EvaluationRequest, receiver: Receiver) -> _Items:
        """See `Pool.evaluate`."""
        return self._evaluate(request.options, None, lambda *prepared: self._begin_call(request, *prepared), receiver)

    def evaluate_population(self, request: PopulationRequest, receiver: Receiver) -> _Items:
        """See `Pool.evaluate_population`."""
        return self._evaluate(
            request.options, self._one_by_one, lambda *prepared: self._begin_population(request, *prepared), receiver
        )

    async def _evaluate(
        self,
        options: EvaluationOptions,
        change: _Change | None,
        begin: Callable[[_Setting, Workforce], Awaitable[_AnyCall]],
        receiver: Receiver,
    ) -> _Items:
        """Runs an evaluation of either kind.

        Args:
            options: what is asked for.
            change: see `_prepare`.
            begin: makes the call.
            receiver: who takes what it gives.
        """
        self._workers.check_enough()
        arrived = time.monotonic()
        async with contextlib.AsyncExitStack() as stack:
            async with self._admission.admitting(stack, receiver) as ticks:
                async for _ in ticks:
                    yield Progress(0)
            queued_seconds = time.monotonic() - arrived
            preparing = self._begin_preparing(options, stack, change)
            while not (await asyncio.wait({preparing}, timeout=self._config.progress_seconds))[0]:
                yield Progress(0)
            setting = await preparing
            workforce = stack.enter_context(self._workers.workforce.using())
            self._versions.check_size(setting.policy_version, setting.env_number, len(workforce))
            call = await begin(setting, workforce)
            call.account.queued_seconds = queued_seconds
            async with self._running(call, setting) as items:
                yield self._beginning(setting, options, len(workforce))
                async for item in items:
                    yield item
        yield Evaluation(call.outcomes, call.account, call.reproducibility, call.num_members)

    def _begin_preparing(
        self,
        options: EvaluationOptions,
        stack: AsyncExitStack,
        change: _Change | None,
    ) -> asyncio.Task[_Setting]:
        """`_prepare`, which ends with the stack at the latest."""
        # When nothing is being prepared any more.
        stack.callback(lambda: self._eviction.evict_except(*self._versions.to_keep()))
        preparing = asyncio.create_task(self._prepare(options, stack, change))

        async def give_up() -> None:
            preparing.cancel()
            await asyncio.gather(preparing, return_exceptions=True)

        stack.push_async_callback(give_up)
        return preparing

    async def _prepare(
        self,
        options: EvaluationOptions,
        stack: AsyncExitStack,
        change: _Change | None,
    ) -> _Setting:
        """Chooses versions, which are kept as long as the stack, and has the workers make environments.

        Args:
            options: what is asked for.
            stack: of the call.
            change: what is made of the environments' specs; None to leave them.
        """
        versions = self._versions
        check_run(options.run, self._run)
        policy_version = versions.choose_policy(options)
        stack.enter_context(versions.agents.using(policy_version))
        versions.check_exploration(policy_version, options.exploration)
        env_version, own = 0, None
        if options.env is None:
            with within("options"):
                env_version = versions.envs.choose(options.env_version, Reason.ENVIRONMENT_VERSION)
            own = versions.envs.get(env_version)
        specs: Sequence[WorkerSpecs] = own.specs if own is not None else [options.env] if options.env else []
        if change is not None:
            specs = change(specs, own)
        with within("options.environment") if own is None else contextlib.nullcontext():
            number = await self._env_number(specs)
        stack.enter_context(versions.evaluation_envs.using(-number))
        # The agent may have been checked against the pool's own, which takes longer for a large one.
        fitting = number if own is None or env_version not in versions.envs else env_version
        misfit = await versions.misfit(policy_version, fitting)
        if misfit is not None:
            text = f"the agent does not fit the environment: {misfit.message}"
            raise NotReadyError(text, reason=Reason.AGENT_MISFIT)
        env = versions.env(number)
        assert env is not None  # noqa: S101  # it is in use
        seed = self._seed if options.seed is None else options.seed
        return _Setting(seed, policy_version, number, env, env_version)

    async def _env_number(self, specs: Sequence[WorkerSpecs]) -> int:
        """The number of environments for evaluations that are made from these specs; made unless they are there."""
        found = self._versions.find_evaluation_env(specs)
        if found is not None:
            return found
        self._eviction.reset()
        return await self._versions.add_evaluation_env(specs)

    def _one_by_one(self, specs: Sequence[WorkerSpecs], own: EnvVersion | None) -> Sequence[WorkerSpecs]:
        """The specs of the same environments whose rows are stepped one by one.

        Raises:
            InvalidValueError: there are none, or environments differ between workers or rows.
        """
        field = "options.environment"
        spec = specs[0]
        if len(specs) > 1 or not isinstance(spec, EnvSpec):
            text = "none came, but those of the sampler differ between workers or rows: one for all was expected"
            raise InvalidValueError(text, field=field)
        if own is not None and own.rows.num_episodes_per_row is None:
            return specs
        if (spec.vectorization or self._config.rows.vectorization) == "envpool":
            text = "rows of EnvPool came, but members of a population act in rows that are stepped one by one"
            raise InvalidValueError(f"{text}: an environment of gymnasium's was expected", field=field)
        return [dataclasses.replace(spec, vectorization="rows")]

    def _beginning(self, setting: _Setting, options: EvaluationOptions, num_workers: int) -> Beginning:
        return Beginning(
            setting.seed,
            options.first_index,
            setting.policy_version,
            setting.env_version,
            setting.env.description.reproducibility,
            self._run,
            num_workers=num_workers,
        )

    async def _begin_call(self, request: EvaluationRequest, setting: _Setting, workforce: Workforce) -> EvaluationCall:
        options, description = request.options, setting.env.description
        limit = options.max_episode_length or self._config.max_episode_length
        sequence = SequenceSpec(
            next(self._ids), setting.seed, setting.policy_version, setting.env_number, limit, options.exploration
        )
        placement = self._versions.placement(setting.policy_version, setting.env_number, len(workforce))
        limits = [steps for steps in (description.max_episode_steps, limit) if steps]
        return EvaluationCall(
            InAll(request.num_episodes),
            OpenSequence.begin(sequence, placement, Ledger(options.first_index), workforce),
            workforce,
            setting.env.rows,
            LengthEstimate(min(limits, default=None)),
            self._settings(options, request.delivery),
            description.reproducibility,
        )

    async def _begin_population(
        self, request: PopulationRequest, setting: _Setting, workforce: Workforce
    ) -> PopulationCall:
        options = request.options
        if options.skip_failed:
            expected = "false for a population, whose members have the same number of episodes"
            raise InvalidValueError.of("options.skip_failed_episodes", expected=expected, got="true")
        agents = self._versions.agents.get(setting.policy_version)
        assert agents is not None  # noqa: S101  # the call keeps them
        if len(agents) != 1:
            text = "some came, but workers have agents of their own: one for all was expected"
            raise InvalidValueError(text, field="parameters")
        num_members = await asyncio.to_thread(check_population, agents[0], request.parameters)
        population = Population(
            work_id=next(self._ids),
            root_seed=setting.seed,
            policy_version=setting.policy_version,
            env_version=setting.env_number,
            num_members=num_members,
            num_episodes=request.num_episodes,
            first_index=options.first_index,
            shares_episodes=request.shares_episodes,
            max_episode_length=options.max_episode_length or self._config.max_episode_length,
            exploration=options.exploration,
        )
        return PopulationCall(
            population,
            await self._versions.shared(request.parameters),
            setting.env.rows.num_rows,
            workforce,
            self._settings(options, None),
            setting.env.description.reproducibility,
        )

    def _settings(self, options: EvaluationOptions, delivery: EpisodeDelivery | None) -> CallSettings:
        return CallSettings(
            max_message_bytes=delivery.max_message_bytes if delivery else 0,
            window_bytes=self._config.window_bytes,
            progress_seconds=self._config.progress_seconds,
            num_calls=self._num_calls,
            columns=delivery.columns if delivery else None,
            exploration=options.exploration,
            skip_failed=options.skip_failed,
            env_retries=self._config.env_retries,
            straggler_factor=self._config.straggler_factor,
            unit_retries=self._config.unit_retries,
        )

    @contextlib.asynccontextmanager
    async def _running(
        self, call: _AnyCall, setting: _Setting
    ) -> AsyncGenerator[AsyncGenerator[Delivery | Progress, None], None]:
        """Runs a call, and has the workers forget it."""
        call.account.env_version = setting.env_version  # their own number is nobody else's affair
        self.num_running += 1
        try:
            async with call.running() as items:
                yield items
        finally:
            self.num_running -= 1
            self._close(call)
            call.count_simulated()
            self._counters.count_faults(call.account)

    def _close(self, call: _AnyCall) -> None:
        for handle, in_flight in zip(call.handles, call.in_flight, strict=True):
            if handle is not None:
                if in_flight:
                    handle.stop(call.work_id)
                closing = asyncio.ensure_future(handle.call(Worker.close_work, call.work_id))
                self._closing.add(closing)
                closing.add_done_callback(self._closed)

    def _closed(self, closing: asyncio.Future[None]) -> None:
        self._closing.discard(closing)
        ignore_answer(closing)
