"""Work on a sequence of episodes."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_server.activity import current_activity
from rollserve_server.agents import PolicyAgents
from rollserve_server.envs import ManyEnvs, VectorEnvs
from rollserve_server.errors import AgentFailedError, DomainError, OverLimitError
from rollserve_server.sampling.collect.acting import evaluators_of
from rollserve_server.sampling.collect.many import ManyCollector, outcomes_of_agents
from rollserve_server.sampling.collect.rows import RowCollector
from rollserve_server.sampling.collect.vector import VectorCollector
from rollserve_server.sampling.encode.encoder import ONE_AGENT, Encoding, MessageForm, many_agents
from rollserve_server.sampling.encode.segments import endings_of
from rollserve_server.sampling.protocol import (
    AgentOutcome,
    Claim,
    EndedEpisode,
    Message,
    Order,
    Outcome,
    Parcel,
    Report,
    SequenceSpec,
)
from rollserve_server.sampling.work.bounds import buffer_bytes, run_slice
from rollserve_server.sampling.work.claims import ClaimWriter, EarlyEpisodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from rollserve_server.agents import Agent
    from rollserve_server.envs import RowEnvs
    from rollserve_server.sampling.collect.acting import Evaluator
    from rollserve_server.sampling.collect.collector import EpisodeCollector
    from rollserve_server.sampling.installed import InstalledAgents
    from rollserve_server.sampling.record.episodes import Episode
    from rollserve_server.sampling.record.lives import ManyEpisode
    from rollserve_server.settings import WorkerSettings

__all__ = ["EpisodeWork"]

_MAX_EARLY_BYTES = 1 << 20
"""Size up to which episodes are written early: they are written again if the call claims others, and larger ones are
several claims.
"""


class EpisodeWork:
    """Samples episodes of a sequence, keeps the finished ones, and writes claimed ones.

    Attributes:
        spec: the sequence.
        envs: environments that nothing else uses.
        collector: loop that runs the episodes.
    """

    def __init__(
        self,
        sequence: SequenceSpec,
        envs: RowEnvs | VectorEnvs | ManyEnvs,
        agents: InstalledAgents,
        settings: WorkerSettings,
        new_buffer: Callable[[int], NDArray[np.uint8]],
    ) -> None:
        """Start without episodes.

        Args:
            sequence: the sequence.
            envs: environments that nothing else uses.
            agents: installed agents.
            settings: retries, and the size of finished episodes from which no more episodes begin, except lost ones
                and those with lower indices than a finished one, because its claim may wait for them.
            new_buffer: makes a buffer of so many bytes for messages.
        """
        self.spec = sequence
        self.envs = envs
        self._buffer_bytes = buffer_bytes(settings)
        agent = agents.built(sequence.policy_version, sequence.env_version, sequence.exploration, envs)
        self.collector: EpisodeCollector[Any] = _collector(sequence, envs, agent, settings.env_retries)
        self._agents = agents
        self._evaluator: Evaluator | None = None
        self._finished: dict[int, Any] = {}  # of the collector's kind
        self._held_bytes = 0
        form: MessageForm[Any, Any] = ONE_AGENT
        self._outcomes_of_agents: Callable[[Any], tuple[AgentOutcome, ...]] = lambda _: ()
        if isinstance(agent, PolicyAgents):
            form = many_agents(agent.agents, agent.names, evaluators_of(agent))
            self._outcomes_of_agents = functools.partial(outcomes_of_agents, agent)
        self._writer = ClaimWriter(self._finished, form, new_buffer)
        # One more than the highest index of lost episodes that have begun again, even if the buffer was full.
        self._stop_again = 0
        # In the order: steps thrown away of cancelled episodes, and steps that had been delivered before.
        self._num_cancelled_steps = 0

    def run(
        self, order: Order, is_stopped: Callable[[], bool], is_urgent: Callable[[], bool]
    ) -> tuple[Report, NDArray[np.uint8]]:
        """Carry out an order. `is_stopped` ends the steps before one, and `is_urgent` after one, by returning True.

        Returns:
            The report, and the buffer with its messages. The caller closes the work if the report says so.
        """
        self._num_cancelled_steps = 0
        for claim in order.release:
            self._release(claim)
        for indices in order.cancel:
            self._cancel(indices)
        collector = self.collector
        collector.enqueue((*order.begin, *order.begin_again))
        self._stop_again = max((self._stop_again, *(episodes.indices.stop for episodes in order.begin_again)))
        steps_before = collector.num_simulated_steps, collector.num_idle_steps
        began = sampled = time.perf_counter()
        finished: list[EndedEpisode] = []
        outcomes: tuple[Outcome, ...] = ()
        parcels: list[Parcel] = []
        early_parcel: Parcel | None = None
        buffer, failure = np.empty(0, np.uint8), None
        early = None if order.early is None else EarlyEpisodes(order.early, self._finished)
        try:
            if order.seconds > 0 and not (early is not None and early.end_call):
                finished = self._sample(order, early, is_stopped, is_urgent)
            if order.report_outcomes:
                outcomes = self._outcomes(ended.episode_index for ended in finished)
            sampled = time.perf_counter()
            if early is not None and early.are_due and not order.deliver:
                early_parcel, buffer = self._write_early(early, order)
            else:
                parcels, buffer = self._deliver(order)
        except DomainError as error:
            failure = error.with_traceback(None)  # which has this frame, which has the error
        env_failures, num_lost_steps = collector.attempts.take()
        environment_seconds, policy_seconds = current_activity().split(sampled - began)
        report = Report(
            finished=tuple(finished),
            parcels=tuple(parcels),
            num_simulated_steps=collector.num_simulated_steps - steps_before[0],
            num_idle_steps=collector.num_idle_steps - steps_before[1],
            sampling_seconds=sampled - began,
            encoding_seconds=time.perf_counter() - sampled,
            failure=failure,
            outcomes=outcomes,
            env_failures=env_failures,
            num_lost_steps=num_lost_steps + self._num_cancelled_steps,
            early=early_parcel,
            environment_seconds=environment_seconds,
            policy_seconds=policy_seconds,
        )
        return report, buffer

    def _sample(
        self,
        order: Order,
        early: EarlyEpisodes | None,
        is_stopped: Callable[[], bool],
        is_urgent: Callable[[], bool],
    ) -> list[EndedEpisode]:
        """Run a slice, and return the episodes that ended."""
        collector, before = self.collector, order.before
        if before is not None and order.early is not None and order.early.num_steps is not None:
            before = max(before, order.early.stop)  # the steps tell better than the estimate which episodes are needed

        def begin() -> bool:
            is_full = self._held_bytes >= self._buffer_bytes
            return collector.begin(self._awaited_before(before) if is_full else before)

        finished = []
        # The pool has nothing more for rows that become idle while there is an early claim.
        ends = is_stopped, is_urgent
        for ended in run_slice(collector, begin, order.seconds, *ends, ends_dry=early is None):
            for episode in ended:
                self._held_bytes += episode.num_bytes
                self._finished[episode.index] = episode
                finished.append(EndedEpisode(episode.index, episode.length, episode.num_bytes, episode.num_agent_steps))
            if ended and early is not None and early.advance():
                break
        return finished

    def _awaited_before(self, before: int | None) -> int:
        """Return the bound for episodes that begin although the buffer is full, because a claim may wait for them."""
        awaited = max((self._stop_again, *self._finished))
        return awaited if before is None else min(awaited, before)

    def _deliver(self, order: Order) -> tuple[list[Parcel], NDArray[np.uint8]]:
        """Write the order's claims, or discard them, and release complete ones."""
        parcels, buffer = self._write(order.deliver, order)
        for claim, parcel in zip(order.deliver, parcels, strict=False):
            if parcel.complete:
                self._release(claim)
        return parcels, buffer

    def _write_early(self, early: EarlyEpisodes, order: Order) -> tuple[Parcel | None, NDArray[np.uint8]]:
        """Write the episodes of the order's early claim, or discard them; None if they are large."""
        nothing, claim = (None, np.empty(0, np.uint8)), early.claim
        if early.num_bytes > _MAX_EARLY_BYTES:
            return nothing
        try:
            (parcel,), buffer = self._write([claim], order)
        except (OverLimitError, AgentFailedError):  # raised again if the call claims the episode
            return nothing
        finally:
            self._writer.drop(claim)
        return (parcel, buffer) if parcel.complete else nothing

    def _write(self, claims: Sequence[Claim], order: Order) -> tuple[list[Parcel], NDArray[np.uint8]]:
        if order.columns is None:
            return [self._discard(claim) for claim in claims], np.empty(0, np.uint8)
        if order.columns.last_values and self._evaluator is None:
            spec = self.spec
            self._evaluator = self._agents.evaluator(spec.policy_version, spec.env_version, spec.exploration, self.envs)
        encoding = Encoding(self.spec.policy_version, None, order.columns, self._evaluator)
        return self._writer.write(claims, encoding, order.max_message_bytes)

    def _discard(self, claim: Claim) -> Parcel:
        """Return a parcel without bytes for a claim whose episodes are not written."""
        episodes = [self._finished[index] for index in range(claim.start, claim.stop)]
        num_steps = sum(episode.length for episode in episodes) - claim.first_step
        message = Message(0, 0, num_steps, len(episodes), endings=endings_of(episodes))
        start, stop = (claim.start, claim.first_step), (claim.stop, 0)
        return Parcel(claim.claim_id, (message,), start, stop, complete=True)

    def _release(self, claim: Claim) -> None:
        """Forget the episodes of a claim, which have been written."""
        for index in range(claim.start, claim.stop):
            self._forget(self._finished.pop(index))
        self._num_cancelled_steps += claim.first_step

    def _cancel(self, indices: Iterable[int]) -> None:
        """Forget episodes that wait, run, are finished, or are written in part."""
        for index in indices:
            episode = self._finished.pop(index, None)
            if episode is None:
                self._num_cancelled_steps += self.collector.cancel(index)
            else:
                self._forget(episode)
                self._num_cancelled_steps += episode.length - self._writer.num_written_steps(episode)
        self._writer.forget_incomplete()

    def _forget(self, episode: Episode | ManyEpisode) -> None:
        self.collector.release(episode)
        self._held_bytes -= episode.num_bytes

    def _outcomes(self, indices: Iterable[int]) -> tuple[Outcome, ...]:
        episodes = (self._finished[index] for index in indices)
        return tuple(
            Outcome(
                episode.index,
                episode.total_reward,
                episode.length,
                episode.terminated,
                episode.truncated,
                self._outcomes_of_agents(episode),
            )
            for episode in episodes
        )


def _collector(
    sequence: SequenceSpec, envs: RowEnvs | VectorEnvs | ManyEnvs, agent: Agent | PolicyAgents, num_retries: int
) -> EpisodeCollector[Any]:
    """Return the loop for environments and what acts in them."""
    max_episode_length = sequence.max_episode_length
    if isinstance(envs, ManyEnvs):
        assert isinstance(agent, PolicyAgents)  # noqa: S101  # the pool has checked that they fit
        return ManyCollector(sequence.root_seed, envs, agent, max_episode_length, num_retries)
    assert not isinstance(agent, PolicyAgents)  # noqa: S101
    if isinstance(envs, VectorEnvs):
        return VectorCollector(sequence.root_seed, envs, agent, num_retries)
    return RowCollector(sequence.root_seed, envs, agent, max_episode_length, num_retries)
