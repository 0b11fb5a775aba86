"""Common part of the sessions of both samplers: requests, and what is read of responses."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rollserve._calls.base_round_stream import RoundReader
from rollserve._calls.interruptions import Interruptions
from rollserve._calls.rpc_errors import reason_of
from rollserve.driven_step import DrivenStep, read_driven_step, rows_of_step
from rollserve.episode_batch import EpisodeBatch, concatenated
from rollserve_wire.columns import leaves_of
from rollserve_wire.errors import InvalidArgumentError, PreconditionError, malformed_error, mismatch
from rollserve_wire.protobuf import UnusualError, fields, keys_of
from rollserve_wire.reasons import Reason
from rollserve_wire.spaces import dtype_and_shape, named_leaves, space_from_proto
from rollserve_wire.tensors import named_tensors_to_proto
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    import grpc
    from numpy.typing import NDArray

    from rollserve._calls.interruptions import Contact
    from rollserve._calls.responses import Bytes
    from rollserve._calls.time_limits import TimeLimits
    from rollserve.account import Account
    from rollserve_wire.columns import Columns
    from rollserve_wire.spaces import Space
    from rollserve_wire.v1.episode_batch_pb2 import Beginning

__all__ = ["FRAGMENT_END", "SESSION_END", "BaseSession", "SessionParts"]

FRAGMENT_END = pb.DriveEnvironmentsRequest(fragment_end=pb.FragmentEnd())
SESSION_END = pb.DriveEnvironmentsRequest(session_end=pb.SessionEnd())
_STEP = keys_of(pb.DriveEnvironmentsResponse.DESCRIPTOR)["step"]


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
    """

    method: Callable[..., Any]
    first: pb.DriveEnvironmentsRequest
    agent_infos: Mapping[str, np.ndarray]
    record: bool
    min_ready: int
    limits: TimeLimits
    contact: Contact


class BaseSession:
    """The end of a session that a client holds, without the waiting.

    Attributes:
        token: what takes the session up again, once it has begun; empty for one without a lease.
    """

    def __init__(self, parts: SessionParts) -> None:
        self._parts = parts
        self._interruptions = Interruptions(parts.limits, parts.contact)
        self._reader = RoundReader(pb.StreamSpec(), EpisodeBatch, self._begin)
        self.token = parts.first.resumption.token
        # Steps that were received and not returned, the last one that was, and how many steps of each row came.
        self._unread: deque[DrivenStep] = deque()
        self._step: DrivenStep | None = None
        self._row_steps = np.empty(0, np.int64)
        # Actions that no step has followed yet; and whether fragments, or the session, are to end.
        self._outstanding: list[pb.DriveEnvironmentsRequest] = []
        self._wants_end_of_fragment = self._wants_end = False
        self._batches: list[EpisodeBatch] = []
        self._num_unrecorded = 0  # steps that rows were asked to make since the last round
        self._has_ended = False
        # Dtype and shape of a row, by name: of actions once the session has begun, and of the infos with them.
        self._action_forms: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}
        self._info_forms = {name: (array.dtype, array.shape[1:]) for name, array in parts.agent_infos.items()}
        self.num_rows = 0
        self.has_joint_rows = False

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

    def _begin(self, beginning: Beginning) -> None:
        self.num_rows, self.token = beginning.row_count, beginning.session_token
        self.has_joint_rows = beginning.joint_rows
        self._row_steps = np.full(self.num_rows, -1)
        try:
            self.observation_space: Space = space_from_proto(beginning.observation_space)
            self.action_space: Space = space_from_proto(beginning.action_space)
        except ValueError as error:
            raise malformed_error(str(error)) from None
        self._action_forms = {name: dtype_and_shape(leaf) for name, leaf in named_leaves(self.action_space).items()}

    def _first_requests(self) -> Iterator[pb.DriveEnvironmentsRequest]:
        """Yield what a stream begins with: the first request, or one that takes the session up and what may be lost."""
        if not self._reader.has_begun:
            yield self._parts.first
        else:
            self._reader.close()
            resumption = pb.DriveResumption(
                sampler=self._parts.first.spec.sampler or self._parts.first.resumption.sampler,
                token=self.token,
                round_count=self._reader.num_rounds,
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
        can_repeat = bool(self.token) and reason_of(error) is not Reason.CLIENT_STALLED
        return self._interruptions.pause(error, has_begun=has_begun, can_repeat=can_repeat)

    def _read(self, message: Bytes) -> None:
        """Read a message."""
        self._parts.contact.was_made = True
        if message and message[0] == _STEP:
            view = memoryview(message).cast("B").toreadonly()
            try:
                ((_, _, start, stop),) = fields(view, 0, len(view))
                self._take_step(read_driven_step(view[start:stop]))
            except (UnusualError, IndexError, KeyError, ValueError) as error:
                raise malformed_error(str(error)) from None
            self._interruptions.advance()
            return
        batch = self._reader.read(message)
        if batch is not None:
            self._batches.append(batch)
            self._num_unrecorded = max(self._num_unrecorded - len(batch.rewards), 0)
            self._wants_end_of_fragment = False

    def _take_step(self, step: DrivenStep) -> None:
        """Keep what is new in a step: a session that was taken up again may show rows twice."""
        is_new = step.row_steps > self._row_steps[step.rows]
        self._row_steps[step.rows] = step.row_steps
        if is_new.any():
            self._unread.append(step if is_new.all() else rows_of_step(step, is_new))
        self._outstanding = [each for each in self._outstanding if self._is_unanswered(each.actions)]

    def _is_unanswered(self, actions: pb.DrivenActions) -> bool:
        """Whether no step has followed some of the actions that were sent."""
        if not actions.rows:
            return bool(actions.step >= self._row_steps[0])
        return bool((np.array(actions.row_step_counts) >= self._row_steps[np.array(actions.rows)]).any())

    def _check_goes_on(self) -> None:
        """Raise PreconditionError if the session has ended."""
        if self._has_ended:
            text = mismatch("one that goes on", "one that has ended")
            raise PreconditionError(f"session: {text}", code="FAILED_PRECONDITION", field="session")

    def _next_step(self) -> DrivenStep:
        """Return the first step that was received and not returned."""
        self._step = self._unread.popleft()
        return self._step

    @property
    def _has_unrecorded(self) -> bool:
        """Whether rounds do not have all steps yet."""
        return self._parts.record and self._num_unrecorded > 0

    def _taken(self) -> EpisodeBatch:
        """Return what was recorded and not taken; raise PreconditionError if there is nothing."""
        batches, self._batches = self._batches, []
        if not batches:
            text = mismatch("steps that are recorded and not taken", "none")
            raise PreconditionError(f"batch: {text}", code="FAILED_PRECONDITION", field="batch")
        whole, rounds = concatenated(batches), [batch.round for batch in batches]
        joined = dataclasses.replace(
            rounds[-1],
            number=rounds[0].number,
            row_step_count=rounds[0].row_step_count,
            num_steps=whole.num_steps,
            num_episodes=sum(each.num_episodes for each in rounds),
        )
        return dataclasses.replace(whole, round=joined)

    def _actions(
        self,
        actions: Columns,
        rows: NDArray[np.integer[Any]] | None,
        agent_infos: Mapping[str, Any],
        idle: NDArray[np.bool_] | None,
    ) -> pb.DriveEnvironmentsRequest:
        """Return the request with actions: of all rows where they step together, else of these or of the last step."""
        self._check_goes_on()
        assert self._step is not None  # noqa: S101  # it has been waited for
        forms, infos, is_joint = self._action_forms, self._info_forms, not self._parts.min_ready
        its = self._step.rows if rows is None else self._checked_rows(rows, is_joint=is_joint)
        given = leaves_of(actions)
        if given.keys() != forms.keys():
            raise InvalidArgumentError.of("actions", expected=f"the leaves {list(forms)}", got=list(given))
        columns = {name: _column("actions", name, given[name], len(its), *form) for name, form in forms.items()}
        if agent_infos.keys() != infos.keys():
            raise InvalidArgumentError.of("agent_infos", expected=f"the infos {list(infos)}", got=list(agent_infos))
        sent = {name: _column("agent_infos", name, agent_infos[name], len(its), *form) for name, form in infos.items()}
        self._num_unrecorded += len(its) - (0 if idle is None else int(idle.sum()))
        request = pb.DriveEnvironmentsRequest(
            actions=pb.DrivenActions(
                step=self._step.number,
                actions=named_tensors_to_proto(columns),
                agent_infos=named_tensors_to_proto(sent),
                idle=None if idle is None else idle.tolist(),
                rows=None if is_joint else its.tolist(),
                row_step_counts=None if is_joint else self._row_steps[its].tolist(),
            )
        )
        if self.token:
            self._outstanding.append(request)
        return request

    def _checked_rows(self, given: object, *, is_joint: bool) -> NDArray[np.int64]:
        """Return the rows that act; raise InvalidArgumentError for others than there are."""
        rows = np.asarray(given)
        if is_joint:
            raise InvalidArgumentError.of("rows", expected="none, unless min_ready is given", got=rows)
        if rows.dtype.kind not in "iu" or rows.ndim != 1 or not ((rows >= 0) & (rows < self.num_rows)).all():
            raise InvalidArgumentError.of("rows", expected=f"numbers from 0 to {self.num_rows - 1}", got=rows)
        return rows.astype(np.int64, copy=False)


def _column(field: str, name: str, given: object, num_rows: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Return a column of actions or infos in its dtype."""
    array, expected_shape = np.asarray(given), (num_rows, *shape)
    what = f"{field}[{name!r}]" if name else field
    if array.shape != expected_shape:
        raise InvalidArgumentError.of(what, expected=f"shape {expected_shape}", got=f"shape {array.shape}")
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        raise InvalidArgumentError.of(what, expected=f"dtype {dtype}", got=f"dtype {array.dtype}")
    return array.astype(dtype, copy=False)
