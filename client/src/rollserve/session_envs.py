"""Common part of the interfaces of other libraries to a session's environments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollserve_wire.columns import leaves_of
from rollserve_wire.gymnasium_spaces import space_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from rollserve.driven_step import DrivenStep
    from rollserve.episode_batch import EpisodeBatch
    from rollserve.session import Session
    from rollserve_wire.columns import Columns

__all__ = ["SessionEnvs"]


class SessionEnvs:
    """The environments of a session, which each reset begins again. Its attributes are no other library's."""

    def _begin(self, drive: Callable[..., Session], options: dict[str, Any]) -> None:
        """Begin the first session, which says how many rows there are.

        Args:
            drive: the sampler's method.
            options: its arguments.
        """
        self._drive, self._drive_options = drive, options
        self._session = drive(**options)
        self._step: DrivenStep = self._session.observe()
        self._is_new = True
        self._own_spaces = self._session.observation_space, self._session.action_space

    def _restart(self, seed: int | None) -> None:
        """Begin episodes in all rows, in another session unless this one is new and no seed is asked for."""
        if seed is not None or not self._is_new:
            self._session.close()
            given = self._drive_options if seed is None else {**self._drive_options, "seed": seed}
            self._session = self._drive(**given)
            self._step = self._session.observe()
        self._is_new = False

    @property
    def env_seeds(self) -> NDArray[np.uint64]:
        """(N,), the seed of the last reset of each row's environment."""
        return self._step.env_seeds

    def batch(self) -> EpisodeBatch:
        """Return what was recorded since the last call; see `Session.batch`."""
        return self._session.batch()

    def _observations(self, columns: Columns) -> Any:
        """Return observations of rows as the space has them."""
        return space_values(leaves_of(columns), self._own_spaces[0])

    def _last_observations(self) -> Iterator[tuple[int, Any]]:
        """Yield the rows whose episodes have ended with the last step, and the last observation of each episode."""
        leaves = leaves_of(self._step.last_observations)
        for position, row in enumerate(self._step.ended_rows.tolist()):
            yield row, space_values({name: column[position] for name, column in leaves.items()}, self._own_spaces[0])
