"""A worker's part in calls that sample fragments: rows that go on, and fragments that wait to be written."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from rollserve import Reason
from rollserve_server.errors import OverLimitError
from rollserve_server.sampling.encode.encoder import EncodedMessage, Encoding, write_messages
from rollserve_server.sampling.protocol.episodes import EpisodeFailure, Message

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rollserve_server.agents import Agent
    from rollserve_server.envs import RowEnvs, VectorEnvs
    from rollserve_server.sampling.fragments.recording import FragmentRecording
    from rollserve_server.sampling.protocol.fragments import FragmentAssignment, RowProgress, RowSequenceSpec

__all__ = ["FragmentWork"]


class FragmentWork:
    """Samples fragments of a stream, call after call, and writes them.

    Attributes:
        spec: which sequence.
        envs: the environments, which it has for itself.
        num_simulated_steps: steps made so far.
        num_restoring_steps: how many of them brought rows to where they stood.
    """

    def __init__(
        self,
        sequence: RowSequenceSpec,
        envs: RowEnvs | VectorEnvs,
        rows: FragmentRecording,
        buffer_bytes: int,
    ) -> None:
        """Takes what steps the environments, and how much finished data may be held."""
        self.spec = sequence
        self.envs = envs
        self.num_simulated_steps = 0
        self.num_restoring_steps = 0
        self._rows = rows
        self._buffer_bytes = buffer_bytes
        self._assignment: FragmentAssignment | None = None
        self._checked_bytes = 0
        self._num_steps_left = 0
        self._num_steps_to_write = 0
        self._has_told = False

    @property
    def num_broken_off(self) -> int:
        """How many rows could not be brought to where they stood."""
        return self._rows.num_broken_off

    @property
    def is_stranded(self) -> bool:
        """Whether a row could not be brought to where it stood in the middle of a call."""
        return self._rows.is_stranded

    def take_env_failures(self) -> tuple[EpisodeFailure, ...]:
        """Errors of environments, since this was last asked."""
        failures, _ = self._rows.attempts.take()
        return failures

    def episode_of(self, row: int) -> int | None:
        """The index of the episode that a row runs, or begins."""
        return self._rows.episode_of(row)

    def begin(self, assignment: FragmentAssignment, build_agent: Callable[[], Agent]) -> None:
        """Begins a call, unless it is the one that runs.

        Raises:
            OverLimitError: its fragments may take more than may be held.
        """
        before, self._assignment = self._assignment, assignment
        if before is not None and before.call_id == assignment.call_id:
            return
        if before is None or (before.policy_version, before.exploration) != (
            assignment.policy_version,
            assignment.exploration,
        ):
            self._rows.set_agent(build_agent())
        self._checked_bytes = 0
        self._check_size()
        self._rows.begin_call(assignment.num_row_steps, tell_actions=assignment.tell_actions)
        self._rows.outbox.begin_call(assignment.num_skipped_steps)
        self._num_steps_left = assignment.num_row_steps
        self._num_steps_to_write = assignment.num_row_steps * self._rows.num_rows - assignment.num_skipped_steps
        self._has_told = False

    @property
    def num_row_steps(self) -> int:
        """How many steps each row makes in the call."""
        return self._rows.num_steps

    def shorten(self, num_row_steps: int) -> None:
        """Has each row make only so many steps in the call, or as many as it has made, if those are more."""
        before = self._rows.num_steps
        num_made = before - self._num_steps_left
        if num_row_steps < before and self._num_steps_left:
            self._rows.shorten(num_row_steps)
            self._num_steps_left = self._rows.num_steps - num_made
            self._num_steps_to_write -= (before - self._rows.num_steps) * self._rows.num_rows

    def sample(self, seconds: float, is_stopped: Callable[[], bool]) -> None:
        """Steps until the time is over, the rows have made all their steps, or no more finished data may be held.

        The columns of a call's steps fit always; but short fragments take more by themselves than by their steps.

        Args:
            seconds: how long at most; at least one step is made, if there is one to make.
            is_stopped: asked before each step; nothing more is done once it says so.

        Raises:
            EnvFailedError: an environment raised errors again and again, or `is_stranded`.
            AgentFailedError: the agent failed.
            OverLimitError: with the infos that came, the fragments may take more than may be held.
        """
        until = time.perf_counter() + seconds
        rows = self._rows
        while self._num_steps_left and rows.outbox.num_bytes < self._buffer_bytes and not is_stopped():
            if num_steps := rows.restore():
                self.num_restoring_steps += num_steps
                self.num_simulated_steps += num_steps
            else:
                rows.step()
                self.num_simulated_steps += rows.num_rows + rows.num_repeated_steps
                self.num_restoring_steps += rows.num_repeated_steps
                self._num_steps_left -= 1
                self._check_size()
            if time.perf_counter() >= until:
                break

    def write(self, encoding: Encoding, write_bytes: int) -> tuple[tuple[Message, ...], NDArray[np.uint8]]:
        """Writes messages, in the order of the fragments, until they have so many bytes or there is no more to write.

        Returns:
            Where they stand, and the buffer.

        Raises:
            OverLimitError: a single step does not fit into a message.
        """
        assert self._assignment is not None  # noqa: S101  # a call has begun
        messages: list[EncodedMessage] = []
        places: list[Message] = []
        outbox, limit, is_end = self._rows.outbox, self._assignment.max_message_bytes, not self._num_steps_left
        num_bytes = 0
        while num_bytes < write_bytes:
            message = outbox.next_message(encoding, limit, self._buffer_bytes, is_end=is_end)
            if message is None:
                break
            places.append(Message(num_bytes, message.num_bytes, message.num_steps, message.num_episodes))
            messages.append(message)
            num_bytes += message.num_bytes
            self._num_steps_to_write -= message.num_steps
        buffer = write_messages(messages)
        outbox.forget_written()
        return tuple(places), buffer

    def discard(self) -> tuple[Message, ...]:
        """Throws away what is made, as if it were written; returns how much it was, as a message without any bytes."""
        num_steps, num_episodes = self._rows.outbox.discard()
        self._num_steps_to_write -= num_steps
        return (Message(0, 0, num_steps, num_episodes),) if num_steps else ()

    def take_progress(self) -> list[RowProgress] | None:
        """Where the rows stand, once everything of the call is made and written; it is told once.

        Nothing at all if they have made no step: they stand where they stood, or are still to be brought there.
        """
        if self._num_steps_left or self._num_steps_to_write or self._has_told:
            return None
        self._has_told = True
        return self._rows.progress() if self._rows.num_steps else []

    def take_dropped_infos(self) -> dict[str, int]:
        """By name, how many values of infos were dropped since this was last asked."""
        dropped = dict(self._rows.dropped_infos)
        self._rows.dropped_infos.clear()
        return dropped

    def _check_size(self) -> None:
        """Sees to it that what a call makes fits, whenever it is known that its steps take more than was known."""
        assert self._assignment is not None  # noqa: S101  # a call has begun
        step_bytes = self._rows.step_bytes
        if step_bytes <= self._checked_bytes:
            return
        self._checked_bytes = step_bytes
        assignment, num_rows, buffer_bytes = self._assignment, self._rows.num_rows, self._buffer_bytes
        if assignment.num_row_steps * num_rows * step_bytes <= buffer_bytes:
            return
        came = (
            f"{assignment.num_row_steps * self.spec.stride} came, but they may take more than the {buffer_bytes} bytes"
        )
        most = buffer_bytes // (num_rows * step_bytes)
        advice = f"at most {most * self.spec.stride} would do" if most else "not even a step of each row fits"
        text = f"{came} that a worker holds for a call: {advice}"
        raise OverLimitError(text, reason=Reason.FRAGMENTS_TOO_LARGE, field="step_count")
