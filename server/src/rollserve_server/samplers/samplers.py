"""The samplers of a server: which there are, how they begin and end, and what they may have."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rollserve_server.envs import Profiles
from rollserve_server.errors import (
    AlreadyExistsError,
    DomainError,
    InvalidValueError,
    NotFoundError,
    OverLimitError,
    SamplerLostError,
    within,
)
from rollserve_server.pool import Pool
from rollserve_server.samplers.sampler import (
    Creation,
    Lease,
    Sampler,
    SamplerRequest,
    creations_from_text,
    creations_to_text,
)
from rollserve_server.settings import Quota
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from rollserve_server.pool import SavedSampler, ServerBackend
    from rollserve_server.settings import PoolSettings, SamplerSettings
    from rollserve_wire.environments import EnvSpec

__all__ = ["Samplers"]

_log = logging.getLogger(__name__)
_END_SECONDS = 2.0
"""How long calls of a sampler that is deleted may take to end."""
_MAX_FORMER = 1000
"""Names of former samplers that are remembered, so that late calls hear why they fail."""


class _Creating(NamedTuple):
    """A sampler that is being created."""

    creation: Creation
    starting: asyncio.Task[Sampler]


class Samplers:
    """The samplers of a server. Make them with `start`.

    Attributes:
        default: the sampler that the server began with; it ends with the server.
    """

    def __init__(self, backend: ServerBackend, settings: SamplerSettings, limits: _Limits, default: Pool) -> None:
        self._backend = backend
        self._settings = settings
        self._limits = limits
        name = settings.sampler_name
        self.default = Sampler(name, default, limits.default_quota(default.max_workers), time.time())
        self._samplers = {name: self.default}
        self._creating: dict[str, _Creating] = {}
        self._keeping: dict[Sampler, asyncio.Task[None]] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._former: dict[str, DomainError] = {}
        self._on_removed: list[Callable[[str], None]] = []
        self._refusal: DomainError | None = None
        self._budget = _WorkerBudget(default.max_workers, lambda: {each.name: each.pool.num_workers for each in self})
        self._writing = asyncio.Lock()
        self._scale(self.default)

    def _scale(self, sampler: Sampler) -> None:
        """Let the number of a sampler's workers follow its load, within what other samplers leave."""
        sampler.pool.scale_within(functools.partial(self._budget.granting, sampler.name))

    @classmethod
    async def start(
        cls,
        backend: ServerBackend,
        settings: SamplerSettings,
        pool: PoolSettings,
        env: EnvSpec,
        *,
        adopt: bool,
        saved: SavedSampler | None = None,
    ) -> Samplers:
        """Start the default sampler; take over samplers that clients of an earlier server have created, or end them.

        Args:
            backend: makes the workers.
            settings: limits of samplers.
            pool: settings of pools.
            env: environment of the default sampler.
            adopt: whether to take over samplers of an earlier server.
            saved: sampler that the default one goes on as, unless there is one to take over.

        Raises:
            SamplerLostError: another server has the default sampler.
            DomainError: the default sampler cannot start; see `Pool.start`.
        """
        limits = _Limits(settings, pool)
        samplers = cls(backend, settings, limits, await Pool.start(backend, limits.default_settings(), env, saved))
        creations = creations_from_text(backend.directory())
        try:
            await asyncio.gather(*(samplers._resume(creation, adopt=adopt) for creation in creations))
            if creations:
                await samplers._write_directory()
        except BaseException:
            await samplers.close(keep=samplers.default.pool.is_taken_over)
            raise
        return samplers

    def __iter__(self) -> Iterator[Sampler]:
        """Iterate over the samplers: the default one, then the others by name."""
        yield self.default
        yield from (self._samplers[name] for name in sorted(self._samplers.keys() - {self.default.name}))

    @property
    def max_samplers(self) -> int:
        """Number of samplers that there may be."""
        return self._settings.max_samplers

    def find(self, name: str) -> Sampler:
        """Return the sampler of a name; the default one for an empty name.

        Raises:
            NotFoundError: there is none, or not any more.
        """
        sampler = self._samplers.get(name or self.default.name)
        if sampler is not None:
            return sampler
        if name in self._former:
            raise copy.copy(self._former[name])
        expected = "the name of a sampler" if self.max_samplers > 1 else repr(self.default.name)
        got = f"{name!r}, which is being created" if name in self._creating else repr(name)
        raise NotFoundError.of("sampler", expected=expected, got=got, reason=Reason.SAMPLER_NOT_FOUND)

    def use(self, settings: SamplerSettings, pool: PoolSettings) -> None:
        """Use the reloadable settings from now on: in all samplers, and as limits of later ones."""
        self._settings = settings
        self._limits = limits = _Limits(settings, pool)
        for sampler in self:
            if sampler.creation is None:
                sampler.quota = limits.default_quota(sampler.pool.max_workers)
                sampler.pool.use(limits.default_settings())
            else:
                sampler.pool.use(limits.pool_settings(sampler.creation.request, sampler.quota))

    def on_removed(self, function: Callable[[str], None]) -> None:
        """Call a function with the name of each sampler that is removed."""
        self._on_removed.append(function)

    async def create(self, request: SamplerRequest, owner: str, *, exist_ok: bool) -> tuple[Sampler, bool]:
        """Create a sampler; return it once its workers are ready, and whether it existed.

        Args:
            request: the sampler to create.
            owner: principal that asks for it.
            exist_ok: whether a sampler that the same principal created by an equal request is returned as it is.

        Raises:
            AlreadyExistsError: there is another one of this name.
            OverLimitError: there are as many samplers or workers as there may be, or a quota is larger than it may be.
            DomainError: it cannot start; see `Pool.start`. Nothing is left of it.
        """
        while True:
            if self._refusal is not None:
                raise copy.copy(self._refusal)
            existing, creating = self._samplers.get(request.name), self._creating.get(request.name)
            creation = existing.creation if existing is not None else creating and creating.creation
            if existing is None and creating is None:
                if request.name not in self._ending:
                    break
                await asyncio.wait({self._ending[request.name]})
                continue
            is_same = creation is not None and creation.owner == owner and creation.request.equals(request)
            if not (exist_ok and is_same):
                got = f"{request.name!r}, which another principal or a different request has created"
                raise AlreadyExistsError.of("sampler", expected="a new name", got=got if exist_ok else "a present one")
            if existing is not None:
                return existing, True
            assert creating is not None  # noqa: S101
            await asyncio.wait({creating.starting})
        return await self._create(Creation(request, owner, time.time())), False

    async def _create(self, creation: Creation) -> Sampler:
        name = creation.request.name
        quota = self._limits.quota(creation.request)  # before anything else, so that errors name the request's fields
        lease_seconds = self._limits.lease_seconds(creation.request)
        if len(self._samplers) + len(self._creating) >= self.max_samplers:
            expected, got = f"at most {self.max_samplers} samplers, as --max-samplers says", "one more"
            hint = "delete one" if self.max_samplers > 1 else "the server's operator can permit more"
            raise OverLimitError.of("sampler", expected=expected, got=got, hint=hint, reason=Reason.TOO_MANY_SAMPLERS)
        starting = asyncio.create_task(self._start(creation, adopt=False))
        self._creating[name] = _Creating(creation, starting)
        try:
            sampler = await starting
            self._former.pop(name, None)
        finally:
            del self._creating[name]
        seconds = lease_seconds or "none"
        fields = {"sampler": name, "owner": creation.owner, "workers": quota.num_workers, "lease_seconds": seconds}
        _log.info("sampler created", extra=fields)
        return sampler

    async def delete(self, name: str) -> None:
        """Delete a sampler: its calls end, and then its workers.

        Raises:
            InvalidValueError: it is the default one.
            NotFoundError: there is none of this name.
        """
        sampler = self.find(name)
        if sampler is self.default:
            expected = f"a sampler that a client has created, not {name!r}, which ends with its server"
            raise InvalidValueError.of("sampler", expected=expected, got=repr(name))
        _log.info("sampler deleted", extra={"sampler": sampler.name})
        await self._remove(sampler, _former(sampler, "which was deleted", Reason.SAMPLER_DELETED))

    async def resize(self, sampler: Sampler, num_workers: int) -> int:
        """Change the number of a sampler's workers; return the previous one. 0 has it follow the load.

        Errors as of `Pool.resize` and `Pool.follow_load`.

        Raises:
            OverLimitError: also if all samplers together would have too many workers.
        """
        if not num_workers:
            return await sampler.pool.follow_load()
        with self._making_workers(sampler, num_workers):
            return await sampler.pool.resize(num_workers)

    async def restore(self, sampler: Sampler, saved: SavedSampler, client_id: str) -> None:
        """Have a sampler go on as a saved one; arguments and errors as of `Pool.restore`.

        Raises:
            OverLimitError: also if it would have more workers than its quota, or all samplers together too many.
        """
        with self._making_workers(sampler, saved.header.num_workers):
            await sampler.pool.restore(saved, client_id)

    @contextlib.contextmanager
    def _making_workers(self, sampler: Sampler, num_workers: int) -> Iterator[None]:
        """Let a sampler have this many workers, and count them from the begin of the block on.

        Raises:
            OverLimitError: they are more than the sampler's quota, or all samplers together would have too many.
        """
        if sampler.creation is not None and num_workers > sampler.quota.num_workers:
            expected = f"at most {sampler.quota.num_workers}, the sampler's quota"
            raise OverLimitError.of("worker_count", expected=expected, got=num_workers, reason=Reason.QUOTA_EXCEEDED)
        with self._budget.reserving(sampler.name, num_workers):
            yield

    async def reset(self) -> None:
        """Delete all other samplers, and reset the default one; see `Pool.reset`."""
        for sampler in [each for each in self if each is not self.default]:
            await self.delete(sampler.name)
        await self.default.pool.reset()

    def drain(self, error: DomainError) -> None:
        """Let no further sampler, call or update begin."""
        self._refusal = error
        for sampler in self:
            sampler.pool.drain(error)

    async def lost(self) -> str:
        """Wait until another server has the default sampler; return a text that says so."""
        return await self.default.pool.lost()

    async def close(self, *, keep: bool) -> None:
        """End all samplers, or leave them to the next server."""
        starting = [each.starting for each in self._creating.values()]
        for task in (*starting, *self._keeping.values()):
            task.cancel()
        await asyncio.gather(*starting, *self._ending.values(), return_exceptions=True)
        created = [sampler.pool for sampler in self if sampler is not self.default]
        outcomes = await asyncio.gather(*(pool.close(keep=keep) for pool in created), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                _log.error("sampler not ended", exc_info=outcome)
        await self.default.pool.close(keep=keep)  # last, because its journal knows the others

    def abandon(self) -> None:
        """Ask nothing more of workers and journals, whose backend is lost."""
        for task in self._keeping.values():
            task.cancel()
        for sampler in self:
            sampler.pool.abandon()

    async def _start(self, creation: Creation, *, adopt: bool) -> Sampler:
        """Start the pool of a sampler, and add the sampler to the others."""
        request = creation.request
        quota, lease_seconds = self._limits.quota(request), self._limits.lease_seconds(request)
        settings = self._limits.pool_settings(request, quota)
        try:
            with within("environment"):
                env = Profiles(settings.profiles.profiles).resolved(request.env)
            with self._budget.reserving(request.name, request.num_workers):
                pool = await Pool.start(self._backend.of_sampler(request.name, adopt=adopt), settings, env)
                lease = Lease(lease_seconds) if lease_seconds else None
                sampler = Sampler(request.name, pool, quota, creation.created_seconds, creation, lease)
                self._samplers[request.name] = sampler
        except DomainError as error:
            error.field = error.field.removeprefix("all_workers.")
            raise
        self._keeping[sampler] = asyncio.create_task(self._keep(sampler))
        self._scale(sampler)
        if not adopt:
            try:
                await self._write_directory()
            except BaseException as error:
                gone = error if isinstance(error, DomainError) else SamplerLostError("the sampler was not created")
                await self._remove(sampler, gone)
                raise
        return sampler

    async def _resume(self, creation: Creation, *, adopt: bool) -> None:
        """Take over a sampler of an earlier server, or end it. A failure leaves it to end by itself."""
        name = creation.request.name
        try:
            if adopt:
                await self._start(creation, adopt=True)
            else:
                backend = self._backend.of_sampler(name, adopt=False)
                journal = await backend.open_journal(lambda _: None)  # which ends its workers
                await journal.close(keep=False)
        except DomainError as error:
            _log.error("sampler not taken over", extra={"sampler": name, "error": error.message})

    async def _keep(self, sampler: Sampler) -> None:
        """Keep a sampler until its lease has expired or another server has it; then remove it."""
        lost = asyncio.create_task(sampler.pool.lost())
        expiring = [] if sampler.lease is None else [asyncio.create_task(sampler.lease.expired())]
        try:
            await asyncio.wait({lost, *expiring}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (lost, *expiring):
                task.cancel()
        if lost.done() and not lost.cancelled():
            _log.error("sampler lost", extra={"sampler": sampler.name, "error": lost.result()})
            await self._remove(sampler, SamplerLostError(lost.result()), keep=True)
            return
        assert sampler.lease is not None  # noqa: S101
        seconds = sampler.lease.seconds
        _log.info("sampler expired", extra={"sampler": sampler.name, "lease_seconds": seconds})
        why = f"whose lease has expired: no call named it for {seconds:g} s"
        await self._remove(sampler, _former(sampler, why, Reason.LEASE_EXPIRED))

    async def _remove(self, sampler: Sampler, error: DomainError, *, keep: bool = False) -> None:
        """Remove a sampler: end its calls with an error, and then its workers, whatever becomes of the caller."""
        if self._samplers.get(sampler.name) is not sampler:
            return
        del self._samplers[sampler.name]
        self._former[sampler.name] = error
        if len(self._former) > _MAX_FORMER:
            del self._former[next(iter(self._former))]
        sampler.pool.drain(error)
        keeping = self._keeping.pop(sampler)
        self._ending[sampler.name] = ending = asyncio.create_task(self._end(sampler, error, keep=keep))
        if keeping is not asyncio.current_task():
            keeping.cancel()
        await asyncio.shield(ending)

    async def _end(self, sampler: Sampler, error: DomainError, *, keep: bool) -> None:
        try:
            with self._budget.reserving(sampler.name, sampler.pool.num_workers, is_checked=False):
                await sampler.end_users(error, _END_SECONDS)
                await sampler.pool.close(keep=keep)
        finally:
            del self._ending[sampler.name]
        for function in self._on_removed:
            function(sampler.name)
        with contextlib.suppress(SamplerLostError):  # the next server finds out that the sampler has ended
            await self._write_directory()

    async def _write_directory(self) -> None:
        async with self._writing:
            creations: Sequence[Creation] = [each.creation for each in self if each.creation is not None]
            await self._backend.write_directory(creations_to_text(creations))


def _former(sampler: Sampler, why: str, reason: Reason) -> NotFoundError:
    return NotFoundError.of("sampler", expected="a sampler that exists", got=f"{sampler.name!r}, {why}", reason=reason)


class _Limits:
    """An operator's limits of samplers."""

    def __init__(self, settings: SamplerSettings, pool: PoolSettings) -> None:
        """Take the limits, and the settings of pools."""
        self._settings = settings
        self._pool = pool
        self._share_bytes = max(pool.calls.gateway_buffer_bytes // settings.max_samplers, 1)

    def default_settings(self) -> PoolSettings:
        """Return the settings of the default sampler: it has its share of the memory, and no quota."""
        calls = self._pool.calls.model_copy(update={"gateway_buffer_bytes": self._share_bytes})
        return self._pool.model_copy(update={"calls": calls})

    def default_quota(self, max_workers: int) -> Quota:
        """Return the limits that the default sampler has by its settings."""
        return Quota(max_workers, 0, self._share_bytes, self._pool.calls.max_calls)

    def quota(self, request: SamplerRequest) -> Quota:
        """Return the limits of a new sampler; raise OverLimitError if more is asked for than the operator allows."""
        settings, asked = self._settings, request.quota
        num_workers = asked.num_workers or request.num_workers
        _check("quota.worker_count", num_workers, settings.max_sampler_workers, "max-sampler-workers")
        if request.num_workers > num_workers:
            _check("worker_count", request.num_workers, num_workers, "")
        result_bytes = min(settings.max_sampler_bytes or self._share_bytes, self._share_bytes)
        num_calls = settings.max_sampler_calls or self._pool.calls.max_calls
        rate = settings.max_sampler_steps_per_second
        _check("quota.row_count", asked.num_rows, settings.max_sampler_rows, "max-sampler-rows")
        _check("quota.result_bytes", asked.result_bytes, result_bytes, "max-sampler-bytes")
        _check("quota.call_count", asked.num_calls, num_calls, "max-sampler-calls")
        _check("quota.steps_per_second", asked.steps_per_second, rate, "max-sampler-steps-per-second")
        return Quota(
            num_workers,
            asked.num_rows or settings.max_sampler_rows or 0,
            asked.result_bytes or result_bytes,
            asked.num_calls or num_calls,
            asked.steps_per_second or rate,
        )

    def lease_seconds(self, request: SamplerRequest) -> float:
        """Return the lease of a new sampler, 0 for ever; raise OverLimitError if it is longer than allowed."""
        maximum, asked = self._settings.max_sampler_lease_seconds, request.lease_seconds
        if asked is None:
            default = self._settings.sampler_lease_seconds
            return min(default or maximum, maximum) if maximum else default
        if maximum and not 0 < asked <= maximum:
            expected = f"at most {maximum:g} s, as --max-sampler-lease-seconds says"
            raise OverLimitError.of(
                "lease", expected=expected, got=f"{asked:g} s" if asked else "no end", reason=Reason.QUOTA_EXCEEDED
            )
        return asked

    def pool_settings(self, request: SamplerRequest, quota: Quota) -> PoolSettings:
        """Return the settings of a new sampler's pool; a later server makes the same."""
        pool = self._pool
        rows_each = max(quota.num_rows // request.num_workers, 1)
        rows = {name: min(getattr(pool.worker, name), rows_each) for name in ("rows", "native_rows")}
        min_healthy = min(pool.health.min_healthy_workers, request.num_workers)
        calls = {"max_calls": quota.num_calls, "gateway_buffer_bytes": quota.result_bytes}
        return pool.model_copy(
            update={
                "workers": request.num_workers,
                "max_workers": quota.num_workers,
                "min_workers": pool.min_workers and min(pool.min_workers, request.num_workers),
                "seed": request.seed,
                "worker": pool.worker.model_copy(update=rows) if quota.num_rows else pool.worker,
                "health": pool.health.model_copy(update={"min_healthy_workers": min_healthy}),
                "calls": pool.calls.model_copy(update=calls),
                "quota": quota,
            }
        )


def _check(field: str, asked: float, maximum: float | None, setting: str) -> None:
    """Raise OverLimitError if more is asked for than there may be; a maximum of 0 or None is none."""
    if maximum and asked > maximum:
        whose = f"as --{setting} says" if setting else "as the quota in the request says"
        expected = f"at most {maximum}, {whose}"
        raise OverLimitError.of(field, expected=expected, got=asked, reason=Reason.QUOTA_EXCEEDED)


class _WorkerBudget:
    """Workers of all samplers; workers that start or end count, too."""

    def __init__(self, max_workers: int, num_workers: Callable[[], Mapping[str, int]]) -> None:
        """Start without reservations.

        Args:
            max_workers: number of workers of all samplers together.
            num_workers: returns the number of workers of each sampler, by its name.
        """
        self._max_workers = max_workers
        self._num_workers = num_workers
        self._reserved: list[tuple[str, int]] = []

    @contextlib.contextmanager
    def reserving(self, sampler: str, num_workers: int, *, is_checked: bool = True) -> Iterator[None]:
        """Count this many workers for a sampler during the block, or as many as it has if these are more.

        Raises:
            OverLimitError: all samplers together would have too many workers.
        """
        left = self._left_for(sampler)
        if is_checked and num_workers > max(left, self._numbers().get(sampler, 0)):
            expected = f"at most {left}, because all samplers together have at most {self._max_workers} (--max-workers)"
            raise OverLimitError.of("worker_count", expected=expected, got=num_workers, reason=Reason.TOO_MANY_WORKERS)
        reservation = sampler, num_workers
        self._reserved.append(reservation)
        try:
            yield
        finally:
            self._reserved.remove(reservation)

    @contextlib.contextmanager
    def granting(self, sampler: str, num_workers: int) -> Iterator[int]:
        """Count up to this many workers for a sampler during the block; yield how many it may have."""
        granted = min(num_workers, self._left_for(sampler))
        with self.reserving(sampler, granted):
            yield granted

    def _left_for(self, sampler: str) -> int:
        """Return the number of workers that a sampler may have beside the others."""
        others = sum(number for name, number in self._numbers().items() if name != sampler)
        return max(self._max_workers - others, 0)

    def _numbers(self) -> Mapping[str, int]:
        numbers = dict(self._num_workers())
        for name, number in self._reserved:
            numbers[name] = max(number, numbers.get(name, 0))
        return numbers
