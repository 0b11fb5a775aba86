"""The journal of a sampler on a Ray cluster, from the server's side: writes entries, and renews the lease."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack

import ray
import ray.exceptions

from rollserve import Reason
from rollserve_server.errors import DomainError, SamplerLostError
from rollserve_server.pool.backends.ray.journal_actor import copied, find_or_start
from rollserve_server.pool.backends.ray.journal_opening import (
    OPEN_SECONDS,
    acquire_lease,
    end_other_journals,
    has_other_journals,
)
from rollserve_server.pool.backends.ray.losses import putting
from rollserve_server.pool.backends.ray.sampler_mark import remove_mark
from rollserve_server.pool.journal.held_lease import HeldLease
from rollserve_server.pool.journal.lease import RENEW_SECONDS, Owner
from rollserve_server.pool.state.sampler_state import Entry

if TYPE_CHECKING:
    from rollserve_server.pool.backends.ray.journal_actor import LeaseAnswer
    from rollserve_server.pool.journal.journal import Changes
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

    def __init__(self, actor: Any, answer: LeaseAnswer, owner: Owner, orphan_seconds: float) -> None:
        assert answer.epoch is not None  # noqa: S101  # `acquire_lease` checks it
        self.epoch: int = answer.epoch
        self.state: SamplerState | None = copied(answer.state)
        self.follows_loss = answer.follows_loss
        self.lease = HeldLease(answer.epoch)
        self._actor = actor
        self._owner = owner
        self._orphan_seconds = orphan_seconds
        # Functions that return all of the state, and the small part of it.
        self._read: tuple[Callable[[], SamplerState], Callable[[], Snapshot]] | None = None
        self._reopening = asyncio.Lock()
        self._renewing = asyncio.create_task(self._renew_periodically())

    @classmethod
    async def open(cls, orphan_seconds: float, *, discard: bool) -> RayJournal:
        """Return the journal of the namespace, which is started if there is none.

        Args:
            orphan_seconds: time without a server after which the sampler ends.
            discard: whether to begin with an empty journal, and end journals of other formats. Their workers are left
                to the caller.

        Raises:
            SamplerLostError: another server has the sampler and is alive, or Ray does not start the journal.
            InvalidValueError: there is a journal of another format.
        """
        has_others = await has_other_journals(may_end=discard)
        owner = Owner(socket.gethostname(), os.getpid())
        actor, answer = await acquire_lease(owner, orphan_seconds, discard=discard)
        journal = cls(actor, answer, owner, orphan_seconds)
        if has_others:
            try:
                await end_other_journals()
            except BaseException:
                await journal.close(keep=False)
                raise
        return journal

    async def begin(self, state: Callable[[], SamplerState], snapshot: Callable[[], Snapshot]) -> None:
        """Start to keep the state."""
        self._read, previous = (state, snapshot), self.state
        self.state = None  # it takes room
        if previous is None:
            await self._request(lambda actor: actor.begin.remote(self.epoch, state()))
        else:
            await self.write()

    async def write(self, **changes: Unpack[Changes]) -> None:
        """Write an entry with a snapshot and these changes."""
        if self._read is None:
            return
        _, snapshot = self._read
        shared_agents: Any = None
        if "agents" in changes and changes["agents"][1].num_bytes >= _MIN_SHARED_BYTES:
            with putting():
                shared_agents = await asyncio.to_thread(ray.put, changes.pop("agents"))

        def send(actor: Any) -> Any:
            # Ray sends bytes as they are; anything else goes through its own serializer, which is Python code. Each
            # attempt has a snapshot of its own: an earlier one would undo what others have written meanwhile.
            entry = pickle.dumps(Entry(snapshot(), **changes))
            return actor.write.remote(self.epoch, entry, shared_agents)

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
        with contextlib.suppress(TimeoutError, DomainError, ray.exceptions.RayError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._renew()  # also for actions that wait for a renewal
                if keep:
                    await self._actor.release.remote(self.epoch)
                else:
                    if self._read is not None:  # else a server that has not served leaves the mark as it was
                        await asyncio.to_thread(remove_mark)
                    ray.kill(self._actor)

    async def _renew_periodically(self) -> None:
        while not self.lease.is_lost:
            await asyncio.sleep(RENEW_SECONDS)
            try:
                await self._renew()
            except DomainError as error:
                _log.warning("journal not written", extra={"error": error.message})

    async def _renew(self) -> None:
        """Renew the lease, with a snapshot as soon as there is one."""
        if self._read is None:
            await self._request(lambda actor: actor.write.remote(self.epoch, None, None))
        else:
            await self.write()

    async def _request(self, send: Callable[[Any], Any]) -> None:
        """Send a request to the journal, and again to the one that replaces it if it is lost.

        Args:
            send: calls a method of the actor that it gets, which renews the lease; returns Ray's reference.

        Raises:
            SamplerLostError: another server has the sampler, or no journal replaces the lost one.
            OverLimitError: Ray's object store is full.
        """
        while True:
            actor, asked_at = self._actor, time.monotonic()
            try:
                with putting():
                    reference = send(actor)
                owner = await _answer(actor, reference)
            except ray.exceptions.RayError as error:
                await self._reopen(actor, error)
                continue
            self.lease.check_owner(owner)
            self.lease.renew(asked_at)
            return

    async def _reopen(self, lost_actor: Any, error: Exception) -> None:
        """Replace a lost journal by another one, which gets all of the state."""
        async with self._reopening:
            if self._actor is not lost_actor:
                return
            _log.warning("journal lost", extra={"error": " ".join(str(error).split())})
            deadline = time.monotonic() + OPEN_SECONDS
            while time.monotonic() < deadline:
                with contextlib.suppress(ray.exceptions.RayError, ValueError):
                    actor = await asyncio.to_thread(find_or_start)
                    state = self._read[0]() if self._read else self.state
                    arguments = self.epoch, self._owner, self._orphan_seconds, state
                    self.lease.check_owner(await _answer(actor, actor.restore.remote(*arguments)))
                    self._actor = actor
                    _log.info("journal whole again", extra={"epoch": self.epoch})
                    return
                await asyncio.sleep(RENEW_SECONDS / 2)
        text = "the journal of the sampler is lost, and none replaces it"
        raise SamplerLostError(text, reason=Reason.JOURNAL_LOST)


async def _answer(actor: Any, reference: Any) -> Owner | None:
    """Return a journal's answer; kill the journal if it does not answer in time.

    Raises:
        ray.exceptions.RayError: the journal is gone, or was killed.
    """

    async def fetch() -> Owner | None:
        owner: Owner | None = await reference
        return owner

    answer = asyncio.ensure_future(fetch())
    try:
        for _ in range(2):
            if (await asyncio.wait({answer}, timeout=_ANSWER_SECONDS))[0]:
                return answer.result()
    finally:
        answer.cancel()
    ray.kill(actor)
    raise ray.exceptions.GetTimeoutError(f"no answer for {2 * _ANSWER_SECONDS:g} s")
