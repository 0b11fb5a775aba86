"""What a worker is doing, in attributes that others read while it works: a worker that hangs tells nothing else."""

from __future__ import annotations

import contextlib
import enum
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

__all__ = ["Activity", "Heartbeat", "Phase", "current_activity"]


class Phase(enum.Enum):
    """A kind of work. Its value says what takes its time, for people."""

    IDLE = "nothing"
    WORKING = "an order"
    STEP = "a step"
    ACTION = "an action of the agent"
    RESET = "a reset"
    MAKING = "making an environment"
    CLOSING = "closing an environment"
    LOADING = "making an agent"


class Heartbeat(NamedTuple):
    """A look at a activity. Two that are equal show the same piece of work: nothing has ended between them.

    Attributes:
        phase: what is being done.
        number: how many pieces of work were begun.
        row: of the worker's vector environment, where that piece is.
        text: what takes its time, such as `a step of episode 17`.
    """

    phase: Phase
    number: int
    row: int
    text: str


class Activity:
    """Changes with every piece of work that may hang: a row's step or reset, an action, an environment that is made.

    One thread changes it, others may look.

    Attributes:
        phase: what is being done.
        count: how many pieces of work were begun.
        row: of the worker's vector environment, where that piece is.
        episode_of: the index of the episode that a row runs, or None.
    """

    def __init__(self) -> None:
        self.phase = Phase.IDLE
        self.count = 0
        self.row = 0
        self.episode_of: Callable[[int], int | None] = _unknown

    def begin(self, phase: Phase, row: int = 0) -> None:
        """Tells of a piece of work that begins. What is done for each step sets the attributes instead."""
        self.count += 1
        self.row = row
        self.phase = phase

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Has this thread do the worker's work for as long as the block."""
        _local.activity = self
        self.begin(Phase.WORKING)
        try:
            yield
        finally:
            self.episode_of = _unknown
            self.phase = Phase.IDLE

    def look(self) -> Heartbeat:
        """What is being done now."""
        phase, count, row = self.phase, self.count, self.row
        episode = None
        if phase in (Phase.STEP, Phase.RESET):
            with contextlib.suppress(Exception):  # it may change while it is looked at
                episode = self.episode_of(row)
        return Heartbeat(phase, count, row, phase.value if episode is None else f"{phase.value} of episode {episode}")


_local = threading.local()


def current_activity() -> Activity:
    """The activity of the worker whose work this thread does; of none, one that nobody looks at."""
    try:
        activity: Activity = _local.activity
    except AttributeError:
        activity = _local.activity = Activity()
    return activity


def _unknown(row: int) -> int | None:
    return None
