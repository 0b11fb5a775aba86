"""Many parameter sets of one multilayer perceptron, side by side."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.agents.finiteness import Finiteness
from rollserve_server.agents.mlp.agent import Layer, Network, networks_of, num_tile_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rollserve_server.agents.agent import StateSpec
    from rollserve_server.agents.heads.head import Head
    from rollserve_server.agents.mlp.agent import Flattener
    from rollserve_server.agents.specs import MlpSpec

__all__ = ["StackedMlpAgent"]


class StackedMlpAgent:
    """Acts in each row with the parameters of one member of a population; see PopulationAgent.

    Each row has a tile for itself, filled up to the size that MlpAgent's have: so a row's action has the same bits as
    that of an MlpAgent with the member's parameters.
    """

    states: tuple[StateSpec, ...] = ()
    side_by_side = True

    def __init__(
        self,
        spec: MlpSpec,
        member_spec: Callable[[int], MlpSpec],
        flattener: Flattener,
        head: Head,
        num_rows: int,
        *,
        deterministic: bool,
    ) -> None:
        """Takes what all members have in common.

        Args:
            spec: of any of them.
            member_spec: gives that of a member.
            flattener: of the observations.
            head: made without `log_std`, which it is given for each row if it is one of the parameters.
            num_rows: M.
            deterministic: whether it does what it holds to be best always.
        """
        self._member_spec = member_spec
        self._flattener = flattener
        self._head = head
        self._deterministic = deterministic
        self.noise_width, self.factors, self.infos = head.noise_width, head.factors, head.infos
        self.draw_noise = head.draw_noise
        networks = networks_of(spec)
        # Values do not act, but they count in the size of tiles.
        self._layers = [_for_each_row(layer, num_rows) for layer in networks[0]]
        tiles = np.zeros((num_rows, num_tile_rows(spec, networks), flattener.size), np.float32)
        self._input = tiles[:, 0]
        self._network = Network(self._layers, spec, tiles, has_core=False)
        self._its_output = self._network.output.reshape(num_rows, tiles.shape[1], -1)[:, 0]
        # As MlpAgent has them: one row behind the other.
        output = self._output = np.zeros(self._its_output.shape, np.float32)
        self._finiteness = Finiteness([output])
        log_std = spec.parameters.get("log_std")
        self._log_std = None if log_std is None else np.zeros((num_rows, len(log_std)), np.float32)
        wanted = head.inputs if self._log_std is None else head.inputs[:1]
        ends = itertools.accumulate((port.shape[0] for port in wanted), initial=0)
        self._outputs = [output[:, begin:end] for begin, end in itertools.pairwise(ends)]
        if self._log_std is not None:
            self._outputs.append(self._log_std)
        self._members = [-1] * num_rows
        self._last: tuple[int, MlpSpec, Sequence[Layer]] = (-1, spec, networks[0])

    def begin(self, row: int, member: int) -> None:
        """See PopulationAgent."""
        if self._members[row] == member:
            return
        if self._last[0] != member:
            spec = self._member_spec(member)
            self._last = member, spec, networks_of(spec)[0]
        _, spec, layers = self._last
        for stacked, layer in zip(self._layers, layers, strict=True):
            stacked.weight[row], stacked.bias[row] = layer.weight, layer.bias
            if stacked.norm is not None and layer.norm is not None:
                for numbers, its_numbers in zip(stacked.norm, layer.norm, strict=True):
                    numbers[row] = its_numbers
        if self._log_std is not None:
            self._log_std[row] = spec.parameters["log_std"]
        self._members[row] = member

    def act(
        self, observations: Sequence[np.ndarray], noise: np.ndarray, states: Sequence[np.ndarray] = ()
    ) -> tuple[Sequence[np.ndarray], Mapping[str, np.ndarray]]:
        """See Agent."""
        self._flattener(observations, self._input)
        self._network.run()
        np.copyto(self._output, self._its_output)
        self._finiteness.look()
        return self._head.act_best(self._outputs) if self._deterministic else self._head.act(self._outputs, noise)

    def failures(self) -> Mapping[int, str]:
        """See Agent."""
        return self._finiteness.failures()


def _for_each_row(layer: Layer, num_rows: int) -> Layer:
    """Room for the layer's numbers in each row."""
    bias, *norm = (np.zeros((num_rows, 1, layer.bias.size), np.float32) for _ in (layer.bias, *(layer.norm or ())))
    weight = np.zeros((num_rows, *layer.weight.shape), np.float32)
    return Layer(weight, bias, (norm[0], norm[1]) if norm else None)
