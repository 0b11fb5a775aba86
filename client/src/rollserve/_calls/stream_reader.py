"""Readers that turn the responses of a sampling stream into batches, also out of memory shared with the server."""

from __future__ import annotations

import os
import sys
import warnings
from typing import TYPE_CHECKING

import numpy as np

from rollserve._calls.responses import read_response, responses_of
from rollserve._calls.resumption import Resumption
from rollserve.account import Account, account_from_proto
from rollserve.episode_batch import EpisodeBatch, with_spaces
from rollserve.multi_agent_batch import MultiAgentBatch
from rollserve_wire.errors import malformed_error, mismatch
from rollserve_wire.spaces import space_from_proto
from rollserve_wire.v1.episode_batch_pb2 import Account as AccountProto
from rollserve_wire.v1.episode_batch_pb2 import Beginning, Progress, SharedMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rollserve._calls.responses import Bytes, Content
    from rollserve._calls.resumption import Request
    from rollserve.multi_agent_batch import AnyBatch
    from rollserve_wire.spaces import Space
    from rollserve_wire.v1.episode_batch_pb2 import SharedMemory


__all__ = ["BaseReader", "SharedRing", "StreamReader", "warn_of"]


# The link of a server's memory in /proc. No other file is ever opened, whatever a server offers.
_NAME = "/memfd:rollserve (deleted)"
_NUM_WORDS = 3
_NONCE, _ECHO, _NUM_RELEASED = range(_NUM_WORDS)


class BaseReader:
    """Reader of one stream's responses, over all calls that deliver the stream."""

    def __init__(self, on_beginning: Callable[[Beginning], object]) -> None:
        """Start without responses.

        Args:
            on_beginning: takes the beginning of the stream, once it is known.
        """
        self._on_beginning = on_beginning
        self._account: Account | None = None
        self._ring: SharedRing | None = None
        self._spaces: tuple[Space, Space] | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the account has arrived, which comes last."""
        return self._account is not None

    def split(self, message: Bytes) -> Sequence[Bytes]:
        """Return the serialized responses of a message, in their order.

        Raises:
            ServerError: a malformed message.
        """
        try:
            return responses_of(message)
        except ValueError as error:
            raise malformed_error(str(error)) from None

    def _take_beginning(self, beginning: Beginning, *, is_first: bool) -> None:
        """Take the beginning of a call: the first one of the stream, or one that resumes it."""
        if is_first:
            self._on_beginning(beginning)
        if beginning.HasField("observation_space") and self._spaces is None:
            try:
                spaces = beginning.observation_space, beginning.action_space
                self._spaces = space_from_proto(spaces[0]), space_from_proto(spaces[1])
            except ValueError as error:
                raise malformed_error(str(error)) from None
        self._ring = SharedRing.attach(beginning.shared_memory) if beginning.HasField("shared_memory") else None

    def _in_ring(self, shared: SharedMessage) -> tuple[SharedRing, memoryview]:
        """Return the shared memory, and the message in it, which has to be released.

        Raises:
            ValueError: the client has accepted no shared memory, or the message is outside it.
        """
        if self._ring is None:
            raise ValueError("shared: the message is in shared memory that this client has not accepted")
        return self._ring, self._ring.read(shared)

    def _with_spaces(self, batch: AnyBatch) -> AnyBatch:
        """Return a batch with the spaces, if the call has asked for them."""
        if self._spaces is None:
            return batch
        return (
            batch.with_spaces(self._spaces) if isinstance(batch, MultiAgentBatch) else with_spaces(batch, self._spaces)
        )

    def _received_account(self) -> Account:
        """Return the last call's account; raise ServerError if the stream ended without one."""
        if self._account is None:
            raise malformed_error("the stream ended without its account")
        return self._account


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


if sys.platform == "linux":
    import fcntl
    import mmap


class SharedRing:
    """Memory that holds the messages of one stream."""

    def __init__(self, memory: np.ndarray) -> None:
        """Accept memory that has the right nonce, which tells the server that the client reads it."""
        self._memory = memory
        self._words = memory[: 8 * _NUM_WORDS].view("<u8")
        self._words[_ECHO] = self._words[_NONCE]

    @classmethod
    def attach(cls, offer: SharedMemory) -> SharedRing | None:
        """Map the memory that a server offers; None if the server runs elsewhere or belongs to another user."""
        if sys.platform != "linux":
            return None
        path = f"/proc/{offer.process_id}/fd/{offer.file_descriptor}"
        try:
            if os.readlink(path) != _NAME:
                return None
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            is_same = os.readlink(f"/proc/self/fd/{descriptor}") == _NAME  # the link may have changed before `open`
            is_sealed = is_same and fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
            if not is_sealed or os.fstat(descriptor).st_size != offer.size or offer.size < 8 * _NUM_WORDS:
                return None
            memory = np.frombuffer(mmap.mmap(descriptor, offer.size), np.uint8)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        return cls(memory) if memory[:8].view("<u8")[_NONCE] == offer.nonce else None

    def read(self, message: SharedMessage) -> memoryview:
        """Return a view of a message, which is valid until `release`.

        Raises:
            ValueError: a message beyond the memory.
        """
        start, stop = message.offset, message.offset + message.size
        if not 8 * _NUM_WORDS <= start <= stop <= len(self._memory):
            expected = f"a message in shared memory of {len(self._memory)} bytes"
            raise ValueError(f"shared: {mismatch(expected, f'one from {start} to {stop}')}")
        return self._memory[start:stop].data.toreadonly()

    def release(self) -> None:
        """Allow the server to overwrite the message that was read last, and all messages before it."""
        self._words[_NUM_RELEASED] += np.uint64(1)


def warn_of(progress: Progress) -> None:
    """Issue the warning of a progress message, if it has one, as a RuntimeWarning."""
    if progress.warning:
        warnings.warn(progress.warning, RuntimeWarning, stacklevel=2)
