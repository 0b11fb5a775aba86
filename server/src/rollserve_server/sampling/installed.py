"""Installed versions: environments, with the rows of each that no work uses, and agents, built for rows."""

from __future__ import annotations

import contextlib
import functools
import os
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from rollserve_server.activity import Phase, current_activity
from rollserve_server.agents import (
    MEMBER_VERSION,
    ExternalAgent,
    PolicyAgents,
    PolicySet,
    build_agent,
    build_population,
    kinds_of,
    load_agent,
    load_policies,
    with_external,
)
from rollserve_server.envs import (
    ManyEnvs,
    RowEnvs,
    VectorEnvs,
    check_space_sizes,
    episodes_per_row,
    make_rows,
    plain_space,
    spaces_text,
    why_not_single,
    with_envpool,
)
from rollserve_server.errors import DomainError, EnvFailedError, InvalidValueError
from rollserve_server.sampling.collect.acting import Evaluator
from rollserve_server.sampling.protocol import NO_MEMBERS, EnvDescription
from rollserve_wire.environments import EnvSpec
from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from rollserve_server.agents import Agent, AgentSpec, Exploration, HeldPolicy, PolicySpec, PopulationAgent
    from rollserve_server.envs import WorkerSpecs
    from rollserve_server.sampling.protocol import External, Members, Population
    from rollserve_server.settings import WorkerSettings

__all__ = ["InstalledAgents", "InstalledEnv", "InstalledEnvs"]

_ANY_ENV = "CartPole-v1"  # which needs nothing but gymnasium

_T = TypeVar("_T")

_Rows = TypeVar("_Rows", RowEnvs, VectorEnvs)

_AnyRows = TypeVar("_AnyRows", bound=RowEnvs | VectorEnvs | ManyEnvs)

_MAX_BUILT_AGENTS = 4
"""Number of agents that are kept built: each has a copy of the parameters."""


class InstalledEnvs:
    """Installed versions of the environment. Versions below 0 are environments of evaluations."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._envs: dict[int, InstalledEnv] = {}

    @property
    def versions(self) -> set[int]:
        """Installed versions."""
        return set(self._envs)

    def __getitem__(self, version: int) -> InstalledEnv:
        return self._envs[version]

    def check_process(self) -> None:
        """Raise an error of any kind if this process can no longer make environments that every process can make.

        What code has left in it, such as files that it has not closed, is not the fault of the next environment.
        """
        try:
            with Path(os.devnull).open():
                rows = RowEnvs(EnvSpec(_ANY_ENV), 1, ())
            rows.reset(0, 0)
            rows.step([0], [np.zeros(1, np.int64)])
            rows.close()
            for failure in rows.failures:
                raise failure
        except DomainError as error:
            raise RuntimeError(f"this process can run no environment any more: {error.message}") from error

    def install(self, version: int, specs: WorkerSpecs) -> InstalledEnv:
        """Install a version: make its rows, or change free rows of another version in place.

        Rows can be changed if they are of the same kind and number, and differ in nothing but tasks or options of
        resets. Versions below 0 and others never exchange rows.

        Raises:
            NotFoundError, InvalidValueError: as `make_rows`; or rows have other spaces than others. The error has the
                row.
        """
        specs = with_envpool(specs, self._settings)
        free = self._take_free if version > 0 else None
        rows = make_rows(specs, self._settings, free, self._settings.max_episode_length)
        if version in self._envs:  # from an update that was not completed
            self._envs[version].close()
        env = self._envs[version] = InstalledEnv(specs, rows, self._settings)
        return env

    def give_back(self, version: int, rows: RowEnvs | VectorEnvs | ManyEnvs) -> None:
        """Keep rows that a work no longer uses for others; close them if they are of an older version, or no use."""
        env = self._envs.get(version)
        if env is None or 0 < version < max(self._envs) or not env.give_back(rows):
            rows.close()

    def retain(self, versions: Collection[int]) -> None:
        """Evict all other versions, and close free rows of versions that are neither the newest nor below 0."""
        for version in self._envs.keys() - set(versions):
            self._envs.pop(version).close()
        newest = max(versions, default=0)
        for version, env in self._envs.items():
            if 0 < version < newest:
                env.close()

    def _take_free(self, kind: type[_Rows], num_rows: int, specs: WorkerSpecs) -> _Rows | None:
        """Take free rows of any version that can be changed in place to the specs, if there are any."""
        for version, env in self._envs.items():
            rows = env.free[-1] if env.free and version > 0 else None
            if isinstance(rows, kind) and rows.num_rows == num_rows and rows.can_change(specs):
                env.free.pop()
                return rows
        return None


class InstalledEnv:
    """An installed version of the environment.

    Attributes:
        free: rows that no work uses.
    """

    def __init__(self, specs: WorkerSpecs, rows: RowEnvs | VectorEnvs | ManyEnvs, settings: WorkerSettings) -> None:
        """Begin with free rows that were made from the specs."""
        self._specs = specs
        # The spec of rows that are stepped together, which are all alike; None if they are stepped one by one.
        self._joint_spec = specs if isinstance(specs, EnvSpec) and isinstance(rows, VectorEnvs) else None
        # The spec of rows with many agents.
        self._many_spec = specs if isinstance(specs, EnvSpec) and isinstance(rows, ManyEnvs) else None
        self._spaces = rows.observation_space, rows.action_space
        self._num_rows = rows.num_rows
        self._settings = settings
        self.free: list[RowEnvs | VectorEnvs | ManyEnvs] = [rows]

    def describe(self) -> EnvDescription:
        """Return the properties of the environment, which must have free rows.

        Raises:
            InvalidValueError: blocks would have too many episodes.
            OverLimitError: the spaces are too large.
        """
        rows, num_rows = self.free[-1], self._num_rows
        check_space_sizes(*self._spaces)
        is_joint = self._joint_spec is not None
        return EnvDescription(
            plain_space(rows.observation_space),
            plain_space(rows.action_space),
            rows.max_episode_steps,
            rows.classify(),
            num_rows,
            episodes_per_row(self._specs, self._settings, num_rows) if is_joint else None,
            self._why_not_single,
            rows.agents if isinstance(rows, ManyEnvs) else (),
            rows.traces,
        )

    @functools.cached_property
    def _why_not_single(self) -> str:
        """Why rows that are stepped one by one are not this environment; empty if they are."""
        spec = self._joint_spec
        if spec is None:
            return ""
        if spec.vectorization == "envpool":
            return "EnvPool has no code for single rows"
        return why_not_single(spec, *self._spaces)

    def take(self, max_episode_length: int | None) -> RowEnvs | VectorEnvs | ManyEnvs:
        """Return rows for a work whose episodes have at most `max_episode_length` steps.

        Raises:
            DomainError: the environments cannot be made.
        """
        if self._joint_spec is None:
            return self.take_single_rows()
        if max_episode_length is None and self.free:
            return self._configured(self.free.pop())
        return self._configured(self._make_joint_rows(self._joint_spec, max_episode_length))

    def take_for_fragments(self, max_episode_length: int | None) -> RowEnvs | VectorEnvs | ManyEnvs:
        """Return rows for a row sequence. If they are stepped together, they have same-step resets.

        Rows without same-step resets are stepped one by one instead, where these have the same spaces.

        Raises:
            InvalidValueError: rows have no same-step resets, and single rows are not the same environment.
            DomainError: the environments cannot be made.
        """
        if self._joint_spec is None:
            return self.take_single_rows()
        rows = self._make_joint_rows(self._joint_spec, max_episode_length, same_step=True)
        if rows.same_step:
            return self._configured(rows)
        rows.close()
        if self._why_not_single:
            expected = "an environment with same-step resets, or with single rows of the same spaces"
            got = f"{self._joint_spec.id}, which has neither"
            raise InvalidValueError.of("fragments", expected=expected, got=got, hint=self._why_not_single)
        return self.take_single_rows()

    def take_single_rows(self) -> RowEnvs | ManyEnvs:
        """Return rows that are stepped one by one.

        Raises:
            EnvFailedError: the environments cannot be made.
        """
        for position, free in enumerate(self.free):
            if not isinstance(free, VectorEnvs):
                del self.free[position]
                return self._configured(free)
        num_rows, settings = self._num_rows, self._settings
        make: Callable[[], RowEnvs | ManyEnvs] = functools.partial(
            RowEnvs, self._specs, num_rows, settings.callbacks, has_threads=settings.row_threads
        )
        if self._many_spec is not None:
            make = functools.partial(ManyEnvs, self._many_spec, num_rows, settings.callbacks)
        rows = _make_again(make, settings.env_retries)
        spaces = rows.observation_space, rows.action_space
        if spaces != self._spaces:  # of a host that has another environment by now
            rows.close()
            text = mismatch(f"the spaces that it had, {spaces_text(*self._spaces)}", spaces_text(*spaces))
            raise EnvFailedError(f"the environment: {text}")
        return self._configured(rows)

    def give_back(self, rows: RowEnvs | VectorEnvs | ManyEnvs) -> bool:
        """Keep rows for other works; return whether other works can use them."""
        is_joint = isinstance(rows, VectorEnvs)
        is_usable = is_joint == (self._joint_spec is not None)
        is_usable = is_usable and not (isinstance(rows, VectorEnvs) and rows.is_customized)
        if is_usable:
            self.free.append(rows)
        return is_usable

    def close(self) -> None:
        """Close the free rows."""
        while self.free:
            self.free.pop().close()

    def _make_joint_rows(self, spec: EnvSpec, max_episode_length: int | None, *, same_step: bool = False) -> VectorEnvs:
        make = functools.partial(
            VectorEnvs,
            spec,
            self._num_rows,
            max_episode_length,
            same_step=same_step,
            callbacks=self._settings.callbacks,
        )
        # With a limit it may never have been made before, and may accept none.
        make_with_retries = _make_again if max_episode_length is None else _make
        return make_with_retries(make, self._settings.env_retries)

    def _configured(self, rows: _AnyRows) -> _AnyRows:
        rows.checks_observations = self._settings.check_observations
        return rows


def _make(make: Callable[[], _T], num_retries: int) -> _T:
    """Return what `make` returns; repeat it up to `num_retries` times if it raises an error.

    Raises:
        DomainError: the error of the last attempt.
    """
    for _ in range(num_retries):
        with contextlib.suppress(DomainError):
            return make()
    return make()


def _make_again(make: Callable[[], _T], num_retries: int) -> _T:
    """Return what `make` returns, as `_make`, for environments of a kind that was made before.

    Raises:
        EnvFailedError: every attempt failed.
    """
    try:
        return _make(make, num_retries)
    except DomainError as error:
        raise EnvFailedError(f"the environment could be made before, but not again: {error.text}") from error


class InstalledAgents:
    """Installed versions of the agent."""

    def __init__(self) -> None:
        self._specs: dict[int, AgentSpec] = {}
        # By version, environment's version, exploration, number of rows, and whether the rows are stepped together.
        self._built: dict[tuple[int, int, Exploration, int, bool], Agent] = {}

    @property
    def versions(self) -> set[int]:
        """Installed versions."""
        return set(self._specs)

    def install(self, version: int, spec: AgentSpec) -> None:
        """Install a version, which has been checked to fit its environment.

        Raises:
            NotFoundError, InvalidValueError: as `load_agent`.
        """
        current_activity().begin(Phase.LOADING)
        self._specs[version] = load_policies(spec) if isinstance(spec, PolicySet) else load_agent(spec)
        self.forget_built()

    def retain(self, versions: Collection[int]) -> None:
        """Evict all other versions."""
        for version in self._specs.keys() - set(versions):
            del self._specs[version]
        self.forget_built()

    def forget_built(self) -> None:
        """Forget built agents; works that use them keep them."""
        self._built.clear()

    def built(
        self, version: int, env_version: int, exploration: Exploration, envs: RowEnvs | VectorEnvs | ManyEnvs
    ) -> Agent | PolicyAgents:
        """Return an agent for the rows; where there are many agents, policies that no other work has.

        Works may share an agent: it reads and writes its memory within one step only.
        """
        if isinstance(envs, ManyEnvs):
            return self._built_policies(self._policies(version), exploration, envs)
        return self._built_for(version, env_version, exploration, envs, is_joint=isinstance(envs, VectorEnvs))

    def evaluator(
        self, version: int, env_version: int, exploration: Exploration, envs: RowEnvs | VectorEnvs | ManyEnvs
    ) -> Evaluator | None:
        """Return an evaluator of observations, whose bits do not depend on how many it evaluates at once.

        There is none where there are many agents, whose messages evaluate by policy.
        """
        if isinstance(envs, ManyEnvs):
            return None
        return Evaluator(self._built_for(version, env_version, exploration, envs, is_joint=False), envs.num_rows)

    def built_beside(self, external: External, version: int, exploration: Exploration, envs: ManyEnvs) -> PolicyAgents:
        """Return what acts in rows with many agents: a client for some, and policies of a version for the others."""
        kinds = kinds_of(external.agents, envs.agents, (envs.observation_space, envs.action_space))
        held = self._specs.get(version)
        assert held is None or isinstance(held, PolicySet)  # noqa: S101  # the pool has checked that it fits
        return self._built_policies(
            with_external(held, kinds, external.policy_version),
            exploration,
            envs,
            clients=dict.fromkeys(kinds, external),
        )

    def built_population(
        self, population: Population, members: Members, envs: RowEnvs | ManyEnvs
    ) -> PopulationAgent | PolicyAgents:
        """Return what acts as the members of a population, whose parameters have been checked."""
        version, exploration = population.policy_version, population.exploration
        if isinstance(envs, ManyEnvs):
            return self._built_policies(self._policies(version), exploration, envs, members)
        current_activity().begin(Phase.LOADING)
        agent = self._built_for(version, population.env_version, exploration, envs, is_joint=False)
        spaces = envs.observation_space, envs.action_space
        return build_population(self._single(version), members[""], agent, *spaces, envs.num_rows, exploration)

    def _built_policies(
        self,
        spec: PolicySet[PolicySpec],
        exploration: Exploration,
        envs: ManyEnvs,
        members: Members = NO_MEMBERS,
        clients: Mapping[str, External] = MappingProxyType({}),
    ) -> PolicyAgents:
        """Return policies for rows with many agents, some as members of a population, or by name a client's."""

        def build(name: str, policy: HeldPolicy[PolicySpec], agent: int, num_places: int) -> Agent:
            if name in clients:
                return ExternalAgent(envs.action_leaves[agent], clients[name].infos, num_places)
            spaces = envs.observation_spaces[agent], envs.action_spaces[agent]
            built = build_agent(policy.spec, *spaces, num_places, exploration=exploration)
            if policy.version != MEMBER_VERSION:
                return built
            return build_population(policy.spec, members[name], built, *spaces, num_places, exploration)

        current_activity().begin(Phase.LOADING)
        return PolicyAgents(spec, envs.agents, envs.max_acting, envs.num_rows, build)

    def _built_for(
        self,
        version: int,
        env_version: int,
        exploration: Exploration,
        envs: RowEnvs | VectorEnvs,
        *,
        is_joint: bool,
    ) -> Agent:
        key = version, env_version, exploration, envs.num_rows, is_joint
        if key not in self._built:
            while len(self._built) >= _MAX_BUILT_AGENTS:
                del self._built[next(iter(self._built))]
            current_activity().begin(Phase.LOADING)
            self._built[key] = build_agent(
                self._single(version),
                envs.observation_space,
                envs.action_space,
                envs.num_rows,
                together=is_joint,
                exploration=exploration,
            )
        return self._built[key]

    def _policies(self, version: int) -> PolicySet[PolicySpec]:
        spec = self._specs[version]
        assert isinstance(spec, PolicySet)  # noqa: S101  # the pool has checked that it fits
        return spec

    def _single(self, version: int) -> PolicySpec:
        spec = self._specs[version]
        assert not isinstance(spec, PolicySet)  # noqa: S101  # the pool has checked that it fits
        return spec
