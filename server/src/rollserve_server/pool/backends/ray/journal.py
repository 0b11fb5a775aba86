"""The journal of a sampler on a Ray cluster, from the server's side: writes entries, and renews the lease."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from typing import TYPE_CHECKING, Any, Unpack

import ray
import ray.exceptions

from rollserve_server.errors import DomainError, SamplerLostError
from rollserve_server.pool.backends.ray.identity import ForgedMessageError
from rollserve_server.pool.backends.ray.journal_handle import JournalHandle
from rollserve_server.pool.backends.ray.journal_opening import (
    OPEN_SECONDS,
    acquire_lease,
    end_other_journals,
    has_other_journals,
)
from rollserve_server.pool.backends.ray.losses import putting
from rollserve_server.pool.backends.ray.sampler_mark import remove_mark
from rollserve_server.pool.journal.held_lease import HeldLease
from rollserve_server.pool.journal.lease import RENEW_SECONDS
from rollserve_server.pool.state.ownership import Owner
from rollserve_server.pool.state.sampler_state import Entry
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rollserve_server.pool.backends.ray.identity import SamplerIdentity
    from rollserve_server.pool.journal.journal import Changes
    from rollserve_server.pool.state.ownership import LeaseAnswer
    from rollserve_server.pool.state.sampler_state import SamplerState, Snapshot

__all__ = ["RayJournal"]

_log = logging.getLogger(__name__)

_CLOSE_SECONDS = 3.0
_ANSWER_SECONDS = 15.0
"""Time that the journal may take for an answer, granted twice: this process may have stood still the first time."""
_MIN_SHARED_BYTES = 1 << 18
"""Size from which on agents go through Ray's object store, so that they delay no other message."""


class RayJournal:
    """A journal that an actor keeps. Make one with `open`.

    Attributes:
        epoch: number of servers that have had the sampler, including this one.
        state: what the previous server left; None if there was none.
        follows_loss: whether the sampler of an earlier server was lost, together with its journal.
        lease: the lease of this server, which is renewed each second.
    """

    def __init__(
        self,
        identity: SamplerIdentity,
        handle: JournalHandle,
        answer: LeaseAnswer,
        owner: Owner,
        orphan_seconds: float,
    ) -> None:
        assert answer.epoch is not None  # noqa: S101  # `acquire_lease` checks it
        self.epoch: int = answer.epoch
        self.state = answer.state
        self.follows_loss = answer.follows_loss
        self.lease = HeldLease(answer.epoch)
        self._identity = identity
        self._handle = handle
        self._owner = owner
        self._orphan_seconds = orphan_seconds
        # Functions that return all of the state, and the small part of it.
        self._read: tuple[Callable[[], SamplerState], Callable[[], Snapshot]] | None = None
        self._reopening = asyncio.Lock()
        self._renewing = asyncio.create_task(self._renew_periodically())

    @classmethod
    async def open(cls, identity: SamplerIdentity, orphan_seconds: float, *, discard: bool) -> RayJournal:
        """Return the journal of the sampler in the namespace, which is started if there is none.

        Args:
            identity: identity of the sampler.
            orphan_seconds: time without a server after which the sampler ends.
            discard: whether to begin with an empty journal, and end journals of other formats. Their workers are left
                to the caller.

        Raises:
            SamplerLostError: another server has the sampler and is alive, or Ray does not start the journal.
            InvalidValueError: there is a journal of another format, or of a sampler with another secret; or an actor
                with the journal's name does not know the secret.
        """
        has_others = await has_other_journals(identity, may_end=discard)
        owner = Owner(socket.gethostname(), os.getpid())
        handle, answer = await acquire_lease(identity, owner, orphan_seconds, discard=discard)
        journal = cls(identity, handle, answer, owner, orphan_seconds)
        if has_others:
            try:
                await end_other_journals(identity)
            except BaseException:
                await journal.close(keep=False)
                raise
        return journal

    async def begin(self, state: Callable[[], SamplerState], snapshot: Callable[[], Snapshot]) -> None:
        """Start to keep the state."""
        self._read, previous = (state, snapshot), self.state
        self.state = None  # it takes room
        if previous is None:
            await self._request(lambda handle: handle.call("begin", self.epoch, state()))
        else:
            await self.write()

    async def write(self, **changes: Unpack[Changes]) -> None:
        """Write an entry with a snapshot and these changes."""
        if self._read is None:
            return
        _, snapshot = self._read
        shared_agents: Any = None
        if "agents" in changes and changes["agents"][1].num_bytes >= _MIN_SHARED_BYTES:
            sealed = await asyncio.to_thread(self._handle.sealed, changes.pop("agents"))
            with putting():
                shared_agents = await asyncio.to_thread(ray.put, sealed)

        def send(handle: JournalHandle) -> Awaitable[Any]:
            # Each attempt has a snapshot of its own: an earlier one would undo what others have written meanwhile.
            return handle.call("write", self.epoch, Entry(snapshot(), **changes), last=shared_agents)

        await self._request(send)

    async def lost(self) -> str:
        """Wait until another server has the sampler; return a text that says so."""
        return await self.lease.lost()

    def abandon(self) -> None:
        """Renew the lease no more."""
        self._renewing.cancel()

    async def close(self, *, keep: bool) -> None:
        """Leave the sampler to the next server, or end the journal; in at most 3 s."""
        self.abandon()
        with contextlib.suppress(TimeoutError, DomainError, ForgedMessageError, ray.exceptions.RayError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._renew()  # also for actions that wait for a renewal
                if keep:
                    await self._handle.call("release", self.epoch)
                else:
                    if self._read is not None:  # else a server that has not served leaves the mark as it was
                        await asyncio.to_thread(remove_mark, self._identity.tag)
                    self._handle.kill()

    async def _renew_periodically(self) -> None:
        while not self.lease.is_lost:
            await asyncio.sleep(RENEW_SECONDS)
            try:
                await self._renew()
            except DomainError as error:
                _log.warning("journal not written", extra={"error": error.message})
            except Exception:  # whatever it is: nobody else would renew the lease
                _log.exception("journal not written")

    async def _renew(self) -> None:
        """Renew the lease, with a snapshot as soon as there is one."""
        if self._read is None:
            await self._request(lambda handle: handle.call("write", self.epoch, None))
        else:
            await self.write()

    async def _request(self, send: Callable[[JournalHandle], Awaitable[Any]]) -> None:
        """Send a request to the journal, and again to the one that replaces it if it is lost.

        Args:
            send: calls a method of the journal that it gets, which renews the lease.

        Raises:
            SamplerLostError: another server has the sampler, or no journal replaces the lost one.
            OverLimitError: Ray's object store is full.
        """
        while True:
            handle, asked_at = self._handle, time.monotonic()
            try:
                with putting():
                    answer = send(handle)
                owner = await _answer(handle, answer)
            except (ray.exceptions.RayError, ForgedMessageError) as error:
                await self._reopen(handle, error)
                continue
            self.lease.check_owner(owner)
            self.lease.renew(asked_at)
            return

    async def _reopen(self, lost: JournalHandle, error: Exception) -> None:
        """Replace a lost journal by another one, which gets all of the state."""
        async with self._reopening:
            if self._handle is not lost:
                return
            _log.warning("journal lost", extra={"error": " ".join(str(error).split())})
            deadline = time.monotonic() + OPEN_SECONDS
            while time.monotonic() < deadline:
                with contextlib.suppress(ray.exceptions.RayError, ForgedMessageError, ValueError):
                    handle = await asyncio.to_thread(JournalHandle.find_or_start, self._identity)
                    state = self._read[0]() if self._read else self.state
                    arguments = self.epoch, self._owner, self._orphan_seconds, state
                    self.lease.check_owner(await _answer(handle, handle.call("restore", *arguments)))
                    self._handle = handle
                    _log.info("journal whole again", extra={"epoch": self.epoch})
                    return
                await asyncio.sleep(RENEW_SECONDS / 2)
        text = "the journal of the sampler is lost, and none replaces it"
        raise SamplerLostError(text, reason=Reason.JOURNAL_LOST)


async def _answer(handle: JournalHandle, awaited: Awaitable[Owner | None]) -> Owner | None:
    """Return a journal's answer; kill the journal if it does not answer in time.

    Raises:
        ray.exceptions.RayError: the journal is gone, or was killed.
    """
    answer = asyncio.ensure_future(awaited)
    try:
        for _ in range(2):
            if (await asyncio.wait({answer}, timeout=_ANSWER_SECONDS))[0]:
                return answer.result()
    finally:
        answer.cancel()
    handle.kill()
    raise ray.exceptions.GetTimeoutError(f"no answer for {2 * _ANSWER_SECONDS:g} s")
