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

from rollserve_server import __version__
from rollserve_server.errors import DomainError, SamplerLostError, shorten
from rollserve_server.pool.backends.ray.identity import ForgedMessageError
from rollserve_server.pool.backends.ray.journal_actor import JOURNAL_FORMAT
from rollserve_server.pool.backends.ray.journal_handle import JournalHandle
from rollserve_server.pool.backends.ray.journal_opening import (
    OPEN_SECONDS,
    Acquired,
    acquire_lease,
    end_other_journals,
    has_other_journals,
    owner_of,
    owner_to_proto,
    state_of,
)
from rollserve_server.pool.backends.ray.losses import putting
from rollserve_server.pool.backends.ray.sampler_mark import remove_mark
from rollserve_server.pool.journal.held_lease import HeldLease
from rollserve_server.pool.journal.lease import RENEW_SECONDS, Owner
from rollserve_server.pool.state.records import agents_records, entry_records, sampler_records
from rollserve_wire.reasons import Reason
from rollserve_wire.v1 import journal_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from rollserve_server.pool.backends.ray.identity import SamplerIdentity
    from rollserve_server.pool.journal.journal import Changes
    from rollserve_server.pool.state.records import Record
    from rollserve_server.pool.state.saved_sampler import SavedHeader, SavedSampler

__all__ = ["RayJournal"]

_Answer = tuple[pb.JournalAnswer, "Sequence[memoryview]"]

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
        acquired: Acquired,
        owner: Owner,
        orphan_seconds: float,
    ) -> None:
        answer = acquired.answer
        self.epoch = answer.epoch
        self.state = state_of(acquired.records)
        self.follows_loss = answer.follows_loss
        self.lease = HeldLease(answer.epoch, acquired.asked_at)
        self._identity = identity
        self._handle = acquired.journal
        self._format = answer.format
        # The records of `state`: as long as agents are not accepted here, they cannot be written in another way.
        self._left = acquired.records
        self._owner = owner
        self._orphan_seconds = orphan_seconds
        # Functions that return all of the state, and the small part of it.
        self._read: tuple[Callable[[], SavedSampler], Callable[[], SavedHeader]] | None = None
        self._reopening = asyncio.Lock()
        self._renewing = asyncio.create_task(self._renew_periodically())

    @classmethod
    async def open(
        cls,
        identity: SamplerIdentity,
        orphan_seconds: float,
        *,
        check: Callable[[SavedSampler], object],
        discard: bool,
        on_wait: Callable[[], None] | None,
    ) -> RayJournal:
        """Return the journal of the sampler in the namespace, which is started if there is none.

        Args:
            identity: identity of the sampler.
            orphan_seconds: time without a server after which the sampler ends.
            check: raises an InvalidValueError if this server cannot go on with a state.
            discard: whether to begin with an empty journal, and end journals of old formats. Their workers are left to
                the caller.
            on_wait: called once if another server has the sampler, to wait for its end; None not to wait.

        Raises:
            SamplerLostError: another server has the sampler and is alive, or Ray does not start the journal.
            InvalidValueError: there is a journal of an old format, or one that this version cannot read, or one of a
                sampler with another secret; or an actor with the journal's name does not know the secret.
        """
        has_others = await has_other_journals(identity, may_end=discard)
        owner = Owner(socket.gethostname(), os.getpid())
        request = pb.JournalRequest(owner=owner_to_proto(owner), orphan_seconds=orphan_seconds, discard=discard)
        acquired = await acquire_lease(identity, request, check=check, on_wait=on_wait)
        await asyncio.to_thread(acquired.journal.end_others)
        journal = cls(identity, acquired, owner, orphan_seconds)
        if has_others:
            try:
                await end_other_journals(identity)
            except BaseException:
                await journal.close(keep=False)
                raise
        return journal

    async def begin(self, state: Callable[[], SavedSampler], header: Callable[[], SavedHeader]) -> None:
        """Start to keep the state; in another actor, if the present one knows less than this server's, or more."""
        # What another version has written is written again: its trials of agents do not hold here.
        is_kept = self.state is not None and self.state.header.software == __version__
        if self._format != JOURNAL_FORMAT:
            await self._replace(state())
            is_kept = True
        self._read = state, header
        self.state, self._left = None, ()  # they take room
        if is_kept:
            await self.write()
        else:
            await self._request(lambda handle: handle.call(self._restoring(), sampler_records(state())))

    async def write(self, **changes: Unpack[Changes]) -> None:
        """Write an entry with the header and these changes."""
        if self._read is None:
            return
        _, header = self._read
        shared_agents: Any = None
        if "agents" in changes and changes["agents"][1].num_bytes >= _MIN_SHARED_BYTES:
            number, version = changes.pop("agents")
            sealed = await asyncio.to_thread(lambda: self._handle.sealed(agents_records(number, version)))
            with putting():
                shared_agents = await asyncio.to_thread(ray.put, sealed)

        def send(handle: JournalHandle) -> Awaitable[_Answer]:
            # Each attempt has a header of its own: an earlier one would undo what others have written meanwhile.
            return handle.call(self._writing(), entry_records(header(), **changes), shared_agents)

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
                    method, unused = pb.JOURNAL_METHOD_RELEASE, self._read is None
                    await self._handle.call(pb.JournalRequest(method=method, epoch=self.epoch, unused=unused))
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
        """Renew the lease, with a header as soon as there is one."""
        if self._read is None:
            await self._request(lambda handle: handle.call(self._writing()))
        else:
            await self.write()

    def _writing(self) -> pb.JournalRequest:
        """Return a request that writes an entry."""
        return pb.JournalRequest(method=pb.JOURNAL_METHOD_WRITE, epoch=self.epoch)

    def _restoring(self) -> pb.JournalRequest:
        """Return a request that replaces the state."""
        return pb.JournalRequest(
            method=pb.JOURNAL_METHOD_RESTORE,
            epoch=self.epoch,
            owner=owner_to_proto(self._owner),
            orphan_seconds=self._orphan_seconds,
        )

    async def _request(self, send: Callable[[JournalHandle], Awaitable[_Answer]]) -> None:
        """Send a request to the journal, and again to the one that replaces it if it is lost.

        Args:
            send: sends a request to the journal that it gets, which renews the lease.

        Raises:
            SamplerLostError: another server has the sampler, no journal replaces the lost one, or two refuse the
                request.
            OverLimitError: Ray's object store is full.
        """
        has_failed = False
        while True:
            handle, asked_at = self._handle, time.monotonic()
            try:
                with putting():
                    sent = send(handle)
                answer = await _answer(handle, sent)
            except (ray.exceptions.RayError, ForgedMessageError) as error:
                if has_failed and isinstance(error, ray.exceptions.RayTaskError):  # the journal has not died of it
                    text = f"the journal of the sampler refuses a request: {shorten(str(error))}"
                    raise SamplerLostError(text, reason=Reason.JOURNAL_LOST) from error
                has_failed = True
                await self._reopen(handle, error)
                continue
            self._check(answer)
            self.lease.renew(asked_at)
            return

    def _check(self, answer: pb.JournalAnswer) -> None:
        """Raise SamplerLostError if the journal answers that another server has the lease."""
        if not answer.epoch:
            self.lease.lose(owner_of(answer))

    async def _replace(self, state: SavedSampler) -> None:
        """Hand the state to another journal, of this format, and then end the one of another format.

        Raises:
            SamplerLostError: another server has the sampler, or no journal of this format starts. The present journal
                stays as it is.
            OverLimitError: Ray's object store is full; likewise.
        """
        records = await asyncio.to_thread(lambda: list(sampler_records(state)))
        async with self._reopening:
            with putting():
                handle = await asyncio.to_thread(JournalHandle.replace, self._identity, self._restoring(), records)
            try:
                async with asyncio.timeout(OPEN_SECONDS):
                    answer, _ = await handle.call(self._writing())
            except BaseException as error:
                handle.kill()  # else a later server would find it
                if isinstance(error, ray.exceptions.RayError | ForgedMessageError | TimeoutError):
                    text = f"the journal of another format cannot be replaced: {shorten(str(error))}"
                    raise SamplerLostError(text, reason=Reason.JOURNAL_LOST) from error
                raise
            self._check(answer)
            self._handle, self._format = handle, JOURNAL_FORMAT
            await asyncio.to_thread(handle.end_others)

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
                    records: Iterable[Record] = ([each] for each in self._left)
                    if self._read is not None:
                        records = sampler_records(self._read[0]())
                    answer = await _answer(handle, handle.call(self._restoring(), records))
                    self._check(answer)
                    self._handle, self._format = handle, answer.format
                    _log.info("journal whole again", extra={"epoch": self.epoch})
                    return
                await asyncio.sleep(RENEW_SECONDS / 2)
        text = "the journal of the sampler is lost, and none replaces it"
        raise SamplerLostError(text, reason=Reason.JOURNAL_LOST)


async def _answer(handle: JournalHandle, awaited: Awaitable[_Answer]) -> pb.JournalAnswer:
    """Return a journal's answer; kill the journal if it does not answer in time.

    Raises:
        ray.exceptions.RayError: the journal is gone, or was killed.
    """
    answer = asyncio.ensure_future(awaited)
    try:
        for _ in range(2):
            if (await asyncio.wait({answer}, timeout=_ANSWER_SECONDS))[0]:
                message, _ = answer.result()
                return message
    finally:
        answer.cancel()
    handle.kill()
    raise ray.exceptions.GetTimeoutError(f"no answer for {2 * _ANSWER_SECONDS:g} s")
