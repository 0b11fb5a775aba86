"""The versions of agents and environments that all workers have, or are getting, until they forget them."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import operator
from collections import Counter
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from gymnasium import Space

from rollserve_server.envs import is_same_space, specs_of_rows
from rollserve_server.errors import InvalidValueError, NotReadyError
from rollserve_server.futures import in_background
from rollserve_server.pool.state.versions import EnvVersion
from rollserve_server.pool.workers.broadcast import Broadcast
from rollserve_server.pool.workers.workers import Workers, giving_what_others_hold
from rollserve_server.sampling import EnvDescription, Worker
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from rollserve_server.errors import DomainError
    from rollserve_server.pool.backends.backend import Backend, WorkerHandle
    from rollserve_server.pool.state.versions import AgentVersion
    from rollserve_server.settings import PoolSettings
    from rollserve_wire.environments import EnvSpec

__all__ = ["ALL_WORKERS", "Versions", "check_same", "element_field"]

_T = TypeVar("_T")

ALL_WORKERS = "all_workers"
"""Field of an update request that has one update for all workers."""
_Kind = Literal["agent", "env"]
"""Kinds of versions. Beside its kind, a version has a number; environments of evaluations have numbers below 0."""
_KEPT_EVALUATION_ENVS = 2
"""Environments of evaluations that are kept beside those in use: a trainer may evaluate in two by turns."""


class KeptVersions(NamedTuple):
    """Numbers of versions that workers must not forget; environments of evaluations have numbers below 0."""

    envs: set[int]
    agents: set[int]


class _UpdateLock(asyncio.Lock):
    """A lock that can be closed for good.

    Attributes:
        refusal: what everyone gets who would acquire the lock; None while it is open.
    """

    refusal: DomainError | None = None

    async def acquire(self) -> Literal[True]:
        """Wait until the lock is free, and take it; raise a copy of the refusal once there is one."""
        await super().acquire()
        if self.refusal is not None:
            self.release()
            raise copy.copy(self.refusal)
        return True


class Versions:
    """Versions that all workers hold. One update at a time: all workers get it, or none.

    Attributes:
        agents: versions of the agents.
        envs: versions of the environments.
        evaluation_envs: environments that only evaluations use; workers know number n as -n.
        changing_envs: held while environments, or the number of workers, change; taken before `updating`.
        updating: held while an update is in progress, except while environments are tried.
        workers: the workers, which get the versions when they start.
        first_env: version of the environments that this run started with.
        first_agents: version of the agents that this run started with; 0 for none.
    """

    def __init__(self, backend: Backend, settings: PoolSettings) -> None:
        """Start without versions and without workers."""
        num_kept = settings.versions.keep_versions
        self.agents: _VersionHistory[AgentVersion] = _VersionHistory(
            num_kept,
            max_idle_bytes=settings.versions.max_kept_agent_bytes,
            bytes_of=lambda version: version.num_bytes,
        )
        self.envs: _VersionHistory[EnvVersion] = _VersionHistory(num_kept)
        self.evaluation_envs: _VersionHistory[EnvVersion] = _VersionHistory(_KEPT_EVALUATION_ENVS)
        self.changing_envs, self.updating = _UpdateLock(), _UpdateLock()
        self.workers = Workers(backend, settings, self.prepare)
        self.first_env, self.first_agents = 1, 0
        # For each worker that was given only what calls needed then: the versions that it lacked.
        self._lacking: WeakKeyDictionary[WorkerHandle, set[tuple[str, int]]] = WeakKeyDictionary()
        # For each worker, the versions that the server last told it to keep, unless it has got a new one since.
        self._retained: WeakKeyDictionary[WorkerHandle, KeptVersions] = WeakKeyDictionary()
        self._completing: WeakKeyDictionary[WorkerHandle, asyncio.Lock] = WeakKeyDictionary()
        # The pending version, by kind and number; its value is None until all workers have accepted it.
        self._pending: dict[tuple[str, int], AgentVersion | EnvVersion | None] = {}

    def refuse_updates(self, error: DomainError) -> None:
        """Fail all updates that wait for another one, and every later one, with a copy of the error."""
        self.changing_envs.refusal = self.updating.refusal = error

    def mark_restored(self) -> None:
        """Record that the current versions are the ones that this run starts with."""
        self.first_env, self.first_agents = self.envs.number, self.agents.number

    @property
    def description(self) -> EnvDescription:
        """Spaces of the current environments, and how rows are stepped."""
        assert self.envs.current is not None  # noqa: S101  # a pool starts with one
        return self.envs.current.description

    def env(self, number: int) -> EnvVersion | None:
        """Return environments by number, environments of evaluations by a number below 0; None if they are not kept."""
        return self.envs.get(number) if number > 0 else self.evaluation_envs.get(-number)

    def env_in_use(self, number: int) -> EnvVersion:
        """Return environments by number, which a call uses, so that they are kept."""
        env = self.env(number)
        assert env is not None  # noqa: S101
        return env

    def env_specs(self, env: EnvVersion) -> Sequence[EnvSpec]:
        """Return one environment for all workers, one for each worker, or one for each row of each worker."""
        num_rows = env.description.num_rows if env.rows_differ else 1
        workers = self.spread(env.specs) if env.rows_differ else env.specs
        return [spec for specs in workers for spec in specs_of_rows(specs, num_rows)]

    def spread(self, values: Sequence[_T]) -> Sequence[_T]:
        """Return one value for each worker, given one for all or one for each."""
        return values if len(values) == len(self.workers) else list(values) * len(self.workers)

    def check_count(self, updates: Sequence[object], *, per_worker: bool) -> None:
        """Raise InvalidValueError unless there is one update for all workers, or one for each."""
        num_expected = len(self.workers) if per_worker else 1
        if len(updates) != num_expected:
            expected = f"{num_expected} elements, one for each worker"
            raise InvalidValueError.of("per_worker.updates", expected=expected, got=len(updates))

    def check_alike(self) -> None:
        """Raise NotReadyError if workers have agents or environments of their own."""
        current = {"agents": self.agents.current, "environments": self.envs.current and self.envs.current.specs}
        for name, values in current.items():
            if len(values or ()) > 1:
                text = f"workers have {name} of their own, which an added worker would lack: update all workers alike"
                raise NotReadyError(text, reason=Reason.WORKERS_DIFFER)

    @contextlib.contextmanager
    def installing(self, kind: _Kind, number: int) -> Iterator[None]:
        """Have workers keep the pending version that they are being given in the block."""
        self._pending[kind, number] = None
        self._retained.clear()
        try:
            yield
        finally:
            del self._pending[kind, number]

    def accept(self, kind: _Kind, number: int, version: AgentVersion | EnvVersion) -> None:
        """Record that all workers hold the pending version, so that replaced workers get it, too."""
        self._pending[kind, number] = version

    def kept(self) -> KeptVersions:
        """Return the versions that workers must not forget."""
        kept = KeptVersions({*self.envs, *map(operator.neg, self.evaluation_envs)}, {*self.agents})
        for kind, number in self._pending:
            (kept.envs if kind == "env" else kept.agents).add(number)
        return kept

    def evict(self) -> None:
        """Have all workers forget, in the background, the versions that no call needs any more."""
        kept = self.kept()
        for slot in self.workers.with_leaving:
            # Nearly always nothing has changed since the previous call, and a needless order would delay a short one.
            if slot.healthy and self._retained.get(slot.handle) != kept:
                self._retained[slot.handle] = kept
                in_background(slot.handle.call(Worker.retain, *kept))  # a lost worker is noticed when it is needed

    async def take_over(self) -> None:
        """Have all workers evict what the pool no longer keeps, and install what they lack.

        A worker that cannot, where others can, is replaced.

        Raises:
            DomainError: no worker can take a version.
            WorkerLostError: all workers are lost, one after the other or for long.
        """
        await Broadcast(self.workers, self._adopt, wait_for_lost=False, isolate_failures=True).answers()

    async def _adopt(self, index: int, worker: WorkerHandle) -> None:
        """Have one worker do as in `take_over`."""
        await worker.call(Worker.retain, *self.kept())
        await self.prepare(index, worker)

    async def prepare(
        self,
        index: int,
        worker: WorkerHandle,
        *,
        only_envs: bool = False,
        may_lack: bool = False,
        must_lack: bool = False,
    ) -> None:
        """Install all versions that a worker lacks, also versions that are accepted meanwhile.

        Args:
            index: index of the worker.
            worker: the worker, which is new or of an earlier server.
            only_envs: whether to leave out the agents, which another call installs.
            may_lack: whether the worker may lack what no call uses now, which is left out while an update waits.
            must_lack: whether that is left out in any case. `complete` installs it when a call needs it.

        Raises:
            DomainError: the worker cannot take a version, or its environments differ from the other workers'.
        """
        env_versions, policy_versions = await worker.call(Worker.installed_versions)
        names = {("env", version) for version in env_versions} | {("agent", version) for version in policy_versions}
        names -= self._lacking.get(worker, set())  # what it has under such a number is of an update that failed
        held = {name: value for name, value in self._required().items() if name in names}
        # After an update that failed, another one may come under the same number: compare the values, too.
        while missing := {name: value for name, value in self._required().items() if held.get(name) is not value}:
            is_lean = may_lack and (must_lack or bool(self._pending))
            wanted = [name for name in missing if not is_lean or self._is_needed(name)]
            if only_envs:
                wanted = [name for name in wanted if name[0] == "env"]
            if not wanted:
                break
            name = min(wanted)
            held[name] = value = missing[name]
            _, version = name
            if isinstance(value, EnvVersion):
                description = await worker.call(Worker.add_env, version, _of_worker(value.specs, index))
                check_same(description, value.description)
            else:
                await worker.call(Worker.add_agent, version, _of_worker(value, index))
        self._lacking[worker] = set(missing)

    def lacks(self, worker: WorkerHandle) -> bool:
        """Whether a worker lacks versions that no call needed when it was new."""
        return bool(self._lacking.get(worker))

    async def complete(self, index: int, worker: WorkerHandle) -> None:
        """Install what a call needs, and the worker lacks, because no call needed it when the worker was new.

        Raises:
            WorkerLostError: the worker is lost, or cannot be given what the others hold.
        """
        if any(map(self._is_needed, self._lacking.get(worker, ()))):
            async with self._completing.setdefault(worker, asyncio.Lock()):  # calls may begin at the same time
                if any(map(self._is_needed, self._lacking[worker])):
                    with giving_what_others_hold(index):
                        await self.prepare(index, worker, may_lack=True, must_lack=True)

    def _is_needed(self, name: tuple[str, int]) -> bool:
        """Whether a call uses a version, or is about to."""
        kind, number = name
        if kind == "agent":
            is_in_use = self.agents.is_in_use(number)
        else:
            is_in_use = self.envs.is_in_use(number) if number > 0 else self.evaluation_envs.is_in_use(-number)
        return is_in_use or self._pending.get(name) is not None

    def _required(self) -> Mapping[tuple[str, int], AgentVersion | EnvVersion]:
        """Return what a worker must hold to take work, by kind and number."""
        agents = {("agent", number): version for number, version in self.agents.items()}
        envs = {("env", number): version for number, version in self.envs.items()}
        evaluation_envs = {("env", -number): version for number, version in self.evaluation_envs.items()}
        accepted = {name: value for name, value in self._pending.items() if value is not None}
        return {**agents, **envs, **evaluation_envs, **accepted}


def _of_worker(values: Sequence[_T], index: int) -> _T:
    """Return a worker's value, given one for all or one for each. An added worker gets any: no call uses it."""
    return values[index if index < len(values) else 0]


class _VersionHistory(Generic[_T]):
    """Numbers each value that is added, and keeps the last few and those in use.

    Attributes:
        number: number of the current version; 0 before there is one.
    """

    def __init__(self, num_kept: int, *, max_idle_bytes: int = 0, bytes_of: Callable[[_T], int] = lambda _: 0) -> None:
        """Start without a version.

        Args:
            num_kept: number of versions to keep, including the current one.
            max_idle_bytes: bytes of versions that are neither current nor in use; beyond that, the oldest are dropped.
            bytes_of: returns the bytes of a version.
        """
        self._num_kept = num_kept
        self._max_idle_bytes = max_idle_bytes
        self._bytes_of = bytes_of
        self._values: dict[int, _T] = {}
        self._uses: Counter[int] = Counter()
        self.number = 0

    def __iter__(self) -> Iterator[int]:
        return iter(self._values)

    def items(self) -> Iterable[tuple[int, _T]]:
        """Return all versions with their numbers, in rising order."""
        return self._values.items()

    @property
    def current(self) -> _T | None:
        """The current version, or None before there is one."""
        return self._values.get(self.number)

    def get(self, number: int) -> _T | None:
        """Return a version, or None if it is not kept."""
        return self._values.get(number)

    def is_in_use(self, number: int) -> bool:
        """Whether a call uses a version."""
        return self._uses[number] > 0

    def choose(self, wanted: int | None, reason: Reason) -> int:
        """Return the wanted version, or the current one if none is wanted.

        Args:
            wanted: number of the version, or None.
            reason: reason of the error; in lower case, the field that asks for the version.

        Raises:
            NotReadyError: the version is not kept.
        """
        if wanted is None:
            return self.number
        if wanted not in self._values:
            expected = f"one of the versions that are kept, {', '.join(map(str, self))}"
            raise NotReadyError.of(reason.lower(), expected=expected, got=wanted, reason=reason)
        return wanted

    def add(self, value: _T) -> None:
        """Make a value the current version, numbered one higher than the last."""
        self.number += 1
        self._values[self.number] = value
        self._drop_old()

    def skip_to(self, number: int) -> None:
        """Number the next value so, which has to be higher than the current number."""
        self.number = number - 1

    def restore(self, values: Mapping[int, _T]) -> None:
        """Continue with the versions of an earlier server, by number, before any is added."""
        self._values = dict(sorted(values.items()))
        self.number = max(values, default=0)

    @contextlib.contextmanager
    def using(self, number: int) -> Iterator[None]:
        """Keep a version for the duration of the block."""
        self._uses[number] += 1
        try:
            yield
        finally:
            self._uses[number] -= 1
            self._drop_old()

    def _drop_old(self) -> None:
        self._uses = +self._uses
        idle_bytes = 0
        for number in sorted(self._values.keys() - self._uses.keys() - {self.number}, reverse=True):
            idle_bytes += self._bytes_of(self._values[number])
            if number <= self.number - self._num_kept or idle_bytes > self._max_idle_bytes:
                del self._values[number]


def element_field(index: int, *, per_worker: bool, field: str = ALL_WORKERS) -> str:
    """Return the field of a request that a worker's update comes from, given the one of an update for all workers."""
    return f"per_worker.updates[{index}]" if per_worker else field


def check_same(description: EnvDescription, first: EnvDescription) -> None:
    """Raise InvalidValueError unless a worker's environments have the spaces of another's and step alike."""
    expected = _compared(first)
    for name, got in _compared(description).items():
        if not _are_equal(got, expected[name]):
            text = f"expected the first worker's {name}, {expected[name]}, got {got}"
            raise InvalidValueError(text)


def _are_equal(one: object, other: object) -> bool:
    """Whether two values are equal: spaces by their messages, because gymnasium makes several copies of bounds."""
    return is_same_space(one, other) if isinstance(one, Space) and isinstance(other, Space) else one == other


def _compared(description: EnvDescription) -> Mapping[str, object]:
    """Return what the environments of all workers must have in common, by the wire's names."""
    return {
        "observation_space": description.observation_space,
        "action_space": description.action_space,
        "vectorization": "rows" if description.num_episodes_per_row is None else "native or envpool",
        "row_count": description.num_rows,
        "episodes_per_row": description.num_episodes_per_row,
    }
