"""Sampling calls: admitted, begun with the right versions and sequence, run, and settled."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import math
import time
from typing import TYPE_CHECKING, Any, TypeVar

from gymnasium import spaces

from rollserve_server.admission import Admission, Receiver
from rollserve_server.agents import PolicySet, check_delivered, check_exploration, check_value, spaces_of_policies
from rollserve_server.envs import leaves_of_space
from rollserve_server.errors import DomainError, EnvFailedError, EpisodeFailedError, InvalidValueError, within
from rollserve_server.pool.calls.checks import check_fragments, check_num_steps, check_num_workers, check_run
from rollserve_server.pool.calls.episodes import EpisodeCall, Prefetch, Prefetcher
from rollserve_server.pool.calls.fragments import FragmentCall
from rollserve_server.pool.plan.estimates import LengthEstimates
from rollserve_server.pool.plan.ledger import PerWorker
from rollserve_server.pool.requests import Exactly, Fragments
from rollserve_server.pool.results import Progress
from rollserve_server.pool.state.checkpoints import Checkpoint
from rollserve_server.pool.state.row_sequence import RowSequenceKind
from rollserve_server.pool.versions.selection import check_expected_policy
from rollserve_server.pool.versions.versions import ALL_WORKERS
from rollserve_server.sampling import MomentsFormat, SequenceSpec
from rollserve_server.tracing import child_span

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from contextlib import AsyncExitStack

    from gymnasium import Space

    from rollserve_server.agents import AgentSpec
    from rollserve_server.pool.accounts import Account
    from rollserve_server.pool.calls.stream_sequence import StreamSequence
    from rollserve_server.pool.parts import PoolParts
    from rollserve_server.pool.requests import AgentUpdate, Expectation, SampleRequest, SamplingOptions
    from rollserve_server.pool.results import AgentUpdated, Beginning, Delivery
    from rollserve_server.pool.sequences.sequences import OwnSequence
    from rollserve_server.pool.state.row_sequence import RowsMoved
    from rollserve_server.pool.versions.agent_updates import AgentUpdates
    from rollserve_server.sampling import EnvDescription


__all__ = ["Samplings"]


_MAX_ELEMENTS = 1 << 17
"""Largest number of elements that have moments: the account has 16 bytes for each, and a message may have 4 MiB."""
_Call = TypeVar("_Call", bound=EpisodeCall)


class Samplings:
    """Runs sampling calls, several at a time, each as if alone.

    Attributes:
        admission: lets a bounded number of calls run.
        prefetcher: samples between calls for the next one.
        estimates: estimated lengths of episodes.
        agent_changed: set, and replaced by another one, with each new version of the agent.
    """

    def __init__(self, parts: PoolParts, agent_updates: AgentUpdates) -> None:
        self._parts = parts
        self._agent_updates = agent_updates
        calls = parts.settings.calls
        self.admission = Admission(
            calls.max_calls,
            calls.progress_seconds,
            max_stalled=calls.max_stalled_calls,
            max_waiting=calls.max_waiting_calls,
            turn_steps=calls.turn_steps,
        )
        self.prefetcher = Prefetcher(parts.sequences)
        self.estimates = LengthEstimates()
        self.agent_changed = asyncio.Event()
        self._num_running = 0

    async def update_agent(
        self,
        updates: Sequence[AgentUpdate | None],
        expected: Expectation,
        *,
        per_worker: bool,
        field: str = ALL_WORKERS,
        check: Callable[[AgentSpec], object] = lambda _: None,
    ) -> AgentUpdated:
        """Update the agent, and drop what was prefetched with the one before; see `AgentUpdates.update`."""
        self._parts.eviction.reset()
        self.prefetcher.end(drop=True)
        updated = await self._agent_updates.update(updates, expected, per_worker=per_worker, field=field, check=check)
        self.prefetcher.end(drop=True)  # of a call that ended meanwhile
        self.estimates.fade()
        self.agent_changed.set()
        self.agent_changed = asyncio.Event()
        return updated

    async def sample(
        self, request: SampleRequest, receiver: Receiver
    ) -> AsyncGenerator[AgentUpdated | Beginning | Delivery | Progress | Account, None]:
        """Run a call; see `Pool.sample`."""
        parts = self._parts
        parts.workers.check_enough()
        check_num_steps(request.target, parts.settings.calls.max_call_steps)
        arrived = time.monotonic()
        turn = self.admission.new_turn()
        async with contextlib.AsyncExitStack() as stack:
            with child_span("admission"):
                async with self.admission.admitting(stack, receiver, turn) as ticks:
                    async for _ in ticks:
                        yield Progress(0)
            stack.callback(parts.eviction.run)  # of versions that the call was the last to use
            try:
                updated = None
                if request.agent_update is not None:
                    updated = await self.update_first(request, request.agent_update)
                    request = _after_update(request, updated)
                    yield updated
                call = await self.begin(request, stack)
            except DomainError:
                parts.counters.num_failed_calls += 1
                raise
            call.turn = turn
            account = call.account
            account.queued_seconds = time.monotonic() - arrived
            async with self.running(call) as items:
                yield dataclasses.replace(
                    call.beginning(),
                    agent_updated=updated is not None,
                    spaces=self.spaces(account.env_version) if request.return_spaces else None,
                )
                async for item in items:
                    yield item
        self._begin_prefetch(request, account)
        yield account

    def spaces(self, env_version: int) -> tuple[Space[Any], Space[Any]]:
        """Return the spaces of an environment in use: of observations, and of actions."""
        description = self._parts.versions.env_in_use(env_version).description
        return description.observation_space, description.action_space

    async def update_first(self, request: SampleRequest, update: AgentUpdate) -> AgentUpdated:
        """Make the call's update of the agent, after the checks of the request that no agent is needed for."""
        parts, options = self._parts, request.options
        check_run(options.run, parts.run)
        with within("options"):
            check_expected_policy(parts.versions, options.expected)
        env = parts.versions.env_in_use(parts.selection.choose_env(options))
        num_workers = len(parts.workers.workforce)
        check_num_workers(request.num_workers, num_workers)
        if isinstance(request.target, Fragments):
            num_rows = num_workers * env.description.num_rows
            check_fragments(request.target, options, num_rows, parts.max_episode_length(options))

        check = functools.partial(_checked, request, env.description)
        return await self.update_agent(
            [update], options.expected, per_worker=False, field="options.agent_update", check=check
        )

    async def acting_version(self, options: SamplingOptions, num_workers: int | None) -> int:
        """Return the version that acts in calls with these options and number of workers; raises as `begin`."""
        parts = self._parts
        check_run(options.run, parts.run)
        policy_version, env_version = parts.selection.choose_policy(options), parts.selection.choose_env(options)
        with parts.versions.agents.using(policy_version), parts.versions.envs.using(env_version):
            await parts.selection.check_fit(policy_version, env_version)
            parts.selection.check_exploration(policy_version, options.exploration)
            check_num_workers(num_workers, len(parts.workers.workforce))
            parts.selection.check_num_workers(policy_version, env_version, len(parts.workers.workforce))
        return policy_version

    async def begin(
        self, request: SampleRequest, stack: AsyncExitStack, stream: StreamSequence | None = None
    ) -> EpisodeCall | FragmentCall:
        """Choose versions, which the stack keeps, and make the call; of a round, in the sequence of its stream."""
        parts, options = self._parts, request.options
        check_run(options.run, parts.run)
        policy_version = parts.selection.choose_policy(options)
        env_version = parts.selection.choose_env(options)
        stack.enter_context(parts.versions.agents.using(policy_version))
        stack.enter_context(parts.versions.envs.using(env_version))
        description = parts.versions.env_in_use(env_version).description
        await parts.selection.check_fit(policy_version, env_version)
        for agent in parts.versions.agents.get(policy_version) or ():  # policies by name are the same for all workers
            request = _checked(request, description, agent)
        self.prefetcher.end(drop=False)
        # Nothing is awaited from here until the call is made, so that what is kept for it is of the same workforce.
        workforce = stack.enter_context(parts.workers.using_workforce())
        check_num_workers(request.num_workers, len(workforce))
        parts.selection.check_num_workers(policy_version, env_version, len(workforce))
        if stream is not None:
            num_rows = len(workforce) * parts.versions.env_in_use(env_version).description.num_rows
            request = dataclasses.replace(request, target=stream.target(num_rows))
        if isinstance(request.target, Fragments):
            return self._fragment_call(request, request.target, policy_version, env_version, stream)
        own = stream.own if stream is not None else None
        if stream is None and options.seed is None:
            own = stack.enter_context(parts.sequences.own())
        return self._episode_call(request, own, policy_version, env_version, EpisodeCall)

    def _episode_call(
        self,
        request: SampleRequest,
        own: OwnSequence | None,
        policy_version: int,
        env_version: int,
        make: type[_Call],
    ) -> _Call:
        """Make a call, or a prefetch, for whole episodes."""
        parts, options, target = self._parts, request.options, request.target
        assert not isinstance(target, Fragments)  # noqa: S101
        env, versions = parts.versions.env_in_use(env_version), parts.versions
        max_episode_length = parts.max_episode_length(options)
        workforce = parts.workers.workforce
        placement = parts.selection.placement(policy_version, env_version, len(workforce))
        seed = options.seed if own is None else own.seed
        assert seed is not None  # noqa: S101  # either the request has one, or the own sequence
        wanted = SequenceSpec(0, seed, policy_version, env_version, max_episode_length, options.exploration)
        first = options.first_index if own is None else own.first_index(wanted, env.unit_size(placement))
        num_skipped = 0
        if isinstance(target, Exactly):
            num_episodes = target.num_episodes_per_worker * len(workforce)
            if target.num_skipped > num_episodes:
                expected = f"at most {num_episodes}, the number of all episodes"
                raise InvalidValueError.of("skip_episode_count", expected=expected, got=target.num_skipped)
            are_alike = parts.selection.are_alike(policy_version, env_version)
            placement = PerWorker(first, target.num_episodes_per_worker, are_alike)
            num_skipped = target.num_skipped
        parts.sequences.drop_outdated(versions.agents.number, versions.envs.number)
        sequence = parts.sequences.open(wanted, first + num_skipped, placement, workforce)
        max_episode_steps = env.description.max_episode_steps
        estimate = self.estimates.of(env_version, max_episode_steps, max_episode_length, versions.envs)
        return make(parts, request, target, sequence, env, estimate, own)

    def _fragment_call(
        self,
        request: SampleRequest,
        target: Fragments,
        policy_version: int,
        env_version: int,
        stream: StreamSequence | None,
    ) -> FragmentCall:
        parts, options, workforce = self._parts, request.options, self._parts.workers.workforce
        description = parts.versions.env_in_use(env_version).description
        num_rows, max_episode_length = description.num_rows, parts.max_episode_length(options)
        check_fragments(target, options, len(workforce) * num_rows, max_episode_length)
        kind = RowSequenceKind(env_version, max_episode_length, target.soft_horizon, request.return_discount)
        initial = Checkpoint.initial(len(workforce), num_rows)
        if stream is not None:
            sequence = stream.take_rows(kind, initial)
        elif options.seed is None:
            sequence = parts.row_sequences.begin_own(kind, initial)
        else:
            sequence = parts.row_sequences.begin(options.seed, kind, target.row_step_count, initial)
        reproducibility = description.reproducibility
        return FragmentCall(parts, request, target, sequence, policy_version, workforce, reproducibility)

    @contextlib.asynccontextmanager
    async def running(
        self, call: EpisodeCall | FragmentCall, stream: StreamSequence | None = None
    ) -> AsyncGenerator[AsyncGenerator[Delivery | Progress, None], None]:
        """Run a call, and settle it; a stream counts what its rounds have delivered, because it may discard them."""
        parts, counters = self._parts, self._parts.counters
        self._num_running += 1
        try:
            async with call.running() as items:
                yield items
        except BaseException as error:
            if isinstance(error, Exception):
                counters.num_failed_calls += 1
            else:  # cancelled, or closed
                counters.num_cancelled_calls += 1
            self._cancel(call, stream, error)
            raise
        else:
            parts.sequences.report_dropped(call.account)
            parts.row_sequences.dropped.report(call.account)
            moved = self._complete(call, stream)
            counters.num_completed_calls += stream is None
        finally:
            self._num_running -= 1
            if stream is None:
                counters.count_delivered(call.account)
            counters.count_faults(call.account)
        await parts.journal.write(moved=moved)

    def _complete(self, call: EpisodeCall | FragmentCall, stream: StreamSequence | None) -> RowsMoved | None:
        """Keep the sequence of a completed call for the next one; return what the journal has to know, if anything."""
        if isinstance(call, FragmentCall):
            if stream is not None:
                return stream.complete_rows(call)
            return self._parts.row_sequences.complete(call.sequence, call.reached())
        sequence = call.sequence
        self._parts.sequences.keep(sequence)
        if call.own is not None:
            # The units of an exact call begin where its workers do, so no other call continues them.
            is_exact = isinstance(sequence.placement, PerWorker)
            call.own.continue_at(sequence.ledger.next_index, None if is_exact else sequence.spec)
        return None

    def _cancel(self, call: EpisodeCall | FragmentCall, stream: StreamSequence | None, error: BaseException) -> None:
        """Take back the sequence of a call that ended early, because of the error.

        Rows stay where they stood before. A sequence of whole episodes is dropped; calls without a seed go on behind an
        episode that failed, or with another seed.
        """
        if isinstance(call, FragmentCall):
            if stream is not None:
                stream.lose_rows()
            # Rows that run into an error of an environment would do so again.
            end = isinstance(error, EnvFailedError)
            arguments = call.sequence, call.account, call.open_locations(), call.coming()
            self._parts.row_sequences.cancel(*arguments, end=end)
            return
        self._parts.sequences.cancel(call.sequence, call.account.num_discarded_steps)
        if call.own is None:
            return
        if isinstance(error, EpisodeFailedError) and error.episode_index is not None:
            call.own.continue_at(error.episode_index + 1, None)  # no other call should fail with it
        else:  # the client may resume the call
            self._parts.sequences.renew(call.own)

    def _begin_prefetch(self, request: SampleRequest, account: Account) -> None:
        """Begin what the same request would ask for next, if that is wanted and nothing else runs."""
        versions = self._parts.versions
        current = versions.agents.number, versions.envs.number
        is_current = (account.policy_version, account.env_version) == current
        if request.prefetch and is_current and not (self._num_running or self.prefetcher.is_running):
            with self._parts.sequences.own() as own:
                self.prefetcher.begin(self._episode_call(request, own, *current, Prefetch))


def _after_update(request: SampleRequest, updated: AgentUpdated) -> SampleRequest:
    """Return the request of a call that has made its update: for the new version, which it expects no longer."""
    expected = dataclasses.replace(request.options.expected, policy_version=None)
    options = dataclasses.replace(request.options, policy_version=updated.version, expected=expected)
    return dataclasses.replace(request, options=options, agent_update=None)


def _checked(request: SampleRequest, description: EnvDescription, agent: AgentSpec) -> SampleRequest:
    """Check what a request asks of an agent; return it with the moments that its messages bring, if it asks for any.

    Args:
        request: the request.
        description: the environment.
        agent: the agent that acts; policies by name have moments of their own, those of them that are delivered.

    Raises:
        InvalidValueError: the agent cannot act like that, or has no value or no such policies; or the observations have
            no leaves of numbers, or too many elements.
    """
    with within("options.exploration"):
        check_exploration(agent, request.options.exploration)
    columns = request.messages.columns
    if columns is None:
        return request
    if columns.last_values:
        with within("options.return_last_values"):
            check_value(agent, columns.policies)
    with within("options.deliver_policies"):
        check_delivered(agent, columns.policies)
    if not (request.observation_moments or request.return_discount is not None):
        return request
    of_policies: dict[str, Space[Any]] = {"": description.observation_space}
    if isinstance(agent, PolicySet):
        found = spaces_of_policies(agent, description.agents, description.observation_space)
        of_policies = {name: found[name] for name in sorted(found) if name in (columns.policies or found)}
    forms = [
        MomentsFormat(_leaves(space) if request.observation_moments else (), request.return_discount, name)
        for name, space in of_policies.items()
    ]
    num_elements = sum(math.prod(shape) for form in forms for _, shape in form.leaves)
    if request.observation_moments and not 0 < num_elements <= _MAX_ELEMENTS:
        expected = f"false, unless observations have Box or MultiBinary leaves of 1 to {_MAX_ELEMENTS} elements in all"
        got = f"true, and {num_elements} elements"
        raise InvalidValueError.of("options.observation_moments", expected=expected, got=got)
    columns = dataclasses.replace(columns, moments=tuple(forms))
    return dataclasses.replace(request, messages=dataclasses.replace(request.messages, columns=columns))


def _leaves(space: Space[Any]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return name and shape of the leaves that have moments."""
    leaves = leaves_of_space(space)
    return tuple((leaf.name, leaf.shape) for leaf in leaves if isinstance(leaf.space, spaces.Box | spaces.MultiBinary))
