"""Agents that are multilayer perceptrons."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.agents.agent import VALUE, Agent, Decision
from rollserve_server.agents.finiteness import Finiteness
from rollserve_server.agents.mlp.network import Network, networks_of, num_tile_rows
from rollserve_server.agents.mlp.normalization import normalizer_of
from rollserve_server.agents.specs.shapes import consecutive

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollserve_server.agents.agent import ActionMask
    from rollserve_server.agents.heads.head import Head
    from rollserve_server.agents.mlp.flattening import NetworkInput
    from rollserve_server.agents.specs.mlp import MlpSpec

__all__ = ["MlpAgent"]


class MlpAgent(Agent):
    """Networks and a head, with buffers for a fixed number of rows."""

    def __init__(
        self,
        spec: MlpSpec,
        network_input: NetworkInput,
        head: Head,
        num_rows: int,
        *,
        mask: ActionMask | None = None,
        together: bool = False,
    ) -> None:
        """Build the networks of a spec that was checked.

        Args:
            spec: MLP.
            network_input: input of the network.
            head: head of the policy.
            num_rows: number of rows that act together.
            mask: action mask, which the head takes; None without one.
            together: whether the rows are always the same; see `build_agent`.
        """
        self._network_input = network_input
        self._head = head
        self.noise_width, self.noise_kind = head.noise_width, head.noise_kind
        self.factors = head.factors
        self.mask = mask
        self.infos = head.infos if spec.value is None else (*head.infos, VALUE)
        networks = networks_of(spec)
        rows = num_rows if together else num_tile_rows(spec, networks)
        tiles = np.zeros((-(-num_rows // rows), rows, network_input.size), np.float32)
        self._input = tiles.reshape(-1, network_input.size)[:num_rows]
        self._observed = self._input[:, : network_input.num_observed]
        self._normalizer = normalizer_of(spec, num_rows, network_input.num_observed)
        # The first network is the policy's, the only one with a core.
        self._networks = [Network(layers, spec, tiles, has_core=not i) for i, layers in enumerate(networks)]
        core = self._networks[0].core
        core_states = core.states if core else ()
        self.states = (*core_states, *network_input.states)
        self._num_core_states = len(core_states)
        if spec.inputs.previous_reward:
            self.reward_state = len(self.states) - 1
        self._memory = [part.reshape(-1, part.shape[2])[:num_rows] for part in core.memory] if core else []
        # Outputs stay in place, so their columns are views that are made once.
        outputs = [network.output[:num_rows] for network in self._networks]
        self._finiteness = Finiteness(outputs)
        self._outputs = [outputs[0][:, part] for part in consecutive(column.shape[0] for column in head.inputs)]
        self._value = None if spec.value is None else outputs[-1][:, -1]

    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        """Draw the head's noise."""
        self._head.draw_noise(generator, noise)

    @np.errstate(all="ignore")  # `failures` reports numbers that are not finite
    def act(self, observations: Sequence[np.ndarray], noise: np.ndarray, states: Sequence[np.ndarray] = ()) -> Decision:
        """Run the networks and the head."""
        previous = states[self._num_core_states :]
        if self._normalizer is None:
            self._network_input.observe(observations, self._observed)
        else:
            self._network_input.observe(observations, self._normalizer.observations)
            self._normalizer.run(self._observed)
        if previous:
            self._network_input.recall(previous, self._input)
        for memory, state in zip(self._memory, states, strict=False):
            memory[...] = state
        for network in self._networks:
            network.run()
        for memory, state in zip(self._memory, states, strict=False):
            state[...] = memory
        self._finiteness.look()
        outputs = self._outputs if self.mask is None else [*self._outputs, observations[-1]]
        actions, infos = self._head.act(outputs, noise)
        if previous:
            self._network_input.keep(actions, previous)
        if self._value is not None:
            infos["value"] = self._value
        return actions, infos

    def failures(self) -> Mapping[int, str]:
        """Return the rows whose network outputs were not finite."""
        return self._finiteness.failures()
