"""Progress of a call, as callers see it while the call runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rollserve_wire.representations import briefly

__all__ = ["CallProgress", "ProgressOption"]


@briefly
@dataclass(frozen=True)
class CallProgress:
    """How far a call has come, as far as the server has told.

    Attributes:
        num_steps: number of received steps.
        num_episodes: number of episodes whose ends were received. An evaluation that does not return its episodes
            receives the results of all at its end.
        num_ended_episodes: number of episodes that have ended on the server, at least the number of received ones;
            including episodes that will not be delivered. Servers of version 0.1 and earlier do not tell.
        num_requested_steps: number of steps that the call asks for; None if it asks for episodes. Whole episodes
            usually have somewhat more in all.
        num_requested_episodes: number of episodes that the call asks for; None if it asks for steps, and for exact
            episodes until the server has said how many workers there are.
        num_simulated_steps: number of steps that the server has simulated, at least the number of received ones;
            including steps that will not be delivered.
        seconds: time since the beginning of the call.
        waiting_for: what the call waits for, if nothing has come of it for ten seconds, such as a worker that is
            missing, and why; empty for nothing.
    """

    num_steps: int = 0
    num_episodes: int = 0
    num_ended_episodes: int = 0
    num_requested_steps: int | None = None
    num_requested_episodes: int | None = None
    num_simulated_steps: int = 0
    seconds: float = 0.0
    waiting_for: str = ""

    @property
    def fraction(self) -> float | None:
        """Part of the call that is done, from 0 to 1; None while nothing says so.

        Simulated steps and ended episodes count, because they are known before they arrive. Where steps of whole
        episodes were requested, it may stay at 1 while the last episodes end.
        """
        if self.num_requested_steps:
            return min(self.num_simulated_steps / self.num_requested_steps, 1.0)
        if self.num_requested_episodes and self.num_ended_episodes:
            return min(self.num_ended_episodes / self.num_requested_episodes, 1.0)
        return None


ProgressOption = bool | Callable[[CallProgress], object]
"""True for a progress bar, False for none, or a function that is called with the progress."""
