"""Common part of the streams of rounds of both samplers: everything except the waiting, and the reader of rounds."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from rollserve._calls.interruptions import Interruptions
from rollserve._calls.joining import Joining
from rollserve._calls.responses import read_response
from rollserve._calls.stream_reader import BaseReader, warn_of
from rollserve.account import account_from_proto
from rollserve.episode_batch import EpisodeBatch
from rollserve.multi_agent_batch import Batch, MultiAgentBatch, checked_batch
from rollserve.rounds import StreamProgress, round_from_proto, stream_progress_from_proto
from rollserve_wire.errors import PreconditionError, ServerError, malformed_error, mismatch
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1.episode_batch_pb2 import Account as AccountProto
from rollserve_wire.v1.episode_batch_pb2 import Beginning, Progress, SharedMessage

if TYPE_CHECKING:
    import grpc

    from rollserve._calls.interruptions import Contact
    from rollserve._calls.own_versions import OwnVersions
    from rollserve._calls.responses import Bytes
    from rollserve._calls.time_limits import TimeLimits
    from rollserve.account import Account
    from rollserve.rounds import Round

__all__ = ["BaseReceiver", "BaseRoundStream", "RoundReader", "StreamParts"]


class StreamParts(NamedTuple, Generic[Batch]):
    """Parts that a stream is made of.

    Attributes:
        method: begins a call: takes an iterator of requests, and `timeout`.
        spec: what to sample.
        batch_kind: kind of batch that a round is.
        buffer_rounds: number of rounds to receive before they are wanted.
        limits: time limits.
        contact: contact with the server.
        own_versions: versions that the client has set.
        update_agent: the sampler's method.
    """

    method: Callable[..., Any]
    spec: pb.StreamSpec
    batch_kind: type[Batch]
    buffer_rounds: int
    limits: TimeLimits
    contact: Contact
    own_versions: OwnVersions
    update_agent: Callable[..., Any]


class BaseReceiver(Generic[Batch]):
    """The receiving end of a stream, over all calls that deliver it.

    Attributes:
        reader: reads the responses.
    """

    def __init__(self, parts: StreamParts[Batch]) -> None:
        self.reader = RoundReader(parts.spec, parts.batch_kind, self._begin)
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

    def _rounds_of(self, message: Bytes) -> Iterator[Batch]:
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

    def _begin(self, beginning: Beginning) -> None:
        if not self._parts.spec.options.HasField("agent_update"):
            return
        if not beginning.agent_updated:
            text = mismatch("a server that knows agents of calls", "one that does not", "call update_agent instead")
            raise ServerError(f"agent: {text}", code="UNIMPLEMENTED", field="agent")
        self._parts.own_versions.set_agent(beginning)


class BaseRoundStream(Generic[Batch]):
    """The end of a stream that a trainer holds: which rounds it gets, and the account."""

    _receiver: BaseReceiver[Batch]

    def __init__(self, parts: StreamParts[Batch]) -> None:
        self._parts = parts
        self._num_handed = 0
        self._has_ended = False
        # Of rounds that arrived and were not handed out: because they were too old by then, and at the end.
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
        """Progress of the rounds, as the server last reported it: whenever it has sent nothing for 2 s."""
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

    def _is_wanted(self, batch: Batch) -> bool:
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

    def _count_unread(self, batch: Batch) -> None:
        assert batch.round is not None  # noqa: S101
        self._num_unread_steps += batch.round.num_steps
        self._num_unread_episodes += batch.round.num_episodes


class RoundReader(BaseReader, Generic[Batch]):
    """Reader of one stream's responses. The batches of a round are joined as they arrive.

    Attributes:
        progress: what the server last said.
        num_rounds: number of rounds received.
    """

    def __init__(
        self, spec: pb.StreamSpec, batch_kind: type[Batch], on_beginning: Callable[[Beginning], object]
    ) -> None:
        """Start with the first call's request.

        Args:
            spec: the request.
            batch_kind: kind of batch that a round is.
            on_beginning: takes the beginning of the stream, once it is known.
        """
        super().__init__(on_beginning)
        self.progress = StreamProgress()
        self.num_rounds = 0
        self._spec = spec
        self._batch_kind = batch_kind
        self._beginning: Beginning | None = None
        self._last: Round | None = None
        self._num_steps = self._num_episodes = 0
        self._lag_step_counts: list[int] = []
        self._num_resumptions = 0
        self._before = (0, 0, 0)  # rounds, episodes and steps that earlier calls have delivered
        self._joining: Joining | None = None
        self._num_expected_steps = 0

    @property
    def has_begun(self) -> bool:
        """Whether the stream's beginning is known."""
        return self._beginning is not None

    @property
    def is_complete(self) -> bool:
        """Whether all steps have arrived that the stream is for."""
        return self._spec.HasField("step_count") and self._num_steps >= self._spec.step_count

    def read(self, response: Bytes) -> Batch | None:
        """Read a serialized response; return the batch of a round if that is complete now.

        Raises:
            ServerError: a malformed response.
        """
        try:
            content = read_response(response)
            if isinstance(content, SharedMessage):
                self._read_shared(content)
                return None
        except ValueError as error:
            raise malformed_error(str(error)) from None
        match content:
            case EpisodeBatch() | MultiAgentBatch():
                self._add(content)
            case pb.StreamRound():
                return self._end_round(round_from_proto(content))
            case Beginning():
                self._take_beginning(content, is_first=self._beginning is None)
                if self._beginning is None:
                    self._beginning = content
            case Progress():
                self.progress = stream_progress_from_proto(content)
                warn_of(content)
            case AccountProto():
                self._account = account_from_proto(content)
            case _:
                pass  # content of a later version, which a client may leave out
        return None

    def account(self) -> Account:
        """Return the account of the stream, after its end.

        Raises:
            ServerError: the stream ended without an account.
        """
        account = self._received_account()
        if not self._num_resumptions:
            return account
        num_rounds, num_episodes, num_steps = self._before
        return dataclasses.replace(
            account,
            num_rounds=account.num_rounds + num_rounds,
            num_episodes=account.num_episodes + num_episodes,
            num_steps=account.num_steps + num_steps,
            num_carried_steps=account.num_carried_steps + num_steps,
            num_resumptions=self._num_resumptions,
            lag_step_counts=tuple(self._lag_step_counts),
        )

    def rest(self) -> pb.StreamSpec:
        """Return the request for what has not been received: all of it, if the stream has not begun."""
        self._drop_part()
        beginning, last = self._beginning, self._last
        if beginning is None:
            return self._spec
        self._num_resumptions += 1
        self._before = self.num_rounds, self._num_episodes, self._num_steps
        spec = copy.deepcopy(self._spec)
        options = spec.options
        for name in ("expected_environment_version", "worker_count", "agent_update"):
            options.ClearField(name)  # they were heeded when the stream began
        if not options.client_id:
            options.ClearField("expected_policy_version")
        options.seed = beginning.seed if last is None else last.seed
        options.environment_version = beginning.environment_version
        options.sampler_run = beginning.sampler_run
        if spec.HasField("fragments"):
            spec.fragments.row_step_count = beginning.row_step_count if last is None else last.next_row_step_count
        else:
            options.first_episode_index = beginning.first_episode_index if last is None else last.next_episode_index
        if last is not None:
            spec.first_round_number = last.number + 1
        if spec.HasField("step_count"):
            spec.step_count -= self._num_steps
        return spec

    def close(self) -> None:
        """Give back what a round holds that is not complete."""
        self._drop_part()

    def _read_shared(self, shared: SharedMessage) -> None:
        """Add a batch in shared memory, which is free again once it is joined."""
        ring, data = self._in_ring(shared)
        try:
            content = read_response(data)
            if isinstance(content, MultiAgentBatch):  # held until the round ends
                content = read_response(data.tobytes())
            if isinstance(content, EpisodeBatch | MultiAgentBatch):
                self._add(content)
            del content
        finally:
            del data
            ring.release()

    def _add(self, batch: EpisodeBatch | MultiAgentBatch) -> None:
        if self._joining is None:
            self._joining = Joining(self._num_expected_steps)
        self._joining.add(self._with_spaces(batch))

    def _end_round(self, ended: Round) -> Batch:
        joining, self._joining = self._joining, None
        if joining is None:
            raise malformed_error(f"round {ended.number} has no batches")
        with joining:
            batch = checked_batch(joining.join_round(ended), self._batch_kind)
        self._last = ended
        self._num_expected_steps = ended.num_steps + ended.num_steps // 8
        self.num_rounds += 1
        self._num_steps += ended.num_steps
        self._num_episodes += ended.num_episodes
        lag = min(ended.policy_lag, 15)
        self._lag_step_counts += [0] * (lag + 1 - len(self._lag_step_counts))
        self._lag_step_counts[lag] += ended.num_steps
        return batch

    def _drop_part(self) -> None:
        if self._joining is not None:
            with self._joining:
                self._joining = None
