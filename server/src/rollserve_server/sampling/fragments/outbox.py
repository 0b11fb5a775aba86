"""Fragments of a call that are made and wait to be written, in the order of their delivery."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.sampling.encode.encoder import EncodedMessage, Encoder, Encoding
from rollserve_server.sampling.encode.segments import cut_into_messages
from rollserve_server.sampling.encode.tables import FragmentsOfStep, FragmentTable, cut_table

if TYPE_CHECKING:
    from rollserve_server.sampling.record.episodes import Episode
    from rollserve_server.sampling.record.infos import InfoReader

__all__ = ["EpisodeOutbox", "Outbox", "TableOutbox"]

_ENOUGH_BYTES = 1 << 20
"""How much has to be there before it is written, unless it is the end: many fragments are to share a message."""


class Outbox(ABC):
    """What all kinds have in common.

    Attributes:
        num_bytes: about how much memory the fragments take that are not written.
    """

    def __init__(self) -> None:
        self.num_bytes = 0
        self._encoder = Encoder()
        self._waiting_bytes = 0
        self._messages: Iterator[EncodedMessage] = iter(())
        self._num_steps_to_skip = 0

    def begin_call(self, num_skipped_steps: int) -> None:
        """Begins a call, of whose first steps so many are to be left out."""
        self._num_steps_to_skip = num_skipped_steps

    def next_message(
        self, encoding: Encoding, max_message_bytes: int, enough_bytes: int, *, is_end: bool
    ) -> EncodedMessage | None:
        """The next message, or None if there is not enough for one, or at the call's end nothing at all.

        It refers to the columns: it has to be written before any more steps are made.

        Args:
            encoding: what it says beside its fragments.
            max_message_bytes: the size that it may not exceed.
            enough_bytes: what is enough in any case.
            is_end: whether all steps of the call are made.

        Raises:
            OverLimitError: a single step does not fit into a message.
        """
        message = next(self._messages, None)
        enough = self._waiting_bytes >= min(_ENOUGH_BYTES, enough_bytes)
        if message is None and self._waiting_bytes and (enough or is_end):
            self._waiting_bytes = 0
            self._messages = self._take_messages(encoding, max_message_bytes)
            message = next(self._messages, None)
        return message

    def discard(self) -> tuple[int, int]:
        """Throws away all fragments that wait.

        Returns:
            How many steps they have, but for those to be left out, and how many episodes end with them.
        """
        self._waiting_bytes = 0
        return self._discard_waiting()

    @abstractmethod
    def forget_written(self) -> None:
        """Takes in that all messages so far are written."""

    @abstractmethod
    def _take_messages(self, encoding: Encoding, max_message_bytes: int) -> Iterator[EncodedMessage]:
        """The messages of all fragments that wait, which then wait no more."""

    @abstractmethod
    def _discard_waiting(self) -> tuple[int, int]:
        """See `discard`."""

    def _hold(self, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        self._waiting_bytes += num_bytes


class EpisodeOutbox(Outbox):
    """Fragments one by one."""

    def __init__(self, release: Callable[[Episode], None]) -> None:
        """Takes what is to be told of each fragment that is written, or left out."""
        super().__init__()
        self._release = release
        self._waiting: list[Episode] = []
        self._written: list[Episode] = []

    def add(self, fragment: Episode) -> None:
        """Has a fragment wait, unless all of it is to be left out."""
        if not self._waiting and self._num_steps_to_skip >= fragment.length:
            self._num_steps_to_skip -= fragment.length
            self._release(fragment)
        else:
            self._waiting.append(fragment)
            self._hold(fragment.num_bytes)

    def forget_written(self) -> None:
        """See Outbox."""
        for fragment in self._written:
            self._release(fragment)
            self.num_bytes -= fragment.num_bytes
        self._written.clear()

    def _take_messages(self, encoding: Encoding, max_message_bytes: int) -> Iterator[EncodedMessage]:
        fragments, self._waiting = self._waiting, []
        first_step, self._num_steps_to_skip = self._num_steps_to_skip, 0
        return self._encode(fragments, encoding, max_message_bytes, first_step)

    def _discard_waiting(self) -> tuple[int, int]:
        fragments, self._waiting = self._waiting, []
        if not fragments:
            return 0, 0
        num_skipped, self._num_steps_to_skip = self._num_steps_to_skip, 0
        self._written += fragments
        self.forget_written()
        num_ended = sum(fragment.terminated or fragment.truncated for fragment in fragments)
        return sum(fragment.length for fragment in fragments) - num_skipped, num_ended

    def _encode(
        self, fragments: Sequence[Episode], encoding: Encoding, max_message_bytes: int, first_step: int
    ) -> Iterator[EncodedMessage]:
        goal_bytes, all_states = self._encoder.goal_bytes, encoding.columns.all_states
        for segments in cut_into_messages(fragments, max_message_bytes, first_step, goal_bytes, all_states=all_states):
            self._written += [segment.episode for segment in segments if segment.ends]
            yield self._encoder.encode(segments, encoding)


class TableOutbox(Outbox):
    """Fragments in tables."""

    def __init__(self, infos: InfoReader) -> None:
        """Takes what reads infos whose types differ from step to step."""
        super().__init__()
        self._infos = infos
        self._waiting: list[FragmentsOfStep] = []

    def add(self, fragments: FragmentsOfStep) -> None:
        """Has fragments wait, which have the same columns as those that wait already."""
        self._waiting.append(fragments)
        self._hold(fragments.num_bytes)

    def forget_written(self) -> None:
        """See Outbox. The columns are there until the next call."""

    def _take_messages(self, encoding: Encoding, max_message_bytes: int) -> Iterator[EncodedMessage]:
        table = FragmentTable.of(self._waiting)
        self._waiting = []
        return self._encode(self._without_skipped(table), encoding, max_message_bytes)

    def _discard_waiting(self) -> tuple[int, int]:
        steps, self._waiting = self._waiting, []
        table = self._without_skipped(FragmentTable.of(steps)) if steps else None
        if table is None or not len(table):
            return 0, 0
        num_skipped, self._num_steps_to_skip = self._num_steps_to_skip, 0
        self.num_bytes -= table.num_bytes
        return int(table.lengths.sum()) - num_skipped, int((table.terminated | table.truncated).sum())

    def _without_skipped(self, table: FragmentTable) -> FragmentTable:
        """Those of which anything is to be written."""
        if not self._num_steps_to_skip:
            return table
        ends = np.cumsum(table.lengths)
        num_skipped = int(np.searchsorted(ends, self._num_steps_to_skip, "right"))
        if num_skipped:
            self._num_steps_to_skip -= int(ends[num_skipped - 1])
            self.num_bytes -= table.part(0, num_skipped).num_bytes
        return table.part(num_skipped, len(table))

    def _encode(self, table: FragmentTable, encoding: Encoding, max_message_bytes: int) -> Iterator[EncodedMessage]:
        if not len(table):
            return
        first_step, self._num_steps_to_skip = self._num_steps_to_skip, 0
        limits = max_message_bytes, first_step, self._encoder.goal_bytes
        all_states = encoding.columns.all_states
        if table.is_uniform:
            for part in cut_table(table, *limits, all_states=all_states):
                self.num_bytes -= part.num_bytes
                yield self._encoder.encode_part(part, encoding)
            return
        for segments in cut_into_messages(table.episodes(self._infos), *limits, all_states=all_states):
            yield self._encoder.encode(segments, encoding)
        self.num_bytes -= table.num_bytes
