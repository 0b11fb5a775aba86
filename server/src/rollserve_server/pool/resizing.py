"""Changes of the number of a pool's workers: by a client, or with the load."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from rollserve_server.errors import NotReadyError
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollserve_server.pool.calls.samplings import Samplings
    from rollserve_server.pool.parts import PoolParts
    from rollserve_server.pool.workers.slots import WorkerSlot

__all__ = ["Resizing"]

_log = logging.getLogger(__name__)


class Resizing:
    """Adds workers behind the last one, and removes the workers with the highest indices."""

    def __init__(self, parts: PoolParts, samplings: Samplings) -> None:
        self._parts, self._samplings = parts, samplings

    async def resize(self, num_workers: int) -> int:
        """Change the number of workers, all at once, as a client asks for; see `Pool.resize`."""
        parts, workers = self._parts, self._parts.workers
        workers.check_number(num_workers)
        async with parts.versions.changing_envs, parts.versions.updating:
            previous = len(workers)
            if num_workers != previous:
                parts.versions.check_alike()
                parts.env_updates.check_room(num_workers)
                async with workers.starting(range(previous, num_workers)) as added:
                    await asyncio.gather(*map(self._equip, added))
                    self._change(num_workers, added)
        parts.number_is_set = True
        await parts.journal.write()
        return previous

    async def follow_load(self) -> None:
        """Let the number of workers follow the load again, which ends sequences of rows as another number would."""
        parts = self._parts
        async with parts.versions.changing_envs, parts.versions.updating:
            parts.number_is_set = False
            parts.row_sequences.drop_all()
        await parts.journal.write()

    def held_by(self) -> str:
        """Return what would end or differ with another number of workers, for people; empty if nothing would."""
        parts = self._parts
        versions = parts.versions
        if parts.number_is_set:
            return "a resize by a client"
        try:
            versions.check_alike()
        except NotReadyError:
            return "agents or environments of single workers"
        if parts.row_sequences.is_under_way(versions.envs.number):
            return "fragments"
        if parts.number_uses.idle_seconds < parts.settings.scale_down_seconds:
            return "calls that depend on the number of workers"
        return ""

    async def grow(self, num_workers: int) -> None:
        """Add workers, one after the other as soon as each has started: meanwhile calls and updates go on.

        Raises:
            DomainError: as of `Pool.resize`; those that have joined before stay.
            NotReadyError: the number of workers is held.
        """
        parts, workers, versions = self._parts, self._parts.workers, self._parts.versions
        workers.check_number(num_workers)
        parts.env_updates.check_room(num_workers)
        async with workers.starting(range(len(workers), num_workers)) as added:
            for slot in added:
                await workers.started(slot)
                async with versions.changing_envs:
                    # Environments may take long to make. Updates of the agent wait only for the rest.
                    await workers.give_what_others_hold(slot, only_envs=True)
                    async with versions.updating:
                        await workers.give_what_others_hold(slot)
                        self._check_free()
                        self._change(slot.index + 1, [slot])
                await parts.journal.write()

    async def shrink(self, num_workers: int) -> None:
        """Remove workers.

        Raises:
            NotReadyError: the number of workers is held.
        """
        parts = self._parts
        async with parts.versions.changing_envs, parts.versions.updating:
            self._check_free()
            self._change(num_workers, [])
        await parts.journal.write()

    async def _equip(self, slot: WorkerSlot) -> None:
        workers = self._parts.workers
        await workers.started(slot)
        await workers.give_what_others_hold(slot)

    def _check_free(self) -> None:
        if held_by := self.held_by():
            raise NotReadyError(f"the number of workers is held by {held_by}", reason=Reason.WORKER_COUNT)

    def _change(self, num_workers: int, added: Sequence[WorkerSlot]) -> None:
        """Have calls that begin now use another number of workers.

        Nothing is awaited here, so that no call begins with a part of the change; and workers hear what they can forget
        before they are closed. What added workers can go on with stays.
        """
        parts, workers = self._parts, self._parts.workers
        previous = len(workers)
        self._samplings.end_prefetch(drop=num_workers < previous)
        if num_workers < previous:
            parts.sequences.drop_kept()
        parts.row_sequences.drop_all()
        workers.resize(num_workers, added)
        parts.sequences.extend(workers.workforce)
        _log.info("pool resized", extra={"workers": num_workers, "previous": previous})
