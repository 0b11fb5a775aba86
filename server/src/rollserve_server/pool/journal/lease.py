"""Which server a sampler belongs to: one at a time, for as long as it says so again and again. Pure."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Lease", "Owner"]


@dataclass(frozen=True)
class Owner:
    """A server: the machine that it runs on, and its process there."""

    host: str
    process_id: int


class Lease:
    """Belongs to one owner at a time, and can be taken by another once it has not been renewed for a while.

    Attributes:
        epoch: one more with each owner; 0 before the first.
        owner: who had it last.
        num_renewals: how often it was renewed: whoever sees that rise knows that the owner is alive.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Begins without an owner.

        Args:
            seconds: how long it holds after each renewal.
            clock: tells seconds.
        """
        self.epoch = 0
        self.owner: Owner | None = None
        self.num_renewals = 0
        self._seconds = seconds
        self._clock = clock
        self._ends_at = clock()

    def claim(self, owner: Owner, epoch: int = 0) -> int | None:
        """Gives it to an owner, unless another has it.

        Args:
            owner: who wants it.
            epoch: that which it has had it in already, if this lease may know nothing of that: only a later one goes
                before it.

        Returns:
            The epoch that it has it in, or None.
        """
        if epoch < self.epoch if epoch else self._clock() < self._ends_at:
            return None
        self.epoch, self.owner = epoch or self.epoch + 1, owner
        self.renew(self.epoch)
        return self.epoch

    def renew(self, epoch: int) -> bool:
        """Goes on for its owner, also if it has ended and nobody has taken it; False if another has it."""
        if epoch != self.epoch:
            return False
        self.num_renewals += 1
        self._ends_at = self._clock() + self._seconds
        return True

    def release(self, epoch: int) -> None:
        """Ends it, if it is the owner who says so."""
        if epoch == self.epoch:
            self._ends_at = self._clock()

    @property
    def idle_seconds(self) -> float:
        """How long nobody has had it; below 0 while somebody has."""
        return self._clock() - self._ends_at if self.epoch else -math.inf
