"""Recurrent cores in numpy, float32, that compute what PyTorch's nn.GRU and nn.LSTM with one layer do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.agents.agent import FLOAT32, StateSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollserve_server.agents.specs.mlp import CoreKind, CoreSpec
    from rollserve_server.agents.specs.shapes import ArrayType

__all__ = ["Core", "build_core", "core_shapes"]

_NUM_GATES: Mapping[CoreKind, int] = {"gru": 3, "lstm": 4}


def core_shapes(spec: CoreSpec, num_inputs: int) -> dict[str, ArrayType]:
    """Return dtypes and shapes of a core's parameters."""
    size = _NUM_GATES[spec.kind] * spec.size
    shapes = {"weight_ih": (size, num_inputs), "weight_hh": (size, spec.size), "bias_ih": (size,), "bias_hh": (size,)}
    return {f"core/{name}": (FLOAT32, shape) for name, shape in shapes.items()}


def build_core(spec: CoreSpec, parameters: Mapping[str, np.ndarray], tiles: np.ndarray) -> Core:
    """Build a core.

    Args:
        spec: kind and size of the core.
        parameters: parameters by name, with the shapes of `core_shapes`.
        tiles: input buffer, (tiles, rows, I).
    """
    return (_Gru if spec.kind == "gru" else _Lstm)(spec.size, parameters, tiles)


class Core(ABC):
    """A recurrent core between layers.

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


class _Gru(Core):
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
        _sigmoid(self._gates)
        np.multiply(new_from_memory, self._reset, out=new_from_memory)
        np.add(new, new_from_memory, out=new)
        np.tanh(new, out=new)
        # (1 - keep) · new + keep · h
        np.subtract(h, new, out=h)
        np.multiply(h, self._keep, out=h)
        np.add(h, new, out=h)


class _Lstm(Core):
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
        _sigmoid(self._first_gates)
        _sigmoid(self._out)
        np.tanh(self._new, out=self._new)
        np.multiply(c, self._forget, out=c)
        np.multiply(self._new, self._input, out=self._new)
        np.add(c, self._new, out=c)
        np.tanh(c, out=h)
        np.multiply(h, self._out, out=h)


def _sigmoid(x: np.ndarray) -> None:
    """Apply the sigmoid in place, by tanh, which does not overflow."""
    np.multiply(x, 0.5, out=x)
    np.tanh(x, out=x)
    np.add(x, 1, out=x)
    np.multiply(x, 0.5, out=x)
