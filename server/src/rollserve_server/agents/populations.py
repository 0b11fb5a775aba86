"""Populations: agents that differ in their parameters only."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rollserve_server.agents.agent import Agent, Decision, PopulationAgent
from rollserve_server.agents.building import build_agent
from rollserve_server.agents.mlp.agent import NetworkInput, StackedMlpAgent, check_variance
from rollserve_server.agents.mlp.checks import mlp_head
from rollserve_server.agents.parameters import check_names, check_parameters, shapes_of_agent, with_parameters
from rollserve_server.agents.specs import MlpSpec, PolicySpec, parameters_bytes, parameters_of
from rollserve_server.envs import leaves_of_space
from rollserve_server.errors import InvalidValueError, listed, within

if TYPE_CHECKING:
    import numpy as np
    from gymnasium import Space

    from rollserve_server.agents.exploration import Exploration

__all__ = ["build_population", "check_members", "check_population"]

_MAX_STACKED_BYTES = 256 << 20
"""Largest size of the parameters of members that act side by side: each row has a copy."""


def check_population(spec: PolicySpec, stacked: Mapping[str, np.ndarray]) -> int:
    """Return the number of members of a population.

    Args:
        spec: agent with the parameters that all members share.
        stacked: arrays (K, *shape) by name, the parameters of K members.

    Raises:
        InvalidValueError: the agent has no such parameters, they do not fit together, or are not finite.
    """
    shapes = shapes_of_agent(spec, stacked)
    if not stacked:
        raise InvalidValueError.of("parameters", expected="at least one parameter of the members", got="none")
    check_names(stacked, shapes)
    name, first = next(iter(stacked.items()))
    num_members = first.shape[0] if first.ndim else 0
    if not num_members:
        expected = f"a first axis that counts the members, then {shapes[name][1]}"
        raise InvalidValueError.of(f"parameters[{name!r}].shape", expected=expected, got=first.shape)
    check_parameters(
        stacked, {name: (dtype, (num_members, *shape)) for name, (dtype, shape) in shapes.items() if name in stacked}
    )
    if isinstance(spec, MlpSpec) and spec.normalization is not None:
        check_variance(stacked)
    return num_members


def check_members(policies: Mapping[str, PolicySpec], members: Mapping[str, Mapping[str, np.ndarray]]) -> int:
    """Return the number of members of a population in which some policies differ.

    Args:
        policies: the present policies by name.
        members: for each of the policies that differ, arrays (K, *shape) by name; at least one.

    Raises:
        InvalidValueError: a policy is not there, its parameters are refused by `check_population`, or policies have
            different numbers of members. The field is within `policies`.
    """
    counts: dict[str, int] = {}
    for name, stacked in members.items():
        with within(f"policies[{name!r}]"):
            if name not in policies:
                raise InvalidValueError.of("", expected=f"policies among {listed(policies)}", got=repr(name))
            counts[name] = check_population(policies[name], stacked)
    first, num_members = next(iter(counts.items()))
    for name, count in counts.items():
        if count != num_members:
            expected = f"{num_members} members, as policy {first!r} has"
            raise InvalidValueError.of(f"policies[{name!r}].parameters", expected=expected, got=count)
    return num_members


def build_population(
    spec: PolicySpec,
    stacked: Mapping[str, np.ndarray],
    agent: Agent,
    observation_space: Space[Any],
    action_space: Space[Any],
    num_rows: int,
    exploration: Exploration,
) -> PopulationAgent:
    """Build the agent of a population.

    Args:
        spec: agent with the parameters that all members share.
        stacked: parameters of the members, which `check_population` has checked.
        agent: agent built from the spec for the same number of rows and the same exploration.
        observation_space: observation space of one row.
        action_space: action space of one row.
        num_rows: number of rows.
        exploration: how freely the members act.
    """
    is_small = num_rows * parameters_bytes(spec) <= _MAX_STACKED_BYTES
    if isinstance(spec, MlpSpec) and spec.head != "hybrid" and not agent.states and is_small:
        leaves = leaves_of_space(observation_space), leaves_of_space(action_space)
        network_input = NetworkInput(*leaves, agent.mask, spec.inputs)
        head = mlp_head(spec, action_space, exploration, agent.mask, is_stacked=True)

        def member_spec(member: int) -> MlpSpec:
            return dataclasses.replace(spec, parameters=_member_parameters(spec, stacked, member))

        return StackedMlpAgent(spec, member_spec, network_input, head, num_rows, agent.mask)

    def build_member(member: int) -> Agent:
        own_spec = with_parameters(spec, _member_parameters(spec, stacked, member))
        return build_agent(own_spec, observation_space, action_space, num_rows, exploration=exploration)

    return _OneMemberAtATime(agent, build_member)


class _OneMemberAtATime(PopulationAgent):
    """A population whose rows all act as the same member."""

    side_by_side = False

    def __init__(self, agent: Agent, build_member: Callable[[int], Agent]) -> None:
        """Start with an agent of the same kind as the members, which acts as none of them."""
        self._agent = agent
        self._build_member = build_member
        self._member: int | None = None
        self.noise_width, self.factors, self.infos = agent.noise_width, agent.factors, agent.infos
        self.states, self.mask, self.reward_state = agent.states, agent.mask, agent.reward_state

    def assign(self, row: int, member: int) -> None:
        if member != self._member:
            self._agent, self._member = self._build_member(member), member
            self.states = self._agent.states  # their initial values may depend on parameters

    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        self._agent.draw_noise(generator, noise)

    def act(self, observations: Sequence[np.ndarray], noise: np.ndarray, states: Sequence[np.ndarray] = ()) -> Decision:
        return self._agent.act(observations, noise, states)

    def failures(self) -> Mapping[int, str]:
        return self._agent.failures()


def _member_parameters(spec: PolicySpec, stacked: Mapping[str, np.ndarray], member: int) -> Mapping[str, np.ndarray]:
    """Return all parameters of a member: the agent's, replaced by the member's own."""
    return {**parameters_of(spec), **{name: values[member, ...] for name, values in stacked.items()}}
