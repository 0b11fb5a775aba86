"""The Python agent of the cases, an installed agent of the name `conformance`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Space, spaces

from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    from rollserve_server.agents import PythonPolicy

__all__ = ["ConformancePolicy"]


class ConformancePolicy:
    """A policy that compares the first number of the observation with the parameter `threshold`."""

    def __init__(self, observation_space: Space[Any], action_space: Space[Any], *, gain: float = 1.0) -> None:
        """Prepare the policy for a Box of observations, and actions that are Discrete.

        Raises:
            ValueError: other spaces.
        """
        for name, space, kind in (
            ("observation_space", observation_space, spaces.Box),
            ("action_space", action_space, spaces.Discrete),
        ):
            if not isinstance(space, kind):
                raise ValueError(f"{name}: {mismatch(f'a {kind.__name__}', str(space))}")
        self._gain, self._threshold = gain, np.zeros(1)

    def set_parameters(self, parameters: Mapping[str, np.ndarray]) -> None:
        """Set `threshold`, (1,); 0 if it is left out."""
        self._threshold = parameters.get("threshold", self._threshold)

    def initial_states(self) -> Mapping[str, np.ndarray]:
        """Return no states."""
        return {}

    def act(
        self, observations: np.ndarray, noise: np.ndarray, states: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, Mapping[str, np.ndarray], Mapping[str, np.ndarray]]:
        """Return the actions of M rows, and the info `score` (M,): how far each is above the threshold."""
        scores = self._gain * observations[:, 0].astype(np.float64) - self._threshold
        return (scores > 0).astype(np.int64), {"score": scores}, {}


_checked: type[PythonPolicy] = ConformancePolicy  # type checkers compare the class with the protocol
