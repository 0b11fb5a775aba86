"""Multilayer perceptrons in numpy, float32."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from rollserve_server.agents.tiles import tile_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rollserve_server.agents.heads import Head
    from rollserve_server.agents.specs import Activation
    from rollserve_server.envs import Leaf

__all__ = ["Flattener", "MlpAgent", "Network"]

_ACTIVATIONS: dict[Activation, Callable[[np.ndarray], object]] = {
    "tanh": lambda x: np.tanh(x, out=x),
    "relu": lambda x: np.maximum(x, 0, out=x),
}


class Flattener:
    """Turns observations into the input of a network, as `gymnasium.spaces.flatten` does for one."""

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        self._leaves = leaves
        self.size = sum(spaces.flatdim(leaf.space) for leaf in leaves)

    def __call__(self, observations: Sequence[np.ndarray], out: np.ndarray) -> None:
        """Writes the flat observations.

        Args:
            observations: for each leaf (M, *O).
            out: (M, size) float32.
        """
        begin = 0
        for leaf, column in zip(self._leaves, observations, strict=True):
            end = begin + spaces.flatdim(leaf.space)
            _flatten_leaf(leaf.space, column, out[:, begin:end])
            begin = end


class Network:
    """The layers. Holds buffers for a fixed number of rows."""

    def __init__(
        self,
        layer_sizes: Sequence[int],
        activation: Activation | None,
        parameters: Mapping[str, np.ndarray],
        num_rows: int,
        *,
        together: bool = False,
    ) -> None:
        """Takes the parameters; for `together` see `build_agent`."""
        num_layers = len(layer_sizes) - 1
        rows = num_rows if together else min(itertools.starmap(tile_rows, itertools.pairwise(layer_sizes)))
        num_tiles = -(-num_rows // rows)
        self._weights = [np.ascontiguousarray(parameters[f"{i}/weight"].T) for i in range(num_layers)]
        self._biases = [parameters[f"{i}/bias"] for i in range(num_layers)]
        self._activate = _ACTIVATIONS[activation] if activation else None
        self._tiles = [np.zeros((num_tiles, rows, size), np.float32) for size in layer_sizes]
        self.input = self._tiles[0].reshape(-1, layer_sizes[0])[:num_rows]
        self._output = self._tiles[-1].reshape(-1, layer_sizes[-1])[:num_rows]

    def forward(self) -> np.ndarray:
        """The output, (M, size), for what stands in `input`. The next call overwrites it."""
        for i, (weight, bias) in enumerate(zip(self._weights, self._biases, strict=True)):
            layer = self._tiles[i + 1]
            np.matmul(self._tiles[i], weight, out=layer)
            np.add(layer, bias, out=layer)
            if i + 1 < len(self._weights) and self._activate is not None:
                self._activate(layer)
        return self._output


class MlpAgent:
    """A network and a head; see `protos/rollserve/v1/agent.proto`."""

    def __init__(self, flattener: Flattener, network: Network, head: Head) -> None:
        self._flattener = flattener
        self._network = network
        self._head = head
        self.noise_width = head.noise_width
        self.infos = head.infos
        self.draw_noise = head.draw_noise

    def act(
        self, observations: Sequence[np.ndarray], noise: np.ndarray
    ) -> tuple[Sequence[np.ndarray], Mapping[str, np.ndarray]]:
        """See Agent."""
        self._flattener(observations, self._network.input)
        return self._head.act((self._network.forward(),), noise)

    def failures(self) -> Mapping[int, str]:
        """See Agent."""
        return {}


def _flatten_leaf(space: Any, column: np.ndarray, out: np.ndarray) -> None:
    match space:
        case spaces.Discrete():
            _one_hot(column - space.start, out)
        case spaces.MultiDiscrete():
            begin = 0
            positions = (column - space.start).reshape(len(column), -1)
            for element, n in enumerate(space.nvec.ravel()):
                _one_hot(positions[:, element], out[:, begin : begin + n])
                begin += n
        case _:
            out[...] = column.reshape(len(column), -1)


def _one_hot(positions: np.ndarray, out: np.ndarray) -> None:
    out[...] = 0
    out[np.arange(len(positions)), positions] = 1
