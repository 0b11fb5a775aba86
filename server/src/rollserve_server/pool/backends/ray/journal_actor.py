"""The actor that keeps a sampler's journal on a Ray cluster: a process that outlives the servers of the sampler."""

from __future__ import annotations

import os
import threading
import time

from rollserve_server.errors import SamplerLostError
from rollserve_server.pool.backends.ray.identity import Seal
from rollserve_server.pool.backends.ray.names import end_actors, workers_in_namespace
from rollserve_server.pool.backends.ray.sampler_mark import read_mark, remove_mark, write_mark
from rollserve_server.pool.journal.kept_records import KeptRecords
from rollserve_server.pool.journal.lease import LEASE_SECONDS, RENEW_SECONDS, Lease, Owner
from rollserve_server.pool.state.files import framed, frames
from rollserve_wire.v1 import journal_pb2 as pb

__all__ = ["JOURNAL_FORMAT", "JournalActor"]

JOURNAL_FORMAT = 1
"""Format of the requests that a journal answers. A server replaces a journal of another one; those of servers before
0.4.0 have 0."""


class JournalActor:
    """Keeps a sampler's state. It ends the sampler and this process if no server has the lease for too long.

    Requests and answers are sealed: whoever does not know the key gets nothing, and changes nothing. Servers of other
    versions may call it; `protos/rollserve/v1/journal.proto` defines what they exchange.
    """

    def __init__(self, tag: str, key: bytes, software: str, restoring: bytes | None = None) -> None:
        """Start without a state, or with the one of a journal that this one replaces.

        Args:
            tag: tag of the sampler.
            key: key of the messages; see `SamplerIdentity`.
            software: version of the server that starts the journal.
            restoring: a request that brings the state; as of `call`.

        Raises:
            SamplerLostError: a later server has the sampler than the one that brings the state.
        """
        self._tag = tag
        self._software = software
        self._seal = Seal(key)
        last_epoch = read_mark(tag)
        self._lease = Lease(LEASE_SECONDS, time.monotonic, last_epoch=last_epoch)
        self._follows_loss = last_epoch > 0  # until its server restores it
        self._kept: KeptRecords | None = None
        self._orphan_seconds = float("inf")
        self._deciding = threading.Lock()  # between a server that acquires the lease, and the end
        if restoring is not None:
            self.call(restoring)
            if self._kept is None:  # so that no journal of a name with an epoch is without a state
                raise SamplerLostError("another server has the sampler")
        threading.Thread(target=self._end_orphans, name="orphans", daemon=True).start()

    def call(self, request: bytes, more: bytes | None = None) -> bytes:
        """Answer a request.

        Args:
            request: a JournalRequest and records behind it, sealed.
            more: further records, sealed, of a request that is too large to be sent as one.

        Returns:
            A JournalAnswer and records behind it, sealed.

        Raises:
            ForgedMessageError: a part was made without the sampler's secret.
        """
        head, *records = frames(self._seal.opened(request))
        if more is not None:
            records += frames(self._seal.opened(more))
        message, answer, kept = pb.JournalRequest.FromString(bytes(head)), pb.JournalAnswer(), None
        match message.method:
            case pb.JOURNAL_METHOD_ACQUIRE:
                answer, kept = self._acquire(message)
            case pb.JOURNAL_METHOD_RESTORE:
                if self._lease.acquire(_owner_of(message), message.epoch) is not None:
                    self._orphan_seconds, answer.epoch = message.orphan_seconds, message.epoch
                    if records:
                        self._kept, self._follows_loss = KeptRecords(records), False
                        write_mark(self._tag, message.epoch)
            case pb.JOURNAL_METHOD_WRITE:
                if self._lease.renew(message.epoch):
                    answer.epoch = message.epoch
                    if self._kept is not None:
                        self._kept.apply(records)
            case pb.JOURNAL_METHOD_RELEASE:
                self._lease.release(message.epoch, unused=message.unused)
            case pb.JOURNAL_METHOD_READ:
                kept = self._kept
        if not answer.epoch and self._lease.owner is not None:
            answer.owner.host, answer.owner.process_id = self._lease.owner
        answer.nonce, answer.software_version, answer.format = message.nonce, self._software, JOURNAL_FORMAT
        return self._seal.sealed(framed([[answer.SerializeToString()], *(kept or ())]))

    def _acquire(self, message: pb.JournalRequest) -> tuple[pb.JournalAnswer, KeptRecords | None]:
        """Give the lease to a server, unless another has it; return the answer, and the state that it goes on with."""
        with self._deciding:
            answer = pb.JournalAnswer(renewal_count=self._lease.num_renewals)
            epoch = self._lease.acquire(_owner_of(message))
            if epoch is None:
                return answer, None
            self._orphan_seconds = message.orphan_seconds
        if message.discard:
            self._kept, self._follows_loss = None, False
            remove_mark(self._tag)
        if self._kept is not None:
            write_mark(self._tag, epoch)
        answer.epoch, answer.follows_loss = epoch, self._follows_loss
        return answer, self._kept

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


def _owner_of(message: pb.JournalRequest) -> Owner:
    return Owner(message.owner.host, message.owner.process_id)
