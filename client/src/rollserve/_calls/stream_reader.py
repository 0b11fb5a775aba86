"""Messages of a sampling call's stream as episode batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollserve._calls.responses import read_response
from rollserve._calls.resumption import Resumption
from rollserve._calls.shared_memory import SharedRing
from rollserve.account import Account, account_from_proto
from rollserve.episode_batch import EpisodeBatch
from rollserve.errors import malformed_error
from rollserve.v1.episode_batch_pb2 import Account as AccountProto
from rollserve.v1.episode_batch_pb2 import Beginning, Progress, SharedMessage

if TYPE_CHECKING:
    from rollserve._calls.responses import Bytes, Content
    from rollserve._calls.resumption import Request

__all__ = ["StreamReader"]


class StreamReader:
    """Reads the responses of one stream, in their order, whatever calls bring them.

    Attributes:
        resumption: how to go on after an interruption.
        num_simulated_steps: how many steps are known to have been simulated so far: as many as the server has told of,
            and at least as many as came.
        num_expected_steps: about how many are to come in all, or 0 if the request does not say.
        has_advanced: whether what was read last is more than the beginning of a call.
        in_place: whether a batch in shared memory is a view of it, which holds until the next response is read. Else it
            is copied.
    """

    def __init__(self, request: Request) -> None:
        """Begins with the first call's request."""
        self.resumption = Resumption(request)
        self.num_simulated_steps = 0
        # Whole episodes are usually some steps more than were asked for.
        asked = getattr(request, "step_count", 0)
        self.num_expected_steps = asked + asked // 8
        self.has_advanced = False
        self._num_received_steps = 0
        self._account: Account | None = None
        self.in_place = False
        self._ring: SharedRing | None = None
        self._is_held = False

    def read(self, response: Bytes) -> EpisodeBatch | None:
        """The batch in the serialized response, if there is one that has not come before.

        Raises:
            ServerError: the response is malformed.
        """
        self._release()
        try:
            content = self._read(response)
        except ValueError as error:
            raise malformed_error(str(error)) from error
        self.has_advanced = not isinstance(content, Beginning)
        match content:
            case EpisodeBatch():
                new = self.resumption.take(content)
                self._num_received_steps += 0 if new is None else new.num_steps
                self.num_simulated_steps = max(self.num_simulated_steps, self._num_received_steps)
                return new
            case Beginning():
                self.resumption.begin(content)
                offer = content.shared_memory
                self._ring = SharedRing.attach(offer) if content.HasField("shared_memory") else None
            case Progress():
                self.num_simulated_steps = max(self.num_simulated_steps, content.simulated_step_count)
            case AccountProto():
                self._account = account_from_proto(content)
                self.num_simulated_steps = self._account.num_simulated_steps
            case _:
                raise malformed_error("a response without content came")
        return None

    def _read(self, response: Bytes) -> Content | None:
        """What the response brings, wherever that stands."""
        content = read_response(response)
        if not isinstance(content, SharedMessage):
            return content
        if self._ring is None:
            raise ValueError("a message in shared memory came, but this client has taken none")
        data, self._is_held = self._ring.read(content), True
        if self.in_place:
            return read_response(data)
        copied = data.tobytes()
        self._release()
        return read_response(copied)

    def _release(self) -> None:
        """Gives a message in shared memory back, if one is held."""
        if self._is_held and self._ring is not None:
            self._ring.release()
        self._is_held = False

    def end(self) -> Account:
        """The account, after the stream's end.

        Raises:
            ServerError: there is none.
        """
        if self._account is None:
            raise malformed_error("the stream ended without its account")
        return self.resumption.whole(self._account)
