"""What an agent written in Python has to do; docs/agents.md tells how the server comes by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

__all__ = ["PythonPolicy"]


class PythonPolicy(Protocol):
    """What a factory makes, `factory(observation_space, action_space, **kwargs)` with spaces of gymnasium's.

    It acts in M rows of environments at once, and M differs from call to call. A row's action, infos and next states
    depend on that row's observation, noise and states alone: on no other row, on no random numbers but the noise, and
    on nothing that it remembers from an earlier call but the states. So it needs no reset, and episodes come again
    wherever they run.

    It may have an attribute `noise_width`: K, how many random numbers one action takes; without it none.
    """

    def set_parameters(self, parameters: Mapping[str, np.ndarray]) -> None:
        """Takes its numbers; called once, before all else, with an empty mapping if there are none.

        Args:
            parameters: by name, all of them: those that an update has left out are as they were before it. The arrays
                cannot be written to.

        Raises:
            Exception: there is something wrong with them. The client is told its text, and nothing changes.
        """
        ...

    def initial_states(self) -> Mapping[str, np.ndarray]:
        """What it remembers of a row before an episode's first action: arrays of one row (*S), by name; often none."""
        ...

    # What observations and actions are depends on the spaces, which types know nothing of.
    def act(
        self, observations: Any, noise: np.ndarray, states: Mapping[str, np.ndarray]
    ) -> tuple[Any, Mapping[str, np.ndarray], Mapping[str, np.ndarray]]:
        """Chooses an action for each row.

        Args:
            observations: (M, *O); of a Dict or Tuple space a mapping with such an array for each leaf, by its name,
                as `camera` or `pose/0`.
            noise: (M, K) float64, standard normal; all 0 in calls that are to be deterministic.
            states: by name (M, *S), as the last action of each row has left them.

        Returns:
            The actions, (M, *A) or a mapping by the names of leaves, of the space's dtype or one that converts to it
            within its kind. Infos by name, (M, ...), always of the same names, dtypes and shapes. The states after
            these actions.

        Raises:
            Exception: it fails. The call for samples ends, and the client is told the text.
        """
        ...
