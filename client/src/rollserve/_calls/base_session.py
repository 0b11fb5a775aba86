"""Common part of the sessions of both samplers: requests, and what is read of responses."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from google.protobuf.message import DecodeError

from rollserve._calls.base_round_stream import RoundReader
from rollserve._calls.interruptions import Interruptions
from rollserve._calls.rpc_errors import reason_of
from rollserve._calls.session_forms import AgentForm, ManyForm, ReadyForm, SessionForm, Step
from rollserve.episode_batch import EpisodeBatch
from rollserve.multi_agent_batch import Batch, MultiAgentBatch, check_agents
from rollserve_wire.checks import check_integer
from rollserve_wire.errors import PreconditionError, malformed_error, mismatch
from rollserve_wire.protobuf import UnusualError, fields, keys_of
from rollserve_wire.reasons import Reason
from rollserve_wire.spaces import space_from_proto
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    import grpc
    import numpy as np
    from numpy.typing import NDArray

    from rollserve._calls.interruptions import Contact
    from rollserve._calls.responses import Bytes
    from rollserve._calls.time_limits import TimeLimits
    from rollserve.account import Account
    from rollserve_wire.spaces import Space
    from rollserve_wire.v1 import datasets_pb2
    from rollserve_wire.v1.episode_batch_pb2 import Beginning

__all__ = ["FRAGMENT_END", "SESSION_END", "BaseSession", "SessionParts"]

FRAGMENT_END = pb.DriveEnvironmentsRequest(fragment_end=pb.FragmentEnd())
SESSION_END = pb.DriveEnvironmentsRequest(session_end=pb.SessionEnd())
_CONFIRMATION = pb.DriveEnvironmentsRequest(session_end=pb.SessionEnd(has_account=True))
_STEP, _RECORDING = (keys_of(pb.DriveEnvironmentsResponse.DESCRIPTOR)[name] for name in ("step", "recording"))


class SessionParts(NamedTuple):
    """Parts that a session is made of.

    Attributes:
        method: begins a call: takes an iterator of requests, and `timeout`.
        first: the first request: what is driven, or which session goes on.
        agent_infos: an array (0, *I) for each info that comes with actions.
        record: whether steps are recorded.
        min_ready: number of rows that are enough for a step; 0 if all rows step together.
        limits: time limits.
        contact: contact with the server.
        batch_kind: kind of batch that the session records: of one agent, or of many.
    """

    method: Callable[..., Any]
    first: pb.DriveEnvironmentsRequest
    agent_infos: Mapping[str, np.ndarray]
    record: bool
    min_ready: int
    limits: TimeLimits
    contact: Contact
    batch_kind: type[Any] = EpisodeBatch


class BaseSession(Generic[Batch, Step]):
    """The end of a session that a client holds, without the waiting.

    Attributes:
        token: what takes the session up again, once it has begun; empty for one without a lease.
    """

    def __init__(self, parts: SessionParts) -> None:
        self._parts = parts
        self._interruptions = Interruptions(parts.limits, parts.contact)
        self._reader: RoundReader[Batch] = RoundReader(pb.StreamSpec(), parts.batch_kind, self._begin)
        self.token = parts.first.resumption.token
        # Whether closing the requests looks as if the connection were lost.
        self._lasts = bool(self.token or parts.first.spec.lease_seconds)
        form = ManyForm if parts.batch_kind is MultiAgentBatch else ReadyForm if parts.min_ready else AgentForm
        self._form: SessionForm[Any] = form(parts.agent_infos)
        # Steps that were received and not returned, and the last one that was.
        self._unread: deque[Step] = deque()
        self._step: Step | None = None
        # Actions that no step has followed yet; and whether fragments, or the session, are to end.
        self._outstanding: list[pb.DriveEnvironmentsRequest] = []
        self._wants_end_of_fragment = self._wants_end = False
        self._batches: list[Batch] = []
        self._num_rounds = 0  # of the session, up to the last one that was received
        self._has_ended = False
        self.num_rows = 0
        self.has_joint_rows = False
        self.agents: tuple[str, ...] = ()
        self.in_turn = False
        self._policy_version: int | None = None
        self._recorded: datasets_pb2.Recording | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} with {self._parts.contact.connection}, {self.num_rows} rows>"

    def __reduce__(self) -> tuple[object, ...]:
        name = type(self).__name__
        hint = "send the sampler"
        raise TypeError(f"session: {mismatch('an object that can be copied to another process', f'a {name}', hint)}")

    @property
    def account(self) -> Account:
        """Account of the session, after its end.

        Raises:
            PreconditionError: the session has not ended.
            ServerError: it ended without an account.
        """
        if not self._has_ended:
            text = mismatch("a session that has ended", "one that has not", "call end(), or leave its with block")
            raise PreconditionError(f"account: {text}", code="FAILED_PRECONDITION", field="account")
        return self._reader.account()

    @property
    def policy_version(self) -> int | None:
        """Version of the policy that acts from here, which the next actions are recorded with, from 0.

        Another version than that of the actions before ends the present fragments first. None, as at the beginning,
        leaves the version as it is: 0 in a session that begins.

        Raises:
            TypeError: not an integer.
            InvalidArgumentError: a number out of range.
        """
        return self._policy_version

    @policy_version.setter
    def policy_version(self, version: int | None) -> None:
        if version is not None:
            check_integer("policy_version", version, 63, signed=False)
        self._policy_version = version

    def _begin(self, beginning: Beginning) -> None:
        self.num_rows, self.token = beginning.row_count, beginning.session_token
        self.has_joint_rows, self.in_turn = beginning.joint_rows, beginning.in_turn
        agents = tuple(beginning.agents)
        check_agents(agents, self._parts.batch_kind)
        self.agents = tuple(self._parts.first.spec.agents) or agents
        try:
            self.observation_space: Space = space_from_proto(beginning.observation_space)
            self.action_space: Space = space_from_proto(beginning.action_space)
        except ValueError as error:
            raise malformed_error(str(error)) from None
        self._form.begin(self.num_rows, agents, self.action_space, beginning.row_step_count)

    def _first_requests(self) -> Iterator[pb.DriveEnvironmentsRequest]:
        """Yield what a stream begins with: the first request, or one that takes the session up and what may be lost."""
        if not self._reader.has_begun:
            yield self._parts.first
        else:
            self._reader.close()
            resumption = pb.DriveResumption(
                sampler=self._parts.first.spec.sampler or self._parts.first.resumption.sampler,
                token=self.token,
                round_count=self._num_rounds,
            )
            yield pb.DriveEnvironmentsRequest(resumption=resumption)
        yield from self._outstanding
        if self._wants_end_of_fragment:
            yield FRAGMENT_END
        if self._wants_end:
            yield SESSION_END

    def _pause(self, error: grpc.RpcError) -> float | None:
        """Return the seconds to wait before the session is begun, or taken up, again; None if that cannot help."""
        has_begun = self._reader.has_begun
        can_repeat = self._lasts and reason_of(error) is not Reason.CLIENT_STALLED
        return self._interruptions.pause(error, has_begun=has_begun, can_repeat=can_repeat)

    def _read(self, message: Bytes) -> pb.DriveEnvironmentsRequest | None:
        """Read a message; return the answer to it, if it needs one."""
        self._parts.contact.was_made = True
        if message and message[0] == _STEP:
            view = memoryview(message).cast("B").toreadonly()
            try:
                ((_, _, start, stop),) = fields(view, 0, len(view))
                step = self._form.news(view[start:stop])
            except (UnusualError, IndexError, KeyError, ValueError) as error:
                raise malformed_error(str(error)) from None
            self._interruptions.advance()
            if step is not None:
                self._unread.append(step)
            self._outstanding = [each for each in self._outstanding if not self._form.has_followed(each.actions)]
            return None
        if message and message[0] == _RECORDING:
            try:
                self._recorded = pb.DriveEnvironmentsResponse.FromString(bytes(message)).recording
            except DecodeError as error:
                raise malformed_error(str(error)) from None
            return None
        batch = self._reader.read(message)
        if batch is not None:
            self._batches.append(batch)
            its_round: Any = batch.round
            self._num_rounds = its_round.number + 1
            self._form.record(batch.num_steps)
            self._wants_end_of_fragment = False
        return _CONFIRMATION if self._lasts and self._reader.has_ended else None

    def _check_goes_on(self) -> None:
        """Raise PreconditionError if the session has ended."""
        if self._has_ended:
            text = mismatch("one that goes on", "one that has ended")
            raise PreconditionError(f"session: {text}", code="FAILED_PRECONDITION", field="session")

    def _next_step(self) -> Step:
        """Return the first step that was received and not returned."""
        step = self._step = self._unread.popleft()
        return step

    @property
    def _has_unrecorded(self) -> bool:
        """Whether rounds do not have all steps yet."""
        return self._parts.record and self._form.num_unrecorded > 0

    def _actions(
        self, actions: Any, rows: object, agent_infos: Mapping[str, Any], idle: NDArray[np.bool_] | None
    ) -> pb.DriveEnvironmentsRequest:
        """Return the request with actions that follow the last step."""
        self._check_goes_on()
        message = self._form.actions(self._step, actions, rows, agent_infos, idle)
        if self._policy_version is not None:
            message.policy_version = self._policy_version
        request = pb.DriveEnvironmentsRequest(actions=message)
        if self._lasts:
            self._outstanding.append(request)
        return request

    def _taken(self) -> Batch:
        """Return what was recorded and not taken; raise PreconditionError if there is nothing."""
        batches, self._batches = self._batches, []
        if not batches:
            text = mismatch("steps that are recorded and not taken", "none")
            raise PreconditionError(f"batch: {text}", code="FAILED_PRECONDITION", field="batch")
        kind: Any = self._parts.batch_kind
        whole: Any = batches[0] if len(batches) == 1 else kind.concatenate(*batches)
        rounds: list[Any] = [batch.round for batch in batches]
        joined = dataclasses.replace(
            rounds[-1],
            number=rounds[0].number,
            row_step_count=rounds[0].row_step_count,
            num_steps=whole.num_steps,
            num_episodes=sum(each.num_episodes for each in rounds),
        )
        found: Batch = dataclasses.replace(whole, round=joined)
        return found
