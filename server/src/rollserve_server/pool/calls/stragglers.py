"""Stragglers of a call: episodes that take far longer than most, and are begun a second time elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollserve_server.pool.calls.claims import Claims
    from rollserve_server.pool.plan.pace import Pace
    from rollserve_server.pool.plan.plan import Plan

__all__ = ["Stragglers"]

_MARGIN_SECONDS = 0.01


class Stragglers:
    """Finds what a call has waited for too long, and has idle workers run it, too."""

    def __init__(self, plan: Plan, claims: Claims, begun_at: dict[int, float], pace: Pace, factor: float) -> None:
        """Watch the parts of a call.

        Args:
            plan: plan of the call.
            claims: claims of the call.
            begun_at: for each episode that runs, when its order was sent; kept up to date here.
            pace: durations of the sequence's ended episodes; further ones are added.
            factor: multiple of the usual duration after which an episode is late; 0 for never.
        """
        self._plan = plan
        self._claims = claims
        self._begun_at = begun_at
        self._pace = pace
        self._factor = factor
        self._started = time.monotonic()

    def begin(self, indices: range) -> None:
        """Record that an order to begin episodes is sent."""
        self._begun_at.update(dict.fromkeys(indices, time.monotonic()))

    def finish(self, index: int) -> None:
        """Record the end of an episode."""
        self._pace.observe(time.monotonic() - self._begun_at.pop(index, self._started))

    def begin_duplicates(self, worker: int, room: int) -> tuple[list[range], int]:
        """Have an idle worker run late episodes beside the workers that have them.

        Returns:
            The episodes that the worker is to begin beside those of `Claims.to_begin`, and the number of all
            duplicates.
        """
        late_after = self._pace.late_after(self._factor)
        if late_after is None:
            return [], 0
        now, begun_at, started = time.monotonic(), self._begun_at, self._started
        claimed = self._claims.begin_duplicates(worker, now, late_after)
        ranges = self._plan.begin_duplicates(
            worker, lambda index: now - begun_at.get(index, started) > late_after, room
        )
        return ranges, sum(map(len, (*claimed, *ranges)))

    def seconds_to_late(self) -> float | None:
        """Return after how many seconds to look again; None if only an event can make anything late."""
        late_after = self._pace.late_after(self._factor)
        if late_after is None:
            return None
        first, claimed = self._plan.first_open(), self._claims.first_since()
        opened = None if first is None else self._begun_at.get(first, self._started)
        left = [since + late_after - time.monotonic() for since in (claimed, opened) if since is not None]
        # What is late already has a duplicate, or no worker that could run one.
        return min((seconds for seconds in left if seconds > 0), default=late_after) + _MARGIN_SECONDS
