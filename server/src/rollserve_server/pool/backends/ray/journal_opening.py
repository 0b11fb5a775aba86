"""Opening a journal on a Ray cluster: getting the lease from its actor, and dealing with journals of old formats."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, NamedTuple

import ray.exceptions

from rollserve_server.errors import InvalidValueError, SamplerLostError
from rollserve_server.fields import in_field
from rollserve_server.pool.backends.ray.identity import ForgedMessageError
from rollserve_server.pool.backends.ray.journal_handle import JournalHandle
from rollserve_server.pool.backends.ray.names import end_actors, other_journals
from rollserve_server.pool.journal.held_lease import taken_error
from rollserve_server.pool.journal.lease import LEASE_SECONDS, RENEW_SECONDS, Owner
from rollserve_server.pool.state.records import read_records
from rollserve_wire.reasons import Reason
from rollserve_wire.v1 import journal_pb2 as pb
from rollserve_wire.v1.saved_sampler_pb2 import SavedRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rollserve_server.pool.backends.ray.identity import SamplerIdentity
    from rollserve_server.pool.state.saved_sampler import SavedSampler

__all__ = [
    "OPEN_SECONDS",
    "Acquired",
    "acquire_lease",
    "end_other_journals",
    "has_other_journals",
    "owner_of",
    "owner_to_proto",
    "state_of",
]

_log = logging.getLogger(__name__)

OPEN_SECONDS = 60.0
"""Time in which a journal has to start."""
_OTHER_VERSION = (
    "start the version that left it to take the sampler over; --no-adopt ends the sampler and starts a new one"
)


class Acquired(NamedTuple):
    """A lease that a journal has given to this server.

    Attributes:
        journal: the journal.
        answer: its answer, which has an epoch.
        records: records of the state that an earlier server left.
        asked_at: when the journal was asked (`time.monotonic`): the lease lasts from then on, at least.
    """

    journal: JournalHandle
    answer: pb.JournalAnswer
    records: Sequence[memoryview]
    asked_at: float


async def acquire_lease(
    identity: SamplerIdentity,
    request: pb.JournalRequest,
    *,
    check: Callable[[SavedSampler], object],
    on_wait: Callable[[], None] | None,
) -> Acquired:
    """Get the lease of the sampler from its journal, which is started if there is none.

    The state is checked before: a server that refuses it leaves the sampler as it was.

    Args:
        identity: identity of the sampler.
        request: this server, and what it asks for.
        check: raises an InvalidValueError if this server cannot go on with a state.
        on_wait: called once if another server has the lease and is alive, to wait for its end; None not to wait.

    Raises:
        InvalidValueError: an actor with the journal's name does not know the sampler's secret; or this server cannot go
            on with the state.
        SamplerLostError: another server has the lease and is alive, or the journal does not start within 60 s.
    """
    is_waiting = False
    refusal, is_checked, deadline = None, request.discard, time.monotonic() + OPEN_SECONDS
    while time.monotonic() < deadline:
        request.method = pb.JOURNAL_METHOD_ACQUIRE if is_checked else pb.JOURNAL_METHOD_READ
        try:
            journal = await asyncio.to_thread(JournalHandle.find_or_start, identity)
            asked_at = time.monotonic()
            async with asyncio.timeout(deadline - asked_at):
                answer, records = await journal.call(request)
        except ForgedMessageError as error:
            expected, got = "an actor that knows the sampler's secret", f"{error}, under the journal's name"
            hint = "end that actor, or use another --ray-namespace"
            raise InvalidValueError.of("journal", expected=expected, got=got, hint=hint) from None
        except (ray.exceptions.RayError, TimeoutError, ValueError):  # the actor is just ending or starting
            await asyncio.sleep(RENEW_SECONDS / 4)
            continue
        if not is_checked:
            if (state := state_of(records)) is not None:
                check(state)
            is_checked = True
            continue
        if answer.epoch:
            _log.info("lease acquired", extra={"epoch": answer.epoch})
            return Acquired(journal, answer, records, asked_at)
        if refusal is not None and (refusal.owner, refusal.renewal_count) != (answer.owner, answer.renewal_count):
            taken = taken_error(owner_of(answer))  # it has renewed the lease meanwhile, so it is alive
            if on_wait is None:
                raise taken
            if not is_waiting:
                is_waiting = True
                _log.info("standing by", extra={"until": taken.text})
                on_wait()
        if is_waiting:
            deadline = time.monotonic() + OPEN_SECONDS
        refusal = refusal or answer
        await asyncio.sleep(RENEW_SECONDS / 4)
    raise SamplerLostError("the journal of the sampler does not start on the cluster", reason=Reason.JOURNAL_LOST)


def state_of(records: Sequence[memoryview]) -> SavedSampler | None:
    """Return the state of records that an earlier server left; None if it left none.

    Raises:
        InvalidValueError: the server was of a version whose state this one cannot read.
    """
    if not records:
        return None
    try:
        with in_field("journal"):
            return read_records([SavedRecord.FromString(bytes(each)) for each in records], in_journal=True)
    except InvalidValueError as error:
        raise InvalidValueError(f"{error.text}; {_OTHER_VERSION}", field=error.field) from error


def owner_to_proto(owner: Owner) -> pb.JournalOwner:
    """Return a server as a message."""
    return pb.JournalOwner(host=owner.host, process_id=owner.process_id)


def owner_of(answer: pb.JournalAnswer) -> Owner | None:
    """Return the server that has the lease, or had it; None if none had."""
    return Owner(answer.owner.host, answer.owner.process_id) if answer.HasField("owner") else None


async def has_other_journals(identity: SamplerIdentity, *, may_end: bool) -> bool:
    """Return whether the namespace has journals of old formats, which this server cannot read.

    Args:
        identity: identity of the sampler.
        may_end: whether this server may end the sampler of such a journal.

    Raises:
        InvalidValueError: there is such a journal, and this server may not end its sampler; or there is a journal of a
            sampler with another secret.
    """
    if identity.sampler:  # the server has checked this for its first sampler
        return False
    journals = await asyncio.to_thread(other_journals, identity.tag)
    if any(journal.is_foreign for journal in journals):
        expected, got = "the secret of the sampler in this Ray namespace", "another one"
        hint = "set the sampler's own secret, or another --ray-namespace"
        raise InvalidValueError.of("sampler_secret_file", expected=expected, got=got, hint=hint)
    if journals and not may_end:
        names = ", ".join(sorted(journal.name for journal in journals))
        expected = "a journal of records, as servers from 0.2.0 on keep it"
        got = f"{names}, of a sampler that an older version of the server left in this Ray namespace"
        raise InvalidValueError.of("journal", expected=expected, got=got, hint=_OTHER_VERSION)
    return bool(journals)


async def end_other_journals(identity: SamplerIdentity) -> None:
    """End the journals of old formats in the namespace, unless a server uses one of them.

    A server starts its journal again when it is lost, within about 2 s, and loses nothing by that.

    Raises:
        SamplerLostError: a server has started its journal again.
    """
    journals = await asyncio.to_thread(other_journals, identity.tag)
    names = sorted(journal.name for journal in journals)
    _log.warning("ending a sampler of an older version", extra={"journals": ", ".join(names)})
    await asyncio.to_thread(end_actors, [journal.actor for journal in journals])
    await asyncio.sleep(LEASE_SECONDS)
    if await asyncio.to_thread(other_journals, identity.tag):
        text = "a server of another version has the sampler: stop that server first"
        raise SamplerLostError(text, reason=Reason.SAMPLER_TAKEN)
