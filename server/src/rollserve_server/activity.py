"""The activity of a worker, for the pool, which looks at it to find workers that hang.

`envs`, `agents` and `sampling` write it where they step, act, reset and make things; `pool.workers.liveness` reads it.
"""

from __future__ import annotations

import contextlib
import enum
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

__all__ = ["Activity", "Heartbeat", "Phase", "current_activity"]


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


class Heartbeat(NamedTuple):
    """A look at an activity. Two equal heartbeats show the same piece of work: none has ended between them.

    Attributes:
        phase: kind of the present piece of work.
        number: number of pieces of work that have begun.
        row: index of the row, within the worker, that the piece of work is for.
        text: description of the piece of work, such as `a step of episode 17`.
        episode: index of that episode; None if the piece of work is for no single episode.
    """

    phase: Phase
    number: int
    row: int
    text: str
    episode: int | None = None


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

    def begin(self, phase: Phase, row: int = 0) -> None:
        """Record the start of a piece of work. Code that runs for each step sets the attributes itself, for speed."""
        self.count += 1
        self.row = row
        self.phase = phase

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
