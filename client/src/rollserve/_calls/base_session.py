"""Common part of the sessions of both samplers: requests, and what is read of responses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rollserve._calls.base_round_stream import RoundReader
from rollserve._calls.interruptions import Interruptions
from rollserve.driven_step import DrivenStep, read_driven_step
from rollserve.episode_batch import EpisodeBatch, concatenated
from rollserve_wire.columns import leaves_of
from rollserve_wire.errors import InvalidArgumentError, PreconditionError, malformed_error, mismatch
from rollserve_wire.protobuf import UnusualError, fields, keys_of
from rollserve_wire.spaces import dtype_and_shape, named_leaves, space_from_proto
from rollserve_wire.tensors import named_tensors_from_proto, named_tensors_to_proto
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rollserve._calls.interruptions import Contact
    from rollserve._calls.responses import Bytes
    from rollserve._calls.time_limits import TimeLimits
    from rollserve.account import Account
    from rollserve_wire.columns import Columns
    from rollserve_wire.spaces import Space
    from rollserve_wire.v1.episode_batch_pb2 import Beginning

__all__ = ["BaseSession", "SessionParts"]

_STEP = keys_of(pb.DriveEnvironmentsResponse.DESCRIPTOR)["step"]


class SessionParts(NamedTuple):
    """Parts that a session is made of.

    Attributes:
        method: begins a call: takes an iterator of requests, and `timeout`.
        spec: what is driven.
        limits: time limits.
        contact: contact with the server.
    """

    method: Callable[..., Any]
    spec: pb.DriveSpec
    limits: TimeLimits
    contact: Contact


class BaseSession:
    """The end of a session that a client holds, without the waiting."""

    def __init__(self, parts: SessionParts) -> None:
        self._parts = parts
        self._interruptions = Interruptions(parts.limits, parts.contact)
        self._reader = RoundReader(pb.StreamSpec(), EpisodeBatch, self._begin)
        self._step: DrivenStep | None = None
        self._batches: list[EpisodeBatch] = []
        # Steps that rows were asked to make, and those that rounds have brought; and whether the session has ended.
        self._num_asked = self._num_recorded = 0
        self._has_ended = False
        # Dtype and shape of a row, by name: of actions once the session has begun, and of the infos with them.
        self._action_forms: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}
        infos = named_tensors_from_proto(parts.spec.agent_infos)
        self._info_forms = {name: (array.dtype, array.shape[1:]) for name, array in infos.items()}
        self.num_rows = 0

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
        self.num_rows = beginning.row_count
        try:
            self.observation_space: Space = space_from_proto(beginning.observation_space)
            self.action_space: Space = space_from_proto(beginning.action_space)
        except ValueError as error:
            raise malformed_error(str(error)) from None
        self._action_forms = {name: dtype_and_shape(leaf) for name, leaf in named_leaves(self.action_space).items()}

    def _read(self, message: Bytes) -> bool:
        """Read a message; return whether it is a step."""
        self._parts.contact.was_made = True
        if message and message[0] == _STEP:
            view = memoryview(message).cast("B").toreadonly()
            try:
                ((_, _, start, stop),) = fields(view, 0, len(view))
                self._step = read_driven_step(view[start:stop])
            except (UnusualError, IndexError, KeyError, ValueError) as error:
                raise malformed_error(str(error)) from None
            return True
        batch = self._reader.read(message)
        if batch is not None:
            self._batches.append(batch)
            self._num_recorded += len(batch.rewards)
        return False

    @property
    def _has_unrecorded(self) -> bool:
        """Whether rounds do not have all steps yet."""
        return not self._parts.spec.options.blackhole and self._num_recorded < self._num_asked

    def _taken(self) -> EpisodeBatch:
        """Return what was recorded and not taken; raise PreconditionError if there is nothing."""
        batches, self._batches = self._batches, []
        if not batches:
            text = mismatch("steps that are recorded and not taken", "none")
            raise PreconditionError(f"batch: {text}", code="FAILED_PRECONDITION", field="batch")
        return concatenated(batches)

    def _actions(
        self, actions: Columns, agent_infos: Mapping[str, Any], idle: NDArray[np.bool_] | None
    ) -> pb.DriveEnvironmentsRequest:
        """Return the request with the actions of the present step."""
        assert self._step is not None  # noqa: S101  # it has been waited for
        forms, infos = self._action_forms, self._info_forms
        given = leaves_of(actions)
        if given.keys() != forms.keys():
            raise InvalidArgumentError.of("actions", expected=f"the leaves {list(forms)}", got=list(given))
        columns = {name: self._column("actions", name, given[name], *form) for name, form in forms.items()}
        if agent_infos.keys() != infos.keys():
            raise InvalidArgumentError.of("agent_infos", expected=f"the infos {list(infos)}", got=list(agent_infos))
        sent = {name: self._column("agent_infos", name, agent_infos[name], *form) for name, form in infos.items()}
        self._num_asked += self.num_rows - (0 if idle is None else int(idle.sum()))
        return pb.DriveEnvironmentsRequest(
            actions=pb.DrivenActions(
                step=self._step.number,
                actions=named_tensors_to_proto(columns),
                agent_infos=named_tensors_to_proto(sent),
                idle=None if idle is None else idle.tolist(),
            )
        )

    def _column(self, field: str, name: str, given: object, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        """Return a column of actions or infos in its dtype."""
        array, expected_shape = np.asarray(given), (self.num_rows, *shape)
        what = f"{field}[{name!r}]" if name else field
        if array.shape != expected_shape:
            raise InvalidArgumentError.of(what, expected=f"shape {expected_shape}", got=f"shape {array.shape}")
        if not np.can_cast(array.dtype, dtype, "same_kind"):
            raise InvalidArgumentError.of(what, expected=f"dtype {dtype}", got=f"dtype {array.dtype}")
        return array.astype(dtype, copy=False)
