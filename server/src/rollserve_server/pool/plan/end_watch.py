"""End watch: finds calls in which no episode ends, as in an environment without a time limit."""

from __future__ import annotations

__all__ = ["EndWatch"]

_ROW_SHARE = 0.03
"""Share of the allowed steps that each row has at least: with the default, 30,000 steps, as long as a game of Atari."""
_STEPS_FACTOR = 100
_LIMIT_FACTOR = 2
_WARNING_SHARE = 0.1


class EndWatch:
    """Counts the steps that the rows of a call have made since an episode last ended.

    Attributes:
        max_steps: number of these steps after which the call fails.
        num_steps: number of these steps.
    """

    def __init__(
        self, allowed_steps: int, num_rows: int, num_target_steps: int = 0, max_episode_steps: int | None = None
    ) -> None:
        """Allow `allowed_steps`, or 3 % of them for each row, or 100 times the target, or twice the limit for each row.

        Args:
            allowed_steps: number of steps that any call may make.
            num_rows: number of rows of all workers.
            num_target_steps: number of steps that the call asks for; 0 if it asks for episodes.
            max_episode_steps: the environment's own limit; None if it is not known.
        """
        for_rows = max(round(_ROW_SHARE * allowed_steps), _LIMIT_FACTOR * (max_episode_steps or 0)) * num_rows
        self.max_steps = max(allowed_steps, for_rows, _STEPS_FACTOR * num_target_steps)
        self.num_steps = 0
        self._has_warned = False

    @property
    def is_over(self) -> bool:
        """Whether the call has to end."""
        return self.num_steps >= self.max_steps

    def observe(self, num_steps: int, num_ended: int) -> bool:
        """Record steps, and how many episodes ended or failed with them.

        Returns:
            Whether to warn: true once, after a tenth of the allowed steps.
        """
        self.num_steps = 0 if num_ended else self.num_steps + num_steps
        warns = not self._has_warned and self.num_steps >= _WARNING_SHARE * self.max_steps
        self._has_warned |= warns
        return warns
