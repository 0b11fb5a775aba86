"""A sampler of a server: its pool, its users, its owner and its lease."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rollserve_server.errors import DomainError
    from rollserve_server.pool import Pool
    from rollserve_server.samplers.lease import Lease
    from rollserve_server.samplers.request import Creation
    from rollserve_server.settings import Quota

__all__ = ["Sampler", "User"]


class User(Protocol):
    """An RPC that uses a sampler."""

    def end(self, error: DomainError) -> None:
        """End the RPC with an error. May be called more than once."""
        ...


class Sampler:
    """A sampler of a server.

    Attributes:
        name: its name.
        pool: its workers, and the calls that use them.
        quota: its limits.
        created_seconds: when it was created, since 1970.
        creation: its owner and the request that created it; None for the default sampler.
        lease: how long it may be without a call; None for ever.
    """

    def __init__(
        self,
        name: str,
        pool: Pool,
        quota: Quota,
        created_seconds: float,
        creation: Creation | None = None,
        lease: Lease | None = None,
    ) -> None:
        self.name = name
        self.pool = pool
        self.quota = quota
        self.created_seconds = created_seconds
        self.creation = creation
        self.lease = lease
        self._users: set[User] = set()
        self._unused = asyncio.Event()

    @property
    def owner(self) -> str:
        """The principal that created the sampler; empty for the default one."""
        return "" if self.creation is None else self.creation.owner

    @contextlib.contextmanager
    def in_use(self, user: User) -> Iterator[None]:
        """Keep the lease for the duration of the block, which `end_users` ends."""
        self._users.add(user)
        try:
            with contextlib.nullcontext() if self.lease is None else self.lease.in_use():
                yield
        finally:
            self._users.discard(user)
            if not self._users:
                self._unused.set()

    async def end_users(self, error: DomainError, seconds: float) -> None:
        """End all uses with copies of an error; wait until they have ended, or for so many seconds."""
        for user in list(self._users):
            user.end(copy.copy(error))
        self._unused.clear()
        if self._users:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._unused.wait(), seconds)
