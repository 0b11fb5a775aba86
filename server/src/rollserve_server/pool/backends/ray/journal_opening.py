"""Opening a journal on a Ray cluster: getting the lease from its actor, and dealing with journals of other formats."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

import ray.exceptions

from rollserve_server.errors import InvalidValueError, SamplerLostError
from rollserve_server.pool.backends.ray.identity import ForgedMessageError, UnreadableMessageError
from rollserve_server.pool.backends.ray.journal_handle import JournalHandle
from rollserve_server.pool.backends.ray.names import JOURNAL_FORMAT, end_actors, other_journals
from rollserve_server.pool.journal.held_lease import taken_error
from rollserve_server.pool.journal.lease import LEASE_SECONDS, RENEW_SECONDS
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from rollserve_server.pool.backends.ray.identity import SamplerIdentity
    from rollserve_server.pool.state.ownership import LeaseAnswer, Owner

__all__ = ["OPEN_SECONDS", "acquire_lease", "end_other_journals", "has_other_journals"]

_log = logging.getLogger(__name__)

OPEN_SECONDS = 60.0
"""Time in which a journal has to start."""
_FORMAT = f"format {JOURNAL_FORMAT}"
_OTHER_VERSION = (
    "start the version that left it to take the sampler over; --no-adopt ends the sampler and starts a new one"
)


async def acquire_lease(
    identity: SamplerIdentity, owner: Owner, orphan_seconds: float, *, discard: bool
) -> tuple[JournalHandle, LeaseAnswer]:
    """Get the lease of the sampler from its journal, which is started if there is none.

    Args:
        identity: identity of the sampler.
        owner: this server.
        orphan_seconds: time without a server after which the sampler ends.
        discard: whether to drop the state that an earlier server left.

    Returns:
        The journal and its answer, which has an epoch.

    Raises:
        InvalidValueError: an actor with the journal's name does not know the sampler's secret, or another version of
            the server left a state that this one cannot read.
        SamplerLostError: another server has the lease and is alive, or the journal does not start within 60 s.
    """
    refusal, deadline = None, time.monotonic() + OPEN_SECONDS
    while time.monotonic() < deadline:
        try:
            journal = await asyncio.to_thread(JournalHandle.find_or_start, identity)
            async with asyncio.timeout(deadline - time.monotonic()):
                answer: LeaseAnswer = await journal.call("acquire", owner, orphan_seconds, discard)
        except ForgedMessageError as error:
            expected, got = "an actor that knows the sampler's secret", f"{error}, under the journal's name"
            hint = "end that actor, or use another --ray-namespace"
            raise InvalidValueError.of("journal", expected=expected, got=got, hint=hint) from None
        except UnreadableMessageError as error:
            got = f"a state that this server cannot read ({error})"
            raise InvalidValueError.of("journal", expected=_FORMAT, got=got, hint=_OTHER_VERSION) from None
        except (ray.exceptions.RayError, TimeoutError, ValueError):  # the actor is just ending or starting
            await asyncio.sleep(RENEW_SECONDS / 4)
            continue
        if answer.epoch is not None:
            _log.info("lease acquired", extra={"epoch": answer.epoch})
            return journal, answer
        if refusal is not None and (refusal.owner, refusal.num_renewals) != (answer.owner, answer.num_renewals):
            raise taken_error(answer.owner)  # it has renewed the lease meanwhile, so it is alive
        refusal = refusal or answer
        await asyncio.sleep(RENEW_SECONDS / 4)
    raise SamplerLostError("the journal of the sampler does not start on the cluster", reason=Reason.JOURNAL_LOST)


async def has_other_journals(identity: SamplerIdentity, *, may_end: bool) -> bool:
    """Return whether the namespace has journals of other formats, which this server cannot read.

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
        oldest = min(journal.format for journal in journals)
        got = f"format {oldest}, of a sampler that another version of the server left in this Ray namespace"
        raise InvalidValueError.of("journal", expected=_FORMAT, got=got, hint=_OTHER_VERSION)
    return bool(journals)


async def end_other_journals(identity: SamplerIdentity) -> None:
    """End the journals of other formats in the namespace, unless a server uses one of them.

    A server starts its journal again when it is lost, within about 2 s, and loses nothing by that.

    Raises:
        SamplerLostError: a server has started its journal again.
    """
    journals = await asyncio.to_thread(other_journals, identity.tag)
    formats = sorted(journal.format for journal in journals)
    _log.warning("ending a sampler of another version", extra={"journal_formats": formats})
    await asyncio.to_thread(end_actors, [journal.actor for journal in journals])
    await asyncio.sleep(LEASE_SECONDS)
    if await asyncio.to_thread(other_journals, identity.tag):
        text = "a server of another version has the sampler: stop that server first"
        raise SamplerLostError(text, reason=Reason.SAMPLER_TAKEN)
