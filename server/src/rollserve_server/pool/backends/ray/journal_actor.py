"""The actor that keeps a sampler's journal on a Ray cluster: a process that outlives the servers of the sampler."""

from __future__ import annotations

import os
import pickle
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray

from rollserve_server.pool.backends.ray.names import JOURNAL, end_actors, named_actors
from rollserve_server.pool.backends.ray.sampler_mark import read_mark, remove_mark, write_mark
from rollserve_server.pool.journal.lease import LEASE_SECONDS, RENEW_SECONDS, Lease, Owner
from rollserve_server.pool.state.sampler_state import Entry

if TYPE_CHECKING:
    from rollserve_server.pool.state.agent_version import AgentVersion
    from rollserve_server.pool.state.sampler_state import SamplerState

__all__ = ["JournalActor", "LeaseAnswer", "copied", "find_or_start"]


@dataclass(frozen=True)
class LeaseAnswer:
    """The journal's answer to a server that asks for the lease.

    Attributes:
        epoch: epoch of the server; None if another server has the lease.
        state: state of the sampler that an earlier server left, if there is one.
        owner: the server that had the lease before, or has it.
        num_renewals: number of renewals by that server; see `Lease`.
        follows_loss: whether the sampler of an earlier server was lost, together with its journal.
    """

    epoch: int | None
    state: SamplerState | None
    owner: Owner | None
    num_renewals: int
    follows_loss: bool = False


class JournalActor:
    """A keeper of a sampler's state. It ends the sampler and itself if no server has the lease for too long.

    Methods with an epoch return None, or the owner of the lease if a server with a later epoch has it.

    A change of a method's arguments or result needs another journal format; see `JOURNAL_FORMAT`.
    """

    def __init__(self) -> None:
        last_epoch = read_mark()
        self._lease = Lease(LEASE_SECONDS, last_epoch=last_epoch)
        self._follows_loss = last_epoch > 0  # until its server restores it
        self._state: SamplerState | None = None
        self._orphan_seconds = float("inf")
        self._deciding = threading.Lock()  # between a server that acquires the lease, and the end
        threading.Thread(target=self._end_orphans, name="orphans", daemon=True).start()

    def acquire(self, owner: Owner, orphan_seconds: float, *, discard: bool) -> LeaseAnswer:
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
            remove_mark()
        if self._state is not None:
            write_mark(epoch)
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

    def write(self, epoch: int, entry: bytes | None, agents: tuple[int, AgentVersion] | None) -> Owner | None:
        """Renew the lease, and apply an entry to the state if there is one.

        Args:
            epoch: epoch of the server.
            entry: the pickled entry, or None.
            agents: the entry's agents if they are not within it, because they are large.
        """
        if not self._lease.renew(epoch):
            return self._lease.owner
        if self._state is not None and entry is not None:
            read: Entry = pickle.loads(entry)  # noqa: S301  # from the server of the sampler
            self._state.apply(read if agents is None else Entry(read.snapshot, agents=copied(agents)))
        return None

    def release(self, epoch: int) -> None:
        """Leave the sampler to the next server."""
        self._lease.release(epoch)

    def _keep(self, epoch: int, state: SamplerState) -> None:
        self._state, self._follows_loss = copied(state), False
        write_mark(epoch)

    def _end_orphans(self) -> None:
        """Wait until the sampler was without a server for too long; then end it and this process."""
        while True:
            time.sleep(RENEW_SECONDS)
            self._deciding.acquire()
            if self._lease.idle_seconds > self._orphan_seconds:
                break  # with the lock, so that no server acquires the lease any more
            self._deciding.release()
        remove_mark()
        end_actors(actor for name, actor in named_actors() if name != JOURNAL)
        os._exit(0)


def copied(value: Any) -> Any:
    """Return a copy of a value from Ray's object store, so that it takes no room there."""
    return pickle.loads(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))  # noqa: S301  # just pickled


def find_or_start() -> Any:
    """Return the journal's actor in this process's namespace, and start it if there is none."""
    remote: Any = ray.remote(JournalActor)
    options = remote.options(
        name=JOURNAL, lifetime="detached", get_if_exists=True, num_cpus=0, enable_task_events=False
    )
    return options.remote()
