"""Networks: layers of a multilayer perceptron in numpy, float32, with recurrent cores."""

from __future__ import annotations

import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rollserve_server.agents.agent import FLOAT32, StateSpec

if TYPE_CHECKING:
    from rollserve_server.agents.specs import Activation, ArrayType, CoreKind, CoreSpec, MlpSpec

__all__ = ["Layer", "Network", "core_shapes", "networks_of", "num_tile_rows", "tile_rows"]


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
        self.core: _Core | None = None
        self._steps: list[_Step] = []
        for number, layer in enumerate(layers):
            is_last = number == len(layers) - 1
            before: _Action | None = None
            if is_last and has_core and spec.core is not None:
                self.core = (_Gru if spec.core.kind == "gru" else _Lstm)(spec.core.size, spec.parameters, tiles)
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
    activate = _ACTIVATIONS[spec.activation](values)
    if layer.norm is None or spec.norm_epsilon is None:
        return activate
    means, squares = np.empty((*values.shape[:-1], 1), np.float32), np.empty_like(values)
    return functools.partial(
        _normalize_and_activate, values, *layer.norm, np.float32(spec.norm_epsilon), means, squares, activate
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


_NUM_GATES: Mapping[CoreKind, int] = {"gru": 3, "lstm": 4}


def core_shapes(spec: CoreSpec, num_inputs: int) -> dict[str, ArrayType]:
    """Return dtypes and shapes of a core's parameters."""
    size = _NUM_GATES[spec.kind] * spec.size
    shapes = {"weight_ih": (size, num_inputs), "weight_hh": (size, spec.size), "bias_ih": (size,), "bias_hh": (size,)}
    return {f"core/{name}": (FLOAT32, shape) for name, shape in shapes.items()}


class _Core(ABC):
    """A recurrent core between layers, which computes what PyTorch's nn.GRU or nn.LSTM with one layer does.

    Attributes:
        states: arrays of the recurrent state.
        memory: value of each state, (tiles, rows, H): set by the caller before `run`, which overwrites it.
        output: (tiles, rows, H), which `run` overwrites.
    """

    def __init__(
        self, names: tuple[str, ...], size: int, parameters: Mapping[str, np.ndarray], tiles: np.ndarray
    ) -> None:
        self._tiles = tiles
        self._weight_ih, self._weight_hh = (
            np.ascontiguousarray(parameters[f"core/{name}"].T) for name in ("weight_ih", "weight_hh")
        )
        self._bias_ih, self._bias_hh = parameters["core/bias_ih"], parameters["core/bias_hh"]
        self.states = tuple(StateSpec(name, np.zeros(size, np.float32)) for name in names)
        self.memory = tuple(np.zeros((*tiles.shape[:2], size), np.float32) for _ in names)
        self.output = self.memory[0]
        # The gates' terms from the input and from the hidden state.
        self._from_input, self._from_memory = np.zeros((2, *tiles.shape[:2], len(self._bias_ih)), np.float32)

    @abstractmethod
    def run(self) -> None:
        """Compute memory and output from input and memory, for all rows."""

    def _multiply(self) -> None:
        np.matmul(self._tiles, self._weight_ih, out=self._from_input)
        np.add(self._from_input, self._bias_ih, out=self._from_input)
        np.matmul(self.memory[0], self._weight_hh, out=self._from_memory)
        np.add(self._from_memory, self._bias_hh, out=self._from_memory)


class _Gru(_Core):
    def __init__(self, size: int, parameters: Mapping[str, np.ndarray], tiles: np.ndarray) -> None:
        super().__init__(("h",), size, parameters, tiles)
        self._gates, self._new = self._from_input[..., : 2 * size], self._from_input[..., 2 * size :]
        self._reset, self._keep = self._gates[..., :size], self._gates[..., size:]
        self._gates_from_memory, self._new_from_memory = (
            self._from_memory[..., : 2 * size],
            self._from_memory[..., 2 * size :],
        )

    def run(self) -> None:
        h, new, new_from_memory = self.output, self._new, self._new_from_memory
        self._multiply()
        np.add(self._gates, self._gates_from_memory, out=self._gates)
        _sigmoid(self._gates, self._gates)
        np.multiply(new_from_memory, self._reset, out=new_from_memory)
        np.add(new, new_from_memory, out=new)
        np.tanh(new, out=new)
        # (1 - keep) · new + keep · h
        np.subtract(h, new, out=h)
        np.multiply(h, self._keep, out=h)
        np.add(h, new, out=h)


class _Lstm(_Core):
    def __init__(self, size: int, parameters: Mapping[str, np.ndarray], tiles: np.ndarray) -> None:
        super().__init__(("h", "c"), size, parameters, tiles)
        self._first_gates = self._from_input[..., : 2 * size]
        self._input, self._forget, self._new, self._out = (
            self._from_input[..., number * size : (number + 1) * size] for number in range(4)
        )

    def run(self) -> None:
        h, c = self.memory
        self._multiply()
        np.add(self._from_input, self._from_memory, out=self._from_input)
        _sigmoid(self._first_gates, self._first_gates)
        _sigmoid(self._out, self._out)
        np.tanh(self._new, out=self._new)
        np.multiply(c, self._forget, out=c)
        np.multiply(self._new, self._input, out=self._new)
        np.add(c, self._new, out=c)
        np.tanh(c, out=h)
        np.multiply(h, self._out, out=h)


def _sigmoid(x: np.ndarray, out: np.ndarray) -> None:
    """Compute the sigmoid by tanh, which does not overflow."""
    np.multiply(x, 0.5, out=out)
    np.tanh(out, out=out)
    np.add(out, 1, out=out)
    np.multiply(out, 0.5, out=out)


def num_tile_rows(spec: MlpSpec, networks: Sequence[Sequence[Layer]]) -> int:
    """Return the number of rows in a tile of all networks of a spec; see `tile_rows`."""
    shapes = [layer.weight.shape for layers in networks for layer in layers]
    if spec.core is not None:
        core = core_shapes(spec.core, spec.layer_sizes[-2]).values()
        shapes.extend(shape[::-1] for _, shape in core if len(shape) == 2)
    return min(itertools.starmap(tile_rows, shapes))


_CANDIDATES = (8, 4, 2)
_NUM_TRIALS = 4


@functools.cache
def tile_rows(num_inputs: int, num_outputs: int) -> int:
    """Return the number of float32 rows to multiply at once with a matrix of this shape, which makes a tile.

    BLAS sums in an order that depends on the number of rows and, within a product, on the part of the kernel that a row
    falls into: OpenBLAS's kernels for Haswell and Zen take twelve rows at once, then four. With continuous actions, one
    different bit makes a different episode. So products always have the same small number of rows, a tile, which is
    padded with rows that nobody reads.

    This is the largest of 8, 4, 2 and 1 that makes a row's bits independent of the other rows, found by trying on this
    machine. Among OpenBLAS 0.3.31's kernels for x86-64, all pass with 8 rows; those for Haswell and Zen fail from 12.
    """
    generator = np.random.default_rng(0)
    matrix = generator.standard_normal((num_inputs, num_outputs), np.float32)
    for num_rows in _CANDIDATES:
        if all(_is_independent(matrix, num_rows, generator) for _ in range(_NUM_TRIALS)):
            return num_rows
    return 1


def _is_independent(matrix: np.ndarray, num_rows: int, generator: np.random.Generator) -> bool:
    """Whether a row's product is the same in each position, with other neighbours each time."""
    row = generator.standard_normal(matrix.shape[0], np.float32)
    products = []
    for position in range(num_rows):
        rows = generator.standard_normal((num_rows, matrix.shape[0]), np.float32)
        rows[position] = row
        products.append(np.matmul(rows, matrix)[position])
    return all(np.array_equal(product, products[0]) for product in products)


_Step = tuple[_Action | None, np.ndarray, np.ndarray, np.ndarray, np.ndarray, _Action | None]
"""Step of a layer: action before it; its input, weight, bias and output; action after it, in place."""

_ERF_NUMERATOR = (
    -2.72614225801306e-10,
    2.77068142495902e-08,
    -2.10102402082508e-06,
    -5.69250639462346e-05,
    -7.34990630326855e-04,
    -2.95459980854025e-03,
    -1.60960333262415e-02,
)

_ERF_DENOMINATOR = (
    -1.45660718464996e-05,
    -2.13374055278905e-04,
    -1.68282697438203e-03,
    -7.37332916720468e-03,
    -1.42647390514189e-02,
)
"""Coefficients of Eigen's erf for float32, x · p(x²) / q(x²) between -4 and 4, with an error of at most 5e-7.

numpy has no erf, and SciPy would be a large dependency for this alone.
"""


def _elu(x: np.ndarray, below: np.ndarray) -> None:
    np.minimum(x, 0, out=below)
    np.exp(below, out=below)
    np.subtract(below, 1, out=below)
    np.maximum(x, 0, out=x)
    np.add(x, below, out=x)


def _silu(x: np.ndarray, gate: np.ndarray) -> None:
    _sigmoid(x, gate)
    np.multiply(x, gate, out=x)


def _gelu_tanh(x: np.ndarray, gate: np.ndarray) -> None:
    np.multiply(x, x, out=gate)
    np.multiply(gate, 0.044715, out=gate)
    np.add(gate, 1, out=gate)
    np.multiply(gate, x, out=gate)
    np.multiply(gate, math.sqrt(2 / math.pi), out=gate)
    np.tanh(gate, out=gate)
    _open(gate, x)


def _gelu(x: np.ndarray, gate: np.ndarray, squares: np.ndarray, above: np.ndarray, under: np.ndarray) -> None:
    np.multiply(x, math.sqrt(0.5), out=gate)
    np.maximum(gate, -4, out=gate)
    np.minimum(gate, 4, out=gate)
    np.multiply(gate, gate, out=squares)
    _polynomial(_ERF_NUMERATOR, squares, above)
    _polynomial(_ERF_DENOMINATOR, squares, under)
    np.divide(above, under, out=above)
    np.multiply(gate, above, out=gate)
    _open(gate, x)


def _open(gate: np.ndarray, x: np.ndarray) -> None:
    """Multiply x by (1 + gate) / 2; overwrites the gate."""
    np.add(gate, 1, out=gate)
    np.multiply(gate, 0.5, out=gate)
    np.multiply(x, gate, out=x)


def _polynomial(coefficients: tuple[float, ...], x: np.ndarray, out: np.ndarray) -> None:
    """Evaluate a polynomial; the coefficient of the highest power is first."""
    first, *others, last = coefficients
    np.multiply(x, first, out=out)
    for coefficient in others:
        np.add(out, coefficient, out=out)
        np.multiply(out, x, out=out)
    np.add(out, last, out=out)


_ACTIVATIONS: Mapping[Activation, Callable[[np.ndarray], _Action]] = {
    "tanh": lambda x: functools.partial(np.tanh, x, out=x),
    "relu": lambda x: functools.partial(np.maximum, x, 0, out=x),
    "elu": lambda x: functools.partial(_elu, x, np.empty_like(x)),
    "gelu": lambda x: functools.partial(_gelu, x, *np.empty((4, *x.shape), np.float32)),
    "gelu_tanh": lambda x: functools.partial(_gelu_tanh, x, np.empty_like(x)),
    "silu": lambda x: functools.partial(_silu, x, np.empty_like(x)),
}
"""Functions that return the action of an activation on an array, in place; the arrays beside it are scratch."""
