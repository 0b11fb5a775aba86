"""The interface of all heads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from rollserve_server.agents.agent import InfoSpec

__all__ = ["Head"]


class Head(Protocol):
    """A head, which turns a network's outputs into actions.

    Attributes:
        inputs: network outputs that the head reads; one row of each is flat.
        noise_width: K, random numbers per action.
        factors: exploration factors, or None; see `Agent.factors`.
        infos: infos that the head returns.
    """

    @property
    def inputs(self) -> tuple[InfoSpec, ...]: ...  # noqa: D102

    @property
    def noise_width(self) -> int: ...  # noqa: D102

    @property
    def factors(self) -> np.ndarray | None: ...  # noqa: D102

    @property
    def infos(self) -> tuple[InfoSpec, ...]: ...  # noqa: D102

    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        """Fill `noise`, (steps, K) float64, for the next steps of one episode."""
        ...

    def act(self, outputs: Sequence[np.ndarray], noise: np.ndarray) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
        """Choose an action for each row.

        Args:
            outputs: an array (M, size) for each of `inputs`, of its dtype.
            noise: (M, K) float64.

        Returns:
            An array (M, *A) for each leaf of the action space, and an array (M, *I) for each info.
        """
        ...

    def act_best(self, outputs: Sequence[np.ndarray]) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
        """Choose the best action for each row, without chance and with a log-probability of 0; returns as `act`."""
        ...
