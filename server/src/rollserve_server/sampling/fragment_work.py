"""A worker's part in calls that sample fragments: rows that go on, and fragments that wait to be written."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from rollserve_server.errors import OverLimitError
from rollserve_server.sampling.encoding import EncodedMessage, Encoder, Encoding, write_messages
from rollserve_server.sampling.orders import Message
from rollserve_server.sampling.segments import cut_into_messages

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rollserve_server.agents import Agent
    from rollserve_server.envs import BlockEnvs, RowEnvs
    from rollserve_server.sampling.block_fragment_rows import BlockFragmentRows
    from rollserve_server.sampling.episodes import Episode
    from rollserve_server.sampling.fragment_orders import Part, RowProgress, RowStream
    from rollserve_server.sampling.fragment_rows import FragmentRows
    from rollserve_server.sampling.segments import Segment

__all__ = ["FragmentWork"]

_ENOUGH_BYTES = 1 << 20
"""How much has to be there before it is written, unless it is the end: many fragments are to share a message."""


class FragmentWork:
    """Samples fragments of a stream, call after call, and writes them.

    Attributes:
        stream: which stream.
        envs: the environments, which it has for itself.
        num_simulated_steps: steps made so far.
        num_restoring_steps: how many of them brought rows to where they stood.
    """

    def __init__(
        self,
        stream: RowStream,
        envs: RowEnvs | BlockEnvs,
        rows: FragmentRows | BlockFragmentRows,
        buffer_bytes: int,
    ) -> None:
        """Takes what steps the environments, and how much finished data may be held."""
        self.stream = stream
        self.envs = envs
        self.num_simulated_steps = 0
        self.num_restoring_steps = 0
        self._rows = rows
        self._buffer_bytes = buffer_bytes
        self._part: Part | None = None
        self._waiting: list[Episode] = []
        self._waiting_bytes = 0
        self._held_bytes = 0
        self._encoder = Encoder()
        self._messages: Iterator[Sequence[Segment]] = iter(())
        self._num_steps_left = 0
        self._num_steps_to_skip = 0
        self._num_steps_to_write = 0
        self._has_told = False

    @property
    def num_broken_off(self) -> int:
        """How many rows could not be brought to where they stood."""
        return self._rows.num_broken_off

    def begin(self, part: Part, build_agent: Callable[[], Agent]) -> None:
        """Begins a call, unless it is the one that runs.

        Raises:
            OverLimitError: its fragments may take more than may be held.
        """
        before, self._part = self._part, part
        if before is not None and before.call_id == part.call_id:
            return
        if before is None or before.policy_version != part.policy_version:
            self._rows.set_agent(build_agent())
        self._check_size(part)
        self._rows.begin_call(part.num_row_steps, tell_actions=part.tell_actions)
        self._num_steps_left = part.num_row_steps
        self._num_steps_to_skip = part.num_skipped_steps
        self._num_steps_to_write = part.num_row_steps * self._rows.num_rows - part.num_skipped_steps
        self._has_told = False

    def sample(self, seconds: float, is_stopped: Callable[[], bool]) -> None:
        """Steps until the time is over, the rows have made all their steps, or no more finished data may be held.

        The columns of a call's steps fit always; but short fragments take more by themselves than by their steps.

        Args:
            seconds: how long at most; at least one step is made, if there is one to make.
            is_stopped: asked before each step; nothing more is done once it says so.

        Raises:
            EnvFailedError: an environment raised an error.
        """
        until = time.perf_counter() + seconds
        rows = self._rows
        while self._num_steps_left and self._held_bytes < self._buffer_bytes and not is_stopped():
            if num_steps := rows.restore():
                self.num_restoring_steps += num_steps
                self.num_simulated_steps += num_steps
            else:
                fragments = rows.step()
                self.num_simulated_steps += rows.num_rows
                self._num_steps_left -= 1
                for fragment in fragments:
                    self._take(fragment)
            if time.perf_counter() >= until:
                break

    def write(self, encoding: Encoding, write_bytes: int) -> tuple[tuple[Message, ...], NDArray[np.uint8]]:
        """Writes messages, in the order of the fragments, until they have so many bytes or there is no more to write.

        Returns:
            Where they stand, and the buffer.

        Raises:
            OverLimitError: a single step does not fit into a message.
        """
        messages: list[EncodedMessage] = []
        places: list[Message] = []
        written: list[Episode] = []
        num_bytes = 0
        while num_bytes < write_bytes:
            segments = self._next_segments()
            if segments is None:
                break
            message = self._encoder.encode(segments, encoding)
            places.append(Message(num_bytes, message.num_bytes, message.num_steps, message.num_episodes))
            messages.append(message)
            num_bytes += message.num_bytes
            self._num_steps_to_write -= message.num_steps
            written += [segment.episode for segment in segments if segment.ends]
        buffer = write_messages(messages)
        for fragment in written:
            self._rows.release(fragment)
            self._held_bytes -= fragment.num_bytes
        return tuple(places), buffer

    def take_progress(self) -> list[RowProgress] | None:
        """Where the rows stand, once everything of the call is made and written; it is told once."""
        if self._num_steps_left or self._num_steps_to_write or self._has_told:
            return None
        self._has_told = True
        return self._rows.progress()

    def take_dropped_infos(self) -> dict[str, int]:
        """By name, how many values of infos were dropped since this was last asked."""
        dropped = dict(self._rows.dropped_infos)
        self._rows.dropped_infos.clear()
        return dropped

    def _check_size(self, part: Part) -> None:
        buffer_bytes = self._buffer_bytes
        num_rows, step_bytes = self._rows.num_rows, self._rows.step_bytes
        if part.num_row_steps * num_rows * step_bytes <= buffer_bytes:
            return
        came = f"{part.num_row_steps * self.stream.stride} came, but they may take more than the {buffer_bytes} bytes"
        most = buffer_bytes // (num_rows * step_bytes)
        advice = f"at most {most * self.stream.stride} would do" if most else "not even a step of each row fits"
        text = f"{came} that a worker holds for a call: {advice}"
        raise OverLimitError(text, reason="FRAGMENTS_TOO_LARGE", field="step_count")

    def _take(self, fragment: Episode) -> None:
        """Has a fragment wait to be written, unless all of it is to be left out."""
        if not self._waiting and self._num_steps_to_skip >= fragment.length:
            self._num_steps_to_skip -= fragment.length
            self._rows.release(fragment)
        else:
            self._waiting.append(fragment)
            self._waiting_bytes += fragment.num_bytes
            self._held_bytes += fragment.num_bytes

    def _next_segments(self) -> Sequence[Segment] | None:
        """What the next message is to hold, or None if there is nothing to write now."""
        assert self._part is not None  # noqa: S101  # a call has begun
        segments = next(self._messages, None)
        enough = min(_ENOUGH_BYTES, self._buffer_bytes)
        if segments is None and self._waiting and (self._waiting_bytes >= enough or not self._num_steps_left):
            limit, first_step = self._part.max_message_bytes, self._num_steps_to_skip
            self._messages = cut_into_messages(self._waiting, limit, first_step, self._encoder.goal_bytes)
            self._waiting, self._waiting_bytes, self._num_steps_to_skip = [], 0, 0
            segments = next(self._messages, None)
        return segments
