"""Common part of the streams of rounds of both samplers: everything except the waiting."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from rollserve._calls.interruptions import Interruptions
from rollserve._calls.round_reader import RoundReader
from rollserve_wire.errors import PreconditionError, ServerError, mismatch
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    import grpc

    from rollserve._calls.contact import Contact
    from rollserve._calls.own_versions import OwnVersions
    from rollserve._calls.responses import Bytes
    from rollserve._calls.time_limits import TimeLimits
    from rollserve.account import Account
    from rollserve.episode_batch import EpisodeBatch
    from rollserve.rounds import StreamProgress
    from rollserve_wire.v1.episode_batch_pb2 import Beginning

__all__ = ["BaseReceiver", "BaseRoundStream", "StreamParts"]


class StreamParts(NamedTuple):
    """Parts that a stream is made of.

    Attributes:
        method: begins a call: takes an iterator of requests, and `timeout`.
        spec: what to sample.
        buffer_rounds: number of rounds to receive before they are wanted.
        limits: time limits.
        contact: contact with the server.
        own_versions: versions that the client has set.
        update_agent: the sampler's method.
    """

    method: Callable[..., Any]
    spec: pb.StreamSpec
    buffer_rounds: int
    limits: TimeLimits
    contact: Contact
    own_versions: OwnVersions
    update_agent: Callable[..., Any]


class BaseReceiver:
    """The receiving end of a stream, over all calls that deliver it.

    Attributes:
        reader: reads the responses.
    """

    def __init__(self, parts: StreamParts) -> None:
        self.reader = RoundReader(parts.spec, self._begin)
        self.is_ending = False
        self._parts = parts
        self._interruptions = Interruptions(parts.limits, parts.contact)
        self._num_before = 0  # rounds that earlier calls have delivered

    def _first_request(self) -> pb.StreamSamplesRequest:
        """Return the first request of a call that delivers the rest of the stream."""
        self._num_before = self.reader.num_rounds
        return pb.StreamSamplesRequest(spec=self.reader.rest())

    def _receipt(self, num_taken: int) -> pb.StreamSamplesRequest:
        num_rounds = max(num_taken - self._num_before, 0)
        return pb.StreamSamplesRequest(receipt=pb.StreamReceipt(round_count=num_rounds))

    def _rounds_of(self, message: Bytes) -> Iterator[EpisodeBatch]:
        """Yield the rounds that a message completes."""
        self._parts.contact.was_made = True
        for response in self.reader.split(message):
            batch = self.reader.read(response)
            self._interruptions.waiting_for = self.reader.progress.waiting_for
            if batch is not None:
                self._interruptions.advance()
                yield batch

    def _pause(self, error: grpc.RpcError) -> float | None:
        """Return the seconds to wait before the stream is resumed, or None if resuming it cannot help."""
        if self.is_ending:
            return None
        return self._interruptions.pause(error, has_begun=self.reader.has_begun)

    def _final_error(self, error: grpc.RpcError) -> Exception:
        final = self._interruptions.final_error(error)
        final.__cause__ = self._interruptions.cause_of(error)
        return final

    def _silence_error(self) -> Exception:
        error = self._interruptions.silence_error()
        error.__cause__ = self._interruptions.last
        return error

    def _begin(self, beginning: Beginning) -> None:
        if not self._parts.spec.options.HasField("agent_update"):
            return
        if not beginning.agent_updated:
            text = mismatch("a server that knows agents of calls", "one that does not", "call update_agent instead")
            raise ServerError(f"agent: {text}", code="UNIMPLEMENTED", field="agent")
        self._parts.own_versions.set_agent(beginning)


class BaseRoundStream:
    """The end of a stream that a trainer holds: which rounds it gets, and the account."""

    _receiver: BaseReceiver

    def __init__(self, parts: StreamParts) -> None:
        self._parts = parts
        self._num_handed = 0
        self._has_ended = False
        # Rounds that arrived and were not handed out: because they were too old by then, and at the end.
        self._stale: list[EpisodeBatch] = []
        self._num_stale_episodes = self._num_stale_steps = 0
        self._num_unread_episodes = self._num_unread_steps = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} from {self._parts.contact.connection}, {self._num_handed} rounds>"

    def __reduce__(self) -> tuple[object, ...]:
        name = type(self).__name__
        hint = "send the sampler, or the batches"
        raise TypeError(f"stream: {mismatch('an object that can be copied to another process', f'a {name}', hint)}")

    @property
    def progress(self) -> StreamProgress:
        """What has become of the rounds so far, as the server last said: whenever it has sent nothing for 2 s."""
        return self._receiver.reader.progress

    @property
    def account(self) -> Account:
        """Account of the stream, after its end. The workers' shares count what the server has sent.

        Raises:
            PreconditionError: the stream has not ended.
            ServerError: the stream ended without an account.
        """
        if not self._has_ended:
            text = mismatch("a stream that has ended", "one that has not", "call end(), or leave its with block")
            raise PreconditionError(f"account: {text}", code="FAILED_PRECONDITION", field="account")
        account = self._receiver.reader.account()
        return dataclasses.replace(
            account,
            num_steps=account.num_steps - self._num_stale_steps - self._num_unread_steps,
            num_episodes=account.num_episodes - self._num_stale_episodes - self._num_unread_episodes,
            num_stale_steps=account.num_stale_steps + self._num_stale_steps,
            num_unsent_steps=account.num_unsent_steps + self._num_unread_steps,
        )

    def _is_wanted(self, batch: EpisodeBatch) -> bool:
        """Whether a round is handed out: not if this client has updated the agent too often since it was sampled."""
        self._num_handed += 1
        spec, current, sampled = self._parts.spec, self._parts.own_versions.policy_version, batch.round
        assert sampled is not None  # noqa: S101  # the reader has set it
        if not spec.HasField("max_policy_lag") or current is None:
            return True
        if current - sampled.policy_version <= spec.max_policy_lag:
            return True
        self._num_stale_steps += sampled.num_steps
        self._num_stale_episodes += sampled.num_episodes
        return False

    def _count_unread(self, batch: EpisodeBatch) -> None:
        assert batch.round is not None  # noqa: S101
        self._num_unread_steps += batch.round.num_steps
        self._num_unread_episodes += batch.round.num_episodes
