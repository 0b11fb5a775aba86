"""Agents that are multilayer perceptrons, alone or side by side as a population."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from gymnasium import spaces

from rollserve_server.agents.agent import (
    FINITE,
    PREVIOUS_ACTION,
    VALUE,
    ActionMask,
    Agent,
    Decision,
    PopulationAgent,
    StateSpec,
    first_bad_elements,
    reward_state,
)
from rollserve_server.agents.mlp.network import Layer, Network, networks_of, num_tile_rows
from rollserve_server.agents.specs import AgentInputs, MlpSpec, Normalization, consecutive
from rollserve_server.errors import InvalidValueError
from rollserve_wire.errors import mismatch
from rollserve_wire.moments import MEAN, VARIANCE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rollserve_server.agents.distributions import Head
    from rollserve_server.envs import Leaf

__all__ = ["MlpAgent", "NetworkInput", "StackedMlpAgent", "check_variance"]


class NetworkInput:
    """The input of a network: the flat observation without the mask, then the action and the reward before, if any.

    Attributes:
        size: size of the input.
        num_observed: size of the flat observation, which the input begins with.
        content: what it holds, for errors.
        states: states that hold the action and the reward before.
        observe: writes flat observations, given as `Agent.act` takes them, to an array (M, num_observed) of floats.
    """

    def __init__(
        self,
        observation_leaves: Sequence[Leaf],
        action_leaves: Sequence[Leaf],
        mask: ActionMask | None,
        inputs: AgentInputs,
    ) -> None:
        self.observe = _Flattener(observation_leaves, mask)
        self._action = _Flattener(action_leaves) if inputs.previous_action else None
        content = ["the observation space"]
        if mask is not None and mask.sources:
            content[0] += " without the action mask"
        elif any(leaf.name == "action_mask" for leaf in observation_leaves):
            content[0] += " with its leaf action_mask, which ActionMask(observation='action_mask') leaves out"
        states = []
        if self._action is not None:
            content.append("the previous action")
            states.append(StateSpec(PREVIOUS_ACTION, np.zeros(self._action.size, np.float32)))
        if inputs.previous_reward:
            content.append("the previous reward")
            states.append(reward_state())
        self.content = ", ".join(content)
        self.states = tuple(states)
        # Each state after the other, behind the observation.
        self.num_observed = self.observe.size
        sizes = [self.num_observed, *(state.initial.size for state in states)]
        self.size, (_, *self._parts) = sum(sizes), consecutive(sizes)

    def recall(self, states: Sequence[np.ndarray], out: np.ndarray) -> None:
        """Write the action and the reward before, behind the observation.

        Args:
            states: an array for each of `states`.
            out: (M, size) float32.
        """
        for part, state in zip(self._parts, states, strict=True):
            out[:, part] = state.reshape(len(state), -1)

    def keep(self, actions: Sequence[np.ndarray], states: Sequence[np.ndarray]) -> None:
        """Store actions, an array (M, *A) for each leaf, in the states."""
        if self._action is not None:
            self._action(actions, states[0])


class _Flattener:
    """Flattens observations or actions of M rows, as `gymnasium.spaces.flatten` does for one.

    Attributes:
        size: size of a flat value.
    """

    def __init__(self, leaves: Sequence[Leaf], mask: ActionMask | None = None) -> None:
        """Flatten the leaves of a space, except leaves that have the mask."""
        positions = list(range(len(leaves)))
        if mask is not None:
            positions = mask.without_hidden(positions)
        flat_spaces = [leaves[position].space for position in positions]
        for position in positions:
            if isinstance(leaves[position].space, spaces.Text):
                name = f"texts at {leaves[position].name!r}" if leaves[position].name else "texts"
                raise InvalidValueError.of("", expected="observations of numbers", got=name)
        sizes = [spaces.flatdim(space) for space in flat_spaces]
        self.size = sum(sizes)
        # For each leaf: its space, its position among the observations, and its columns.
        self._parts = list(zip(flat_spaces, positions, consecutive(sizes), strict=True))

    def __call__(self, observations: Sequence[np.ndarray], out: np.ndarray) -> None:
        """Write the flat values to `out`.

        Args:
            observations: an array (M, *shape) for each leaf; others may follow.
            out: (M, size), floats.
        """
        for space, position, part in self._parts:
            column = observations[position]
            match space:
                case spaces.Discrete():
                    _one_hot(column - space.start, out[:, part])
                case spaces.MultiDiscrete():
                    positions = (column - space.start).reshape(len(column), -1)
                    begin = part.start
                    for element, n in enumerate(space.nvec.ravel()):
                        _one_hot(positions[:, element], out[:, begin : begin + n])
                        begin += n
                case _:
                    out[:, part] = column.reshape(len(column), -1)


def _one_hot(positions: np.ndarray, out: np.ndarray) -> None:
    out[...] = 0
    out[np.arange(len(positions)), positions] = 1


class _Normalizer:
    """Normalizes flat observations of M rows, all by the same mean and variance, or each row by its own.

    Each element is computed by itself, so its bits do not depend on the rows beside it.

    Attributes:
        observations: (M, size) float64, which the caller fills, and `run` overwrites.
    """

    def __init__(self, normalization: Normalization, num_rows: int, size: int, *, for_each_row: bool = False) -> None:
        """Allocate buffers; `assign` comes before `run`.

        Args:
            normalization: epsilon and clip.
            num_rows: M.
            size: size of a flat observation.
            for_each_row: whether each row has a mean and variance of its own.
        """
        self._epsilon, self._clip = normalization
        self.observations = np.zeros((num_rows, size))
        self._mean, self._deviation = np.zeros((2, num_rows if for_each_row else 1, size))

    def assign(self, row: int, parameters: Mapping[str, np.ndarray]) -> None:
        """Set the mean and the variance of a row; of all rows, by row 0, if they share them."""
        self._mean[row] = parameters[MEAN]
        self._deviation[row] = np.sqrt(parameters[VARIANCE] + self._epsilon)

    def run(self, out: np.ndarray) -> None:
        """Write the normalized observations to `out`, (M, size) float32."""
        x = self.observations
        np.subtract(x, self._mean, out=x)
        np.divide(x, self._deviation, out=x)
        np.maximum(x, -self._clip, out=x)  # `np.clip` takes longer than both
        np.minimum(x, self._clip, out=x)
        out[...] = x


def check_variance(parameters: Mapping[str, np.ndarray]) -> None:
    """Raise InvalidValueError if a variance is negative; of a population, (K, size)."""
    variance = parameters.get(VARIANCE)
    if variance is None or not (negative := variance < 0).any():
        return
    position = tuple(int(i) for i in np.argwhere(negative)[0])
    field = f"parameters[{VARIANCE!r}]{list(position)}"
    raise InvalidValueError.of(field, expected="at least 0", got=variance[position])


class _NetworkAgent(Agent):
    """Networks and a head, with buffers for a fixed number of rows."""

    def __init__(
        self,
        spec: MlpSpec,
        network_input: NetworkInput,
        head: Head,
        num_rows: int,
        mask: ActionMask | None,
        *,
        for_each_row: bool,
    ) -> None:
        self._network_input, self._head, self.mask = network_input, head, mask
        self.noise_width, self.factors, self.infos = head.noise_width, head.factors, head.infos
        self._normalizer: _Normalizer | None = None
        if spec.normalization is not None:
            size = network_input.num_observed
            self._normalizer = _Normalizer(spec.normalization, num_rows, size, for_each_row=for_each_row)
        self._checked: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._product = np.float32(0)

    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        """Draw the head's noise."""
        self._head.draw_noise(generator, noise)

    def failures(self) -> Mapping[int, str]:
        """Return the rows whose network outputs were not finite."""
        if self._product == 0:
            return {}
        found: dict[int, str] = {}
        for output, *_ in self._checked:
            for row, value in first_bad_elements(output, np.isfinite(output)):
                found.setdefault(row, f"output of the network: {mismatch(FINITE, value)}")
        return found

    def _observe(self, observations: Sequence[np.ndarray], out: np.ndarray) -> None:
        """Write flat observations, normalized if they are to be."""
        if self._normalizer is None:
            self._network_input.observe(observations, out)
        else:
            self._network_input.observe(observations, self._normalizer.observations)
            self._normalizer.run(out)

    def _check(self, outputs: Sequence[np.ndarray]) -> None:
        """Have `_look` check the outputs of each network, (M, size) float32, contiguous, which stay in place."""
        self._checked = [(output, output.reshape(-1), np.zeros(output.size, np.float32)) for output in outputs]

    def _look(self) -> None:
        """Check the outputs of a step, for `failures`."""
        # Infinity times zero is NaN, so one product with zeros per network is the fastest check.
        self._product = np.float32(0)
        for _, values, zeros in self._checked:
            self._product += values.dot(zeros)


class MlpAgent(_NetworkAgent):
    """An MLP that acts in all rows."""

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
        super().__init__(spec, network_input, head, num_rows, mask, for_each_row=False)
        self.noise_kind = head.noise_kind
        if spec.value is not None:
            self.infos = (*head.infos, VALUE)
        if self._normalizer is not None:
            self._normalizer.assign(0, spec.parameters)
        networks = networks_of(spec)
        rows = num_rows if together else num_tile_rows(spec, networks)
        tiles = np.zeros((-(-num_rows // rows), rows, network_input.size), np.float32)
        self._input = tiles.reshape(-1, network_input.size)[:num_rows]
        self._observed = self._input[:, : network_input.num_observed]
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
        self._check(outputs)
        self._outputs = [outputs[0][:, part] for part in consecutive(column.shape[0] for column in head.inputs)]
        self._value = None if spec.value is None else outputs[-1][:, -1]

    @np.errstate(all="ignore")  # `failures` reports numbers that are not finite
    def act(self, observations: Sequence[np.ndarray], noise: np.ndarray, states: Sequence[np.ndarray] = ()) -> Decision:
        """Run the networks and the head."""
        previous = states[self._num_core_states :]
        self._observe(observations, self._observed)
        if previous:
            self._network_input.recall(previous, self._input)
        for memory, state in zip(self._memory, states, strict=False):
            memory[...] = state
        for network in self._networks:
            network.run()
        for memory, state in zip(self._memory, states, strict=False):
            state[...] = memory
        self._look()
        outputs = self._outputs if self.mask is None else [*self._outputs, observations[-1]]
        actions, infos = self._head.act(outputs, noise)
        if previous:
            self._network_input.keep(actions, previous)
        if self._value is not None:
            infos[VALUE.name] = self._value
        return actions, infos


class StackedMlpAgent(_NetworkAgent, PopulationAgent):
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
        super().__init__(spec, network_input, head, num_rows, mask, for_each_row=True)
        self._member_spec = member_spec
        networks = networks_of(spec)
        # Members compute no separate values, but the value network counts in the size of tiles.
        self._layers = [_for_each_row(layer, num_rows) for layer in networks[0]]
        tiles = np.zeros((num_rows, num_tile_rows(spec, networks), network_input.size), np.float32)
        self._input = tiles[:, 0]
        self._network = Network(self._layers, spec, tiles, has_core=False)
        self._first_rows = self._network.output.reshape(num_rows, tiles.shape[1], -1)[:, 0]
        # Contiguous rows, as MlpAgent has them.
        output = self._output = np.zeros(self._first_rows.shape, np.float32)
        self._check([output])
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

    def act(self, observations: Sequence[np.ndarray], noise: np.ndarray, states: Sequence[np.ndarray] = ()) -> Decision:
        """Run the policy network and the head."""
        self._observe(observations, self._input)
        self._network.run()
        np.copyto(self._output, self._first_rows)
        self._look()
        outputs = self._outputs if self.mask is None else [*self._outputs, observations[-1]]
        return self._head.act(outputs, noise)


def _for_each_row(layer: Layer, num_rows: int) -> Layer:
    """Return zeros for a copy of the layer's parameters in each row."""
    bias, *norm = (np.zeros((num_rows, 1, layer.bias.size), np.float32) for _ in (layer.bias, *(layer.norm or ())))
    weight = np.zeros((num_rows, *layer.weight.shape), np.float32)
    return Layer(weight, bias, (norm[0], norm[1]) if norm else None)
