"""A worker's part in one stream: episodes that wait, run, are finished, or are being written."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rollserve_server.envs import VectorEnvs
from rollserve_server.sampling.collect.rows import RowCollector
from rollserve_server.sampling.collect.vector import VectorCollector
from rollserve_server.sampling.encode.encoder import EncodedMessage, Encoder, Encoding, write_messages
from rollserve_server.sampling.encode.segments import Segment, cut_into_messages
from rollserve_server.sampling.protocol.episodes import (
    EARLY,
    Claim,
    EpisodeRange,
    Message,
    Outcome,
    Parcel,
    SequenceSpec,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rollserve_server.agents import Agent
    from rollserve_server.envs import RowEnvs
    from rollserve_server.sampling.protocol.episodes import ColumnFormat, EpisodeFailure
    from rollserve_server.sampling.record.episodes import Episode

__all__ = ["EpisodeWork"]

_PARCELS_BYTES = 16 << 20
"""How much is written at once, but for the last message: an object of Ray costs about a millisecond whatever its
size, and the gateway holds a few of them. Compressed or not, so that writing takes no longer.
"""

_EARLY_BYTES = 64 << 10
"""What at most is written without being asked: objects of Ray that are no larger come with the answer."""


class EpisodeWork:
    """Samples episodes of a stream, keeps the finished ones, and writes those that are claimed.

    Attributes:
        spec: which sequence.
        envs: the environments, which it has for itself.
    """

    def __init__(self, sequence: SequenceSpec, envs: RowEnvs | VectorEnvs, agent: Agent, num_retries: int = 0) -> None:
        """Takes also how often an episode runs again whose environment raised an error."""
        self.spec = sequence
        self.envs = envs
        self._stop_again = 0
        self._collector: RowCollector | VectorCollector
        if isinstance(envs, VectorEnvs):
            self._collector = VectorCollector(sequence.root_seed, envs, agent, num_retries)
        else:
            self._collector = RowCollector(sequence.root_seed, envs, agent, sequence.max_episode_length, num_retries)
        self._finished: dict[int, Episode] = {}
        self._held_bytes = 0
        self._encoder = Encoder()
        self._writers: dict[Claim, _Writer] = {}
        self._num_cancelled_steps = 0

    @property
    def num_simulated_steps(self) -> int:
        """Steps made so far."""
        return self._collector.num_simulated_steps

    @property
    def num_idle_steps(self) -> int:
        """Those of them that rows made only because they had to go on with the others."""
        return self._collector.num_idle_steps

    def episode_of(self, row: int) -> int | None:
        """The index of the episode that a row runs, or begins."""
        return self._collector.episode_of(row)

    def enqueue(self, ranges: Sequence[EpisodeRange], ranges_again: Sequence[EpisodeRange]) -> None:
        """Has the episodes run, the lowest index first; the second ones however full the buffer is."""
        self._collector.enqueue((*ranges, *ranges_again))
        self._stop_again = max((self._stop_again, *(episodes.indices.stop for episodes in ranges_again)))

    def sample(
        self, seconds: float, before: int | None, buffer_bytes: int, is_stopped: Callable[[], bool]
    ) -> list[tuple[int, int, int]]:
        """Steps until the time is over, nothing runs, or rows get idle because no episode waits any more.

        Args:
            seconds: how long at most; at least one step is made.
            before: see `Order`.
            buffer_bytes: how much finished data may be held before no more episodes begin, but for those that run
                again, or come before one that is held: it may wait for them.
            is_stopped: asked before each step; nothing more is done once it says so.

        Returns:
            Of each episode that ended, its index, steps and approximate bytes.

        Raises:
            AgentFailedError: the agent failed.
        """
        collector = self._collector
        until = time.perf_counter() + seconds
        had_waiting = collector.num_waiting > 0
        num_failures = collector.attempts.num_failures
        finished = []
        while not is_stopped():
            ended: list[Episode] = []
            if collector.begin(before if self._held_bytes < buffer_bytes else self._last_awaited(before)):
                ended = collector.step()
            elif collector.attempts.num_failures == num_failures:  # else a reset failed, and the next may not
                break
            num_failures = collector.attempts.num_failures
            for episode in ended:
                self._held_bytes += episode.num_bytes
                self._finished[episode.index] = episode
                finished.append((episode.index, episode.length, episode.num_bytes))
            ran_dry = ended and had_waiting and not collector.num_waiting
            if ran_dry or time.perf_counter() >= until:
                break
        return finished

    def _last_awaited(self, before: int | None) -> int:
        """Before which index episodes are to begin although the buffer is full: one that is held waits for them."""
        awaited = max((self._stop_again, *self._finished))
        return awaited if before is None else min(awaited, before)

    def write(
        self, claims: Sequence[Claim], encoding: Encoding, max_message_bytes: int
    ) -> tuple[list[Parcel], NDArray[np.uint8]]:
        """Writes messages of the claims, in their order, as many as go into one buffer.

        Returns:
            What was written of each claim, and the buffer.

        Raises:
            OverLimitError: a single step does not fit into a message.
        """
        parcels: list[Parcel] = []
        messages: list[EncodedMessage] = []
        num_bytes = num_raw_bytes = 0
        for claim in claims:
            if num_raw_bytes >= _PARCELS_BYTES:
                break
            writer = self._writers.pop(claim, None)
            if writer is None:
                writer = self._begin_writing(claim, max_message_bytes, encoding.columns)
            its_messages = []
            start = writer.position
            while writer.segments is not None and num_raw_bytes < _PARCELS_BYTES:
                message = self._encoder.encode(writer.segments, encoding)
                place = Message(num_bytes, message.num_bytes, message.num_steps, message.num_episodes)
                its_messages.append(place)
                messages.append(message)
                num_bytes += message.num_bytes
                num_raw_bytes += message.num_raw_bytes
                writer.advance()
            complete = writer.segments is None
            parcels.append(Parcel(claim.claim_id, tuple(its_messages), start, writer.position, complete))
            if not complete:
                self._writers[claim] = writer
        buffer = write_messages(messages)
        for claim, parcel in zip(claims, parcels, strict=False):
            if parcel.complete and claim.claim_id != EARLY:
                self.release(claim)
        return parcels, buffer

    def discard(self, claims: Sequence[Claim]) -> list[Parcel]:
        """Throws away what is claimed, as if it were written; returns how much it was."""
        parcels = []
        for claim in claims:
            num_steps = sum(self._finished[index].length for index in range(claim.start, claim.stop))
            message = Message(0, 0, num_steps - claim.first_step, claim.stop - claim.start)
            start, stop = (claim.start, claim.first_step), (claim.stop, 0)
            parcels.append(Parcel(claim.claim_id, (message,), start, stop, complete=True))
            if claim.claim_id != EARLY:
                self.release(claim)
        return parcels

    def early_claims(self) -> list[Claim]:
        """A claim of all that there is, if it has ended and is so small that it is sent soonest without being asked."""
        first, last = min(self._finished, default=0), max(self._finished, default=-1)
        together = 0 < len(self._finished) == last - first + 1
        is_done = not (self._collector.num_waiting or self._collector.num_running)
        return [Claim(EARLY, first, last + 1)] if together and is_done and self._held_bytes <= _EARLY_BYTES else []

    def release(self, claim: Claim) -> None:
        """Forgets episodes that are written: there is room for others."""
        for index in range(claim.start, claim.stop):
            episode = self._finished.pop(index)
            self._collector.release(episode)
            self._held_bytes -= episode.num_bytes
        self._num_cancelled_steps += claim.first_step

    def cancel(self, indices: Iterable[int]) -> None:
        """Forgets episodes, as far as it has them: waiting, running, finished, or written in part."""
        for index in indices:
            episode = self._finished.pop(index, None)
            if episode is None:
                self._num_cancelled_steps += self._collector.cancel(index)
                continue
            self._collector.release(episode)
            self._held_bytes -= episode.num_bytes
            self._num_cancelled_steps += episode.length - self._num_written_steps(episode)
        for claim in list(self._writers):
            if not all(index in self._finished for index in range(claim.start, claim.stop)):
                del self._writers[claim]

    def take_num_cancelled_steps(self) -> int:
        """How many steps were thrown away since this was last asked: dropped, or written and delivered before."""
        num_steps, self._num_cancelled_steps = self._num_cancelled_steps, 0
        return num_steps

    def outcomes(self, indices: Iterable[int]) -> tuple[Outcome, ...]:
        """What finished episodes came to."""
        return tuple(
            Outcome(index, episode.total_reward, episode.length, episode.terminated, episode.truncated)
            for index in indices
            for episode in (self._finished[index],)
        )

    def take_env_failures(self) -> tuple[tuple[EpisodeFailure, ...], int]:
        """Errors of environments, and how many steps were thrown away for them, since this was last asked."""
        return self._collector.attempts.take()

    def take_dropped_infos(self) -> dict[str, int]:
        """By name, how many values of infos were dropped since this was last asked."""
        dropped = dict(self._collector.dropped_infos)
        self._collector.dropped_infos.clear()
        return dropped

    def _num_written_steps(self, episode: Episode) -> int:
        """How many of its steps are in messages that were written of a claim which is not complete."""
        for claim, writer in self._writers.items():
            if claim.start <= episode.index < claim.stop:
                index, step = writer.position
                written = episode.length if episode.index < index else step if episode.index == index else 0
                return written - (claim.first_step if episode.index == claim.start else 0)
        return 0

    def _begin_writing(self, claim: Claim, max_message_bytes: int, columns: ColumnFormat) -> _Writer:
        episodes = [self._finished[index] for index in range(claim.start, claim.stop)]
        goal_bytes, all_states = self._encoder.goal_bytes, columns.all_states
        messages = cut_into_messages(episodes, max_message_bytes, claim.first_step, goal_bytes, all_states=all_states)
        return _Writer(messages, (claim.start, claim.first_step))


class _Writer:
    """The messages of a claim that are still to be written.

    Attributes:
        segments: what the next message holds, or None after the last.
        position: the index of the episode, and its step, that the next message begins with.
    """

    def __init__(self, messages: Iterator[Sequence[Segment]], position: tuple[int, int]) -> None:
        self._messages = messages
        self.segments = next(messages, None)
        self.position = position

    def advance(self) -> None:
        if self.segments:
            last = self.segments[-1]
            self.position = (last.episode.index + 1, 0) if last.ends else (last.episode.index, last.stop)
        self.segments = next(self._messages, None)
