"""Common part of the readers of streams: messages in parts, shared memory, spaces and the account."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollserve._calls.responses import responses_of
from rollserve._calls.shared_memory import SharedRing
from rollserve.episode_batch import with_spaces
from rollserve.multi_agent_batch import MultiAgentBatch
from rollserve_wire.errors import malformed_error
from rollserve_wire.spaces import space_from_proto

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rollserve._calls.responses import Bytes
    from rollserve._calls.resumption import AnyBatch
    from rollserve.account import Account
    from rollserve_wire.spaces import Space
    from rollserve_wire.v1.episode_batch_pb2 import Beginning, SharedMessage

__all__ = ["BaseReader"]


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
