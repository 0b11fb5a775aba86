"""Common part of the readers of sessions' rounds of both samplers: requests, and what is read of responses."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from rollserve._calls.base_round_stream import RoundReader
from rollserve._calls.interruptions import Interruptions
from rollserve._calls.rpc_errors import reason_of
from rollserve.multi_agent_batch import Batch
from rollserve_wire.errors import PreconditionError, mismatch
from rollserve_wire.reasons import Reason
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    import grpc

    from rollserve._calls.interruptions import Contact
    from rollserve._calls.responses import Bytes
    from rollserve._calls.time_limits import TimeLimits
    from rollserve.account import Account

__all__ = ["HAS_ALL", "BaseSessionRounds", "ReadingParts"]

HAS_ALL = pb.DriveEnvironmentsRequest(session_end=pb.SessionEnd(has_account=True))


class ReadingParts(NamedTuple, Generic[Batch]):
    """Parts that a reader of a session's rounds is made of.

    Attributes:
        method: begins a call: takes an iterator of requests, and `timeout`.
        sampler: the sampler's name.
        token: the session's token.
        batch_kind: kind of batch that a round is.
        limits: time limits.
        contact: contact with the server.
    """

    method: Callable[..., Any]
    sampler: str
    token: str
    batch_kind: type[Batch]
    limits: TimeLimits
    contact: Contact


class BaseSessionRounds(Generic[Batch]):
    """A reader of a session's rounds, without the waiting."""

    def __init__(self, parts: ReadingParts[Batch]) -> None:
        self._parts = parts
        self._interruptions = Interruptions(parts.limits, parts.contact)
        self._reader: RoundReader[Batch] = RoundReader(pb.StreamSpec(), parts.batch_kind, lambda _: None)
        self._num_rounds = 0  # of the session, which have arrived here or before
        self._has_ended = False

    @property
    def account(self) -> Account:
        """Account of the session, after its end.

        Raises:
            PreconditionError: the session has not ended.
        """
        if not self._has_ended:
            text = mismatch("a session whose rounds have all been read", "one that goes on")
            raise PreconditionError(f"account: {text}", code="FAILED_PRECONDITION", field="account")
        return self._reader.account()

    def _first_request(self) -> pb.DriveEnvironmentsRequest:
        """Return the first request of a stream, which has the rounds that have not arrived."""
        self._reader.close()
        reading = pb.SessionReading(sampler=self._parts.sampler, token=self._parts.token, round_count=self._num_rounds)
        return pb.DriveEnvironmentsRequest(reading=reading)

    def _receipt(self) -> pb.DriveEnvironmentsRequest:
        return pb.DriveEnvironmentsRequest(receipt=pb.StreamReceipt(round_count=self._num_rounds))

    def _read(self, message: Bytes) -> Batch | None:
        """Read a message; return the round that it completes, if any."""
        self._parts.contact.was_made = True
        batch = self._reader.read(message)
        self._interruptions.waiting_for = self._reader.progress.waiting_for
        if batch is not None:
            assert batch.round is not None  # noqa: S101  # the reader has set it
            self._num_rounds = batch.round.number + 1
            self._interruptions.advance()
        return batch

    def _pause(self, error: grpc.RpcError) -> float | None:
        """Return the seconds to wait before the rest is asked for, or None if that cannot help."""
        can_repeat = reason_of(error) is not Reason.CLIENT_STALLED
        return self._interruptions.pause(error, has_begun=self._reader.has_begun, can_repeat=can_repeat)
