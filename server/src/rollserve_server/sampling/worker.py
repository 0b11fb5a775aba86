"""A worker, as the pool sees it, and its work in progress."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import threadpoolctl

from rollserve_server.activity import Activity, current_activity
from rollserve_server.envs import ManyEnvs, pickle_uniform_boxes, run_method_call
from rollserve_server.errors import DomainError
from rollserve_server.machine import package_versions
from rollserve_server.sampling.encode.encoder import new_array
from rollserve_server.sampling.installed import InstalledAgents, InstalledEnvs
from rollserve_server.sampling.protocol import (
    EnvDescription,
    FragmentOrder,
    FragmentReport,
    Order,
    Population,
    PopulationOrder,
    PopulationReport,
    Report,
    WorkerIdentity,
)
from rollserve_server.sampling.work.episodes import EpisodeWork
from rollserve_server.sampling.work.fragments import FragmentWork
from rollserve_server.sampling.work.populations import PopulationWork

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from numpy.typing import NDArray

    from rollserve_server.activity import Heartbeat
    from rollserve_server.agents import Agent, AgentSpec, PolicyAgents, PopulationAgent
    from rollserve_server.envs import MethodCall, Probed, RowEnvs, VectorEnvs, WorkerSpecs
    from rollserve_server.sampling.collect.acting import Evaluator
    from rollserve_server.sampling.protocol import FragmentAssignment, Members, SequenceSpec, WorkOrder
    from rollserve_server.settings import HealthSettings, WorkerSettings

__all__ = ["Worker"]

_R = TypeVar("_R")

_Work = TypeVar("_Work", EpisodeWork, FragmentWork, PopulationWork)


class Worker:
    """Samples episodes and writes them as messages.

    Methods are called one at a time, except `stop`, `announce` and `heartbeat`, which may be called while another one
    runs.

    Attributes:
        activity: what the worker is doing. Callers run each method within `activity.at_work()`.
    """

    def __init__(
        self, worker_index: int, settings: WorkerSettings, new_buffer: Callable[[int], NDArray[np.uint8]] = new_array
    ) -> None:
        """Start without versions and without work.

        Args:
            worker_index: index of the worker.
            settings: how rows are stepped, and bounds.
            new_buffer: makes the buffers that `work` returns, given their number of bytes.
        """
        # Workers share the machine's cores, and are fastest with one thread each.
        threadpoolctl.threadpool_limits(1)
        pickle_uniform_boxes()
        self.activity = Activity()
        self._urgency = _Urgency()
        self._envs = InstalledEnvs(settings)
        self._probes: dict[str, threading.Event] = {}
        self._agents = InstalledAgents()
        self._works = _Works(worker_index, settings, self._envs, self._agents, new_buffer)

    def identity(self) -> WorkerIdentity:
        """Return the process and the host of the worker, and its packages."""
        return WorkerIdentity(os.getpid(), socket.gethostname(), package_versions())

    def heartbeat(self) -> Heartbeat:
        """Return what the worker is doing now. May be called while another method runs."""
        return self.activity.look()

    def installed_versions(self) -> tuple[set[int], set[int]]:
        """Return the installed versions of the environment and of the agent."""
        return self._envs.versions, self._agents.versions

    def probe_env(self, specs: WorkerSpecs, health: HealthSettings, probe_id: str) -> Probed:
        """Try environments in a child process, with time limits, and install nothing. May run beside other methods.

        Args:
            specs: the environments.
            health: the limits.
            probe_id: a name for `end_probe`, which no other probe has.

        Raises:
            NotFoundError, InvalidValueError, OverLimitError: as `run_probe`.
        """
        ended = self._probes[probe_id] = threading.Event()
        try:
            return self._envs.probe(specs, health, ended)
        finally:
            del self._probes[probe_id]

    def call_env_method(self, call: MethodCall, specs: WorkerSpecs, health: HealthSettings, probe_id: str) -> list[str]:
        """Call a method of environments in a child process, with time limits. May run beside other methods.

        Args:
            call: the call.
            specs: the environments, which are made for it.
            health: the limits.
            probe_id: as of `probe_env`.

        Returns:
            The values as JSON: one for all rows, or one for each row.

        Raises:
            NotFoundError, InvalidValueError, OverLimitError: as `run_method_call`.
        """
        ended = self._probes[probe_id] = threading.Event()
        try:
            return run_method_call(call, specs, health, ended)
        finally:
            del self._probes[probe_id]

    def end_probe(self, probe_id: str) -> None:
        """End a probe or call of a method whose result nobody waits for, if it runs. May run beside other methods."""
        if (ended := self._probes.get(probe_id)) is not None:
            ended.set()

    def probe_env_here(self, specs: WorkerSpecs, health: HealthSettings) -> Probed:
        """Try environments in this process, whose code may know ids that no other process can import.

        Returns and raises as `probe_env`.
        """
        return self._envs.probe_here(specs, health)

    def add_env(self, version: int, specs: WorkerSpecs) -> EnvDescription:
        """Install a version of the environment, and return its properties.

        Versions below 0 are environments of evaluations, which share nothing with others.

        Raises:
            NotFoundError, InvalidValueError: the environment cannot be made, or its rows differ in their spaces. The
                error has the row.
        """
        try:
            description = self._envs.install(version, specs).describe()
        except DomainError:
            self._envs.check_process()
            raise
        self._agents.forget_built()
        return description

    def add_agent(self, version: int, spec: AgentSpec) -> None:
        """Install a version of the agent, which has been checked to fit its environment.

        Raises:
            NotFoundError, InvalidValueError: as `load_agent`.
        """
        self._agents.install(version, spec)

    def add_population(self, population: Population, members: Members) -> None:
        """Open the work on a population, given the parameters of its members, which have been checked.

        Raises:
            DomainError: environments or the agent cannot be made.
        """
        self._works.open_population(population, members)

    def retain(self, env_versions: Collection[int], policy_versions: Collection[int]) -> None:
        """Evict all other versions.

        Only the newest retained environment and environments of evaluations keep rows that no work uses.
        """
        self._envs.retain(env_versions)
        self._agents.retain(policy_versions)

    def work(self, order: WorkOrder[_R]) -> tuple[_R, NDArray[np.uint8]]:
        """Carry out a slice of work.

        Returns:
            The report, and the buffer with its messages.

        Raises:
            DomainError: the work cannot be opened. Other errors are in the report.
        """
        match order:
            case Order():
                return self._sample_episodes(order)  # type: ignore[return-value]  # the kind of order determines R
            case FragmentOrder():
                return self._sample_fragments(order)  # type: ignore[return-value]
            case PopulationOrder():
                return self._sample_population(order)  # type: ignore[return-value]
        raise TypeError(f"expected an order, got {type(order).__name__}")

    def stop(self, work_id: int) -> None:
        """End the steps of a work after the current one. May be called while another method runs.

        With the `call_id` of a fragment assignment, the steps of that call end; its fragments can still be written.
        """
        self._works.stop(work_id)

    def announce(self, number: int) -> None:
        """End the steps of orders after the current one, until `answer_urgently` with this number has been called.

        May be called while another method runs, and after `answer_urgently`.
        """
        self._urgency.announce(number)

    def answer_urgently(self, number: int, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method by its name. Later orders are not shortened any more.

        Args:
            number: number of the call, higher than of all earlier ones.
            method: name of the method.
            *args: its arguments.
            **kwargs: its named arguments.
        """
        self._urgency.answer(number)
        return getattr(self, method)(*args, **kwargs)

    def close_work(self, work_id: int) -> None:
        """Close a work, which has been stopped: other works can use its rows."""
        self._works.close(work_id)

    def stop_all(self) -> None:
        """Stop all works, and expect no urgent call any more."""
        self._works.stop_all()
        self._urgency.reset()

    def close_all_work(self) -> None:
        """Close all works."""
        self._works.close_all()

    def close(self) -> None:
        """Close all environments."""
        self._works.close_envs()
        self.retain((), ())

    def _sample_episodes(self, order: Order) -> tuple[Report, NDArray[np.uint8]]:
        work_id = order.sequence.work_id
        work = self._works.for_episodes(order.sequence)
        current_activity().episode_of = work.collector.episode_index
        return work.run(order, functools.partial(self._works.is_stopped, work_id), self._urgency.is_waiting)

    def _sample_fragments(self, order: FragmentOrder) -> tuple[FragmentReport, NDArray[np.uint8]]:
        work_id, assignment = order.sequence.work_id, order.assignment
        work = self._works.for_fragments(order)
        self._works.forget_stopped_calls(assignment.call_id)
        current_activity().episode_of = work.collector.episode_index
        builders = self._works.agent_builder(work, assignment), self._works.evaluator_builder(work, assignment)
        is_stopped = functools.partial(self._works.is_stopped, work_id, assignment.call_id)
        return work.run(order, *builders, is_stopped, self._urgency.is_waiting)

    def _sample_population(self, order: PopulationOrder) -> tuple[PopulationReport, NDArray[np.uint8]]:
        work = self._works.find(PopulationWork, order.work_id)
        current_activity().episode_of = work.collector.episode_index
        is_stopped = functools.partial(self._works.is_stopped, order.work_id)
        report = work.run(order, is_stopped, self._urgency.is_waiting)
        return report, np.empty(0, np.uint8)


class _Works:
    """Opens, finds, stops and closes works. Each has rows for itself, and shares its agent."""

    def __init__(
        self,
        worker_index: int,
        settings: WorkerSettings,
        envs: InstalledEnvs,
        agents: InstalledAgents,
        new_buffer: Callable[[int], NDArray[np.uint8]],
    ) -> None:
        self._worker_index = worker_index
        self._settings = settings
        self._envs = envs
        self._agents = agents
        self._new_buffer = new_buffer
        self._works: dict[int, EpisodeWork | FragmentWork | PopulationWork] = {}
        # Numbers of works and of fragment calls. `stop` adds to it from other threads.
        self._stopped: set[int] = set()

    def for_episodes(self, sequence: SequenceSpec) -> EpisodeWork:
        """Return the work on a sequence, opened if it is new.

        Raises:
            DomainError: environments or the agent cannot be made.
        """
        if sequence.work_id not in self._works:
            envs = self._envs[sequence.env_version].take(sequence.max_episode_length)
            with self._giving_back_on_error(sequence.env_version, envs):
                self._works[sequence.work_id] = self._episode_work(sequence, envs)
        return self.find(EpisodeWork, sequence.work_id)

    def _episode_work(self, sequence: SequenceSpec, envs: RowEnvs | VectorEnvs | ManyEnvs) -> EpisodeWork:
        settings = self._settings, self._new_buffer
        if isinstance(envs, ManyEnvs):
            agents = self._agents.built_policies(sequence.policy_version, sequence.exploration, envs)
            return EpisodeWork(sequence, envs, agents, None, *settings)
        versions = sequence.policy_version, sequence.env_version
        agent = self._agents.built(*versions, sequence.exploration, envs)
        build_evaluator = functools.partial(self._agents.evaluator, *versions, sequence.exploration, envs)
        return EpisodeWork(sequence, envs, agent, build_evaluator, *settings)

    def for_fragments(self, order: FragmentOrder) -> FragmentWork:
        """Return the work on a row sequence, opened with the order's states if it is new.

        Raises:
            DomainError: environments cannot be made.
        """
        sequence = order.sequence
        if sequence.work_id not in self._works:
            assert order.states is not None  # noqa: S101  # the pool knows which works are open
            limit = None if sequence.soft_horizon else sequence.max_episode_length
            envs = self._envs[sequence.env_version].take_for_fragments(limit)
            work = FragmentWork(sequence, envs, order.states, self._worker_index, self._settings, self._new_buffer)
            self._works[sequence.work_id] = work
        return self.find(FragmentWork, sequence.work_id)

    def agent_builder(
        self, work: FragmentWork, assignment: FragmentAssignment
    ) -> Callable[[], Agent] | Callable[[], PolicyAgents]:
        """Return a function that builds the agent of an assignment, or its policies."""
        version, exploration = assignment.policy_version, assignment.exploration
        if isinstance(work.envs, ManyEnvs):
            return functools.partial(self._agents.built_policies, version, exploration, work.envs)
        return functools.partial(self._agents.built, version, work.spec.env_version, exploration, work.envs)

    def evaluator_builder(self, work: FragmentWork, assignment: FragmentAssignment) -> Callable[[], Evaluator] | None:
        """Return a function that builds the evaluator of an assignment; None where there are many agents."""
        if isinstance(work.envs, ManyEnvs):
            return None
        versions = assignment.policy_version, work.spec.env_version
        return functools.partial(self._agents.evaluator, *versions, assignment.exploration, work.envs)

    def open_population(self, population: Population, members: Members) -> None:
        """Open the work on a population, given the parameters of its members, which have been checked.

        Raises:
            DomainError: environments or the agent cannot be made.
        """
        envs = self._envs[population.env_version].take_single_rows()
        with self._giving_back_on_error(population.env_version, envs):
            agent: PopulationAgent | PolicyAgents
            if isinstance(envs, ManyEnvs):
                version, exploration = population.policy_version, population.exploration
                agent = self._agents.built_policies(version, exploration, envs, members)
            else:
                agent = self._agents.built_population(population, members[""], envs)
            self._works[population.work_id] = PopulationWork(population, envs, agent, self._settings.env_retries)

    def stop(self, number: int) -> None:
        """Stop a work, or a fragment call. May be called from any thread."""
        self._stopped.add(number)

    def stop_all(self) -> None:
        """Stop all works. May be called from any thread."""
        self._stopped.update(list(self._works))

    def is_stopped(self, *numbers: int) -> bool:
        """Return whether any of these works or calls is stopped."""
        return not self._stopped.isdisjoint(numbers)

    def forget_stopped_calls(self, call_id: int) -> None:
        """Forget stopped calls before this one: a call may be stopped after it has ended."""
        for number in tuple(self._stopped):
            if number < call_id and number not in self._works:
                self._stopped.discard(number)

    def close(self, work_id: int) -> None:
        """Close a work, if it is open: other works can use its rows."""
        self._stopped.discard(work_id)
        work = self._works.pop(work_id, None)
        if work is not None:
            self._envs.give_back(work.spec.env_version, work.envs)

    def close_all(self) -> None:
        """Close all works."""
        for work_id in list(self._works):
            self.close(work_id)

    def close_envs(self) -> None:
        """Close the environments of all works."""
        for work in self._works.values():
            work.envs.close()

    def find(self, kind: type[_Work], work_id: int) -> _Work:
        """Return the work of a number, which has been opened and is of this kind."""
        work = self._works[work_id]
        assert isinstance(work, kind)  # noqa: S101  # no two works have the same number
        return work

    @contextlib.contextmanager
    def _giving_back_on_error(self, env_version: int, envs: RowEnvs | VectorEnvs | ManyEnvs) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._envs.give_back(env_version, envs)
            raise


class _Urgency:
    """The urgent calls of one caller, which are numbered upwards and answered in this order."""

    def __init__(self) -> None:
        self._announced = self._answered = 0

    def announce(self, number: int) -> None:
        """Have slices end until a call is answered. May be called from any thread, and later than the call."""
        self._announced = max(self._announced, number)

    def answer(self, number: int) -> None:
        """Record that a call is being answered."""
        self._answered = number

    def is_waiting(self) -> bool:
        """Return whether a call waits behind the slice that runs."""
        return self._announced > self._answered

    def reset(self) -> None:
        """Forget all calls: another caller begins to number them. May be called from any thread."""
        self._announced = self._answered = 0
