"""Populations of multilayer perceptrons that act side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.agents.agent import Decision, PopulationAgent
from rollserve_server.agents.finiteness import Finiteness
from rollserve_server.agents.mlp.network import Layer, Network, networks_of, num_tile_rows
from rollserve_server.agents.mlp.normalization import Normalizer
from rollserve_server.agents.specs.shapes import consecutive

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rollserve_server.agents.agent import ActionMask
    from rollserve_server.agents.heads.head import Head
    from rollserve_server.agents.mlp.flattening import NetworkInput
    from rollserve_server.agents.specs.mlp import MlpSpec

__all__ = ["StackedMlpAgent"]


class StackedMlpAgent(PopulationAgent):
    """A population whose rows each have a copy of their member's parameters.

    Each row has a tile for itself, of the size of MlpAgent's tiles. So a row's action has the same bits as the
    action of an MlpAgent with the member's parameters.
    """

    side_by_side = True

    def __init__(
        self,
        spec: MlpSpec,
        member_spec: Callable[[int], MlpSpec],
        network_input: NetworkInput,
        head: Head,
        num_rows: int,
        mask: ActionMask | None,
    ) -> None:
        """Allocate parameters and buffers for all rows.

        Args:
            spec: MLP with the shapes of all members.
            member_spec: function that returns the spec of a member.
            network_input: input of the network.
            head: head built without `log_std`. If `log_std` is a parameter, the head gets it as an output, per row.
            num_rows: M.
            mask: action mask, which the head takes; None without one.
        """
        self._member_spec = member_spec
        self.mask = mask
        self._network_input = network_input
        self._head = head
        self.noise_width, self.factors, self.infos = head.noise_width, head.factors, head.infos
        networks = networks_of(spec)
        # Members compute no separate values, but the value network counts in the size of tiles.
        self._layers = [_for_each_row(layer, num_rows) for layer in networks[0]]
        tiles = np.zeros((num_rows, num_tile_rows(spec, networks), network_input.size), np.float32)
        self._input = tiles[:, 0]
        self._normalizer: Normalizer | None = None
        if spec.normalization is not None:
            self._normalizer = Normalizer(spec.normalization, num_rows, network_input.num_observed, for_each_row=True)
        self._network = Network(self._layers, spec, tiles, has_core=False)
        self._first_rows = self._network.output.reshape(num_rows, tiles.shape[1], -1)[:, 0]
        # Contiguous rows, as MlpAgent has them.
        output = self._output = np.zeros(self._first_rows.shape, np.float32)
        self._finiteness = Finiteness([output])
        log_std = spec.parameters.get("log_std")
        self._log_std = None if log_std is None else np.zeros((num_rows, len(log_std)), np.float32)
        columns = head.inputs if self._log_std is None else head.inputs[:1]
        self._outputs = [output[:, part] for part in consecutive(column.shape[0] for column in columns)]
        if self._log_std is not None:
            self._outputs.append(self._log_std)
        self._members = [-1] * num_rows
        self._last_member: tuple[int, MlpSpec, Sequence[Layer]] = (-1, spec, networks[0])

    def assign(self, row: int, member: int) -> None:
        """Copy the member's parameters to the row."""
        if self._members[row] == member:
            return
        if self._last_member[0] != member:
            spec = self._member_spec(member)
            self._last_member = member, spec, networks_of(spec)[0]
        _, spec, layers = self._last_member
        for stacked, layer in zip(self._layers, layers, strict=True):
            stacked.weight[row], stacked.bias[row] = layer.weight, layer.bias
            if stacked.norm is not None and layer.norm is not None:
                for target, values in zip(stacked.norm, layer.norm, strict=True):
                    target[row] = values
        if self._log_std is not None:
            self._log_std[row] = spec.parameters["log_std"]
        if self._normalizer is not None:
            self._normalizer.assign(row, spec.parameters)
        self._members[row] = member

    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        """Draw the head's noise."""
        self._head.draw_noise(generator, noise)

    def act(self, observations: Sequence[np.ndarray], noise: np.ndarray, states: Sequence[np.ndarray] = ()) -> Decision:
        """Run the policy network and the head."""
        if self._normalizer is None:
            self._network_input.observe(observations, self._input)
        else:
            self._network_input.observe(observations, self._normalizer.observations)
            self._normalizer.run(self._input)
        self._network.run()
        np.copyto(self._output, self._first_rows)
        self._finiteness.look()
        outputs = self._outputs if self.mask is None else [*self._outputs, observations[-1]]
        return self._head.act(outputs, noise)

    def failures(self) -> Mapping[int, str]:
        """Return the rows whose network outputs were not finite."""
        return self._finiteness.failures()


def _for_each_row(layer: Layer, num_rows: int) -> Layer:
    """Return zeros for a copy of the layer's parameters in each row."""
    bias, *norm = (np.zeros((num_rows, 1, layer.bias.size), np.float32) for _ in (layer.bias, *(layer.norm or ())))
    weight = np.zeros((num_rows, *layer.weight.shape), np.float32)
    return Layer(weight, bias, (norm[0], norm[1]) if norm else None)
