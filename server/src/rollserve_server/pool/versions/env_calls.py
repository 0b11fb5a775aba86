"""Calls of environments' methods, for the values that they return."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

from rollserve_server.envs import ProfileEnv, check_method_allowed, specs_of_rows
from rollserve_server.errors import (
    DomainError,
    InvalidValueError,
    OverLimitError,
    TooFewWorkersError,
    WorkerLostError,
    listed,
)
from rollserve_server.futures import in_background
from rollserve_server.pool.results import EnvValues
from rollserve_server.pool.versions.env_specs import MAX_ENV_BYTES
from rollserve_server.pool.versions.selection import check_expected_env
from rollserve_server.sampling import Worker
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollserve_server.envs import MethodCall, WorkerSpecs
    from rollserve_server.pool.backends.backend import WorkerHandle
    from rollserve_server.pool.requests import Expectation
    from rollserve_server.pool.state.versions import EnvVersion
    from rollserve_server.pool.versions.versions import Versions
    from rollserve_server.settings import PoolSettings

__all__ = ["EnvCalls"]


class EnvCalls:
    """Calls methods of environments that are made for that: nothing that a method does has an effect on calls.

    Attributes:
        allow: methods that may be called.
    """

    def __init__(self, versions: Versions, settings: PoolSettings) -> None:
        """Take the installed versions, permissions, and limits of memory and time."""
        self._versions = versions
        self.allow = settings.allow
        self._health = settings.health
        self._calling = asyncio.Lock()

    async def call(self, call: MethodCall, env_version: int | None, expected: Expectation) -> EnvValues:
        """Call a method of the environments of a version, as `Pool.call_environments` does."""
        versions = self._versions
        check_expected_env(versions, expected)
        number = versions.envs.choose(env_version, Reason.ENVIRONMENT_VERSION)
        env = versions.env_in_use(number)
        self._check(call, env)
        specs = versions.spread(env.specs) if env.rows_differ else env.specs
        async with self._calling:
            asking = [asyncio.ensure_future(self._ask(call, each, index)) for index, each in enumerate(specs)]
            try:
                answers = await asyncio.gather(*asking)
            finally:
                for task in asking:
                    task.cancel()
        num_rows = env.description.num_rows if env.rows_differ else 1
        values = [value for answer in answers for value in (answer * num_rows if len(answer) == 1 else answer)]
        _check_size(values)
        return EnvValues(number, values)

    def _check(self, call: MethodCall, env: EnvVersion) -> None:
        """Raise an error for a method that may not be called, or for environments that cannot be asked."""
        check_method_allowed(call.method, self.allow.allow_method, "method")
        if any(isinstance(spec, ProfileEnv) for specs in env.specs for spec in specs_of_rows(specs, num_rows=1)):
            expected = "none for an environment of a profile, which takes arguments (kwargs) alone"
            raise InvalidValueError.of("method", expected=expected, got=repr(call.method))
        if env.description.agents:
            expected = "an environment with one agent, to call its methods"
            raise InvalidValueError.of("method", expected=expected, got=f"agents {listed(env.description.agents)}")
        if env.description.why_not_single:
            expected = "an environment that can be stepped one by one, to call its methods"
            got = f"rows that are stepped at once: {env.description.why_not_single}"
            raise InvalidValueError.of("method", expected=expected, got=got)

    async def _ask(self, call: MethodCall, specs: WorkerSpecs, index: int) -> list[str]:
        """Have a worker ask environments, if possible the one that has them; another one if it is lost."""
        slots = [slot for slot in self._versions.workers if slot.healthy]
        slots.sort(key=lambda slot: slot.index != index)
        lost: DomainError = TooFewWorkersError(
            "no worker is healthy, expected at least 1 to call methods of environments"
        )
        for slot in slots:
            try:
                return await self._ask_on(slot.handle, call, specs)
            except WorkerLostError as error:
                lost = error
        raise lost

    async def _ask_on(self, worker: WorkerHandle, call: MethodCall, specs: WorkerSpecs) -> list[str]:
        probe_id = uuid.uuid4().hex
        try:
            return await worker.aside(Worker.call_env_method, call, specs, self._health, probe_id)
        except asyncio.CancelledError:
            in_background(worker.aside(Worker.end_probe, probe_id))
            raise


def _check_size(values: Sequence[str]) -> None:
    num_bytes = sum(len(value.encode()) for value in values)
    if num_bytes > MAX_ENV_BYTES:
        expected = f"values of all environments of at most {MAX_ENV_BYTES} bytes as JSON"
        raise OverLimitError.of("method", expected=expected, got=num_bytes, reason=Reason.ENVIRONMENTS_TOO_LARGE)
