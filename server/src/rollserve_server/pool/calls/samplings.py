"""Sampling calls: admitted, checked, begun with the right versions and sequence, run, and settled."""

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
from rollserve_server.agents import (
    OnnxModel,
    PolicySet,
    PythonSource,
    check_delivered,
    check_exploration,
    check_value,
    kinds_of,
    spaces_of_policies,
    with_external,
)
from rollserve_server.envs import leaves_of_space
from rollserve_server.errors import (
    DomainError,
    EnvFailedError,
    EpisodeFailedError,
    InvalidValueError,
    NotReadyError,
    OverLimitError,
    within,
)
from rollserve_server.futures import in_task, while_running
from rollserve_server.pool.calls.driven import DrivenCall
from rollserve_server.pool.calls.episodes import EpisodeCall, Prefetch
from rollserve_server.pool.calls.fragments import FragmentCall
from rollserve_server.pool.plan.estimates import LengthEstimates
from rollserve_server.pool.plan.ledger import PerWorker
from rollserve_server.pool.requests import (
    AgentChange,
    AtLeast,
    DriveRequest,
    Exactly,
    Fragments,
    PolicyUpdates,
    RowFragments,
)
from rollserve_server.pool.results import Progress, StreamRound
from rollserve_server.pool.sequences.sequences import OwnSequence
from rollserve_server.pool.state.checkpoints import Checkpoint
from rollserve_server.pool.state.row_sequence import RowSequenceKind
from rollserve_server.pool.versions.selection import check_expected_policy
from rollserve_server.pool.versions.versions import ALL_WORKERS
from rollserve_server.sampling import MomentsFormat, SequenceSpec
from rollserve_server.tracing import child_span
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
    from contextlib import AsyncExitStack

    from gymnasium import Space

    from rollserve_server.admission import Turn
    from rollserve_server.agents import AgentSpec
    from rollserve_server.pool.accounts import Account
    from rollserve_server.pool.parts import PoolParts
    from rollserve_server.pool.requests import (
        AgentUpdate,
        Expectation,
        SampleRequest,
        SamplingOptions,
        StreamRequest,
        Target,
    )
    from rollserve_server.pool.results import AgentUpdated, Beginning, Delivery
    from rollserve_server.pool.sequences.row_sequences import RowSequence
    from rollserve_server.pool.state.row_sequence import RowsMoved
    from rollserve_server.sampling import EnvDescription
    from rollserve_server.settings import CallSettings

__all__ = ["Samplings", "StreamSequence", "check_num_steps", "check_num_workers", "in_spec", "stream_round"]

_Call = TypeVar("_Call", bound=EpisodeCall)

_BUSY_SECONDS = 0.5
"""How long a stream waits that finds the queue for admission full."""
_MAX_ELEMENTS = 1 << 17
"""Largest number of elements that have moments: the account has 16 bytes for each, and a message may have 4 MiB."""


class Samplings:
    """Runs sampling calls, several at a time, each as if alone.

    Attributes:
        admission: lets a bounded number of calls run.
        estimates: estimated lengths of episodes.
        agent_changed: set, and replaced by another one, with each new version of the agent.
    """

    def __init__(self, parts: PoolParts) -> None:
        self._parts = parts
        calls = parts.settings.calls
        self.admission = Admission(calls.max_calls, calls.progress_seconds, **_limits(calls))
        # Each takes a process for up to minutes: one of a client, and two in all.
        self._trials = Admission(
            2, calls.progress_seconds, max_stalled=0, max_waiting=calls.max_waiting_calls, max_of_client=1
        )
        self._prefetch: Prefetch | None = None
        self.estimates = LengthEstimates()
        self.agent_changed = asyncio.Event()
        self._num_running = 0

    def use_limits(self) -> None:
        """Use the limits that the pool's settings have by now."""
        calls = self._parts.settings.calls
        self.admission.limit(calls.max_calls, **_limits(calls))

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
        self.end_prefetch(drop=True)
        updated = await self._parts.agent_updates.update(
            updates, expected, per_worker=per_worker, field=field, check=check
        )
        self.end_prefetch(drop=True)  # of a call that ended meanwhile
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
            stack.callback(parts.versions.evict)  # of versions that the call was the last to use
            try:
                updated = None
                if request.agent_update is not None:
                    updating_first = self.update_first(request, request.agent_update, receiver)
                    async with in_task(updating_first) as updating:
                        async for _ in while_running(updating, parts.settings.calls.progress_seconds):
                            yield Progress(0)
                    updated = updating.result()
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

    async def admit_round(self, stack: AsyncExitStack, receiver: Receiver, turn: Turn, *, has_begun: bool) -> None:
        """Wait for the admission of a round. Once its stream has begun, a full queue only makes it wait longer."""
        while True:
            try:
                with child_span("admission"):
                    async with self.admission.admitting(stack, receiver, turn) as ticks:
                        async for _ in ticks:
                            pass
            except OverLimitError as error:
                if not (has_begun and error.reason is Reason.TOO_MANY_CALLS):
                    raise
                await asyncio.sleep(_BUSY_SECONDS)
            else:
                return

    def spaces(self, env_version: int) -> tuple[Space[Any], Space[Any]]:
        """Return the spaces of an environment in use: of observations, and of actions."""
        description = self._parts.versions.env_in_use(env_version).description
        return description.observation_space, description.action_space

    async def update_first(self, request: SampleRequest, update: AgentUpdate, receiver: Receiver) -> AgentUpdated:
        """Make the call's update of the agent, after the checks of the request that no agent is needed for.

        An agent with foreign code waits for its trial: a client has one at a time.
        """
        parts, options = self._parts, request.options
        parts.check_run(options.run)
        with within("options"):
            check_expected_policy(parts.versions, options.expected)
        env = parts.versions.env_in_use(parts.selection.choose_env(options))
        num_workers = len(parts.workers.workforce)
        check_num_workers(request.num_workers, num_workers)
        if isinstance(request.target, Fragments):
            num_rows = num_workers * env.description.num_rows
            _check_fragments(request.target, options, num_rows, parts.max_episode_length(options))

        check = functools.partial(_checked, request, env.description)
        async with contextlib.AsyncExitStack() as trial:
            if _has_trial(update):
                await self._trials.admit(trial, receiver)
            return await self.update_agent(
                [update], options.expected, per_worker=False, field="options.agent_update", check=check
            )

    async def acting_version(self, options: SamplingOptions, num_workers: int | None) -> int:
        """Return the version that acts in calls with these options and number of workers; raises as `begin`."""
        parts = self._parts
        parts.check_run(options.run)
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
        parts.check_run(options.run)
        policy_version = parts.selection.choose_policy(options) if request.external is None else 0
        env_version = parts.selection.choose_env(options)
        stack.enter_context(parts.versions.envs.using(env_version))
        description = parts.versions.env_in_use(env_version).description
        if request.external is not None and len(request.external.agents) < len(description.agents):
            policy_version = parts.selection.choose_policy(options)  # which acts for the others
        if policy_version:
            stack.enter_context(parts.versions.agents.using(policy_version))
            await parts.selection.check_fit(policy_version, env_version)
            for agent in (
                parts.versions.agents.get(policy_version) or ()
            ):  # policies by name are the same for all workers
                request = _checked(request, description, agent)
        self.end_prefetch(drop=False)
        # Nothing is awaited from here until the call is made, so that what is kept for it is of the same workforce.
        workforce = stack.enter_context(parts.workers.using_workforce())
        check_num_workers(request.num_workers, len(workforce))
        parts.selection.check_num_workers(policy_version, env_version, len(workforce))
        if request.num_workers is not None or isinstance(request.target, Exactly):
            stack.enter_context(parts.number_uses.using())
        if stream is not None:
            request = dataclasses.replace(request, target=stream.target(len(workforce) * description.num_rows))
        call: EpisodeCall | FragmentCall
        if isinstance(request.target, Fragments):
            call = self._fragment_call(request, request.target, policy_version, env_version, stream)
        else:
            own = stream.own if stream is not None else None
            if stream is None and options.seed is None:
                own = stack.enter_context(parts.sequences.own())
            call = self._episode_call(request, own, policy_version, env_version, EpisodeCall)
        if parts.versions.env_in_use(env_version).has_hosts:  # which may serve no further rows beside those
            parts.free_rows()
        return call

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
        _check_fragments(target, options, len(workforce) * num_rows, max_episode_length)
        seeds = target.first_env_seeds
        if seeds:
            _check_first_env_seeds(seeds, len(workforce) * num_rows, description)
        kind = RowSequenceKind(env_version, max_episode_length, target.soft_horizon, request.return_discount, seeds)
        initial = Checkpoint.initial(len(workforce), num_rows)
        if stream is not None:
            sequence = stream.take_rows(kind, initial)
        elif options.seed is None:
            sequence = parts.row_sequences.begin_own(kind, initial)
        else:
            sequence = parts.row_sequences.begin(options.seed, kind, target.row_step_count, initial)
        reproducibility = description.reproducibility
        make = FragmentCall if request.external is None else DrivenCall
        return make(parts, request, target, sequence, policy_version, workforce, reproducibility)

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
        self._parts.sequences.keep(sequence, self._parts.workers.workforce)
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

    def end_prefetch(self, *, drop: bool) -> None:
        """End the prefetch, if there is one; to be called before anything else begins.

        Args:
            drop: whether no call can use it any more.
        """
        prefetch, self._prefetch = self._prefetch, None
        if prefetch is not None:
            prefetch.stop()
            self._parts.sequences.keep_prefetched(
                prefetch.sequence, prefetch.account, has_failed=prefetch.has_failed, drop=drop
            )
            prefetch.sequence.workforce.count_simulated(prefetch.account)

    def _begin_prefetch(self, request: SampleRequest, account: Account) -> None:
        """Begin what the same request would ask for next, if that is wanted and nothing else runs."""
        versions = self._parts.versions
        current = versions.agents.number, versions.envs.number
        is_current = (account.policy_version, account.env_version) == current
        if request.prefetch and is_current and not (self._num_running or self._prefetch):
            with self._parts.sequences.own() as own:
                self._prefetch = self._episode_call(request, own, *current, Prefetch)
            self._prefetch.start()


def _limits(calls: CallSettings) -> dict[str, int]:
    return {
        "max_stalled": calls.max_stalled_calls,
        "max_waiting": calls.max_waiting_calls,
        "turn_steps": calls.turn_steps,
    }


def _has_trial(update: AgentUpdate) -> bool:
    """Whether an update brings foreign code, which is tried in a sandbox."""
    updates = update.policies.values() if isinstance(update, PolicyUpdates) else (update,)
    return any(isinstance(each, OnnxModel | PythonSource | AgentChange) for each in updates)


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
        agent: the agent that acts; of policies by name, each delivered one has moments of its own.

    Raises:
        InvalidValueError: the agent cannot act like that, or has no value or no such policies; or the observations have
            no leaves of numbers, or too many elements.
    """
    with within("options.exploration"):
        check_exploration(agent, request.options.exploration)
    known = agent
    if request.external is not None and isinstance(agent, PolicySet):
        spaces = description.observation_space, description.action_space
        known = with_external(agent, kinds_of(request.external.agents, description.agents, spaces))
    columns = request.messages.columns
    if columns is None:
        return request
    if columns.last_values:
        with within("options.return_last_values"):
            check_value(agent, columns.policies)
    if columns.policies:
        with within("options.deliver_policies"):
            check_delivered(known, columns.policies)
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


@contextlib.contextmanager
def in_spec() -> Iterator[None]:
    """Have errors of the block that name a field name it as a part of the spec of a stream or session."""
    try:
        yield
    except DomainError as error:
        if error.field:
            error.field = f"spec.{error.field}"
        raise


def stream_round(
    call: EpisodeCall | FragmentCall, number: int, next_position: tuple[int, int], policy_lag: int = 0
) -> StreamRound:
    """Return what a client gets to know of a round.

    Args:
        call: the call that has sampled it.
        number: number of the round.
        next_position: steps of each row, and index of the next episode, behind it.
        policy_lag: number of updates of the agent since its version.
    """
    account, beginning = call.account, call.beginning()
    return StreamRound(
        round_number=number,
        seed=account.seed,
        policy_version=account.policy_version,
        env_version=account.env_version,
        row_step_count=account.row_step_count,
        first_episode_index=account.first_episode_index,
        num_steps=account.num_steps,
        num_episodes=account.num_episodes,
        policy_lag=policy_lag,
        num_rows=beginning.num_rows,
        num_workers=beginning.num_workers,
        next_row_step_count=next_position[0],
        next_episode_index=next_position[1],
        account=account,
    )


class StreamSequence:
    """The sequence of one stream: of whole episodes, or of rows. No other call continues it while the stream runs.

    Attributes:
        own: sequence of whole episodes; None for fragments.
    """

    def __init__(self, parts: PoolParts, request: StreamRequest | DriveRequest, stack: AsyncExitStack) -> None:
        """Begin, until the stack is closed: with the request's seed and position, or with a seed of the sampler's."""
        self._parts = parts
        self._rounds, self._options = request.rounds, request.options
        self._is_session = isinstance(request, DriveRequest)
        self._rows: RowSequence | None = None
        self._has_begun = False
        self._num_left_row_steps = 0  # of a fragment that an update has cut
        self.own: OwnSequence | None = None
        if not isinstance(request.rounds, AtLeast):
            stack.callback(self._release)
        elif request.options.seed is None:
            self.own = stack.enter_context(parts.sequences.own())
        else:
            self.own = OwnSequence(request.options.seed, request.options.first_index)

    def num_steps(self, num_rows: int) -> int:
        """Return the number of steps of the next round, at least, for a number of rows of all workers."""
        if isinstance(self._rounds, AtLeast):
            return self._rounds.num_steps
        return (self._num_left_row_steps or self._rounds.num_row_steps) * num_rows

    def target(self, num_rows: int) -> AtLeast | Fragments:
        """Return the target of the next round."""
        if isinstance(self._rounds, AtLeast):
            return self._rounds
        rounds = self._rounds
        return Fragments(
            self.num_steps(num_rows), soft_horizon=rounds.soft_horizon, first_env_seeds=rounds.first_env_seeds
        )

    def take_rows(self, kind: RowSequenceKind, initial: Checkpoint) -> RowSequence:
        """Return the row sequence of the next round.

        Raises:
            NotReadyError: the sequence of a seed does not stand where the stream begins, or has ended with a resize, as
                all rows of a session do.
        """
        assert isinstance(self._rounds, RowFragments)  # noqa: S101  # the round has fragments
        sequences, seed = self._parts.row_sequences, self._options.seed
        if self._rows is not None and sequences.has(self._rows):
            return self._rows
        self._release()
        if self._is_session and self._has_begun:
            text = "the number of workers has changed, and with it the rows"
            raise NotReadyError(f"{text}: begin another session", reason=Reason.WORKER_COUNT)
        if seed is not None and self._has_begun:
            text = "the number of workers has changed, and with it the rows that the seed's episodes depend on"
            raise NotReadyError(f"{text}: begin another stream", reason=Reason.WORKER_COUNT, field="options.seed")
        self._has_begun = True
        if seed is None:
            return sequences.begin_private(kind, initial)
        return sequences.begin(seed, kind, self._rounds.row_step_count, initial)

    def complete_rows(self, call: FragmentCall) -> RowsMoved | None:
        """Go on behind a round; return what the journal has to know of it."""
        assert isinstance(self._rounds, RowFragments)  # noqa: S101
        sequences = self._parts.row_sequences
        moved = sequences.complete(call.sequence, call.reached())
        self._rows = call.sequence if sequences.go_on(call.sequence) else None
        left = (self._num_left_row_steps or self._rounds.num_row_steps) - call.num_row_steps
        self._num_left_row_steps = left if self._rows is not None else 0
        return moved

    def lose_rows(self) -> None:
        """Record that a round has ended early, and that its sequence is not lent any more."""
        self._rows = None

    def next_position(self, call: EpisodeCall | FragmentCall) -> tuple[int, int]:
        """Return where the sequence stands behind a round: steps of each row, and index of the next episode."""
        if self.own is None:
            account = call.account
            return account.row_step_count + call.num_row_steps, 0  # type: ignore[union-attr]  # a call for fragments
        return 0, call.sequence.ledger.next_index  # type: ignore[union-attr]  # a call for whole episodes

    def break_off(self) -> None:
        """Have no other call go on behind rounds that a client may ask for again."""
        if self.own is not None and self._options.seed is None:
            self._parts.sequences.renew(self.own)

    def _release(self) -> None:
        rows, self._rows = self._rows, None
        if rows is not None:
            self._parts.row_sequences.release(rows)


def check_num_steps(target: Target | Fragments, max_steps: int) -> None:
    """Raise OverLimitError if a request asks for more steps than calls may make; 0 for any number."""
    num_steps = getattr(target, "num_steps", 0)
    if max_steps and num_steps > max_steps:
        raise OverLimitError.of(
            "step_count",
            expected=f"at most {max_steps} steps of a call (--max-call-steps)",
            got=num_steps,
            hint="ask for fewer at a time",
            reason=Reason.CALL_TOO_LARGE,
        )


def check_num_workers(expected: int | None, num_workers: int) -> None:
    """Raise NotReadyError if a request expects another number of workers."""
    if expected not in (None, num_workers):
        field, reason = "options.worker_count", Reason.WORKER_COUNT
        raise NotReadyError.of(field, expected=expected, got=f"{num_workers} workers", reason=reason)


def _check_fragments(
    target: Fragments, options: SamplingOptions, num_rows: int, max_episode_length: int | None
) -> None:
    """Raise InvalidValueError unless a pool can deliver these fragments.

    Args:
        target: the fragments.
        options: the other options of the request.
        num_rows: number of rows of all workers.
        max_episode_length: limit of episodes, by the request or else by the server; None if there is none.
    """
    num_steps = target.num_steps
    if num_steps % num_rows:
        below = num_steps // num_rows * num_rows
        nearest = f"{below} or {below + num_rows}" if below else f"{num_rows}"
        expected = f"a multiple of {num_rows}, the number of rows of all workers, such as {nearest}"
        raise InvalidValueError.of("step_count", expected=expected, got=num_steps)
    if target.num_skipped_steps > num_steps:
        expected = f"at most {num_steps}, the number of all steps"
        raise InvalidValueError.of("fragments.skip_step_count", expected=expected, got=target.num_skipped_steps)
    if target.num_skipped_steps and target.fraction_of_workers < 1:
        expected = "none beside fragments.fraction_of_workers, with which no call can be repeated"
        raise InvalidValueError.of("fragments.skip_step_count", expected=expected, got=target.num_skipped_steps)
    if target.soft_horizon and max_episode_length is None:
        expected = "options.max_episode_length beside it, or a server with a limit"
        raise InvalidValueError.of("fragments.soft_horizon", expected=expected, got="neither")
    if options.skip_failed:
        expected = "false for fragments, whose rows go on from call to call"
        raise InvalidValueError.of("options.skip_failed_episodes", expected=expected, got="true")
    if target.row_step_count is not None and options.seed is None:
        raise InvalidValueError.of("fragments.row_step_count", expected="options.seed beside it", got="none")


def _check_first_env_seeds(seeds: Sequence[int], num_rows: int, description: EnvDescription) -> None:
    """Raise InvalidValueError unless rows can begin with these seeds."""
    if description.num_episodes_per_row is not None:
        expected = "none, because the rows are stepped at once and have one seed together"
        raise InvalidValueError.of("environment_seeds", expected=expected, got=f"{len(seeds)} seeds")
    if len(seeds) != num_rows:
        expected = f"{num_rows} seeds, one for each row of all workers"
        raise InvalidValueError.of("environment_seeds", expected=expected, got=len(seeds))
