"""Common part of the streams of both samplers: everything except the waiting."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic

from rollserve._calls.interruptions import Interruptions
from rollserve._calls.stream_reader import StreamReader
from rollserve.multi_agent_batch import Batch, MultiAgentBatch, checked_batch
from rollserve.progress import CallProgress
from rollserve.progress_displays import Reporter
from rollserve_wire.columns import leaves_of
from rollserve_wire.errors import PreconditionError, ServerError, mismatch
from rollserve_wire.moments import PolicyMoments, RunningMoments
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    import grpc

    from rollserve._calls.interruptions import Contact
    from rollserve._calls.own_versions import OwnVersions
    from rollserve._calls.responses import Bytes
    from rollserve._calls.resumption import Request
    from rollserve._calls.time_limits import TimeLimits
    from rollserve.account import Account
    from rollserve.episode_batch import EpisodeBatch
    from rollserve.progress import ProgressOption
    from rollserve_wire.v1.episode_batch_pb2 import Beginning

__all__ = ["BaseStream"]


class BaseStream(Generic[Batch]):
    """State of a sampling stream, over all calls that deliver it."""

    def __init__(
        self,
        method: Callable[..., Any],
        request: Request,
        batch_kind: type[Batch],
        limits: TimeLimits,
        contact: Contact,
        own_versions: OwnVersions,
        progress: ProgressOption | None = None,
    ) -> None:
        self._method = method
        self._batch_kind = batch_kind
        self._limits = limits
        self._contact = contact
        updates_agent = request.options.HasField("agent_update")
        self._own_versions = own_versions
        self._reader = StreamReader(request, self._set_agent) if updates_agent else StreamReader(request)
        self._blackhole = request.options.blackhole
        self._interruptions = Interruptions(limits, contact)
        self._request = request
        self._reporter = Reporter.of(progress)
        self._num_known_steps = self._num_known_episodes = 0  # counted for the reporter
        self._unread: deque[Bytes] = deque()
        self._call = method(request, timeout=limits.remaining())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} from {self._contact.connection}, {self.num_simulated_steps} steps simulated>"

    def __reduce__(self) -> tuple[object, ...]:
        name = type(self).__name__
        hint = "send the sampler, or the batches"
        raise TypeError(f"stream: {mismatch('an object that can be copied to another process', f'a {name}', hint)}")

    @property
    def num_simulated_steps(self) -> int:
        """Number of steps that the call has simulated so far, as far as the client knows."""
        return self._reader.num_simulated_steps

    def end(self) -> Account:
        """Return the account of the call, after the end of the stream.

        Raises:
            PreconditionError: the stream was not read to its end.
        """
        if not self._reader.has_ended:
            text = mismatch(
                "a stream that was read to its end", "one that was not", "close() ends it without an account"
            )
            raise PreconditionError(f"account: {text}", code="FAILED_PRECONDITION", field="account")
        account = self._reader.end()
        if account.num_resumptions:  # it has only the moments since the last one
            return dataclasses.replace(account, observation_moments=None, return_moments=None, policy_moments={})
        return account

    def close(self) -> None:
        """Cancel the call unless it is over."""
        raise NotImplementedError

    def _take(self, message: Bytes) -> None:
        """Take a message, whose responses `_read_next` reads."""
        self._contact.was_made = True
        self._unread += self._reader.split(message)

    def _with_moments(self, batch: Batch, before: tuple[int, int]) -> Batch:
        """Return the joined batch with the moments in its account that an interruption has left without.

        Args:
            batch: batch with the account of `end`.
            before: numbers of episodes and steps of the stream that are not in the batch.
        """
        account, partial = batch.account, self._reader.end()
        if not account.num_resumptions or any(before):
            return batch
        if isinstance(batch, MultiAgentBatch):
            # A policy that did not act since the interruption has none, and then the others know which leaves do.
            by_policy = batch.by_policy() if partial.policy_moments else {}
            moments = {
                name: PolicyMoments(*self._moments_of(by_policy[name], each.observations, each.returns))
                for name, each in partial.policy_moments.items()
                if name in by_policy
            }
            account = dataclasses.replace(account, policy_moments=moments)
        else:
            both = self._moments_of(batch, partial.observation_moments, partial.return_moments)
            account = dataclasses.replace(account, observation_moments=both[0], return_moments=both[1])
        return dataclasses.replace(batch, account_or_none=account)

    def _moments_of(
        self, batch: EpisodeBatch, observations: RunningMoments | None, returns: RunningMoments | None
    ) -> tuple[RunningMoments | None, RunningMoments | None]:
        """Return the moments of a whole batch, for the leaves that the moments of a part of it have; None for None."""
        if observations is not None:
            leaves = leaves_of(batch.observations)
            columns = {name: leaves[name] for name in observations.leaves}
            observations = RunningMoments.of_segments(columns, batch.lengths)
        if returns is not None:
            from rollserve.learning import return_moments_of

            returns = return_moments_of(batch, self._request.options.return_discount)
        return observations, returns

    def _read_next(self) -> Batch | None:
        """Read the next response; return the part of its batch that was not received before, if there is any."""
        batch = self._reader.read(self._unread.popleft())
        self._interruptions.waiting_for = self._reader.waiting_for
        if batch is not None:
            self._interruptions.advance()
        if self._reporter is not None:
            self._report(self._reporter)
        return None if batch is None else checked_batch(batch, self._batch_kind)

    def _report(self, reporter: Reporter) -> None:
        try:
            reporter.report(self._progress, is_over=self._reader.has_ended)
        except BaseException:
            self.close()
            raise

    def _progress(self, seconds: float) -> CallProgress:
        request, reader = self._request, self._reader
        # The account counts what its own call simulated, without what earlier calls kept and interrupted ones made.
        num_received_episodes, num_received_steps = reader.resumption.received
        self._num_known_steps = max(self._num_known_steps, reader.num_simulated_steps, num_received_steps)
        self._num_known_episodes = max(self._num_known_episodes, reader.num_ended_episodes, num_received_episodes)
        num_steps = num_episodes = None
        if isinstance(request, pb.ObtainSamplesRequest):
            num_steps = request.step_count
        else:
            num_episodes = request.episode_count_per_worker * reader.num_workers or None
        return CallProgress(
            num_steps=num_received_steps,
            num_episodes=num_received_episodes,
            num_ended_episodes=self._num_known_episodes,
            num_requested_steps=num_steps,
            num_requested_episodes=num_episodes,
            num_simulated_steps=self._num_known_steps,
            seconds=seconds,
            waiting_for=reader.waiting_for,
        )

    def _end_reports(self) -> None:
        if self._reporter is not None:
            self._reporter.close()

    def _set_agent(self, beginning: Beginning) -> None:
        """Record the agent that the call has brought; raise ServerError if the server does not know such calls."""
        if not beginning.agent_updated:
            expected = "a server that knows agents of calls"
            got = "one of an earlier version, which samples with the agent that is there"
            message = f"agent: {mismatch(expected, got, 'call update_agent instead')}"
            raise ServerError(message, code="UNIMPLEMENTED", field="agent")
        self._own_versions.set_agent(beginning)

    def _pause(self, error: grpc.RpcError) -> float | None:
        """Return the seconds to wait before the stream is resumed, or None if resuming it cannot help."""
        resumption = self._reader.resumption
        return self._interruptions.pause(error, has_begun=resumption.has_begun, can_repeat=resumption.possible)

    def _resume(self) -> None:
        """Start the call that delivers the rest of the stream."""
        self._call = self._method(self._reader.resumption.rest(), timeout=self._limits.remaining())
