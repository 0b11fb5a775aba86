"""Networks: layers of a multilayer perceptron in numpy, float32."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rollserve_server.agents.mlp.activations import ACTIVATIONS, NUM_SCRATCH
from rollserve_server.agents.mlp.cores import build_core, core_shapes
from rollserve_server.agents.mlp.tiles import tile_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollserve_server.agents.mlp.cores import Core
    from rollserve_server.agents.specs.mlp import MlpSpec

__all__ = ["Layer", "Network", "networks_of", "num_tile_rows"]


class Layer(NamedTuple):
    """The parameters of a layer, shared by all tiles or with one set for each tile.

    Attributes:
        weight: (inputs, outputs), or (tiles, inputs, outputs).
        bias: (outputs,), or (tiles, 1, outputs).
        norm: weight and bias of the layer norm, each of the bias's shape; None without layer norm.
    """

    weight: np.ndarray
    bias: np.ndarray
    norm: tuple[np.ndarray, np.ndarray] | None


_Action = Callable[[], object]
_Step = tuple[_Action | None, np.ndarray, np.ndarray, np.ndarray, np.ndarray, _Action | None]
"""Step of a layer: action before it; its input, weight, bias and output; action after it, in place."""


class Network:
    """Layers in sequence, each with a buffer for its output.

    Attributes:
        core: recurrent core before the last layer; None without a core.
        output: (at least M, size), which `run` overwrites.
    """

    def __init__(self, layers: Sequence[Layer], spec: MlpSpec, tiles: np.ndarray, *, has_core: bool) -> None:
        """Connect the layers.

        Args:
            layers: layers in order.
            spec: MLP that the layers belong to.
            tiles: input buffer, (tiles, rows, size).
            has_core: whether this network has the spec's core, if the spec has one.
        """
        self.core: Core | None = None
        self._steps: list[_Step] = []
        for number, layer in enumerate(layers):
            is_last = number == len(layers) - 1
            before: _Action | None = None
            if is_last and has_core and spec.core is not None:
                self.core = build_core(spec.core, spec.parameters, tiles)
                before, tiles = self.core.run, self.core.output
            source, tiles = tiles, np.zeros((*tiles.shape[:2], layer.bias.shape[-1]), np.float32)
            after = None if is_last else _activation(tiles, layer, spec)
            self._steps.append((before, source, layer.weight, layer.bias, tiles, after))
        self.output = tiles.reshape(-1, tiles.shape[2])

    def run(self) -> None:
        """Compute the output from the input buffer."""
        for before, source, weight, bias, out, after in self._steps:
            if before is not None:
                before()
            np.matmul(source, weight, out=out)
            np.add(out, bias, out=out)
            if after is not None:
                after()


def num_tile_rows(spec: MlpSpec, networks: Sequence[Sequence[Layer]]) -> int:
    """Return the number of rows in a tile of all networks of a spec; see `tile_rows`."""
    shapes = [layer.weight.shape for layers in networks for layer in layers]
    if spec.core is not None:
        core = core_shapes(spec.core, spec.layer_sizes[-2]).values()
        shapes.extend(shape[::-1] for _, shape in core if len(shape) == 2)
    return min(itertools.starmap(tile_rows, shapes))


def networks_of(spec: MlpSpec) -> list[list[Layer]]:
    """Return the layers of the policy network and, if the spec has one, of a separate value network.

    A shared value is appended to the policy's last layer, so one matrix product computes both.
    """
    parameters = spec.parameters
    policy = _layers(spec, "", len(spec.layer_sizes) - 1)
    match spec.value:
        case None:
            return [policy]
        case "shared":
            weight, bias, _ = policy[-1]
            joined = np.concatenate([weight, parameters["value/weight"].T], axis=1)
            policy[-1] = Layer(joined, np.concatenate([bias, parameters["value/bias"]]), None)
            return [policy]
        case hidden_sizes:
            return [policy, _layers(spec, "value/", len(hidden_sizes) + 1)]


def _layers(spec: MlpSpec, prefix: str, num_layers: int) -> list[Layer]:
    layers = []
    for number in range(num_layers):
        name = f"{prefix}{number}"
        has_norm = spec.norm_epsilon is not None and number < num_layers - 1
        norm = (spec.parameters[f"{name}/norm/weight"], spec.parameters[f"{name}/norm/bias"]) if has_norm else None
        weight = np.ascontiguousarray(spec.parameters[f"{name}/weight"].T)
        layers.append(Layer(weight, spec.parameters[f"{name}/bias"], norm))
    return layers


def _activation(values: np.ndarray, layer: Layer, spec: MlpSpec) -> _Action | None:
    """Return the function that normalizes and activates a hidden layer's values in place."""
    if spec.activation is None:
        return None
    scratch = np.empty((NUM_SCRATCH, *values.shape), np.float32)
    activate = functools.partial(ACTIVATIONS[spec.activation], values, *scratch)
    if layer.norm is None or spec.norm_epsilon is None:
        return activate
    means = np.empty((*values.shape[:-1], 1), np.float32)
    return functools.partial(
        _normalize_and_activate, values, *layer.norm, np.float32(spec.norm_epsilon), means, scratch[0], activate
    )


def _normalize_and_activate(
    values: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    epsilon: np.float32,
    means: np.ndarray,
    squares: np.ndarray,
    activate: _Action,
) -> None:
    size = values.shape[-1]
    np.add.reduce(values, axis=-1, keepdims=True, out=means)
    np.divide(means, size, out=means)
    np.subtract(values, means, out=values)
    np.multiply(values, values, out=squares)
    np.add.reduce(squares, axis=-1, keepdims=True, out=means)
    np.divide(means, size, out=means)
    np.add(means, epsilon, out=means)
    np.sqrt(means, out=means)
    np.divide(values, means, out=values)
    np.multiply(values, weight, out=values)
    np.add(values, bias, out=values)
    activate()
