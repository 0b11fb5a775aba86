"""Multilayer perceptrons in numpy, float32."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gymnasium import spaces

from rollserve_server.agents.agent import VALUE
from rollserve_server.agents.finiteness import Finiteness
from rollserve_server.agents.mlp.activations import ACTIVATIONS, NUM_SCRATCH
from rollserve_server.agents.mlp.cores import build_core, core_matrices
from rollserve_server.agents.mlp.tiles import tile_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollserve_server.agents.heads.head import Head
    from rollserve_server.agents.mlp.cores import Core
    from rollserve_server.agents.specs import MlpSpec
    from rollserve_server.envs import Leaf

__all__ = ["Flattener", "Layer", "MlpAgent", "Network", "networks_of", "num_tile_rows"]


class Flattener:
    """Admission observations into the input of a network, as `gymnasium.spaces.flatten` does for one."""

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


class MlpAgent:
    """Networks and a head; see `protos/rollserve/v1/agent.proto`. Holds buffers for a fixed number of rows."""

    def __init__(
        self,
        spec: MlpSpec,
        flattener: Flattener,
        head: Head,
        num_rows: int,
        *,
        together: bool = False,
        deterministic: bool = False,
    ) -> None:
        """Takes a spec that has been checked; for `together` see `build_agent`."""
        self._flattener = flattener
        self._head = head
        self._deterministic = deterministic
        self.noise_width = head.noise_width
        self.factors = head.factors
        self.infos = head.infos if spec.value is None else (*head.infos, VALUE)
        self.draw_noise = head.draw_noise
        networks = networks_of(spec)
        rows = num_rows if together else num_tile_rows(spec, networks)
        tiles = np.zeros((-(-num_rows // rows), rows, flattener.size), np.float32)
        self._input = tiles.reshape(-1, flattener.size)[:num_rows]
        # The first is the policy's.
        self._networks = [Network(layers, spec, tiles, has_core=not i) for i, layers in enumerate(networks)]
        core = self._networks[0].core
        self.states = core.states if core else ()
        self._memory = [part.reshape(-1, part.shape[2])[:num_rows] for part in core.memory] if core else []
        # The outputs stand in the same place always.
        outputs = [network.output[:num_rows] for network in self._networks]
        self._finiteness = Finiteness(outputs)
        ends = list(itertools.accumulate((wanted.shape[0] for wanted in head.inputs), initial=0))
        self._outputs = [outputs[0][:, begin:end] for begin, end in itertools.pairwise(ends)]
        self._value = None if spec.value is None else outputs[-1][:, -1]

    @np.errstate(all="ignore")  # what is not finite is told by `failures`
    def act(
        self, observations: Sequence[np.ndarray], noise: np.ndarray, states: Sequence[np.ndarray] = ()
    ) -> tuple[Sequence[np.ndarray], Mapping[str, np.ndarray]]:
        """See Agent."""
        self._flattener(observations, self._input)
        for memory, state in zip(self._memory, states, strict=True):
            memory[...] = state
        for network in self._networks:
            network.run()
        for memory, state in zip(self._memory, states, strict=True):
            state[...] = memory
        self._finiteness.look()
        if self._deterministic:
            actions, infos = self._head.act_best(self._outputs)
        else:
            actions, infos = self._head.act(self._outputs, noise)
        if self._value is not None:
            infos["value"] = self._value
        return actions, infos

    def failures(self) -> Mapping[int, str]:
        """See Agent."""
        return self._finiteness.failures()


class Layer(NamedTuple):
    """The numbers of a layer: weight (inputs, outputs), bias (outputs,), and of its norm weight and bias, if any.

    Or those of one for each tile, with the tiles and for biases and norms an axis of size 1 in front.
    """

    weight: np.ndarray
    bias: np.ndarray
    norm: tuple[np.ndarray, np.ndarray] | None


_Step = tuple[Callable[[], object] | None, np.ndarray, np.ndarray, np.ndarray, np.ndarray, Callable[[], object] | None]
"""What comes before a layer; its input, weight, bias and output; and what comes behind it, in place."""


class Network:
    """Layers one after the other, each with a buffer for its output.

    Attributes:
        core: what stands before the last of them; None for nothing.
        output: (at least M, size), which `run` overwrites.
    """

    def __init__(self, layers: Sequence[Layer], spec: MlpSpec, tiles: np.ndarray, *, has_core: bool) -> None:
        """Takes where the input stands, (tiles, rows, size), and whether the spec's core is in it, if there is any."""
        self.core: Core | None = None
        self._steps: list[_Step] = []
        for number, layer in enumerate(layers):
            is_last = number == len(layers) - 1
            begin: Callable[[], object] | None = None
            if is_last and has_core and spec.core is not None:
                self.core = build_core(spec.core, spec.parameters, tiles)
                begin, tiles = self.core.run, self.core.output
            source, tiles = tiles, np.zeros((*tiles.shape[:2], layer.bias.shape[-1]), np.float32)
            finish = None if is_last else _finish(tiles, layer, spec)
            self._steps.append((begin, source, layer.weight, layer.bias, tiles, finish))
        self.output = tiles.reshape(-1, tiles.shape[2])

    def run(self) -> None:
        """Overwrites the output with that of the input."""
        for begin, source, weight, bias, out, finish in self._steps:
            if begin is not None:
                begin()
            np.matmul(source, weight, out=out)
            np.add(out, bias, out=out)
            if finish is not None:
                finish()


def num_tile_rows(spec: MlpSpec, networks: Sequence[Sequence[Layer]]) -> int:
    """How many rows make a tile of all the networks of a spec; see `tile_rows`."""
    shapes = [layer.weight.shape for layers in networks for layer in layers]
    if spec.core is not None:
        shapes.extend(core_matrices(spec.core, spec.layer_sizes[-2]))
    return min(itertools.starmap(tile_rows, shapes))


def networks_of(spec: MlpSpec) -> list[list[Layer]]:
    """That of the policy, whose output a shared value stands behind, and that of a value of its own."""
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


def _finish(values: np.ndarray, layer: Layer, spec: MlpSpec) -> Callable[[], object] | None:
    """What is done with a hidden layer's values, in place."""
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
    activate: Callable[[], object],
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
