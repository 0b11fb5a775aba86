"""The activity of a worker, for the pool, which looks at it to find workers that hang.

`envs`, `agents` and `sampling` write it where they step, act, reset and make things; `pool.workers.liveness` reads it.
"""

from __future__ import annotations

import contextlib
import enum
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

__all__ = ["Activity", "Heartbeat", "Phase", "current_activity"]

_TIMED_EVERY = 13
"""Steps from one whose pieces of work are timed to the next: rare, because a look at the clock takes 0.1 µs, and a
prime, so that it does not go with the lengths of episodes.
"""
_MAX_TIMED_SECONDS = 0.5
"""Sum of timed steps from which on older ones count less and less."""


class Phase(enum.Enum):
    """A kind of work. The value names it in error messages."""

    IDLE = "nothing"
    WORKING = "an order"
    STEP = "a step"
    ACTION = "an action of the agent"
    RESET = "a reset"
    MAKING = "making an environment"
    CLOSING = "closing an environment"
    LOADING = "making an agent"


@dataclass(frozen=True)
class Heartbeat:
    """A look at an activity. Two equal heartbeats show the same piece of work: none has ended between them.

    Attributes:
        phase: kind of the present piece of work.
        number: number of pieces of work that have begun.
        row: index of the row, within the worker, that the piece of work is for.
        text: description of the piece of work, such as `a step of episode 17`.
        episode: index of that episode; None if the piece of work is for no single episode.
        memory_bytes: memory that the worker's process shares with no other; 0 if the worker has no process of its own.
        max_memory_bytes: memory that it may take; 0 for any.
    """

    phase: Phase
    number: int
    row: int
    text: str
    episode: int | None = None
    memory_bytes: int = field(default=0, compare=False)
    max_memory_bytes: int = field(default=0, compare=False)

    @property
    def takes_too_much_memory(self) -> bool:
        """Whether the worker's process takes more memory than it may."""
        return 0 < self.max_memory_bytes < self.memory_bytes


class Activity:
    """The present piece of work of one worker, such as a row's step or reset, an action, or making an environment.

    One thread writes the attributes; others may read them.

    Attributes:
        phase: kind of the present piece of work.
        count: number of pieces of work that have begun.
        row: index of the row, within the worker, that the piece of work is for.
        episode_of: returns the index of the episode that a row runs, or None.
    """

    def __init__(self) -> None:
        self.phase = Phase.IDLE
        self.count = 0
        self.row = 0
        self.episode_of: Callable[[int], int | None] = _unknown
        # How many steps begin before the next one whose pieces of work are timed; whether the present one's are, and
        # since when the present piece runs (`time.perf_counter`).
        self._num_untimed = _TIMED_EVERY
        self._is_timed, self._since = False, 0.0
        # Seconds of timed steps, in environments, in the agent, and elsewhere.
        self._env_seconds = self._policy_seconds = self._other_seconds = 0.0

    def begin(self, phase: Phase, row: int = 0) -> None:
        """Record the start of a piece of work. Code that runs for each row sets the attributes itself, for speed."""
        if self._is_timed:
            self._count_time()
        self.count += 1
        self.row = row
        self.phase = phase

    def begin_step(self) -> None:
        """Record the start of a step of all rows, which begins with an action of the agent."""
        if self._is_timed:
            self._count_time()
            self._is_timed = False
        self._num_untimed -= 1
        if not self._num_untimed:
            self._num_untimed = _TIMED_EVERY
            self._is_timed, self._since = True, time.perf_counter()
        self.count += 1
        self.row = 0
        self.phase = Phase.ACTION

    def end(self) -> None:
        """Record the end of a piece of work of an order."""
        if self._is_timed:
            self._count_time()
        self.phase = Phase.WORKING

    def split(self, seconds: float) -> tuple[float, float]:
        """Return which part of a time spent on steps was spent in environments, and which part in the agent.

        The parts are estimates: they are measured in one step of thirteen, the latest ones above all.
        """
        if self._is_timed:
            self._count_time()
            self._is_timed = False
        total = self._env_seconds + self._policy_seconds + self._other_seconds
        if not total:
            return 0.0, 0.0
        parts = seconds * self._env_seconds / total, seconds * self._policy_seconds / total
        if total > _MAX_TIMED_SECONDS:
            self._env_seconds, self._policy_seconds = self._env_seconds / 2, self._policy_seconds / 2
            self._other_seconds /= 2
        return parts

    def _count_time(self) -> None:
        """Add the time of the present piece of work, in a step that is timed."""
        now, phase = time.perf_counter(), self.phase
        seconds, self._since = now - self._since, now
        if phase in (Phase.STEP, Phase.RESET, Phase.MAKING):
            self._env_seconds += seconds
        elif phase is Phase.ACTION:
            self._policy_seconds += seconds
        else:
            self._other_seconds += seconds

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Make this the activity of the present thread for the duration of the block."""
        _local.activity = self
        self.begin(Phase.WORKING)
        try:
            yield
        finally:
            self.episode_of = _unknown
            self.phase = Phase.IDLE

    def look(self) -> Heartbeat:
        """Return a heartbeat of the present piece of work."""
        phase, count, row = self.phase, self.count, self.row
        episode = None
        if phase in (Phase.STEP, Phase.RESET):
            with contextlib.suppress(Exception):  # the rows may change at the same time
                episode = self.episode_of(row)
        text = phase.value if episode is None else f"{phase.value} of episode {episode}"
        return Heartbeat(phase, count, row, text, episode)


_local = threading.local()


def current_activity() -> Activity:
    """Return the activity of the worker that this thread works for; outside workers, one that nobody looks at."""
    try:
        activity: Activity = _local.activity
    except AttributeError:
        activity = _local.activity = Activity()
    return activity


def _unknown(row: int) -> int | None:
    return None
