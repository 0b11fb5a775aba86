"""Opening a journal on a Ray cluster: getting the lease from its actor, and dealing with journals of other formats."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

import ray.exceptions

from rollserve import Reason
from rollserve_server.errors import InvalidValueError, SamplerLostError
from rollserve_server.pool.backends.ray.journal_actor import find_or_start
from rollserve_server.pool.backends.ray.names import JOURNAL_FORMAT, end_actors, other_journals
from rollserve_server.pool.journal.held_lease import taken_error
from rollserve_server.pool.journal.lease import LEASE_SECONDS, RENEW_SECONDS

if TYPE_CHECKING:
    from rollserve_server.pool.backends.ray.journal_actor import LeaseAnswer
    from rollserve_server.pool.journal.lease import Owner

__all__ = ["OPEN_SECONDS", "acquire_lease", "end_other_journals", "has_other_journals"]

_log = logging.getLogger(__name__)

OPEN_SECONDS = 60.0
"""Time in which a journal has to start."""


async def acquire_lease(owner: Owner, orphan_seconds: float, *, discard: bool) -> tuple[Any, LeaseAnswer]:
    """Get the lease of the sampler from its journal, which is started if there is none.

    Args:
        owner: this server.
        orphan_seconds: time without a server after which the sampler ends.
        discard: whether to drop the state that an earlier server left.

    Returns:
        The journal's actor and its answer, which has an epoch.

    Raises:
        SamplerLostError: another server has the lease and is alive, or the journal does not start within 60 s.
    """
    refusal, deadline = None, time.monotonic() + OPEN_SECONDS
    while time.monotonic() < deadline:
        try:
            actor = await asyncio.to_thread(find_or_start)
            async with asyncio.timeout(deadline - time.monotonic()):
                answer: LeaseAnswer = await actor.acquire.remote(owner, orphan_seconds, discard=discard)
        except (ray.exceptions.RayError, TimeoutError, ValueError):  # the actor is just ending or starting
            await asyncio.sleep(RENEW_SECONDS / 4)
            continue
        if answer.epoch is not None:
            _log.info("lease acquired", extra={"epoch": answer.epoch})
            return actor, answer
        if refusal is not None and (refusal.owner, refusal.num_renewals) != (answer.owner, answer.num_renewals):
            raise taken_error(answer.owner)  # it has renewed the lease meanwhile, so it is alive
        refusal = refusal or answer
        await asyncio.sleep(RENEW_SECONDS / 4)
    raise SamplerLostError("the journal of the sampler does not start on the cluster", reason=Reason.JOURNAL_LOST)


async def has_other_journals(*, may_end: bool) -> bool:
    """Return whether the namespace has journals of other formats, which this server cannot read.

    Args:
        may_end: whether this server may end the sampler of such a journal.

    Raises:
        InvalidValueError: there is such a journal, and this server may not end its sampler.
    """
    formats = sorted(await asyncio.to_thread(other_journals))
    if formats and not may_end:
        got = f"format {formats[0]}, of a sampler that another version of the server left in this Ray namespace"
        hint = "start that version to take the sampler over; --no-adopt ends the sampler and starts a new one"
        raise InvalidValueError.of("journal", expected=f"format {JOURNAL_FORMAT}", got=got, hint=hint)
    return bool(formats)


async def end_other_journals() -> None:
    """End the journals of other formats in the namespace, unless a server uses one of them.

    A server starts its journal again when it is lost, within about 2 s, and loses nothing by that.

    Raises:
        SamplerLostError: a server has started its journal again.
    """
    journals = await asyncio.to_thread(other_journals)
    _log.warning("ending a sampler of another version", extra={"journal_formats": sorted(journals)})
    await asyncio.to_thread(end_actors, journals.values())
    await asyncio.sleep(LEASE_SECONDS)
    if await asyncio.to_thread(other_journals):
        text = "a server of another version has the sampler: stop that server first"
        raise SamplerLostError(text, reason=Reason.SAMPLER_TAKEN)
