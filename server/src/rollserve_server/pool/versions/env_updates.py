"""Updates of environments: checked, made on all workers, written to the journal, and then current."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import functools
import logging
import uuid
from collections import defaultdict
from typing import TYPE_CHECKING

from rollserve_server.envs import (
    Profiles,
    RowSpecs,
    WorkerSpecs,
    agree,
    check_allowed,
    check_not_free,
    check_sampler_observations_fit,
    identity_of,
    leaves_of_space,
    observation_bytes,
    specs_of_rows,
)
from rollserve_server.errors import DomainError, NotFoundError, OverLimitError, WorkerLostError, at_row, joined, within
from rollserve_server.futures import in_background, in_request_thread
from rollserve_server.pool.requests import ANY_VERSIONS, EnvUpdate, Expectation, RowUpdates
from rollserve_server.pool.results import EnvUpdated
from rollserve_server.pool.state.versions import EnvVersion
from rollserve_server.pool.versions.env_specs import EnvBudget, check_text_infos, updated_specs
from rollserve_server.pool.versions.selection import check_expected_env
from rollserve_server.pool.versions.versions import check_same, element_field
from rollserve_server.pool.workers.broadcast import Broadcast
from rollserve_server.sampling import EnvDescription, Worker
from rollserve_wire.environments import EnvChange, EnvSpec, Reproducibility
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rollserve_server.envs import Probed, Traces
    from rollserve_server.pool.backends.backend import WorkerHandle
    from rollserve_server.pool.journal.journal import Journal
    from rollserve_server.pool.versions.versions import Versions
    from rollserve_server.pool.workers.slots import WorkerSlot
    from rollserve_server.settings import HealthSettings, PoolSettings


__all__ = ["EnvUpdates"]

_log = logging.getLogger(__name__)


class EnvUpdates:
    """Makes new versions of environments, for calls and for evaluations.

    Attributes:
        profiles: environments that requests may name by profiles.
    """

    def __init__(self, versions: Versions, journal: Journal, settings: PoolSettings) -> None:
        """Take the installed versions, where new ones are written, and permissions and limits of environments."""
        self._versions = versions
        self._journal = journal
        self._health = settings.health
        self.use(settings)
        self._max_rows = settings.quota.num_rows

    def use(self, settings: PoolSettings) -> None:
        """Use other profiles and permissions from now on; environments that exist stay as they are."""
        self._allow = settings.allow
        self.profiles = Profiles(settings.profiles.profiles)

    async def update(
        self,
        updates: Sequence[EnvUpdate | None],
        expected: Expectation = ANY_VERSIONS,
        *,
        per_worker: bool,
        may_be_free: bool = True,
    ) -> EnvUpdated:
        """Make a new version of the environments, as `Pool.update_env` does."""
        versions = self._versions
        async with versions.changing_envs:
            check_expected_env(versions, expected)
            versions.check_count(updates, per_worker=per_worker)
            fields = _EnvFields(versions.spread(updates), per_worker=per_worker)
            specs = await in_request_thread(self._specs_after, updates, per_worker, fields, may_be_free)
            number, spread = versions.envs.number + 1, versions.spread(specs)
            is_first = versions.envs.current is None
            probes = _EnvProbes(self._health, isolate_failures=is_first)
            if not is_first:
                await self._try(probes, spread, fields.of)

            async def add_env(index: int, worker: WorkerHandle) -> EnvDescription:
                with fields.of(index):
                    return await self._add(probes, worker, number, spread[index])

            async with versions.updating:
                versions.workers.forgive()
                with versions.installing("env", number):
                    waits = len(specs) > 1
                    adding = Broadcast(versions.workers, add_env, wait_for_lost=waits, isolate_failures=is_first)
                    descriptions = await adding.answers()
                    _check_alike(descriptions, per_worker=per_worker)
                    env = EnvVersion(list(specs), _common_description(descriptions, probes.traces), expected.client_id)
                    self._check_rows(env.description.num_rows, len(versions.workers))
                    versions.accept("env", number, env)
                    await self._journal.write(env=(number, env))
                    replaced = versions.envs.current
                    versions.envs.add(env)
                replaced_specs = () if replaced is None else versions.env_specs(replaced)
                return EnvUpdated(number, versions.env_specs(env), env.description, replaced_specs)

    async def env_for_evaluation(self, specs: Sequence[WorkerSpecs]) -> int:
        """Return the number, below 0, of environments for evaluations, which all workers make unless they have them.

        Args:
            specs: one for all workers, or one for each.

        Raises:
            InvalidValueError, NotFoundError, NotAllowedError: as of `Pool.update_env`.
            WorkerLostError: a worker is lost and could not be replaced.
        """
        versions = self._versions
        if (found := self._find_for_evaluation(specs)) is not None:
            return found
        async with versions.changing_envs:
            if (found := self._find_for_evaluation(specs)) is not None:  # made while this call waited
                return found
            number, spread = -versions.evaluation_envs.number - 1, versions.spread(specs)
            for worker_specs in specs:
                self._check_allowed(worker_specs)
            probes = _EnvProbes(self._health)
            await self._try(probes, spread, lambda _: contextlib.nullcontext())

            async def add_env(index: int, worker: WorkerHandle) -> EnvDescription:
                return await self._add(probes, worker, number, spread[index])

            async with versions.updating:
                with versions.installing("env", number):
                    adding = Broadcast(versions.workers, add_env, wait_for_lost=len(specs) > 1)
                    description = _common_description(await adding.answers(), probes.traces)
                    self._check_rows(description.num_rows, len(versions.workers))
                    versions.evaluation_envs.add(EnvVersion(list(specs), description))
        return number

    def _find_for_evaluation(self, specs: Sequence[WorkerSpecs]) -> int | None:
        """Return the number, below 0, of environments for evaluations with these specs, if there are any."""
        for number, env in self._versions.evaluation_envs.items():
            if list(map(identity_of, env.specs)) == list(map(identity_of, specs)):
                self._check_observations(env.description, len(self._versions.workers))  # there may be more by now
                return -number
        return None

    def check_room(self, num_workers: int) -> None:
        """Raise OverLimitError if this many workers would have too many rows, or too much of what rows need."""
        env = self._versions.envs.current
        if env is None:
            return
        with within("worker_count"):
            self._check_rows(env.description.num_rows, num_workers)
            self._check_observations(env.description, num_workers)
            if env.rows_differ:
                EnvBudget(num_workers=num_workers).spend(env.specs[0])

    def _check_observations(self, env: EnvDescription, num_workers: int) -> None:
        """Raise OverLimitError if this many workers lack memory for the observations of an environment."""
        worker_bytes = observation_bytes(leaves_of_space(env.observation_space), env.num_rows)
        check_sampler_observations_fit(worker_bytes, num_workers, self._health)

    async def _try(
        self,
        probes: _EnvProbes,
        spread: Sequence[WorkerSpecs],
        field_of: Callable[[int], contextlib.AbstractContextManager[None]],
    ) -> None:
        """Have workers try environments, while calls and updates of the agent go on.

        What a lost worker would have tried is tried before it is made.

        Args:
            probes: takes the outcomes.
            spread: for each worker, its environments.
            field_of: prefixes the fields of errors about a worker's environments.

        Raises:
            NotFoundError, InvalidValueError, OverLimitError: as of `_add`.
        """
        slots: dict[bytes, WorkerSlot] = {}
        for slot in self._versions.workers:
            if slot.healthy:
                slots.setdefault(identity_of(spread[slot.index]), slot)

        async def check(slot: WorkerSlot) -> None:
            with field_of(slot.index):
                await self._check(probes, slot.handle, spread[slot.index])

        for error in await asyncio.gather(*map(check, slots.values()), return_exceptions=True):
            if error is not None and not isinstance(error, WorkerLostError):
                raise error

    async def _check(self, probes: _EnvProbes, worker: WorkerHandle, specs: WorkerSpecs) -> None:
        """Have a worker try environments, and check whether their observations fit; raises as `_add`."""
        worker_bytes = await probes.check(worker, specs)
        check_sampler_observations_fit(worker_bytes, len(self._versions.workers), self._health)

    async def _add(self, probes: _EnvProbes, worker: WorkerHandle, number: int, specs: WorkerSpecs) -> EnvDescription:
        """Have a worker try environments and make them; return their properties.

        Raises:
            NotFoundError, InvalidValueError: as of `_EnvProbes.check` and `Worker.add_env`.
            OverLimitError: also if they take too much memory in all workers, or in this one.
            WorkerLostError: the worker is lost.
        """
        await self._check(probes, worker, specs)
        description = await worker.call(Worker.add_env, number, specs)
        heartbeat = await worker.heartbeat()
        if heartbeat.takes_too_much_memory:
            expected = f"environments with which a worker takes at most {heartbeat.max_memory_bytes} bytes of its own"
            got, reason = f"{heartbeat.memory_bytes} (--worker-max-memory-bytes)", Reason.ENVIRONMENTS_TOO_LARGE
            raise OverLimitError.of("", expected=expected, got=got, reason=reason)
        return description

    def _check_rows(self, num_rows: int, num_workers: int) -> None:
        """Raise OverLimitError if the rows of all workers are more than the sampler's quota."""
        if self._max_rows and num_rows * num_workers > self._max_rows:
            expected = f"at most {self._max_rows} rows of all workers, the sampler's quota"
            got = f"{num_rows * num_workers} rows of {num_workers} workers"
            raise OverLimitError.of("", expected=expected, got=got, reason=Reason.QUOTA_EXCEEDED)

    def _specs_after(
        self, updates: Sequence[EnvUpdate | None], per_worker: bool, fields: _EnvFields, may_be_free: bool
    ) -> list[WorkerSpecs]:
        """Return the environments after updates, all of them allowed: one for all workers, or one for each."""
        specs: list[WorkerSpecs] = []
        current = self._versions.envs.current
        if current is None:  # a pool starts with a whole environment
            specs += [self._first(update) for update in updates if isinstance(update, EnvSpec | RowUpdates)]
        else:
            held, num_rows = current.specs, current.description.num_rows
            why_not_single = current.description.why_not_single
            if len(held) > 1 and not all(isinstance(update, EnvSpec) for update in updates):
                updates = self._versions.spread(updates)
            held = self._versions.spread(held)[: len(updates)]
            updated = functools.partial(self._updated, may_be_free=may_be_free)
            budget = EnvBudget.for_updates(held, updates, num_rows, len(self._versions.workers))
            for index, (worker_specs, update) in enumerate(zip(held, updates, strict=True)):
                with within(element_field(index, per_worker=per_worker)):
                    specs.append(updated_specs(worker_specs, update, num_rows, budget, updated, why_not_single))
        for index, worker_specs in enumerate(specs):
            with fields.of(index):
                self._check_allowed(worker_specs)
        check_text_infos(specs)
        return specs

    def _first(self, update: EnvSpec | RowUpdates) -> WorkerSpecs:
        """Return whole environments that change none."""
        if isinstance(update, EnvSpec):
            return self.profiles.resolved(update)
        return RowSpecs(tuple(self.profiles.resolved(each) for each in update.updates if isinstance(each, EnvSpec)))

    def _updated(self, spec: EnvSpec, update: EnvSpec | EnvChange, *, may_be_free: bool) -> EnvSpec:
        """Return an environment after an update, which has to be of a profile if it may not be free."""
        if not may_be_free and update != EnvChange():
            check_not_free(update if isinstance(update, EnvSpec) else spec)
        return self.profiles.resolved(update) if isinstance(update, EnvSpec) else self.profiles.changed(spec, update)

    def _check_allowed(self, specs: WorkerSpecs) -> None:
        for row, spec in enumerate(specs_of_rows(specs, num_rows=1)):
            with at_row(row):
                allow = self._allow
                check_allowed(spec, allow.allow_module, allow.allow_method, allow.allow_host)
                self._check_rows(spec.num_rows or 0, len(self._versions.workers))


class _EnvProbes:
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


class _EnvFields:
    """The fields of an UpdateEnv request that workers' environments come from."""

    def __init__(self, updates: Sequence[EnvUpdate | None], *, per_worker: bool) -> None:
        """Take the update of each worker, and whether the request has one for each."""
        self._updates = updates
        self._per_worker = per_worker

    @contextlib.contextmanager
    def of(self, worker: int) -> Iterator[None]:
        """Prefix the fields of errors about a worker's environments with the path in the request."""
        try:
            yield
        except DomainError as error:
            element = element_field(worker, per_worker=self._per_worker)
            error.field = joined(joined(element, _field_in(self._updates[worker], error.row)), error.field)
            raise


def _field_in(update: EnvUpdate | None, row: int | None) -> str:
    """Return the field of an EnvironmentUpdate that a row's environment comes from; empty if the update keeps it."""
    match update:
        case None:
            return ""
        case EnvSpec():
            return "environment"
        case EnvChange():
            return "change"
    if row is None:
        return "per_row"
    element = update.updates[row]
    return joined(f"per_row.updates[{row}]", _field_in(element, None))


def _common_description(descriptions: Mapping[int, EnvDescription], probed: Traces) -> EnvDescription:
    """Return the description of all workers' environments, which have the same spaces, from the description of each.

    Args:
        descriptions: the descriptions by worker.
        probed: traces of the same environments in processes of probes. Environments of other episodes in another
            process are of class `WORKER`.
    """
    first, *_ = descriptions.values()
    classes = [each.reproducibility for each in descriptions.values()]
    reproducibility = Reproducibility.WORKER if Reproducibility.WORKER in classes else classes[0]
    traces = dict(probed)
    for index, description in descriptions.items():
        if reproducibility is not Reproducibility.WORKER and not agree(traces, description.traces):
            _log.warning("an environment has other episodes in another process", extra={"worker": index})
            reproducibility = Reproducibility.WORKER
        traces.update(description.traces)
    why_not_single = next((each.why_not_single for each in descriptions.values() if each.why_not_single), "")
    return dataclasses.replace(first, reproducibility=reproducibility, why_not_single=why_not_single, traces={})


def _check_alike(descriptions: Mapping[int, EnvDescription], *, per_worker: bool) -> None:
    """Raise InvalidValueError unless all workers' environments have the same spaces and step alike."""
    first, *_ = descriptions.values()
    for index, description in descriptions.items():
        with within(element_field(index, per_worker=per_worker)):
            check_same(description, first)
