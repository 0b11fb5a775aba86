"""The server's side of its lease: whether the sampler is still this server's, as far as it knows."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, NoReturn

from rollserve_server.errors import SamplerLostError
from rollserve_server.pool.journal.lease import LEASE_SECONDS, Owner
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["HeldLease", "taken_error"]


class HeldLease:
    """A lease that this server has acquired.

    Attributes:
        epoch: epoch of this server.
    """

    def __init__(self, epoch: int, asked_at: float) -> None:
        """Start with a lease that the journal has given.

        Args:
            epoch: epoch of this server.
            asked_at: when the journal was asked (`time.monotonic`): the lease lasts from then on, at least.
        """
        self.epoch = epoch
        self._renewed_at = asked_at
        self._actions: list[Callable[[], None]] = []
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def is_held(self) -> bool:
        """Whether no other server can have the sampler now, so that this one may do to workers what is irreversible."""
        return not self.is_lost and time.monotonic() - self._renewed_at < LEASE_SECONDS

    @property
    def is_lost(self) -> bool:
        """Whether another server is known to have the sampler."""
        return self._lost.done()

    def when_held(self, action: Callable[[], None]) -> None:
        """Call a function as soon as no other server can have the sampler: at once, or after the next renewal."""
        if self.is_held:
            action()
        else:
            self._actions.append(action)

    def renew(self, asked_at: float) -> None:
        """Record that the journal has renewed the lease.

        Args:
            asked_at: when the journal was asked (`time.monotonic`): the lease lasts from then on, at least.
        """
        self._renewed_at = max(self._renewed_at, asked_at)
        if self.is_held:
            actions, self._actions = self._actions, []
            for action in actions:
                action()

    def lose(self, owner: Owner | None) -> NoReturn:
        """Record that another server has the sampler, and raise SamplerLostError.

        Args:
            owner: the other server; None if the journal does not know it.
        """
        error = taken_error(owner)
        if not self._lost.done():
            self._lost.set_result(error.text)
        raise error

    async def lost(self) -> str:
        """Wait until another server has the sampler; return a text that says so."""
        return await asyncio.shield(self._lost)


def taken_error(owner: Owner | None) -> SamplerLostError:
    """Return the error that says which server has the sampler."""
    who = f"{owner.host}, process {owner.process_id}" if owner else "unknown"
    return SamplerLostError(f"another server has the sampler: on {who}", reason=Reason.SAMPLER_TAKEN)
