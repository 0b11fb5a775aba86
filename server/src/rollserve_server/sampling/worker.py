"""A worker: environments and agents by version, and the streams of episodes that it works on."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import threadpoolctl

from rollserve import EnvSpec
from rollserve_server.activity import Activity, Phase, current_activity
from rollserve_server.agents import build_agent, build_population, load_agent
from rollserve_server.envs import RowEnvs, VectorEnvs, episodes_per_row, make_rows, offers_rows, with_envpool
from rollserve_server.errors import DomainError, InvalidValueError
from rollserve_server.sampling.collect.attempts import made_again, tried
from rollserve_server.sampling.encode.encoder import Encoding
from rollserve_server.sampling.fragments.rows import FragmentRows
from rollserve_server.sampling.fragments.vector import VectorFragmentRows
from rollserve_server.sampling.protocol.episodes import (
    EnvDescription,
    Message,
    Order,
    Outcome,
    Parcel,
    Report,
    SequenceSpec,
    WorkerIdentity,
    WorkOrder,
)
from rollserve_server.sampling.protocol.fragments import FragmentOrder, FragmentReport
from rollserve_server.sampling.protocol.populations import Population, PopulationOrder, PopulationReport
from rollserve_server.sampling.work.episodes import EpisodeWork
from rollserve_server.sampling.work.fragments import FragmentWork
from rollserve_server.sampling.work.populations import PopulationWork

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from numpy.typing import NDArray

    from rollserve_server.activity import Heartbeat
    from rollserve_server.agents import Agent, AgentSpec, Exploration
    from rollserve_server.envs import WorkerSpecs
    from rollserve_server.sampling.fragments.recording import FragmentRecording
    from rollserve_server.sampling.protocol.fragments import FragmentAssignment
    from rollserve_server.settings import WorkerSettings

__all__ = ["Worker"]

_MOST_BUILT_AGENTS = 4
"""Each has a copy of the parameters."""

_R = TypeVar("_R")
_Rows = TypeVar("_Rows", RowEnvs, VectorEnvs)


class Worker:
    """Runs episodes and writes them as messages. Its methods are called one at a time, but for `stop` and `heartbeat`.

    Attributes:
        activity: what it is doing; whoever calls its methods does so within `activity.at_work()`.
    """

    def __init__(self, worker_index: int, settings: WorkerSettings) -> None:
        # Workers share the machine's cores; with one thread each they are fastest.
        threadpoolctl.threadpool_limits(1)
        self.activity = Activity()
        self._index = worker_index
        self._settings = settings
        self._envs: dict[int, _EnvVersion] = {}
        self._agents: dict[int, AgentSpec] = {}
        # By versions of agent and environment, how many rows there are, whether they are together, and how freely it
        # acts; none is kept when versions come or go.
        self._built_agents: dict[tuple[int, int, int, bool, Exploration], Agent] = {}
        self._works: dict[int, EpisodeWork | FragmentWork | PopulationWork] = {}
        self._stopped: set[int] = set()

    def identity(self) -> WorkerIdentity:
        """Where the worker runs."""
        return WorkerIdentity(os.getpid(), socket.gethostname())

    def heartbeat(self) -> Heartbeat:
        """What it is doing now. May be called while it works."""
        return self.activity.look()

    def add_env(self, version: int, specs: WorkerSpecs) -> EnvDescription:
        """Makes rows of environments, beside those that are there, and looks at what they do.

        Free rows of another version, of the same kind and as many, that differ in nothing but their tasks or the
        options of resets are changed in place, and those beside them made anew. Versions below 0 are for
        evaluations: nothing passes between them and the others.

        Raises:
            NotFoundError, InvalidValueError: see `make_rows`; or rows have other spaces than others. The error tells
                the row.
        """
        specs = with_envpool(specs, self._settings)
        free = self._take_free if version > 0 else None
        envs = make_rows(specs, self._settings, free, self._settings.max_episode_length)
        if version in self._envs:  # of an update that was not completed
            self._envs[version].close()
        is_block = isinstance(envs, VectorEnvs)
        self._envs[version] = _EnvVersion(specs, envs.num_rows, is_block, [envs], self._settings.env_retries)
        self._built_agents.clear()
        return EnvDescription(
            envs.observation_space,
            envs.action_space,
            envs.max_episode_steps,
            envs.classify(),
            envs.num_rows,
            episodes_per_row(specs, self._settings, envs.num_rows) if is_block else None,
        )

    def add_agent(self, version: int, spec: AgentSpec) -> None:
        """Takes an agent, beside those that are there. The caller has checked that it fits its environment.

        Raises:
            NotFoundError, InvalidValueError: see `load_agent`.
        """
        current_activity().begin(Phase.LOADING)
        self._agents[version] = load_agent(spec)
        self._built_agents.clear()

    def add_population(self, population: Population, parameters: Mapping[str, np.ndarray]) -> None:
        """Takes the parameters of the members (K, *shape), which the caller has checked, until `close_work`."""
        envs = self._envs[population.env_version].take_rows()
        envs.checks_observations = self._settings.check_observations
        with self._giving_back_unless_done(population.env_version, envs):
            current_activity().begin(Phase.LOADING)
            agent = build_population(
                self._agents[population.policy_version],
                parameters,
                self._agent(population, population.env_version, envs),
                envs.observation_space,
                envs.action_space,
                envs.num_rows,
                population.exploration,
            )
            self._works[population.work_id] = PopulationWork(population, envs, agent, self._settings.env_retries)

    def retain(self, env_versions: Collection[int], policy_versions: Collection[int]) -> None:
        """Forgets all environments and agents but those of these versions.

        Of the environments that are left, only those of the newest, and those for evaluations, stand ready when no
        stream needs them.
        """
        for version in self._envs.keys() - set(env_versions):
            self._envs.pop(version).close()
        newest = max(env_versions, default=0)
        for version, envs in self._envs.items():
            if 0 < version < newest:
                envs.close()
        for version in self._agents.keys() - set(policy_versions):
            del self._agents[version]
        self._built_agents.clear()

    def work(self, order: WorkOrder[_R]) -> tuple[_R, NDArray[np.uint8]]:
        """Does a slice of work.

        Returns:
            What came of it, and the buffer with the messages that it tells of.
        """
        match order:
            case Order():
                return self._sample_episodes(order)  # type: ignore[return-value]  # its kind of order says which R
            case FragmentOrder():
                return self._sample_fragments(order)  # type: ignore[return-value]
            case PopulationOrder():
                return self._sample_population(order)  # type: ignore[return-value]
        raise TypeError(f"{type(order).__name__} came, an order was expected")

    def _sample_episodes(self, order: Order) -> tuple[Report, NDArray[np.uint8]]:
        work_id = order.sequence.work_id
        work = self._open(order.sequence)
        for claim in order.release:
            work.release(claim)
        for indices in order.cancel:
            work.cancel(indices)
        current_activity().episode_of = work.episode_of
        work.enqueue(order.begin, order.begin_again)
        steps_before = work.num_simulated_steps, work.num_idle_steps
        began = sampled = time.perf_counter()
        finished: list[tuple[int, int, int]] = []
        outcomes: tuple[Outcome, ...] = ()
        parcels: list[Parcel] = []
        buffer, failure, is_closed = np.empty(0, np.uint8), None, False
        try:
            if order.seconds > 0:
                buffer_bytes = self._settings.worker_buffer_bytes
                finished = work.sample(order.seconds, order.before, buffer_bytes, lambda: work_id in self._stopped)
            if order.tell_outcomes:
                outcomes = work.outcomes(index for index, _, _ in finished)
            sampled = time.perf_counter()
            worker_index = self._index if order.bind_worker else None
            early = [] if order.deliver or not order.early else work.early_claims()
            claims = order.deliver or early
            if order.columns is None:
                parcels = work.discard(claims)
            else:
                encoding = Encoding(order.sequence.policy_version, worker_index, order.columns)
                parcels, buffer = work.write(claims, encoding, order.max_message_bytes)
            is_closed = order.is_whole and bool(early)
        except DomainError as error:
            failure = error
        if is_closed:
            self.close_work(work_id)
        env_failures, num_lost_steps = work.take_env_failures()
        report = Report(
            finished=tuple(finished),
            parcels=tuple(parcels),
            num_simulated_steps=work.num_simulated_steps - steps_before[0],
            num_idle_steps=work.num_idle_steps - steps_before[1],
            sampling_seconds=sampled - began,
            encoding_seconds=time.perf_counter() - sampled,
            dropped_infos=work.take_dropped_infos(),
            failure=failure,
            is_closed=is_closed,
            outcomes=outcomes,
            env_failures=env_failures,
            num_lost_steps=num_lost_steps + work.take_num_cancelled_steps(),
        )
        return report, buffer

    def _sample_fragments(self, order: FragmentOrder) -> tuple[FragmentReport, NDArray[np.uint8]]:
        work_id, assignment = order.sequence.work_id, order.assignment
        work = self._open_fragments(order)
        self._forget_stopped_calls(assignment.call_id)
        current_activity().episode_of = work.episode_of
        before = work.num_simulated_steps, work.num_restoring_steps
        began = sampled = time.perf_counter()
        messages: tuple[Message, ...] = ()
        buffer, failure = np.empty(0, np.uint8), None
        try:
            work.begin(assignment, lambda: self._agent(assignment, order.sequence.env_version, work.envs))
            if order.enough_row_steps is not None:
                work.shorten(order.enough_row_steps)
            if order.seconds > 0:
                work.sample(order.seconds, lambda: work_id in self._stopped or assignment.call_id in self._stopped)
            sampled = time.perf_counter()
            if assignment.columns is None:
                messages = work.discard()
            else:
                encoding = Encoding(assignment.policy_version, self._index, assignment.columns)
                messages, buffer = work.write(encoding, order.write_bytes)
        except DomainError as error:
            failure = error
        report = FragmentReport(
            messages=messages,
            rows=work.take_progress() if failure is None else None,
            num_row_steps=work.num_row_steps,
            num_simulated_steps=work.num_simulated_steps - before[0],
            num_restoring_steps=work.num_restoring_steps - before[1],
            num_broken_off=work.num_broken_off,
            sampling_seconds=sampled - began,
            encoding_seconds=time.perf_counter() - sampled,
            dropped_infos=work.take_dropped_infos(),
            failure=failure,
            env_failures=work.take_env_failures(),
            is_stranded=work.is_stranded,
        )
        return report, buffer

    def _sample_population(self, order: PopulationOrder) -> tuple[PopulationReport, NDArray[np.uint8]]:
        work = self._works[order.work_id]
        assert isinstance(work, PopulationWork)  # noqa: S101  # no two streams have one name
        current_activity().episode_of = work.episode_of
        return work.run(order, lambda: order.work_id in self._stopped), np.empty(0, np.uint8)

    def stop(self, work_id: int) -> None:
        """Ends the work on a stream with the vector step that is being made. May be called while `work` runs.

        Of fragments, the name of a call stops the steps for that call alone: what it has can still be written.
        """
        self._stopped.add(work_id)

    def _forget_stopped_calls(self, call_id: int) -> None:
        """Forgets calls before this one; a stop may come when its call has ended already."""
        for stopped in tuple(self._stopped):
            if stopped < call_id and stopped not in self._works:
                self._stopped.discard(stopped)

    def close_work(self, work_id: int) -> None:
        """Forgets the work on a stream, which has been stopped. Its environments are free for others."""
        self._stopped.discard(work_id)
        work = self._works.pop(work_id, None)
        if work is not None:
            self._give_back(work.spec.env_version, work.envs)

    def stop_all(self) -> None:
        """`stop` of all streams."""
        self._stopped.update(list(self._works))

    def close_all_work(self) -> None:
        """`close_work` of all streams."""
        for work_id in list(self._works):
            self.close_work(work_id)

    def held(self) -> tuple[set[int], set[int]]:
        """The versions of environments and of agents that are there."""
        return set(self._envs), set(self._agents)

    def close(self) -> None:
        """Closes all environments."""
        for work in self._works.values():
            work.envs.close()
        self.retain((), ())

    def _take_free(self, kind: type[_Rows], num_rows: int, specs: WorkerSpecs) -> _Rows | None:
        """See FreeRows."""
        for number, version in self._envs.items():
            envs = version.free[-1] if version.free and number > 0 else None
            if isinstance(envs, kind) and envs.num_rows == num_rows and envs.can_change(specs):
                version.free.pop()
                return envs
        return None

    def _give_back(self, env_version: int, envs: RowEnvs | VectorEnvs) -> None:
        version = self._envs.get(env_version)
        if version is None or not version.give_back(envs):
            envs.close()

    @contextlib.contextmanager
    def _giving_back_unless_done(self, env_version: int, envs: RowEnvs | VectorEnvs) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._give_back(env_version, envs)
            raise

    def _open(self, sequence: SequenceSpec) -> EpisodeWork:
        work = self._works.get(sequence.work_id)
        if work is None:
            envs = self._envs[sequence.env_version].take(sequence.max_episode_length)
            envs.checks_observations = self._settings.check_observations
            with self._giving_back_unless_done(sequence.env_version, envs):
                agent = self._agent(sequence, sequence.env_version, envs)
                work = self._works[sequence.work_id] = EpisodeWork(sequence, envs, agent, self._settings.env_retries)
        assert isinstance(work, EpisodeWork)  # noqa: S101  # no two streams have one name
        return work

    def _open_fragments(self, order: FragmentOrder) -> FragmentWork:
        work = self._works.get(order.sequence.work_id)
        if work is None:
            assert order.states is not None  # noqa: S101  # the pool knows which rows are there
            limit = None if order.sequence.soft_horizon else order.sequence.max_episode_length
            num_retries = self._settings.env_retries
            envs = self._envs[order.sequence.env_version].take_for_fragments(limit)
            envs.checks_observations = self._settings.check_observations
            if isinstance(envs, VectorEnvs):
                rows: FragmentRecording = VectorFragmentRows(order.sequence, envs, order.states, num_retries)
            else:
                rows = FragmentRows(order.sequence, envs, order.states, num_retries)
            work = FragmentWork(order.sequence, envs, rows, self._settings.worker_buffer_bytes)
            self._works[order.sequence.work_id] = work
        assert isinstance(work, FragmentWork)  # noqa: S101
        return work

    def _agent(
        self, wanted: SequenceSpec | FragmentAssignment | Population, env_version: int, envs: RowEnvs | VectorEnvs
    ) -> Agent:
        """An agent for the rows. Sequences may share it: what it has is written and read within a step."""
        together = isinstance(envs, VectorEnvs)
        version, exploration = wanted.policy_version, wanted.exploration
        key = (version, env_version, envs.num_rows, together, exploration)
        if key not in self._built_agents:
            while len(self._built_agents) >= _MOST_BUILT_AGENTS:
                del self._built_agents[next(iter(self._built_agents))]
            spaces, num_rows = (envs.observation_space, envs.action_space), envs.num_rows
            current_activity().begin(Phase.LOADING)
            agent = build_agent(self._agents[version], *spaces, num_rows, together=together, exploration=exploration)
            self._built_agents[key] = agent
        return self._built_agents[key]


@dataclass
class _EnvVersion:
    """A version of the environment.

    Attributes:
        specs: how to make it.
        num_rows: how many rows there are for each stream.
        is_block: whether they are stepped together.
        free: rows of it that no stream uses.
        num_retries: how often to try again if others, for further streams, cannot be made.
    """

    specs: WorkerSpecs
    num_rows: int
    is_block: bool
    free: list[RowEnvs | VectorEnvs]
    num_retries: int

    def take(self, max_episode_length: int | None) -> RowEnvs | VectorEnvs:
        """Rows for a stream whose episodes may have so many steps."""
        if isinstance(self.specs, EnvSpec) and self.is_block:
            if max_episode_length is None and self.free:
                return self.free.pop()
            return self._make_block(max_episode_length)
        return self.take_rows()

    def take_for_fragments(self, max_episode_length: int | None) -> RowEnvs | VectorEnvs:
        """Rows for a stream of fragments: those that are stepped together have to make the same number of steps."""
        if isinstance(self.specs, EnvSpec) and self.is_block:
            envs = self._make_block(max_episode_length, same_step=True)
            if envs.same_step:
                return envs
            envs.close()
            if not offers_rows(self.specs):
                text = f"rows of {self.specs.id} take a step to begin anew, and there is no code that steps single ones"
                raise InvalidValueError(text, field="fragments")
        return self.take_rows()

    def take_rows(self) -> RowEnvs:
        """Rows that are stepped one by one."""
        for position, envs in enumerate(self.free):
            if isinstance(envs, RowEnvs):
                del self.free[position]
                return envs
        return made_again(lambda: RowEnvs(self.specs, self.num_rows), self.num_retries)

    def _make_block(self, max_episode_length: int | None, *, same_step: bool = False) -> VectorEnvs:
        assert isinstance(self.specs, EnvSpec)  # noqa: S101  # rows that are stepped together are all alike
        make = functools.partial(VectorEnvs, self.specs, self.num_rows, max_episode_length, same_step=same_step)
        # With a limit it may never have been made before, and not take any.
        return made_again(make, self.num_retries) if max_episode_length is None else tried(make, self.num_retries)

    def give_back(self, envs: RowEnvs | VectorEnvs) -> bool:
        """Takes rows back for other streams; returns whether they are of any use to them."""
        is_block = isinstance(envs, VectorEnvs)
        fits_all = is_block == self.is_block and not (isinstance(envs, VectorEnvs) and envs.is_special)
        if fits_all:
            self.free.append(envs)
        return fits_all

    def close(self) -> None:
        """Closes the rows that no stream uses."""
        while self.free:
            self.free.pop().close()
