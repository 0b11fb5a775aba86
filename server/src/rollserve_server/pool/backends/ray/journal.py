"""A journal as an actor of Ray, which outlives the servers of its sampler. Knows Ray, as `ray_backend` does."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray
import ray.exceptions

from rollserve import Reason
from rollserve_server.errors import DomainError, SamplerLostError
from rollserve_server.pool.backends.ray.losses import putting
from rollserve_server.pool.backends.ray.names import JOURNAL, end_actors, named_actors
from rollserve_server.pool.journal.lease import Lease, Owner
from rollserve_server.pool.state.sampler_state import Entry

if TYPE_CHECKING:
    from rollserve_server.pool.state.agent_version import AgentVersion
    from rollserve_server.pool.state.env_version import EnvVersion
    from rollserve_server.pool.state.row_sequence import RowsMoved
    from rollserve_server.pool.state.sampler_state import SamplerState, Snapshot

__all__ = ["RayJournal"]

_log = logging.getLogger(__name__)

_LEASE_SECONDS = 5.0
"""How long a server may be silent before another may take its sampler."""
_RENEW_SECONDS = 1.0
_OPEN_SECONDS = 60.0
_CLOSE_SECONDS = 3.0
_ANSWER_SECONDS = 15.0
"""How long the journal may take for an answer; twice, because this process may have stood still the first time."""
_SHARED_FROM = 1 << 18
"""Agents with so many bytes go through Ray's object store, which holds up nothing else meanwhile."""


@dataclass(frozen=True)
class _Claim:
    """What came of an attempt to have the journal.

    Attributes:
        epoch: in which it belongs to who has claimed it; None if it belongs to another.
        state: what is to be gone on with, if there is anything.
        owner: who had it before, or has it.
        num_renewals: see Lease.
    """

    epoch: int | None
    state: SamplerState | None
    owner: Owner | None
    num_renewals: int


class _JournalActor:
    """Keeps the state, and ends all of the sampler when it has been without a server for too long."""

    def __init__(self) -> None:
        self._lease = Lease(_LEASE_SECONDS)
        self._state: SamplerState | None = None
        self._orphan_seconds = float("inf")
        self._deciding = threading.Lock()  # between a server that comes and the end
        threading.Thread(target=self._watch, name="orphans", daemon=True).start()

    def claim(self, owner: Owner, orphan_seconds: float, *, discard: bool) -> _Claim:
        """Gives the sampler to a server, unless another has it; without its state if it is to be begun anew."""
        with self._deciding:
            before, num_renewals = self._lease.owner, self._lease.num_renewals
            epoch = self._lease.claim(owner)
            if epoch is None:
                return _Claim(None, None, before, num_renewals)
            self._orphan_seconds = orphan_seconds
        if discard:
            self._state = None
        return _Claim(epoch, self._state, before, num_renewals)

    def restore(self, epoch: int, owner: Owner, orphan_seconds: float, state: SamplerState | None) -> Owner | None:
        """Takes the place of a journal that was lost. Returns whom the sampler belongs to, if that is another."""
        if self._lease.claim(owner, epoch) is None:
            return self._lease.owner
        self._orphan_seconds, self._state = orphan_seconds, _own(state)
        return None

    def begin(self, epoch: int, state: SamplerState) -> Owner | None:
        """Keeps a state from now on. Returns as `restore` does."""
        if not self._lease.renew(epoch):
            return self._lease.owner
        self._state = _own(state)
        return None

    def write(self, epoch: int, entry: bytes | None, agents: tuple[int, AgentVersion] | None) -> Owner | None:
        """Takes in a pickled entry, with agents that go beside it, or a sign of life. Returns as `restore` does."""
        if not self._lease.renew(epoch):
            return self._lease.owner
        if self._state is not None and entry is not None:
            read: Entry = pickle.loads(entry)  # noqa: S301  # it comes from the pool
            self._state.apply(read if agents is None else Entry(read.snapshot, agents=_own(agents)))
        return None

    def release(self, epoch: int) -> None:
        """Leaves the sampler to the next server."""
        self._lease.release(epoch)

    def _watch(self) -> None:
        while True:
            time.sleep(_RENEW_SECONDS)
            self._deciding.acquire()
            if self._lease.idle_seconds > self._orphan_seconds:
                break  # nobody gets it any more
            self._deciding.release()
        end_actors(actor for name, actor in named_actors() if name != JOURNAL)
        os._exit(0)


def _own(value: Any) -> Any:
    """A copy: what has come through Ray's object store would take its room there."""
    return pickle.loads(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))  # noqa: S301  # just written


class RayJournal:
    """See Journal. Also tells whether the sampler is still this server's.

    Attributes:
        epoch, state: see Journal.
    """

    def __init__(self, actor: Any, claim: _Claim, owner: Owner, orphan_seconds: float) -> None:
        """Takes a journal that was claimed; `open` does that."""
        assert claim.epoch is not None  # noqa: S101  # it was
        self.epoch: int = claim.epoch
        self.state: SamplerState | None = _own(claim.state)
        self._actor = actor
        self._owner = owner
        self._orphan_seconds = orphan_seconds
        self._read: tuple[Callable[[], SamplerState], Callable[[], Snapshot]] | None = None
        self._renewed_at = time.monotonic()
        self._when_held: list[Callable[[], None]] = []
        self._reopening = asyncio.Lock()
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._keeping = asyncio.create_task(self._keep())

    @classmethod
    async def open(cls, orphan_seconds: float, *, discard: bool) -> RayJournal:
        """Return the journal of the namespace; it is made if there is none.

        Args:
            orphan_seconds: how long the sampler stays without a server.
            discard: whether to end the sampler that an earlier server left, and begin with an empty journal.

        Raises:
            SamplerLostError: another server has the sampler, and is alive; or Ray does not start the journal.
        """
        owner, seen, deadline = Owner(socket.gethostname(), os.getpid()), None, time.monotonic() + _OPEN_SECONDS
        while time.monotonic() < deadline:
            try:
                actor = await asyncio.to_thread(_actor)
                async with asyncio.timeout(deadline - time.monotonic()):
                    claim: _Claim = await actor.claim.remote(owner, orphan_seconds, discard=discard)
            except (ray.exceptions.RayError, TimeoutError, ValueError):  # it is just ending, or beginning
                await asyncio.sleep(_RENEW_SECONDS / 4)
                continue
            if claim.epoch is not None:
                _log.info("sampler claimed", extra={"epoch": claim.epoch})
                return cls(actor, claim, owner, orphan_seconds)
            if seen is not None and (seen.owner, seen.num_renewals) != (claim.owner, claim.num_renewals):
                raise _taken(claim.owner)
            seen = seen or claim
            await asyncio.sleep(_RENEW_SECONDS / 4)  # it may be gone, which shows when its time is over
        raise SamplerLostError("the journal of the sampler does not start on the cluster", reason=Reason.JOURNAL_LOST)

    @property
    def is_held(self) -> bool:
        """Whether the sampler is sure to be this server's now: it may do to workers what cannot be undone."""
        return not self._lost.done() and time.monotonic() - self._renewed_at < _LEASE_SECONDS

    def when_held(self, action: Callable[[], None]) -> None:
        """Does something as soon as the sampler is sure to be this server's: mostly at once."""
        if self.is_held:
            action()
        else:
            self._when_held.append(action)

    async def begin(self, state: Callable[[], SamplerState], snapshot: Callable[[], Snapshot]) -> None:
        """See Journal."""
        self._read, left = (state, snapshot), self.state
        self.state = None  # it takes room
        if left is None:
            await self._ask(lambda actor: actor.begin.remote(self.epoch, state()))
        else:
            await self.write()

    async def write(
        self,
        *,
        agents: tuple[int, AgentVersion] | None = None,
        env: tuple[int, EnvVersion] | None = None,
        moved: RowsMoved | None = None,
    ) -> None:
        """See Journal."""
        if self._read is None:
            return
        _, snapshot = self._read
        beside: Any = None
        if agents is not None and agents[1].num_bytes >= _SHARED_FROM:
            with putting():
                agents, beside = None, await asyncio.to_thread(ray.put, agents)

        def send(actor: Any) -> Any:
            # Ray takes bytes as they are; of anything else it makes text by Python code of its own. Snapshot are those
            # of when it is sent, each time: earlier ones would take back what others have written meanwhile.
            data = pickle.dumps(Entry(snapshot(), agents, env, moved))
            return actor.write.remote(self.epoch, data, beside)

        await self._ask(send)

    async def lost(self) -> str:
        """See Journal."""
        return await asyncio.shield(self._lost)

    async def close(self, *, keep: bool) -> None:
        """See Journal."""
        self._keeping.cancel()
        with contextlib.suppress(TimeoutError, DomainError, ray.exceptions.RayError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                # Also for what waits until the sampler is sure to be this server's.
                await self._say_so()
                if keep:
                    await self._actor.release.remote(self.epoch)
                else:
                    ray.kill(self._actor)

    async def _keep(self) -> None:
        """Says again and again that the server is alive."""
        while not self._lost.done():
            await asyncio.sleep(_RENEW_SECONDS)
            try:
                await self._say_so()
            except DomainError as error:
                _log.warning("journal not written", extra={"error": error.message})

    async def _say_so(self) -> None:
        """Says that the server is alive, with all figures as soon as there are any."""
        if self._read is None:
            await self._ask(lambda actor: actor.write.remote(self.epoch, None, None))
        else:
            await self.write()

    async def _ask(self, ask: Callable[[Any], Any]) -> None:
        """Asks the journal, or the one that takes its place, for what is refused if the sampler is another server's."""
        while True:
            actor, began = self._actor, time.monotonic()
            try:
                with putting():
                    reference = ask(actor)
                owner = await _answer(actor, reference)
            except ray.exceptions.RayError as error:
                await self._reopen(actor, error)
                continue
            self._check(owner)
            self._renewed_at = max(self._renewed_at, began)
            if self.is_held:
                waiting, self._when_held = self._when_held, []
                for action in waiting:
                    action()
            return

    def _check(self, owner: Owner | None) -> None:
        """Raises SamplerLostError if the sampler is another server's."""
        if owner is not None:
            error = _taken(owner)
            if not self._lost.done():
                self._lost.set_result(error.text)
            raise error

    async def _reopen(self, actor: Any, error: Exception) -> None:
        """Has another journal take the place of one that is lost."""
        async with self._reopening:
            if self._actor is not actor:
                return
            _log.warning("journal lost", extra={"error": " ".join(str(error).split())})
            deadline = time.monotonic() + _OPEN_SECONDS
            while time.monotonic() < deadline:
                with contextlib.suppress(ray.exceptions.RayError, ValueError):
                    fresh = await asyncio.to_thread(_actor)
                    state = self._read[0]() if self._read else self.state
                    arguments = self.epoch, self._owner, self._orphan_seconds, state
                    self._check(await _answer(fresh, fresh.restore.remote(*arguments)))
                    self._actor = fresh
                    return
                await asyncio.sleep(_RENEW_SECONDS / 2)
        raise SamplerLostError(
            "the journal of the sampler is lost, and none takes its place", reason=Reason.JOURNAL_LOST
        )


async def _answer(actor: Any, reference: Any) -> Owner | None:
    """What a journal has answered. Raises RayError if it is gone; one that hangs is killed."""

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
    raise ray.exceptions.GetTimeoutError(f"it has not answered for {2 * _ANSWER_SECONDS:g} s")


def _actor() -> Any:
    """The actor of the namespace that this process is in, made unless it is there."""
    remote: Any = ray.remote(_JournalActor)
    options = remote.options(
        name=JOURNAL, lifetime="detached", get_if_exists=True, num_cpus=0, enable_task_events=False
    )
    return options.remote()


def _taken(owner: Owner | None) -> SamplerLostError:
    who = f"{owner.host}, process {owner.process_id}" if owner else "unknown"
    return SamplerLostError(f"another server has the sampler: on {who}", reason=Reason.SAMPLER_TAKEN)
