"""Probes of the environments of one update: one worker tries each, before any worker makes it."""

from __future__ import annotations

import asyncio
import copy
import uuid
from collections import defaultdict
from typing import TYPE_CHECKING

from rollserve_server.envs import identity_of
from rollserve_server.errors import DomainError, NotFoundError, WorkerLostError
from rollserve_server.futures import in_background
from rollserve_server.sampling import Worker

if TYPE_CHECKING:
    from rollserve_server.envs import Probed, Traces, WorkerSpecs
    from rollserve_server.pool.backends.backend import WorkerHandle
    from rollserve_server.settings import HealthSettings

__all__ = ["EnvProbes"]


class EnvProbes:
    """Has each environment tried once, by the first worker that is about to make it.

    The workers try it, because on a cluster only they may have what the environment needs. They go on with other work
    meanwhile. When nobody waits for a probe any more, it ends.
    """

    def __init__(self, health: HealthSettings, *, isolate_failures: bool = False) -> None:
        """Prepare for one update.

        Args:
            health: time limits of steps, resets and making environments.
            isolate_failures: whether another worker tries an environment again that one worker refused.
        """
        self._health = health
        self._isolate_failures = isolate_failures
        self._locks: defaultdict[bytes, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._outcomes: dict[bytes, DomainError | Probed] = {}

    @property
    def traces(self) -> Traces:
        """Traces of the environments that were tried."""
        found = [each.traces for each in self._outcomes.values() if not isinstance(each, DomainError)]
        return {name: trace for traces in found for name, trace in traces.items()}

    async def check(self, worker: WorkerHandle, specs: WorkerSpecs) -> int:
        """Have a worker try environments, unless another one has.

        Returns:
            The bytes that the observations of a call's rows take in a worker.

        Raises:
            NotFoundError, InvalidValueError, OverLimitError: the environments cannot be made or stepped.
            WorkerLostError: the worker is lost.
        """
        key = identity_of(specs)
        async with self._locks[key]:
            if key not in self._outcomes:
                try:
                    self._outcomes[key] = await self._probe(worker, specs)
                except WorkerLostError:
                    raise
                except DomainError as error:
                    if self._isolate_failures:
                        raise
                    self._outcomes[key] = error
        outcome = self._outcomes[key]
        if isinstance(outcome, DomainError):
            raise copy.copy(outcome)  # each worker's caller adds the path of its own field
        return outcome.observation_bytes

    async def _probe(self, worker: WorkerHandle, specs: WorkerSpecs) -> Probed:
        probe_id = uuid.uuid4().hex
        try:
            return await worker.aside(Worker.probe_env, specs, self._health, probe_id)
        except NotFoundError:  # the worker itself may know the id
            return await worker.call(Worker.probe_env_here, specs, self._health)
        except asyncio.CancelledError:
            in_background(worker.aside(Worker.end_probe, probe_id))
            raise
