"""Rounds of a stream: when the next one begins, and which are sent or discarded."""

from __future__ import annotations

import enum
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollserve_server.pool.requests import WhenFull

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollserve_server.pool.requests import StreamBounds

__all__ = ["Pause", "PlannedRound", "RoundPlan"]


class Pause(enum.Enum):
    """Why no round begins."""

    ENOUGH = "nothing: all steps are sampled"
    UPDATE = "an update of the agent, because max_steps_per_version steps are sampled with this version"
    CLIENT = "its client, because as much is sampled and not sent as may be"


@dataclass(eq=False)
class PlannedRound:
    """A round that has begun.

    Attributes:
        number: number of the round.
        version: version of the agent that acts.
        num_steps: number of its steps; until it is sampled, as many as it is expected to have.
        num_bytes: number of bytes of its messages so far.
        num_unsent_bytes: part of them that is not sent.
        is_sampled: whether all of it is sampled.
        is_sending: whether it has begun to be sent.
        lag: number of updates since its version when it began to be sent.
    """

    number: int
    version: int
    num_steps: int
    num_bytes: int = 0
    num_unsent_bytes: int = 0
    is_sampled: bool = False
    is_sending: bool = False
    lag: int = 0


class RoundPlan:
    """Decides when a stream's rounds begin, and which are sent or discarded. Rounds begin one after the other.

    Each round ends up sent, stale, overflown or unsent. A round is stale if it has not begun to be sent when its lag is
    above the bound, and overflown if it had to make room.

    Attributes:
        rounds: rounds that have begun and are neither sent nor discarded, in their order.
        num_sent_rounds, num_sent_steps: what was sent.
    """

    def __init__(self, bounds: StreamBounds, max_ahead_bytes: int, first_number: int = 0) -> None:
        """Start without rounds.

        Args:
            bounds: bounds of the stream.
            max_ahead_bytes: number of bytes that may be sampled and not sent, whether the bounds say so or not.
            first_number: number of the first round.
        """
        self._max_ahead_bytes = max_ahead_bytes
        self.rounds: deque[PlannedRound] = deque()
        self.num_sent_rounds = self.num_sent_steps = 0
        self._bounds = bounds
        self._next_number = first_number
        self._steps_by_version: Counter[int] = Counter()
        self._last_bytes = 0

    @property
    def num_ahead_steps(self) -> int:
        """Number of steps of rounds that have not begun to be sent."""
        return sum(each.num_steps for each in self.rounds if not each.is_sending)

    @property
    def num_ahead_bytes(self) -> int:
        """Number of bytes that are sampled and not sent."""
        return sum(each.num_unsent_bytes for each in self.rounds)

    @property
    def is_complete(self) -> bool:
        """Whether as many steps are sent as the stream has."""
        return self._bounds.num_steps is not None and self.num_sent_steps >= self._bounds.num_steps

    def pause(self, version: int, num_steps: int) -> Pause | None:
        """Return why a round of so many steps may not begin with a version; None if it may."""
        bounds = self._bounds
        num_coming = self.num_sent_steps + sum(each.num_steps for each in self.rounds)
        if bounds.num_steps is not None and num_coming >= bounds.num_steps:
            return Pause.ENOUGH
        most = bounds.max_steps_per_version
        if most is not None and self._steps_by_version[version] + num_steps > most:
            return Pause.UPDATE
        return Pause.CLIENT if self._is_full(num_steps) else None

    def begin(self, version: int, num_steps: int) -> PlannedRound:
        """Begin a round that is expected to have so many steps."""
        begun = PlannedRound(self._next_number, version, num_steps)
        self._next_number += 1
        self._steps_by_version = +Counter({version: self._steps_by_version[version] + num_steps})
        self.rounds.append(begun)
        return begun

    def add(self, begun: PlannedRound, num_bytes: int) -> None:
        """Record messages of a round."""
        begun.num_bytes += num_bytes
        begun.num_unsent_bytes += num_bytes

    def finish(self, begun: PlannedRound, num_steps: int) -> None:
        """Record that a round is sampled, and has so many steps."""
        self._steps_by_version[begun.version] += num_steps - begun.num_steps
        begun.num_steps, begun.is_sampled = num_steps, True
        self._last_bytes = begun.num_bytes

    def has_room(self, begun: PlannedRound) -> bool:
        """Whether further messages of a round may wait to be sent."""
        return begun not in self.rounds or self.num_ahead_bytes < self._max_ahead_bytes

    def take_stale(self, current: int) -> Sequence[PlannedRound]:
        """Discard the rounds that are too old, now that a version is current, and return them."""
        if self._bounds.max_policy_lag is None:
            return ()
        oldest = current - self._bounds.max_policy_lag
        return self._discard([each for each in self.rounds if not each.is_sending and each.version < oldest])

    def take_overflow(self, version: int, num_steps: int) -> Sequence[PlannedRound]:
        """Discard the oldest rounds until the next one may begin, if that is wanted, and return them."""
        discarded: list[PlannedRound] = []
        if self._bounds.when_full is WhenFull.DROP_OLDEST:
            while self.pause(version, num_steps) is Pause.CLIENT:
                waiting = [each for each in self.rounds if each.is_sampled and not each.is_sending]
                if not waiting:
                    break
                discarded += self._discard(waiting[:1])
        return discarded

    def send_next(self, current: int, num_taken: int) -> PlannedRound | None:
        """Begin to send the first round, if it has messages and the client has use for it.

        Args:
            current: version that is current.
            num_taken: number of rounds that the client has taken.
        """
        first = next(iter(self.rounds), None)
        unread, most = self.num_sent_rounds - num_taken, self._bounds.max_unread_rounds
        if first is None or first.is_sending or not first.num_bytes or (most is not None and unread >= most):
            return None
        first.is_sending, first.lag = True, max(current - first.version, 0)
        return first

    def sent_bytes(self, begun: PlannedRound, num_bytes: int) -> None:
        """Record that messages of a round are sent."""
        begun.num_unsent_bytes -= num_bytes

    def sent(self, begun: PlannedRound) -> None:
        """Record that a round is sent to its end."""
        self.rounds.remove(begun)
        self.num_sent_rounds += 1
        self.num_sent_steps += begun.num_steps

    def _is_full(self, num_steps: int) -> bool:
        waiting = [each for each in self.rounds if not each.is_sending]
        bounds = self._bounds
        most = num_steps if bounds.max_ahead_steps is None else bounds.max_ahead_steps
        too_many_steps = bool(waiting) and self.num_ahead_steps + num_steps > most
        return too_many_steps or (bool(self.rounds) and self.num_ahead_bytes + self._last_bytes > self._max_ahead_bytes)

    def _discard(self, discarded: Sequence[PlannedRound]) -> Sequence[PlannedRound]:
        for each in discarded:
            self.rounds.remove(each)
        return discarded
