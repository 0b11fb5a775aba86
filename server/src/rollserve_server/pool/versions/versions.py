"""The agents and environments that the workers hold, by version, and how they get new ones."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from rollserve import EnvSpec, Reason, Reproducibility
from rollserve_server.agents import (
    AgentSource,
    AgentSpec,
    OnnxSettings,
    PythonSettings,
    check_exploration,
    content_bytes,
    is_same,
    kind_of,
    prepare_agent,
    with_parameters,
)
from rollserve_server.envs import RowSpecs, WorkerSpecs, check_allowed, specs_of_rows
from rollserve_server.errors import DomainError, InvalidValueError, NotReadyError, at_row, within
from rollserve_server.pool.plan.placement import Anywhere, Placement, RoundRobin, RowLayout
from rollserve_server.pool.versions.agent_versions import AgentVersion
from rollserve_server.pool.versions.env_updates import EnvRoom, EnvUpdate, field_in, updated
from rollserve_server.pool.versions.history import VersionHistory
from rollserve_server.sampling import EnvDescription, Worker

if TYPE_CHECKING:
    from collections.abc import Collection

    import numpy as np

    from rollserve_server.agents import Exploration
    from rollserve_server.pool.backends.backend import WorkerHandle
    from rollserve_server.pool.config import SampleRequest
    from rollserve_server.pool.interface.evaluation import EvaluationOptions
    from rollserve_server.pool.state.sampler_state import Journal
    from rollserve_server.pool.workers.workers import Workers

__all__ = ["AgentUpdate", "EnvVersion", "Versions"]

_T = TypeVar("_T")

_SHARED_FROM = 1 << 18
"""An agent with so many bytes is copied once for all workers; less is sooner sent to each."""
_KEPT_EVALUATION_ENVS = 2
"""For as many in turns as a trainer evaluates in, beside those that calls are using."""

AgentUpdate = AgentSource | Mapping[str, "np.ndarray"]
"""A whole agent, or parameters of the one that is there."""


@dataclass(frozen=True)
class EnvVersion:
    """A version of the environments.

    Attributes:
        specs: one for all workers, or one for each.
        description: what is known of them.
    """

    specs: Sequence[WorkerSpecs]
    description: EnvDescription

    @property
    def rows_differ(self) -> bool:
        """Whether rows of a worker have environments of their own."""
        return any(isinstance(specs, RowSpecs) for specs in self.specs)

    @property
    def rows(self) -> RowLayout:
        """The rows of each worker."""
        return RowLayout(self.description.num_rows, self.description.num_episodes_per_row)


class Versions:
    """Updates all workers or none, one update at a time.

    Attributes:
        agents: the last versions of the agents.
        envs: the last versions of the environments.
        evaluation_envs: those that only evaluations act in; the workers know number n as -n.
    """

    def __init__(
        self,
        num_kept_versions: int,
        allowed_modules: Collection[str],
        allowed_methods: Collection[str],
        onnx: OnnxSettings,
        python: PythonSettings,
        max_kept_agent_bytes: int,
        journal: Journal,
    ) -> None:
        """Begins with nothing; `attach` has to follow.

        Args:
            num_kept_versions: how many versions the workers hold, the current one among them.
            allowed_modules: modules that environments may come from.
            allowed_methods: methods of environments that may set their tasks.
            onnx: what the operator says about models.
            python: what the operator says about agents in Python.
            max_kept_agent_bytes: how much the agents may take that are neither current nor in use.
            journal: where each new version is written before it counts; those that it has are taken over.
        """
        self.agents: VersionHistory[AgentVersion] = VersionHistory(
            num_kept_versions, max_idle_bytes=max_kept_agent_bytes, bytes_of=lambda version: version.num_bytes
        )
        self.envs: VersionHistory[EnvVersion] = VersionHistory(num_kept_versions)
        self.evaluation_envs: VersionHistory[EnvVersion] = VersionHistory(_KEPT_EVALUATION_ENVS)
        self._journal = journal
        if journal.state is not None:
            self.agents.restore(journal.state.agents)
            self.envs.restore(journal.state.envs)
        self._allowed_modules = allowed_modules
        self._allowed_methods = allowed_methods
        self._onnx = onnx
        self._python = python
        self._updating = asyncio.Lock()
        self._misfits: dict[tuple[int, int], DomainError | None] = {}
        self._workers: Workers
        # What an update is giving to the workers, beside the versions that are there; its value once all have it.
        self._pending: dict[tuple[str, int], AgentVersion | EnvVersion | None] = {}

    def attach(self, workers: Workers) -> None:
        """Says who the workers are."""
        self._workers = workers

    async def update_agent(self, updates: Sequence[AgentUpdate], *, per_worker: bool) -> int:
        """See `Pool.update_agent`."""
        async with self._updating:
            self._check_count("updates", updates, per_worker)
            agents, fields = [], []
            for position, (update, agent) in enumerate(
                zip(self._spread(updates), self._resolve(updates, per_worker), strict=False)
            ):
                element = _element("updates", position, per_worker)
                fields.append(element if isinstance(update, Mapping) else f"{element}.agent.{kind_of(agent)}")
                with within(fields[-1]):
                    agents.append(await asyncio.to_thread(self._prepared, agent, self.description))
            version = self.agents.number + 1
            spread = self._spread(agents)
            if len(agents) == 1 and content_bytes(agents[0]) >= _SHARED_FROM:
                spread = self._spread([await self._workers.share(agents[0])])
            spread_fields = self._spread(fields)

            async def add_agent(index: int, worker: WorkerHandle) -> None:
                with within(spread_fields[index]):
                    await worker.call(Worker.add_agent, version, spread[index])

            with self._installing("agent", version):
                await self._workers.broadcast(add_agent, wait_for_lost=len(agents) > 1)
                self._pending["agent", version] = added = AgentVersion(agents)
                await self._journal.write(agents=(version, added))
                self.agents.add(added)
            self._remember_misfit((version, self.envs.number), None)
        return version

    async def agent_version_if_same(self, updates: Sequence[AgentUpdate], *, per_worker: bool) -> int | None:
        """See `AgentVersions.current_if_same`."""
        async with self._updating:
            self._check_count("updates", updates, per_worker)
            held: Sequence[AgentSpec] = self.agents.current or ()
            came: Sequence[AgentSource] = self._resolve(updates, per_worker)
            if len(held) != len(came):
                held, came = self._spread(held), self._spread(came)
            if not await asyncio.to_thread(lambda: len(held) == len(came) and all(map(is_same, held, came))):
                return None
            # Whoever sends what does not fit any more is to be told so.
            misfit = await self.misfit(self.agents.number, self.envs.number)
            return self.agents.number if misfit is None else None

    async def update_env(self, updates: Sequence[EnvUpdate], *, per_worker: bool) -> tuple[int, EnvVersion]:
        """See `Pool.update_env`. Returns the new version with its number."""
        async with self._updating:
            self._check_count("updates", updates, per_worker)
            fields = _EnvFields(self._spread(updates), per_worker)
            specs = await asyncio.to_thread(self._changed, updates, per_worker, fields)
            version, spread = self.envs.number + 1, self._spread(specs)

            async def add_env(index: int, worker: WorkerHandle) -> EnvDescription:
                with fields.of(index):
                    return await worker.call(Worker.add_env, version, spread[index])

            with self._installing("env", version):
                is_first = self.envs.current is None
                descriptions = await self._workers.broadcast(
                    add_env, wait_for_lost=len(specs) > 1, isolate_failures=is_first
                )
                _check_alike(descriptions, per_worker=per_worker)
                self._pending["env", version] = env = EnvVersion(list(specs), _in_all(descriptions))
                await self._journal.write(env=(version, env))
                self.envs.add(env)
        return version, env

    def find_evaluation_env(self, specs: Sequence[WorkerSpecs]) -> int | None:
        """The number, below 0, of environments for evaluations that are made from these specs, if they are there."""
        for number in self.evaluation_envs:
            env = self.evaluation_envs.get(number)
            # What is equal in Python, such as 1 and 1.0, need not be so to an environment.
            if env is not None and repr(env.specs) == repr(list(specs)):
                return -number
        return None

    async def add_evaluation_env(self, specs: Sequence[WorkerSpecs]) -> int:
        """Gives all workers environments for evaluations alone, unless they have them.

        Args:
            specs: one for all workers, or one for each.

        Returns:
            Their number, below 0.

        Raises:
            InvalidValueError, NotFoundError, NotAllowedError: as of `Pool.update_env`.
            WorkerLostError: a worker is lost and could not be replaced.
        """
        async with self._updating:
            found = self.find_evaluation_env(specs)
            if found is not None:  # it came while this waited
                return found
            version, spread = -self.evaluation_envs.number - 1, self._spread(specs)
            for its_specs in specs:
                self._check_allowed(its_specs)
            with self._installing("env", version):
                descriptions = await self._workers.broadcast(
                    lambda index, worker: worker.call(Worker.add_env, version, spread[index]),
                    wait_for_lost=len(specs) > 1,
                )
                self.evaluation_envs.add(EnvVersion(list(specs), _in_all(descriptions)))
        return version

    def env(self, number: int) -> EnvVersion | None:
        """Environments, or below 0 those for evaluations; None if they are not there, or not any more."""
        return self.envs.get(number) if number > 0 else self.evaluation_envs.get(-number)

    def placement(self, policy_version: int, env_number: int, num_workers: int) -> Placement:
        """Which of so many workers an episode belongs to, if no call says so. Both are held."""
        env = self.env(env_number)
        assert env is not None  # noqa: S101
        if env.rows_differ or self.differ_between_workers(policy_version, env_number):
            of_rows = env.rows_differ or env.rows.num_episodes_per_row is not None
            return RoundRobin(num_workers, env.rows.num_rows if of_rows else 1)
        return Anywhere()

    def choose_policy(self, wanted: SampleRequest | EvaluationOptions) -> int:
        """The version of the agents that a call is to act with.

        Raises:
            NotReadyError: there is no agent, it has not the expected version or is too old, or the version is not held.
        """
        agents = self.agents
        if not agents.number:
            raise NotReadyError("there is no agent yet: call UpdateAgent first", reason=Reason.NO_AGENT)
        with within("options"):
            if wanted.expected_policy_version not in (None, agents.number):
                text = f"{wanted.expected_policy_version} came, but the current version is {agents.number}"
                raise NotReadyError(text, reason=Reason.POLICY_VERSION, field="expected_policy_version")
            version = agents.choose(wanted.policy_version, Reason.POLICY_VERSION)
            if wanted.min_policy_version is not None and version < wanted.min_policy_version:
                text = f"{wanted.min_policy_version} came, but the version that would act is {version}"
                raise NotReadyError(text, reason=Reason.POLICY_VERSION, field="min_policy_version")
        return version

    def check_exploration(self, policy_version: int, exploration: Exploration) -> None:
        """Raises InvalidValueError if agents, which are held, cannot act like that."""
        with within("options.exploration"):
            for agent in self.agents.get(policy_version) or ():
                check_exploration(agent, exploration)

    async def shared(self, parameters: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """What to give workers these parameters by, so that large ones are copied once for all."""
        num_bytes = sum(value.nbytes for value in parameters.values())
        return await self._workers.share(parameters) if num_bytes >= _SHARED_FROM else parameters

    async def take_over(self, index: int, worker: WorkerHandle) -> None:
        """Brings a worker of an earlier server to hold what it is to hold, and nothing else."""
        await worker.call(Worker.retain, *self.to_keep())
        await self.prepare(index, worker)

    async def prepare(self, index: int, worker: WorkerHandle) -> None:
        """Gives a worker all that the others hold, also what they are given meanwhile, unless it has it already.

        Raises:
            DomainError: it cannot take it; or its environments are other ones, which they cannot be.
        """
        env_versions, policy_versions = await worker.call(Worker.held)
        names = {("env", version) for version in env_versions} | {("agent", version) for version in policy_versions}
        held = {name: value for name, value in self._held().items() if name in names}
        # An update that fails has another come under the same name.
        while missing := {name: value for name, value in self._held().items() if held.get(name) is not value}:
            name = min(missing)
            held[name] = value = missing[name]
            _, version = name
            if isinstance(value, EnvVersion):
                came = await worker.call(Worker.add_env, version, _of_worker(value.specs, index))
                _check_same(came, value.description)
            else:
                await worker.call(Worker.add_agent, version, _of_worker(value, index))

    @property
    def description(self) -> EnvDescription:
        """Of the current environments."""
        assert self.envs.current is not None  # noqa: S101  # a pool starts with one
        return self.envs.current.description

    def to_keep(self) -> tuple[set[int], set[int]]:
        """The versions of environments and of agents that workers are not to forget."""
        kept = self._held().keys() | self._pending.keys()
        return {number for kind, number in kept if kind == "env"}, {number for kind, number in kept if kind == "agent"}

    def listed(self, env: EnvVersion) -> Sequence[EnvSpec]:
        """The environments: one for all, one for each worker, or one for each row of each worker."""
        num_rows = env.description.num_rows if env.rows_differ else 1
        workers = self._spread(env.specs) if env.rows_differ else env.specs
        return [spec for specs in workers for spec in specs_of_rows(specs, num_rows)]

    def differ_between_workers(self, policy_version: int, env_version: int) -> bool:
        """Whether workers have agents or environments of their own."""
        agents, env = self.agents.get(policy_version), self.env(env_version)
        return len(agents or ()) > 1 or (env is not None and len(env.specs) > 1)

    def check_size(self, policy_version: int, env_number: int, num_workers: int) -> None:
        """Raises NotReadyError if versions, which are held, came for each worker when there were more or fewer."""
        agents, env = self.agents.get(policy_version), self.env(env_number)
        held = {"policy_version": agents or (), "environment_version": env.specs if env else ()}
        for name, values in held.items():
            if len(values) not in (0, 1, num_workers):
                text = f"that version is one for each of {len(values)} workers, and there are {num_workers} now"
                raise NotReadyError(text, reason=Reason.WORKER_COUNT, field=f"options.{name}")

    def check_alike(self) -> None:
        """Raises NotReadyError if workers have agents or environments of their own."""
        held = {"agents": self.agents.current, "environments": self.envs.current and self.envs.current.specs}
        for name, values in held.items():
            if len(values or ()) > 1:
                text = (
                    f"workers have {name} of their own, and who comes or goes has none: update all workers alike first"
                )
                raise NotReadyError(text, reason=Reason.WORKERS_DIFFER)

    def check_room(self, num_workers: int) -> None:
        """Raises OverLimitError if so many workers, who have the same environments, would have too many of them."""
        env = self.envs.current
        if env is not None and env.rows_differ:
            with within("worker_count"):
                EnvRoom(num_workers=num_workers).take(env.specs[0])

    @contextlib.asynccontextmanager
    async def unchanging(self) -> AsyncGenerator[None, None]:
        """Has updates wait for as long as the block, which waits for any that runs."""
        async with self._updating:
            yield

    async def misfit(self, policy_version: int, env_version: int) -> DomainError | None:
        """Why the agents of a version do not fit the environments of another, if they do not. Both are held."""
        pair = (policy_version, env_version)
        if pair not in self._misfits:
            self._remember_misfit(pair, await asyncio.to_thread(self._find_misfit, *pair))
        return self._misfits[pair]

    def _remember_misfit(self, pair: tuple[int, int], misfit: DomainError | None) -> None:
        """And forgets those of versions that are not held any more."""
        self._misfits = {known: value for known, value in self._misfits.items() if self._holds(known)}
        self._misfits[pair] = misfit

    def _find_misfit(self, policy_version: int, env_version: int) -> DomainError | None:
        env = self.env(env_version)
        try:
            for agent in self.agents.get(policy_version) or ():
                with within(kind_of(agent)):
                    if env is not None:
                        self._prepared(agent, env.description)
        except DomainError as error:
            return error
        return None

    def _prepared(self, agent: AgentSource, env: EnvDescription) -> AgentSpec:
        """See `prepare_agent`."""
        return prepare_agent(agent, env.observation_space, env.action_space, self._onnx, self._python)

    def _holds(self, pair: tuple[int, int]) -> bool:
        policy_version, env_version = pair
        return policy_version in self.agents and self.env(env_version) is not None

    def _held(self) -> Mapping[tuple[str, int], AgentVersion | EnvVersion]:
        """What a worker has to hold that is to take work."""
        agents = {("agent", number): version for number, version in self.agents.items()}
        envs = {("env", number): version for number, version in self.envs.items()}
        evaluation_envs = {("env", -number): version for number, version in self.evaluation_envs.items()}
        agreed = {name: value for name, value in self._pending.items() if value is not None}
        return {**agents, **envs, **evaluation_envs, **agreed}

    @contextlib.contextmanager
    def _installing(self, kind: str, version: int) -> Iterator[None]:
        """Has the workers keep a version that they are being given."""
        self._pending[kind, version] = None
        try:
            yield
        finally:
            del self._pending[kind, version]

    def _check_count(self, name: str, updates: Sequence[object], per_worker: bool) -> None:
        expected = len(self._workers) if per_worker else 1
        if len(updates) != expected:
            wanted = f"one for each of the {expected} workers"
            raise InvalidValueError.of(f"per_worker.{name}", expected=wanted, got=f"{len(updates)} elements")

    def _spread(self, values: Sequence[_T]) -> Sequence[_T]:
        """One value for each worker."""
        return values if len(values) == len(self._workers) else list(values) * len(self._workers)

    def _changed(self, updates: Sequence[EnvUpdate], per_worker: bool, fields: _EnvFields) -> list[WorkerSpecs]:
        """The environments after the updates, which are allowed: one for all workers, or one for each."""
        specs: list[WorkerSpecs] = []
        if self.envs.current is None:  # a pool starts with a whole one
            specs += [update for update in updates if isinstance(update, EnvSpec)]
        else:
            held, num_rows = self.envs.current.specs, self.description.num_rows
            if len(held) > 1 and not all(isinstance(update, EnvSpec) for update in updates):
                updates = self._spread(updates)
            held = self._spread(held)[: len(updates)]
            room = EnvRoom.of_updates(held, updates, num_rows, len(self._workers))
            for position, (its_specs, update) in enumerate(zip(held, updates, strict=True)):
                with within(_element("updates", position, per_worker)):
                    specs.append(updated(its_specs, update, num_rows, room))
        for position, its_specs in enumerate(specs):
            with fields.of(position):
                self._check_allowed(its_specs)
        return specs

    def _check_allowed(self, specs: WorkerSpecs) -> None:
        for row, spec in enumerate(specs_of_rows(specs, num_rows=1)):
            with at_row(row):
                check_allowed(spec, self._allowed_modules, self._allowed_methods)

    def _resolve(self, updates: Sequence[AgentUpdate], per_worker: bool) -> list[AgentSource]:
        """The agents after the updates: one for all workers, or one for each."""
        held = self.agents.current or ()
        if any(isinstance(update, Mapping) for update in updates):
            if not held:
                text = "parameters came, but there is no agent yet to take them: send a whole one first"
                raise NotReadyError(text, reason=Reason.NO_AGENT)
            if len(held) > 1:
                updates = self._spread(updates)
        agents: list[AgentSource] = []
        for position, update in enumerate(updates):
            with within(_element("updates", position, per_worker)):
                if isinstance(update, Mapping):
                    agents.append(with_parameters(self._spread(held)[position], update))
                else:
                    agents.append(update)
        return agents


class _EnvFields:
    """The fields of a request that workers' environments come from."""

    def __init__(self, updates: Sequence[EnvUpdate], per_worker: bool) -> None:
        """Takes the update of each worker, and whether the request has one for each."""
        self._updates = updates
        self._per_worker = per_worker

    @contextlib.contextmanager
    def of(self, worker: int) -> Iterator[None]:
        """Completes the paths of the fields that errors are about: they are parts of a worker's update."""
        try:
            yield
        except DomainError as error:
            field = f"{_element('updates', worker, self._per_worker)}.{field_in(self._updates[worker], error.row)}"
            error.field = f"{field}.{error.field}" if error.field else field
            raise


def _of_worker(values: Sequence[_T], index: int) -> _T:
    """A worker's value, of one for all or one for each. If it has none, any will do: no call has a use for it."""
    return values[index if index < len(values) else 0]


def _element(name: str, index: int, per_worker: bool) -> str:
    """The field of the request that an update comes from."""
    return f"per_worker.{name}[{index}]" if per_worker else "all_workers"


def _in_all(descriptions: Mapping[int, EnvDescription]) -> EnvDescription:
    """What is known of all workers' environments, which have the same spaces."""
    first, *_ = descriptions.values()
    classes = [each.reproducibility for each in descriptions.values()]
    reproducibility = Reproducibility.WORKER if Reproducibility.WORKER in classes else classes[0]
    return dataclasses.replace(first, reproducibility=reproducibility)


def _check_alike(descriptions: Mapping[int, EnvDescription], *, per_worker: bool) -> None:
    """Raises InvalidValueError unless all workers' environments have the same spaces and are stepped alike."""
    first, *_ = descriptions.values()
    for position, description in descriptions.items():
        with within(_element("updates", position, per_worker)):
            _check_same(description, first)


def _check_same(description: EnvDescription, first: EnvDescription) -> None:
    """Raises InvalidValueError unless a worker's environments have the spaces of another's and are stepped alike."""
    expected = _to_compare(first)
    for name, came in _to_compare(description).items():
        if came != expected[name]:
            raise InvalidValueError(f"{name}: {came} came, {expected[name]}, as of the first worker, was expected")


def _to_compare(description: EnvDescription) -> Mapping[str, object]:
    """What the environments of all workers have to have in common, by what the wire calls it."""
    return {
        "observation_space": description.observation_space,
        "action_space": description.action_space,
        "vectorization": "rows" if description.num_episodes_per_row is None else "native or envpool",
        "row_count": description.num_rows,
        "episodes_per_row": description.num_episodes_per_row,
    }
