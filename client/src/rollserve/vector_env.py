"""A sampler's environments behind gymnasium's own interface for vectors of environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from rollserve.session_envs import SessionEnvs, writable
from rollserve_wire.columns import columns_of, concatenate_infos, is_mask, leaves_of, mask_name
from rollserve_wire.errors import InvalidArgumentError, PreconditionError, mismatch
from rollserve_wire.gymnasium_spaces import gymnasium_space, value_leaves

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rollserve.driven_step import DrivenStep
    from rollserve.session import Session
    from rollserve_wire.columns import Columns

__all__ = ["VectorEnv"]


class VectorEnv(SessionEnvs, gymnasium.vector.VectorEnv[Any, Any, Any]):
    """All rows of a sampler as one `gymnasium.vector.VectorEnv`, whose environments run on the server.

    `Sampler.vector_env` returns one. Each `reset` begins a session, see `Sampler.drive`: the same seed and the same
    actions give the same episodes, with any number of workers and after any crash. Infos are as gymnasium has them, if
    batches can hold them; where rows are reset in the step that ends an episode, with `final_obs` and `final_info`.

    >>> envs = sampler.vector_env(autoreset="same_step")  # doctest: +SKIP
    >>> observations, infos = envs.reset(seed=7)  # doctest: +SKIP

    Attributes:
        num_envs: number of rows of all workers.
        autoreset_mode: when a row is reset whose episode has ended.
    """

    single_observation_space: gymnasium.Space[Any]
    single_action_space: gymnasium.Space[Any]
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]

    def __init__(
        self,
        drive: Callable[..., Session],
        autoreset_mode: AutoresetMode,
        seed: int | None,
        options: dict[str, Any],
    ) -> None:
        """Begin a session, which says how many rows there are.

        Args:
            drive: the sampler's method.
            autoreset_mode: when a row is reset whose episode has ended.
            seed: seed of the first reset, if that brings none.
            options: other arguments of `drive`.
        """
        self.autoreset_mode, self.metadata = autoreset_mode, {"autoreset_mode": autoreset_mode}
        self._is_next_step = autoreset_mode is AutoresetMode.NEXT_STEP
        self._begin(drive, seed, options)
        if self._is_next_step and self._session.has_joint_rows:
            self._session.close()
            expected = "'same_step', because the environment's rows are stepped at once"
            raise InvalidArgumentError.of("autoreset", expected=expected, got="'next_step'")
        self.num_envs = self._session.num_rows
        self.single_observation_space, self.single_action_space = map(gymnasium_space, self._own_spaces)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._has_ended = np.zeros(self.num_envs, np.bool_)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin episodes in all rows, and return their first observations.

        Args:
            seed: seed of the first row's environment, which the others' follow, as in gymnasium: 7 begins the same
                episodes as [7, 8, 9, …]; or a list with one for each row. Seeds of later episodes derive from it. By
                default, those of all episodes do from the last one. Rows that are stepped at once have one seed.
            options: none, because the environments are the server's.

        Raises:
            InvalidArgumentError: another number of seeds than rows, or options.
            RollserveError: the session failed.
        """
        if options:
            raise InvalidArgumentError.of("options", expected="none", got=options, hint="see EnvSpec.reset_options")
        self._restart(self._initial_seed if seed is None and self._is_new else seed)
        self._has_ended[:] = False
        return self._observations(self._step.observations), _nested(self._step.infos, self.num_envs)

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Step all rows; where an episode has ended with the step before, begin the next one instead.

        Raises:
            InvalidArgumentError: actions that are not in the action space. No row has stepped.
            RollserveError: the session failed.
        """
        if self._is_new:
            text = mismatch("a vector that was reset", "one that was not", "call reset() first")
            raise PreconditionError(f"step: {text}", code="FAILED_PRECONDITION", field="step")
        idle = self._has_ended if self._is_next_step and self._has_ended.any() else None
        step = self._step = self._session.step(value_leaves(actions, self._own_spaces[1]), idle=idle)
        self._has_ended = step.terminated | step.truncated
        shown, infos, final = step.observations, step.infos, {}
        if len(step.ended_rows) and self._is_next_step:
            shown = _with_rows(shown, step.ended_rows, step.last_observations)
            infos = _with_rows_of_infos(infos, step, self.num_envs)
        elif len(step.ended_rows):
            final = self._final(step)
        infos = _nested(infos, self.num_envs) | final
        return self._observations(shown), writable(step.rewards), step.terminated, step.truncated, infos

    def call(self, name: str, *arguments: Any, **options: Any) -> tuple[Any, ...]:
        """Raise AttributeError: the server's environments show no methods."""
        raise self._no_attribute(name)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return None for `render_mode` and `spec`; the server's environments show no other attribute."""
        if name not in ("render_mode", "spec"):
            raise self._no_attribute(name)
        return (None,) * self.num_envs

    def set_attr(self, name: str, values: Any) -> None:
        """Raise AttributeError: `update_env` changes the server's environments."""
        raise self._no_attribute(name)

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy has a session of its own.
        return type(self), (self._drive, self.autoreset_mode, self._initial_seed, self._drive_options)

    def close_extras(self, **_: Any) -> None:
        """End the session."""
        self._session.close()

    def _final(self, step: DrivenStep) -> dict[str, Any]:
        """Return the infos about the ends of episodes, of rows that were reset in the same step."""
        final = np.full(self.num_envs, None, np.object_)
        for row, observation in self._last_observations():
            final[row] = observation
        ended = self._has_ended
        last = _nested(_with_rows_of_infos({}, step, self.num_envs), self.num_envs)
        of_steps = {"final_info": last, "_final_info": ended.copy()} if self._drive_options["infos"] else {}
        return {"final_obs": final, "_final_obs": ended.copy(), **of_steps}


def _with_rows(columns: Columns, rows: NDArray[np.int64], values: Columns) -> Columns:
    """Return copies of columns with other values of some rows."""
    changed = {name: column.copy() for name, column in leaves_of(columns).items()}
    for name, column in leaves_of(values).items():
        changed[name][rows] = column
    return columns_of(changed)


def _with_rows_of_infos(infos: Mapping[str, np.ndarray], step: DrivenStep, num_rows: int) -> dict[str, np.ndarray]:
    """Return infos with the last ones of the rows that have ended their episodes; other rows may lack them."""
    others = np.setdiff1d(np.arange(num_rows), step.ended_rows)
    going_on = {name: column[others] for name, column in infos.items()}
    joined = concatenate_infos([going_on, step.last_infos], [len(others), len(step.ended_rows)])
    order = np.argsort(np.concatenate([others, step.ended_rows]))
    return {name: column[order] for name, column in joined.items()}


def _nested(infos: Mapping[str, np.ndarray], num_rows: int) -> dict[str, Any]:
    """Return infos as gymnasium's vectors have them: in mappings, each with a mask beside it."""
    nested: dict[str, Any] = {}
    for name, column in infos.items():
        if is_mask(name, infos):
            continue
        *outer, last = name.split("/")
        place, mask = nested, infos.get(mask_name(name), np.ones(num_rows, np.bool_))
        for each in outer:
            place[f"_{each}"] = place.get(f"_{each}", np.zeros(num_rows, np.bool_)) | mask
            place = place.setdefault(each, {})
        place[last], place[f"_{last}"] = writable(column), writable(mask)
    return nested
