"""Outboxes: finished fragments of a call that wait to be written, in the order of their delivery."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic

import numpy as np

from rollserve_server.sampling.encode.encoder import E, Encoder, Encoding
from rollserve_server.sampling.encode.segments import SegmentContent, cut_into_messages, endings_of
from rollserve_server.sampling.encode.tables import (
    FragmentTable,
    TableContent,
    cut_table,
    endings_of_table,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rollserve_server.sampling.encode.encoder import EncodedMessage, MessageForm
    from rollserve_server.sampling.record.infos import InfoReader

__all__ = ["EpisodeOutbox", "Outbox", "TableOutbox"]

_MIN_BYTES = 1 << 20
"""Size of waiting fragments from which messages are written before the call's end, so that many share a message."""


class Outbox(ABC):
    """Finished fragments that wait to be written.

    Attributes:
        num_bytes: approximate memory of the fragments that are not written, without their steps in columns.
    """

    def __init__(self) -> None:
        self.num_bytes = 0
        self._encoder = Encoder()
        self._waiting_bytes = 0
        self._messages: Iterator[EncodedMessage] = iter(())
        self._num_steps_to_skip = 0

    def begin_call(self, num_skipped_steps: int) -> None:
        """Begin a call whose first `num_skipped_steps` steps are not written."""
        self._num_steps_to_skip = num_skipped_steps

    def next_message(
        self, encoding: Encoding, max_message_bytes: int, buffer_bytes: int, *, is_end: bool
    ) -> EncodedMessage | None:
        """Return the next message; None if too few fragments wait for one, or, at the call's end, none.

        The message refers to the columns, so it has to be written before the next step.

        Args:
            encoding: how to write it.
            max_message_bytes: size that it may not exceed.
            buffer_bytes: size of waiting fragments that is enough in any case.
            is_end: whether all steps of the call are made.

        Raises:
            OverLimitError: a single step does not fit into a message.
        """
        message = next(self._messages, None)
        is_enough = self._waiting_bytes >= min(_MIN_BYTES, buffer_bytes)
        if message is None and self._waiting_bytes and (is_enough or is_end):
            self._waiting_bytes = 0
            self._messages = self._take_messages(encoding, max_message_bytes)
            message = next(self._messages, None)
        return message

    def discard(self) -> tuple[int, bytes]:
        """Throw away all waiting fragments.

        Returns:
            The number of their steps, without skipped ones, and the ends of the episodes that end with them; see
            `Message`.
        """
        self._waiting_bytes = 0
        return self._discard_waiting()

    @abstractmethod
    def forget_written(self) -> None:
        """Release the memory of fragments whose messages have been written."""

    @abstractmethod
    def _take_messages(self, encoding: Encoding, max_message_bytes: int) -> Iterator[EncodedMessage]:
        """Return the messages of all waiting fragments, which wait no longer."""

    @abstractmethod
    def _discard_waiting(self) -> tuple[int, bytes]:
        """Throw away all waiting fragments; see `discard`."""

    def _hold(self, num_bytes: int, column_bytes: int) -> None:
        self.num_bytes += num_bytes
        self._waiting_bytes += num_bytes + column_bytes


class EpisodeOutbox(Outbox, Generic[E]):
    """An outbox for fragments that were recorded one by one.

    Attributes:
        form: how fragments become messages; set before the first call.
        release: called with each fragment that is written or skipped.
    """

    form: MessageForm[E, Any]

    def __init__(self) -> None:
        """Start empty."""
        super().__init__()
        self.release: Callable[[E], object] = lambda fragment: None
        self._waiting: list[E] = []
        self._written: list[E] = []

    def add(self, fragment: E) -> None:
        """Add a fragment, unless all its steps are skipped."""
        if not self._waiting and self._num_steps_to_skip >= fragment.length:
            self._num_steps_to_skip -= fragment.length
            self.release(fragment)
        else:
            self._waiting.append(fragment)
            self._hold(fragment.num_bytes - fragment.column_bytes, fragment.column_bytes)

    def forget_written(self) -> None:
        """Release the memory of fragments whose messages have been written."""
        for fragment in self._written:
            self.release(fragment)
            self.num_bytes -= fragment.num_bytes - fragment.column_bytes
        self._written.clear()

    def _take_messages(self, encoding: Encoding, max_message_bytes: int) -> Iterator[EncodedMessage]:
        fragments, self._waiting = self._waiting, []
        first_step, self._num_steps_to_skip = self._num_steps_to_skip, 0
        return self._encode(fragments, encoding, max_message_bytes, first_step)

    def _discard_waiting(self) -> tuple[int, bytes]:
        fragments, self._waiting = self._waiting, []
        if not fragments:
            return 0, b""
        num_skipped, self._num_steps_to_skip = self._num_steps_to_skip, 0
        self._written += fragments
        self.forget_written()
        return sum(fragment.length for fragment in fragments) - num_skipped, endings_of(fragments)

    def _encode(
        self, fragments: Sequence[E], encoding: Encoding, max_message_bytes: int, first_step: int
    ) -> Iterator[EncodedMessage]:
        limits = max_message_bytes, first_step, self._encoder.fill_bytes
        for segments in self.form.cut(fragments, *limits, encoding.columns):
            self._written += [segment.episode for segment in segments if segment.ends]
            yield self.form.encode(self._encoder, segments, encoding)


class TableOutbox(Outbox):
    """An outbox for fragments of rows that are stepped together, which are written as tables."""

    def __init__(self, infos: InfoReader) -> None:
        """Start empty; `infos` reads infos again whose dtypes or shapes differ from step to step."""
        super().__init__()
        self._infos = infos
        self._waiting: list[FragmentTable] = []

    def add(self, fragments: FragmentTable) -> None:
        """Add fragments, which have the same columns as the waiting ones."""
        self._waiting.append(fragments)
        self._hold(fragments.num_bytes, fragments.column_bytes)

    def forget_written(self) -> None:
        """Do nothing: the columns stay until the next call."""

    def _take_messages(self, encoding: Encoding, max_message_bytes: int) -> Iterator[EncodedMessage]:
        table = FragmentTable.joined(self._waiting)
        self._waiting = []
        return self._encode(self._without_skipped(table), encoding, max_message_bytes)

    def _discard_waiting(self) -> tuple[int, bytes]:
        tables, self._waiting = self._waiting, []
        table = self._without_skipped(FragmentTable.joined(tables)) if tables else None
        if table is None or not len(table):
            return 0, b""
        num_skipped, self._num_steps_to_skip = self._num_steps_to_skip, 0
        self.num_bytes -= table.num_bytes
        return int(table.lengths.sum()) - num_skipped, endings_of_table(table)

    def _without_skipped(self, table: FragmentTable) -> FragmentTable:
        """Return the fragments whose steps are not all skipped."""
        if not self._num_steps_to_skip:
            return table
        ends = np.cumsum(table.lengths)
        num_skipped = int(np.searchsorted(ends, self._num_steps_to_skip, "right"))
        if num_skipped:
            self._num_steps_to_skip -= int(ends[num_skipped - 1])
            self.num_bytes -= table.select(0, num_skipped).num_bytes
        return table.select(num_skipped, len(table))

    def _encode(self, table: FragmentTable, encoding: Encoding, max_message_bytes: int) -> Iterator[EncodedMessage]:
        if not len(table):
            return
        first_step, self._num_steps_to_skip = self._num_steps_to_skip, 0
        limits = max_message_bytes, first_step, self._encoder.fill_bytes
        if table.is_uniform:
            for content in cut_table(table, *limits, encoding.columns):
                self.num_bytes -= content.num_bytes
                yield self._encoder.encode(TableContent(content), encoding)
            return
        for segments in cut_into_messages(table.episodes(self._infos), *limits, encoding.columns):
            yield self._encoder.encode(SegmentContent(segments), encoding)
        self.num_bytes -= table.num_bytes
