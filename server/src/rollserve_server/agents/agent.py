"""What every kind of agent can do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

__all__ = ["FLOAT32", "LOG_PROB", "VALUE", "Agent", "InfoSpec", "StateSpec"]

FLOAT32 = np.dtype(np.float32)


class InfoSpec(NamedTuple):
    """One of the infos that an agent gives with each action: its name, and a row's dtype and shape."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]


class StateSpec(NamedTuple):
    """One of the arrays that an agent remembers of each row: its name, and what it is before an episode's first action.

    Its dtype and shape (*S) are those of `initial`.
    """

    name: str
    initial: np.ndarray


LOG_PROB = InfoSpec("log_prob", FLOAT32, ())
VALUE = InfoSpec("value", FLOAT32, ())


class Agent(Protocol):
    """Acts in M rows of environments at once.

    All randomness comes from outside, as noise that is drawn for each row from its episode's own stream, and so does
    all memory, as states. A row's action and next states depend on that row's observation, noise and states alone, to
    the last bit: not on the other rows, nor on its position. If it was built for rows that are always together, they
    depend on those of all rows.

    Attributes:
        noise_width: K, how many random numbers one action takes.
        factors: if not None, the first of these numbers is not drawn: for each action of the episode of index i it is
            the one at i modulo their number.
        infos: what `act` tells of each action.
        states: what it remembers of each row from one action to the next; nothing, unless it is recurrent.
    """

    @property
    def noise_width(self) -> int: ...  # noqa: D102

    @property
    def factors(self) -> np.ndarray | None: ...  # noqa: D102

    @property
    def infos(self) -> tuple[InfoSpec, ...]: ...  # noqa: D102

    @property
    def states(self) -> tuple[StateSpec, ...]: ...  # noqa: D102

    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        """Fills `noise`, (steps, K) float64, with what the next steps of one episode take."""
        ...

    def act(
        self, observations: Sequence[np.ndarray], noise: np.ndarray, states: Sequence[np.ndarray] = ()
    ) -> tuple[Sequence[np.ndarray], Mapping[str, np.ndarray]]:
        """Chooses an action for each row.

        Args:
            observations: for each leaf of the observation space (M, *O).
            noise: (M, K) float64.
            states: for each of the agent's states (M, *S), as its last action left them; written over with what they
                are after this one.

        Returns:
            For each leaf of the action space (M, *A), and for each info (M, *I). The arrays may be reused by the next
            call.

        Raises:
            AgentFailedError: it fails.
        """
        ...

    def failures(self) -> Mapping[int, str]:
        """What is wrong with what the last call of `act` gave, by the number of the row; usually nothing."""
        ...
