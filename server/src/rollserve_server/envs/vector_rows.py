"""Rows of a native vector environment: stepped all at once, and begun all at once under one seed."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from rollserve import EnvSpec, Reproducibility
from rollserve_server.activity import Phase, current_activity
from rollserve_server.envs.determinism import Trace, differences, numbers_in
from rollserve_server.envs.leaves import Leaf, batch_of_leaves, leaves_of_batch, leaves_of_space
from rollserve_server.envs.making import close_env, own_infos
from rollserve_server.envs.native.native import make_vector_env
from rollserve_server.envs.observation_checks import check_observations
from rollserve_server.errors import EnvFailedError, describe

if TYPE_CHECKING:
    from gymnasium import Space
    from gymnasium.vector import VectorEnv
    from numpy.typing import NDArray

    from rollserve_server.envs.row_specs import WorkerSpecs

__all__ = ["VectorEnvs"]

_QUICK_STEPS = 32
_LAST_OBSERVATIONS = {"final_obs", "_final_obs"}
_NOT_INFOS = ("final_obs", "final_info")


class VectorEnvs:
    """M rows that one environment steps all at once. They begin together, and each begins anew by itself when it ends.

    What the rows do is a function of the seed that they begin with and of all their actions: they share their random
    numbers.

    Attributes:
        num_rows: M.
        max_episode_length: the limit that it was made with beside the environment's own, or None.
        observation_space: the space of one row's observations.
        action_space: the space of one row's actions.
        observation_leaves: its leaves.
        action_leaves: its leaves.
        observations: for each leaf of the observation space (M, *O), what each row shows now.
        rewards: (M,), of each row's last step.
        terminated: (M,), bool, of each row's last step.
        truncated: (M,), bool, of each row's last step.
        fresh: (M,), bool, whether what a row shows is the beginning of an episode.
        stepped: (M,), bool, whether the row made a step with the last one; else it only began anew.
        same_step: whether rows begin anew with the step that ends an episode, so that each makes all steps.
        max_episode_steps: the step limit of an episode that is known, or None.
        checks_observations: whether one that is outside its space, or no number, is an error.
    """

    def __init__(
        self, spec: EnvSpec, num_rows: int, max_episode_length: int | None = None, *, same_step: bool = False
    ) -> None:
        """Makes the environment.

        Args:
            spec: how.
            num_rows: M.
            max_episode_length: how many steps an episode may have; None for what the environment allows.
            same_step: whether rows are to begin anew with the step that ends an episode, where that can be had.

        Raises:
            NotFoundError, InvalidValueError: see `make_vector_env`.
        """
        self._spec = spec
        self.num_rows = num_rows
        self.max_episode_length = max_episode_length
        self._broken = False
        self.checks_observations = False
        self._wants_at_once = same_step
        self._activity = current_activity()
        self._env = self._make()
        try:
            self.observation_space: Space[Any] = self._env.single_observation_space
            self.action_space: Space[Any] = self._env.single_action_space
            self.observation_leaves = leaves_of_space(self.observation_space)
            self.action_leaves = leaves_of_space(self.action_space)
        except BaseException:
            self.close()
            raise
        self.same_step = self._env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
        self._final: Any = None
        self._stepped = False
        self.observations = [np.zeros((num_rows, *leaf.shape), leaf.dtype) for leaf in self.observation_leaves]
        self.rewards = np.zeros(num_rows)
        self.terminated, self.truncated, self.fresh, self.stepped = np.zeros((4, num_rows), np.bool_)
        made = self._env.spec
        self.max_episode_steps: int | None = made.kwargs.get("max_episode_steps") if made else None

    @property
    def is_special(self) -> bool:
        """Whether it was not made as the spec alone says."""
        return self._wants_at_once or self.max_episode_length is not None

    def can_change(self, specs: WorkerSpecs) -> bool:
        """Whether `change` to these would leave anything in place."""
        # EnvPool's environments have nothing that could be changed.
        in_place = self._spec.vectorization != "envpool"
        return in_place and dataclasses.replace(self._spec, reset_options={}) == _without_reset_options(specs)

    def change(self, specs: WorkerSpecs) -> None:
        """Makes it what the specs say, which differ in no more than the options of resets."""
        assert isinstance(specs, EnvSpec)  # noqa: S101  # the caller has asked
        self._spec = specs

    @property
    def is_declared_impure(self) -> bool:
        """Whether its registration says itself that it is not deterministic."""
        return bool(self._env.spec is not None and self._env.spec.nondeterministic)

    def classify(self) -> Reproducibility:
        """What of it comes again, as far as a quick look can tell."""
        if self.is_declared_impure:
            return Reproducibility.WORKER
        try:
            one, other = (self.trace(0, _QUICK_STEPS) for _ in range(2))
        except EnvFailedError:  # it is told when it is sampled
            return Reproducibility.BLOCK
        impure = any(difference.counts for difference in differences(one, other))
        return Reproducibility.WORKER if impure else Reproducibility.BLOCK

    def trace(self, seed: int, max_steps: int) -> Trace:
        """Runs a block with random actions, which are a function of the seed that it begins with.

        Raises:
            EnvFailedError: see `begin` and `step`.
        """
        actions = batch_space(self.action_space, self.num_rows)
        actions.seed(seed)
        infos = self.begin(seed)
        steps = [numbers_in({"observations": self._by_name(), "episode_infos": infos})]
        for _ in range(max_steps):
            infos = self.step(leaves_of_batch(actions.sample(), self.action_leaves, self.num_rows))
            said = {"observations": self._by_name(), "rewards": self.rewards}
            ends = {"terminated": self.terminated, "truncated": self.truncated}
            steps.append(numbers_in({**said, **ends, "environment_infos": infos}))
        return Trace(seed, steps)

    def begin(self, seed: int) -> Mapping[str, Any]:
        """Begins an episode in every row, and returns the environment's infos: for each name a column for all rows.

        Raises:
            EnvFailedError: the environment raised an error, its observations are not as its space says, or it failed
                before and cannot be made anew.
        """
        with self._failing("reset"):
            if self._broken:
                self._env = self._make()
                self._broken = False
            self._activity.begin(Phase.RESET)
            options = copy.deepcopy(dict(self._spec.reset_options)) or None
            observations, infos = self._env.reset(seed=seed, options=options)
            self._store(observations)
            infos = own_infos(infos)
        self.terminated[:] = self.truncated[:] = False
        self.fresh[:] = True
        self._stepped = False
        return infos

    def step(self, actions: Sequence[np.ndarray]) -> Mapping[str, Any]:
        """Steps all rows, and returns the environment's infos: for each name a column for all rows.

        Args:
            actions: for each leaf of the action space (M, *A); copied, since environments may hold on to them.

        Raises:
            EnvFailedError: the environment raised an error, or its observations are not as its space says.
        """
        batch = batch_of_leaves(self.action_space, iter([column.copy() for column in actions]))
        ended = None if self.same_step else self.terminated | self.truncated
        self._activity.begin(Phase.STEP)
        with self._failing("step"):
            observations, rewards, terminated, truncated, infos = self._env.step(batch)
            self._store(observations)
            self.rewards[...] = rewards
            self.terminated[...] = terminated
            self.truncated[...] = truncated
            infos = own_infos(infos)
        self._activity.phase = Phase.WORKING
        self._stepped = True
        if ended is None:
            self._final = infos.get("final_obs")
            self.fresh = self.terminated | self.truncated
            self.stepped[:] = True
        else:
            self.fresh, self.stepped = ended, ~ended
        return infos

    def last_observations(self, rows: NDArray[np.integer[Any]]) -> list[np.ndarray]:
        """For each leaf (rows, *O), the observation after the last step of each of these rows."""
        ended = self.fresh[rows]
        if not (self.same_step and ended.any()):
            return [column[rows] for column in self.observations]
        # What those that have ended show is the next episode's first.
        over = rows[ended]
        final = [_final_part(self._final, leaf, over) for leaf in self.observation_leaves]
        if len(over) == len(rows):
            return [np.asarray(part, leaf.dtype) for part, leaf in zip(final, self.observation_leaves, strict=True)]
        shown = [column[rows] for column in self.observations]
        for column, part in zip(shown, final, strict=True):
            column[ended] = part
        return shown

    def info_parts(self, infos: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], NDArray[np.bool_]]]:
        """Infos of the last step, from those that `step` returned, and of which rows (M,) they are."""
        if not infos.keys() - _LAST_OBSERVATIONS:
            return
        final = infos.get("final_info") if self.same_step else None
        ended = self.terminated | self.truncated
        # What stands beside the final ones belongs to the row's next episode.
        yield _without_last(infos), ~ended if final is not None else np.ones(self.num_rows, np.bool_)
        if final is not None:
            yield final, ended

    def step_infos(self, infos: Mapping[str, Any], rows: Sequence[int]) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """The infos of the last step of each of these rows, from those that `step` returned."""
        if infos.keys() - _LAST_OBSERVATIONS:
            final = infos.get("final_info", infos) if self.same_step else infos
            # What stands beside the final ones belongs to the row's next episode.
            ended = self.terminated | self.truncated
            yield from ((row, _infos_of_row(final if ended[row] else infos, row)) for row in rows)

    def reset_infos(self, infos: Mapping[str, Any], rows: Iterable[int]) -> Mapping[int, Mapping[str, Any]]:
        """The infos of the beginning of each of these rows' episodes, from those that `begin` or `step` returned."""
        has_any = infos and not (self.same_step and self._stepped and "final_info" not in infos)
        return {row: _infos_of_row(infos, row) for row in rows} if has_any else {}

    def close(self) -> None:
        """Closes the environment."""
        close_env(self._env)

    def _make(self) -> VectorEnv[Any, Any, Any]:
        self._activity.begin(Phase.MAKING)
        return make_vector_env(self._spec, self.num_rows, self.max_episode_length, same_step=self._wants_at_once)

    def _store(self, observations: Any) -> None:
        self.observations = leaves_of_batch(observations, self.observation_leaves, self.num_rows)
        if self.checks_observations:
            check_observations(self.observation_leaves, self.observations, range(self.num_rows))

    def _by_name(self) -> dict[str, np.ndarray]:
        return {leaf.name: column for leaf, column in zip(self.observation_leaves, self.observations, strict=True)}

    @contextlib.contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        """Makes its errors those of the caller. It may be broken for good, so the next block has another."""
        try:
            yield
        except BaseException as error:
            self.close()
            self._broken = True
            message = f"{self._spec.id} raised in {what}: {describe(error)}"
            raise EnvFailedError(message, 0) from error


def _without_reset_options(specs: WorkerSpecs) -> WorkerSpecs:
    return dataclasses.replace(specs, reset_options={}) if isinstance(specs, EnvSpec) else specs


def _final_part(final: Any, leaf: Leaf, rows: NDArray[np.integer[Any]]) -> Any:
    """A leaf of rows' last observations. Some environments give an array of observations, others columns of leaves."""
    if not leaf.path or isinstance(final, Mapping | tuple):
        column = _part(final, leaf)
        return list(column[rows]) if column.dtype.hasobject else column[rows]
    return [_part(final[row], leaf) for row in rows]


def _part(observation: Any, leaf: Leaf) -> Any:
    for step in leaf.path:
        observation = observation[step]
    return observation


def _without_last(infos: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: column for name, column in infos.items() if name.removeprefix("_") not in _NOT_INFOS}


def _infos_of_row(infos: Mapping[str, Any], row: int) -> Mapping[str, Any]:
    """One row's infos as it would give them alone; gymnasium's masks say whether it has any of a name."""
    its_infos: dict[str, Any] = {}
    for name, column in infos.items():
        if name in _NOT_INFOS or name.startswith("_") or not _has_value(infos.get(f"_{name}"), row):
            continue
        its_infos[name] = _infos_of_row(column, row) if isinstance(column, Mapping) else column[row]
    return its_infos


def _has_value(mask: Any, row: int) -> bool:
    return mask is None or bool(mask[row])
