"""The actor that keeps a sampler's journal on a Ray cluster: a process that outlives the servers of the sampler."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from typing import TYPE_CHECKING

from rollserve_server.pool.backends.ray.identity import Seal
from rollserve_server.pool.backends.ray.names import end_actors, workers_in_namespace
from rollserve_server.pool.backends.ray.sampler_mark import read_mark, remove_mark, write_mark
from rollserve_server.pool.journal.lease import LEASE_SECONDS, RENEW_SECONDS, Lease
from rollserve_server.pool.state.ownership import LeaseAnswer, Owner

if TYPE_CHECKING:
    from rollserve_server.pool.state.agent_version import AgentVersion
    from rollserve_server.pool.state.sampler_state import Entry, SamplerState

__all__ = ["JournalActor"]

_METHODS = frozenset({"acquire", "restore", "begin", "write", "release"})
"""Methods of `JournalKeeper` that servers may call."""


class JournalActor:
    """The actor's face: reads sealed requests, and seals the answers. Whoever does not know the key gets nothing."""

    def __init__(self, tag: str, key: bytes) -> None:
        """Start without a state.

        Args:
            tag: tag of the sampler.
            key: key of the messages; see `SamplerIdentity`.
        """
        self._seal = Seal(key)
        self._keeper = JournalKeeper(tag)

    def call(self, request: bytes, agents: bytes | None = None) -> bytes:
        """Call a method of the keeper.

        Args:
            request: sealed nonce, name of the method, and its arguments.
            agents: last argument, sealed, of a request that is too large to be sent as one.

        Returns:
            The sealed nonce and result.

        Raises:
            ForgedMessageError: a part was made without the sampler's secret.
        """
        nonce, method, arguments = self._seal.opened(request)
        if method not in _METHODS:
            raise ValueError(f"method: expected one of {', '.join(sorted(_METHODS))}, got {method!r}")
        if agents is not None:
            arguments = (*arguments, self._seal.opened(agents))
        return self._seal.sealed((nonce, getattr(self._keeper, method)(*arguments)))


class JournalKeeper:
    """A keeper of a sampler's state. It ends the sampler and this process if no server has the lease for too long.

    Methods with an epoch return None, or the owner of the lease if a server with a later epoch has it.

    A change of a method's arguments or result needs another journal format; see `JOURNAL_FORMAT`.
    """

    def __init__(self, tag: str) -> None:
        self._tag = tag
        last_epoch = read_mark(tag)
        self._lease = Lease(LEASE_SECONDS, last_epoch=last_epoch)
        self._follows_loss = last_epoch > 0  # until its server restores it
        self._state: SamplerState | None = None
        self._orphan_seconds = float("inf")
        self._deciding = threading.Lock()  # between a server that acquires the lease, and the end
        threading.Thread(target=self._end_orphans, name="orphans", daemon=True).start()

    def acquire(self, owner: Owner, orphan_seconds: float, discard: bool) -> LeaseAnswer:
        """Give the lease to a server, unless another has it.

        Args:
            owner: the server.
            orphan_seconds: time without a server after which the sampler ends.
            discard: whether to drop the state that an earlier server left.
        """
        with self._deciding:
            previous, num_renewals = self._lease.owner, self._lease.num_renewals
            epoch = self._lease.acquire(owner)
            if epoch is None:
                return LeaseAnswer(None, None, previous, num_renewals)
            self._orphan_seconds = orphan_seconds
        if discard:
            self._state, self._follows_loss = None, False
            remove_mark(self._tag)
        if self._state is not None:
            write_mark(self._tag, epoch)
        return LeaseAnswer(epoch, self._state, previous, num_renewals, self._follows_loss)

    def restore(self, epoch: int, owner: Owner, orphan_seconds: float, state: SamplerState | None) -> Owner | None:
        """Replace a journal that was lost, with the state that the server has."""
        if self._lease.acquire(owner, epoch) is None:
            return self._lease.owner
        self._orphan_seconds = orphan_seconds
        if state is not None:
            self._keep(epoch, state)
        return None

    def begin(self, epoch: int, state: SamplerState) -> Owner | None:
        """Keep a state from now on."""
        if not self._lease.renew(epoch):
            return self._lease.owner
        self._keep(epoch, state)
        return None

    def write(self, epoch: int, entry: Entry | None, agents: tuple[int, AgentVersion] | None = None) -> Owner | None:
        """Renew the lease, and apply an entry to the state if there is one.

        Args:
            epoch: epoch of the server.
            entry: the entry, or None.
            agents: the entry's agents if they are not within it, because they are large.
        """
        if not self._lease.renew(epoch):
            return self._lease.owner
        if self._state is not None and entry is not None:
            self._state.apply(entry if agents is None else dataclasses.replace(entry, agents=agents))
        return None

    def release(self, epoch: int) -> None:
        """Leave the sampler to the next server."""
        self._lease.release(epoch)

    def _keep(self, epoch: int, state: SamplerState) -> None:
        self._state, self._follows_loss = state, False
        write_mark(self._tag, epoch)

    def _end_orphans(self) -> None:
        """Wait until the sampler was without a server for too long; then end it and this process."""
        while True:
            time.sleep(RENEW_SECONDS)
            self._deciding.acquire()
            if self._lease.idle_seconds > self._orphan_seconds:
                break  # with the lock, so that no server acquires the lease any more
            self._deciding.release()
        remove_mark(self._tag)
        end_actors(workers_in_namespace(self._tag))
        os._exit(0)
