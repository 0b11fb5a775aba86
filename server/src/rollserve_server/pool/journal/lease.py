"""The lease of a sampler: the exclusive right of one server to it, which has to be renewed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LEASE_SECONDS", "RENEW_SECONDS", "Lease", "Owner"]

LEASE_SECONDS = 5.0
"""Time after a renewal in which no other server may take the sampler."""
RENEW_SECONDS = 1.0
"""Period of renewals."""


class Owner(NamedTuple):
    """A server, by its machine and its process there."""

    host: str
    process_id: int


class Lease:
    """A lease of one owner at a time. Another owner can acquire it once it was not renewed for a while.

    Attributes:
        epoch: number of owners so far, including the present one.
        owner: the last owner.
        num_renewals: number of renewals; as long as it rises, the owner is alive.
    """

    def __init__(self, seconds: float, clock: Callable[[], float], *, last_epoch: int = 0) -> None:
        """Start without an owner, or with an owner that a lost lease had and that may still be alive.

        Args:
            seconds: time that the lease lasts after each renewal.
            clock: returns the time, in seconds.
            last_epoch: epoch of the owner that the lost lease had; 0 for none.
        """
        self.epoch = last_epoch
        self.owner: Owner | None = None
        self.num_renewals = 0
        self._seconds = seconds
        self._clock = clock
        self._ends_at = self._ended_before = clock() + (seconds if last_epoch else 0.0)

    def acquire(self, owner: Owner, epoch: int = 0) -> int | None:
        """Give the lease to an owner, unless another has it.

        Args:
            owner: the new owner.
            epoch: epoch that the owner has had already, if this lease replaces one that was lost. Only an owner with a
                later epoch precedes it. 0 for a new epoch.

        Returns:
            The epoch of the owner, or None if another owner has the lease.
        """
        has_other_owner = epoch < self.epoch if epoch else self._clock() < self._ends_at
        if has_other_owner:
            return None
        self.epoch, self.owner, self._ended_before = epoch or self.epoch + 1, owner, self._ends_at
        self.renew(self.epoch)
        return self.epoch

    def renew(self, epoch: int) -> bool:
        """Renew the lease of an epoch; return False if a later owner has it.

        A lease that has run out can be renewed as long as nobody else has acquired it.
        """
        if epoch != self.epoch:
            return False
        self.num_renewals += 1
        self._ends_at = self._clock() + self._seconds
        return True

    def release(self, epoch: int, *, unused: bool = False) -> None:
        """End the lease of an epoch now, unless a later owner has it; one that was unused ended with the one before."""
        if epoch == self.epoch:
            self._ends_at = self._ended_before if unused else self._clock()

    @property
    def idle_seconds(self) -> float:
        """Seconds since the lease ended; below 0 while somebody has it, and before the first owner."""
        return self._clock() - self._ends_at if self.epoch else -math.inf
