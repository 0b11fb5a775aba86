"""Reader that turns the responses of a sampling stream into episode batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollserve._calls.base_reader import BaseReader
from rollserve._calls.responses import read_response
from rollserve._calls.resumption import Resumption
from rollserve._calls.server_warnings import warn_of
from rollserve.account import Account, account_from_proto
from rollserve.episode_batch import EpisodeBatch
from rollserve.multi_agent_batch import MultiAgentBatch
from rollserve_wire.errors import malformed_error
from rollserve_wire.v1.episode_batch_pb2 import Account as AccountProto
from rollserve_wire.v1.episode_batch_pb2 import Beginning, Progress, SharedMessage

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollserve._calls.responses import Bytes, Content
    from rollserve._calls.resumption import AnyBatch, Request
    from rollserve._calls.shared_memory import SharedRing

__all__ = ["StreamReader"]


class StreamReader(BaseReader):
    """Reader of one stream's responses, in their order, over all calls that deliver the stream.

    Attributes:
        resumption: how to continue after an interruption.
        num_simulated_steps: number of steps simulated so far, as far as the server has reported them; at least the
            number of received steps.
        num_ended_episodes: number of episodes that have ended so far, as far as the server has reported them.
        num_workers: number of workers of the call; 0 as long as the server has not said.
        num_expected_steps: approximate number of steps of the whole stream, or 0 if the request does not say.
        waiting_for: what the server last said that the call waits for; empty for nothing.
        in_place: whether a batch in shared memory stays there, as a view that is valid until the next response is read.
            Otherwise the batch is copied.
    """

    def __init__(self, request: Request, on_beginning: Callable[[Beginning], object] = lambda _: None) -> None:
        """Start with the first call's request.

        Args:
            request: the request.
            on_beginning: takes the beginning of the stream, once it is known.
        """
        super().__init__(on_beginning)
        self.resumption = Resumption(request)
        self.num_simulated_steps = self.num_ended_episodes = 0
        # Whole episodes usually have somewhat more steps than requested.
        num_requested_steps = 0 if request.options.count_agent_steps else getattr(request, "step_count", 0)
        self.num_expected_steps = num_requested_steps + num_requested_steps // 8
        self.waiting_for = ""
        self.num_workers = 0
        self._num_rows = 0
        self.in_place = False
        self._held: SharedRing | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the account has arrived, which comes last."""
        return self._account is not None

    def read(self, response: Bytes) -> AnyBatch | None:
        """Return the part of a serialized response's batch that was not received before, if there is any.

        Raises:
            ServerError: a malformed response.
        """
        self._release()
        try:
            content = self._read(response)
        except ValueError as error:
            raise malformed_error(str(error)) from None
        match content:
            case EpisodeBatch() | MultiAgentBatch():
                new = self.resumption.take(self._with_spaces(content))
                self.waiting_for = ""
                self.num_simulated_steps = max(self.num_simulated_steps, self.resumption.received[1])
                return new
            case Beginning():
                self._take_beginning(content, is_first=not self.resumption.has_begun)
                self.resumption.begin(content)
                self._num_rows, self.num_workers = content.row_count, content.worker_count
            case Progress():
                self.num_simulated_steps = max(self.num_simulated_steps, content.simulated_step_count)
                self.num_ended_episodes = max(self.num_ended_episodes, content.ended_episode_count)
                self.waiting_for = content.waiting_for
                warn_of(content)
            case AccountProto():
                self._account = account_from_proto(content)
                self.num_simulated_steps = self._account.num_simulated_steps
            case _:
                pass  # content of a later version, which a client may leave out
        return None

    def end(self) -> Account:
        """Return the account of the stream, after its end.

        Raises:
            ServerError: the stream ended without an account.
        """
        return self.resumption.whole(self._received_account())

    def _read(self, response: Bytes) -> Content | None:
        """Return the content of a response, which may be in shared memory."""
        content = read_response(response, self._num_rows)
        if not isinstance(content, SharedMessage):
            return content
        self._held, data = self._in_ring(content)
        if self.in_place:
            content = read_response(data, self._num_rows)
            if not isinstance(content, MultiAgentBatch):  # batches of many agents are held until they are joined
                return content
        copied = data.tobytes()
        self._release()
        return read_response(copied, self._num_rows)

    def _release(self) -> None:
        """Release the message in shared memory, if one is held."""
        if self._held is not None:
            self._held.release()
        self._held = None
