"""The journal: keeps a sampler's state where it outlives the server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, TypedDict, Unpack

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollserve_server.pool.state.row_sequence import RowsMoved
    from rollserve_server.pool.state.saved_sampler import SavedHeader, SavedSampler
    from rollserve_server.pool.state.versions import AgentVersion, EnvVersion

__all__ = ["Changes", "Journal", "NextJournal", "NoJournal"]


class Changes(TypedDict, total=False):
    """Changes of a sampler's state; see `entry_records`."""

    agents: tuple[int, AgentVersion]
    env: tuple[int, EnvVersion]
    moved: RowsMoved | None


class Journal(Protocol):
    """Keeps a sampler's state where its workers are. One server at a time has it.

    Attributes:
        epoch: number of servers that have had it, including this one.
        state: what the previous server left; None if there was none.
        follows_loss: whether the sampler of an earlier server was lost, together with its journal.
    """

    epoch: int
    state: SavedSampler | None
    follows_loss: bool

    async def begin(self, state: Callable[[], SavedSampler], header: Callable[[], SavedHeader]) -> None:
        """Start to keep the state. Earlier changes are not written.

        Args:
            state: returns all of the state; called now, and whenever the journal itself was lost.
            header: returns the small part of the state; called for each entry, and periodically.
        """
        ...

    async def write(self, **changes: Unpack[Changes]) -> None:
        """Write an entry with the header and these changes. The next server knows what was written.

        Raises:
            SamplerLostError: another server has the sampler now, or the journal cannot be reached.
        """
        ...

    async def lost(self) -> str:
        """Wait until another server has the sampler; return a text that says so."""
        ...

    def abandon(self) -> None:
        """Ask nothing more of where the journal is."""
        ...

    async def close(self, *, keep: bool) -> None:
        """Leave the sampler to the next server if it is to be kept; else end the journal.

        A sampler that this server has not begun to keep counts as without a server since its last one.
        """
        ...


class NoJournal:
    """The journal of a sampler whose workers end with their server: it keeps nothing."""

    def __init__(self) -> None:
        self.epoch = 1
        self.state: SavedSampler | None = None
        self.follows_loss = False

    async def begin(self, state: Callable[[], SavedSampler], header: Callable[[], SavedHeader]) -> None:
        """Keep nothing."""

    async def write(self, **changes: Unpack[Changes]) -> None:
        """Write nothing."""

    async def lost(self) -> str:
        """Wait for ever: no other server can have the sampler."""
        await asyncio.get_running_loop().create_future()
        raise AssertionError("nobody sets the result")

    def abandon(self) -> None:
        """Do nothing."""

    async def close(self, *, keep: bool) -> None:
        """End nothing."""


class NextJournal:
    """The journal of a run that is prepared while another one goes on: nothing of it is written before it begins."""

    def __init__(self, journal: Journal) -> None:
        """Take the journal of the run that goes on."""
        self._journal: Journal = journal._journal if isinstance(journal, NextJournal) else journal
        self._has_begun = False
        self.epoch = journal.epoch
        self.state: SavedSampler | None = None
        self.follows_loss = False

    async def begin(self, state: Callable[[], SavedSampler], header: Callable[[], SavedHeader]) -> None:
        """Keep the state of this run, in place of the other's."""
        self._has_begun = True
        await self._journal.begin(state, header)

    async def write(self, **changes: Unpack[Changes]) -> None:
        """Write an entry, once the run has begun."""
        if self._has_begun:
            await self._journal.write(**changes)

    async def lost(self) -> str:
        """Wait until another server has the sampler; return a text that says so."""
        return await self._journal.lost()

    def abandon(self) -> None:
        """Ask nothing more of where the journal is."""
        self._journal.abandon()

    async def close(self, *, keep: bool) -> None:
        """Leave the sampler to the next server if it is to be kept; else end the journal."""
        await self._journal.close(keep=keep)
