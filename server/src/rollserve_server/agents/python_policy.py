"""The interface of policies written in Python; docs/agents.md describes how they reach the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

__all__ = ["PythonPolicy"]


class PythonPolicy(Protocol):
    """A policy, made by `factory(observation_space, action_space, **kwargs)` with gymnasium's spaces.

    It acts in M rows of environments at once; M differs from call to call. A row's action, infos and next states depend
    on that row's observation, noise and states alone: on no other row, on no random numbers beside the noise, and on
    nothing that the policy remembers from an earlier call beside the states. So a policy needs no reset, and episodes
    can be repeated anywhere.

    An optional attribute `noise_width` is K, the number of random numbers per action; without it, K is 0. An optional
    attribute `agent_inputs` is a list of names of what the policy asks for beside the observation: `action_mask`,
    `previous_action` and `previous_reward`. `act` then gets a mapping with them as a fourth argument.
    """

    def set_parameters(self, parameters: Mapping[str, np.ndarray]) -> None:
        """Set the parameters; called once, before all else, with an empty mapping if there are none.

        Args:
            parameters: all parameters by name, also those that an update left unchanged. The arrays are read-only.

        Raises:
            Exception: the parameters are wrong. The client gets the text, and the agent is refused.
        """
        ...

    def initial_states(self) -> Mapping[str, np.ndarray]:
        """Return a row's recurrent state before an episode's first action: arrays (*S) by name; often empty."""
        ...

    # The types of observations and actions depend on the spaces, which a type checker cannot know.
    def act(
        self, observations: Any, noise: np.ndarray, states: Mapping[str, np.ndarray]
    ) -> tuple[Any, Mapping[str, np.ndarray], Mapping[str, np.ndarray]]:
        """Choose an action for each row.

        Args:
            observations: (M, *O); for a Dict or Tuple space, a mapping with such an array for each leaf, by the leaf's
                name, such as `camera` or `pose/0`.
            noise: (M, K) float64, standard normal; all zeros in deterministic calls.
            states: arrays (M, *S) by name, as each row's last action left them.

        Returns:
            Actions, (M, *A) or a mapping by leaf name, of the space's dtype or one that converts to it within its kind.
            Infos by name, (M, ...), always of the same names, dtypes and shapes. States after these actions.

        Raises:
            Exception: the policy fails. The call for samples ends, and the client gets the text.
        """
        ...
