"""Common part of the interfaces of other libraries to a session's environments."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_wire.checks import check_integer
from rollserve_wire.columns import leaves_of
from rollserve_wire.errors import InvalidArgumentError
from rollserve_wire.gymnasium_spaces import space_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from rollserve.driven_step import DrivenStep
    from rollserve.episode_batch import EpisodeBatch
    from rollserve.session import Session
    from rollserve_wire.columns import Columns

__all__ = ["SessionEnvs", "writable"]


class SessionEnvs:
    """The environments of a session, which each reset begins again. Its attributes are no other library's."""

    def _begin(self, drive: Callable[..., Session], seed: int | None, options: dict[str, Any]) -> None:
        """Begin the first session, which says how many rows there are.

        Args:
            drive: the sampler's method.
            seed: seed of the first reset, if that brings none.
            options: other arguments of `drive`.
        """
        self._initial_seed = seed
        self._drive, self._drive_options = drive, options
        self._roots: np.random.Generator | None = None
        self._session = drive(**options)
        self._step: DrivenStep = self._session.observe()
        self._is_new = True
        self._own_spaces = self._session.observation_space, self._session.action_space

    def _restart(self, seed: int | Sequence[int | None] | None) -> None:
        """Begin episodes in all rows, in another session unless this one is new and no seed is given.

        Without a seed, the episodes follow from the last seed that was given and the number of resets since.

        Args:
            seed: seed of the first row's environment, which the others' follow; or a seed for each row, None for a new
                one. Seeds of later episodes derive from it. Rows that are stepped at once take one seed alone.

        Raises:
            InvalidArgumentError: another number of seeds, or a seed out of range.
        """
        if seed is not None or not self._is_new:
            options = dict(self._drive_options)
            if seed is not None:
                options |= self._seeded(seed)
            elif self._roots is not None:
                options["seed"] = _root(self._roots)
            self._session.close()
            self._session = self._drive(**options)
            self._step = self._session.observe()
        self._is_new = False

    def _no_attribute(self, name: str) -> AttributeError:
        """Return the error for an attribute or a method of environments."""
        hint = "sampler.update_env changes them, and sampler.call_environments asks others like them"
        return AttributeError(f"{name}: the environments are the server's, and show no attributes and methods: {hint}")

    def _seeded(self, seed: int | Sequence[int | None]) -> dict[str, Any]:
        """Return the arguments of `drive` for a seed."""
        num_rows, is_joint = self._session.num_rows, self._session.has_joint_rows
        if isinstance(seed, int | np.integer):
            check_integer("seed", seed, 64 if is_joint else 32, signed=False)
            self._roots = np.random.default_rng(seed)
            return {"seed": int(seed), "env_seeds": None if is_joint else range(seed, seed + num_rows)}
        if is_joint or len(seed) != num_rows:
            expected = "one seed, because rows are stepped at once" if is_joint else f"{num_rows}, one for each row"
            raise InvalidArgumentError.of("seed", expected=expected, got=f"{len(seed)} seeds")
        seeds = [random.getrandbits(31) if each is None else each for each in seed]
        for row, each in enumerate(seeds):
            check_integer(f"seed[{row}]", each, 32, signed=False)
        self._roots = np.random.default_rng(seeds)
        return {"seed": _root(self._roots), "env_seeds": seeds}

    @property
    def env_seeds(self) -> NDArray[np.uint64]:
        """(N,), the seed of the last reset of each row's environment."""
        return self._step.env_seeds

    def batch(self) -> EpisodeBatch:
        """Return what was recorded since the last call; see `Session.batch`."""
        return self._session.batch()

    def _observations(self, columns: Columns) -> Any:
        """Return observations of rows as the space has them, in arrays that may be changed."""
        leaves = {name: writable(column) for name, column in leaves_of(columns).items()}
        return space_values(leaves, self._own_spaces[0])

    def _last_observations(self) -> Iterator[tuple[int, Any]]:
        """Yield the rows whose episodes have ended with the last step, and the last observation of each episode."""
        leaves = {name: writable(column) for name, column in leaves_of(self._step.last_observations).items()}
        for position, row in enumerate(self._step.ended_rows.tolist()):
            yield row, space_values({name: column[position] for name, column in leaves.items()}, self._own_spaces[0])


def writable(column: np.ndarray) -> np.ndarray:
    """Return a column that may be changed, as wrappers do: a copy of one that belongs to a message."""
    return column if column.flags.writeable else column.copy()


def _root(generator: np.random.Generator) -> int:
    """Return the next root seed."""
    return int(generator.integers(1 << 64, dtype=np.uint64))
