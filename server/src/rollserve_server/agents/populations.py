"""Populations: agents that are the same but for their parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from rollserve_server.agents.agent import Agent
from rollserve_server.agents.building import build_agent, kind_of, parameters_bytes, with_parameters
from rollserve_server.agents.heads.head import build_head
from rollserve_server.agents.mlp.agent import Flattener
from rollserve_server.agents.mlp.stacked import StackedMlpAgent
from rollserve_server.agents.parameters import check_names, check_parameters
from rollserve_server.agents.python.specs import PythonSpec
from rollserve_server.agents.specs import MlpSpec, OnnxSpec
from rollserve_server.envs import leaves_of_space
from rollserve_server.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from gymnasium import Space

    from rollserve_server.agents.agent import StateSpec
    from rollserve_server.agents.exploration import Exploration
    from rollserve_server.agents.specs import AgentSpec

__all__ = ["PopulationAgent", "build_population", "check_population"]

_MOST_STACKED_BYTES = 256 << 20
"""How much the parameters of members may take that act side by side: each row has its own."""


class PopulationAgent(Agent, Protocol):
    """Acts in each row as one member of a population does.

    Attributes:
        side_by_side: whether different members may act at the same time. Else `begin` may bring another one only while
            no row is of use.
    """

    @property
    def side_by_side(self) -> bool: ...  # noqa: D102

    def begin(self, row: int, member: int) -> None:
        """Has a member act in a row from now on."""
        ...


def check_population(spec: AgentSpec, stacked: Mapping[str, np.ndarray]) -> int:
    """How many members there are.

    Args:
        spec: the agent that the members are like.
        stacked: by name (K, *shape), the parameters of K members.

    Raises:
        InvalidValueError: they are none of the agent's, do not fit together, or are not finite.
    """
    shapes = _parameter_shapes(spec)
    if not stacked:
        raise InvalidValueError.of("parameters", expected="at least one parameter of the members", got="none")
    check_names(stacked, shapes)
    name, first = next(iter(stacked.items()))
    num_members = first.shape[0] if first.ndim else 0
    if not num_members:
        expected = f"one whose first axis counts the members, before {shapes[name][1]}"
        raise InvalidValueError.of(f"parameters[{name!r}].shape", expected=expected, got=first.shape)
    of_members = {name: (dtype, (num_members, *shape)) for name, (dtype, shape) in shapes.items() if name in stacked}
    check_parameters(stacked, of_members)
    return num_members


def build_population(
    spec: AgentSpec,
    stacked: Mapping[str, np.ndarray],
    agent: Agent,
    observation_space: Space[Any],
    action_space: Space[Any],
    num_rows: int,
    exploration: Exploration,
) -> PopulationAgent:
    """What acts in the rows.

    Args:
        spec: the agent that the members are like.
        stacked: see `check_population`, which has found them good.
        agent: built from the spec for as many rows and that exploration.
        observation_space: of one row.
        action_space: of one row.
        num_rows: how many rows there are.
        exploration: how freely the members act.
    """
    is_small = num_rows * parameters_bytes(spec) <= _MOST_STACKED_BYTES
    if isinstance(spec, MlpSpec) and not agent.states and is_small:
        flattener = Flattener(leaves_of_space(observation_space))
        head = build_head(spec.head, action_space, None, spec.settings, exploration)

        def member_spec(member: int) -> MlpSpec:
            return dataclasses.replace(spec, parameters=_merged(spec, stacked, member))

        deterministic = exploration.deterministic
        return StackedMlpAgent(spec, member_spec, flattener, head, num_rows, deterministic=deterministic)

    def build(member: int) -> Agent:
        its_spec = with_parameters(spec, _merged(spec, stacked, member))
        return build_agent(its_spec, observation_space, action_space, num_rows, exploration=exploration)

    return _OneByOne(agent, build)


class _OneByOne:
    """Members one after the other; see PopulationAgent."""

    side_by_side = False

    def __init__(self, agent: Agent, build: Callable[[int], Agent]) -> None:
        """Takes an agent that is like the members, and what makes them."""
        self._agent = agent
        self._build = build
        self._member: int | None = None
        self.noise_width, self.factors, self.infos = agent.noise_width, agent.factors, agent.infos
        self.states: tuple[StateSpec, ...] = agent.states
        self.draw_noise = agent.draw_noise

    def begin(self, row: int, member: int) -> None:
        """See PopulationAgent."""
        if member != self._member:
            self._agent, self._member = self._build(member), member
            self.states = self._agent.states  # which may begin otherwise

    def act(
        self, observations: Sequence[np.ndarray], noise: np.ndarray, states: Sequence[np.ndarray] = ()
    ) -> tuple[Sequence[np.ndarray], Mapping[str, np.ndarray]]:
        """See Agent."""
        return self._agent.act(observations, noise, states)

    def failures(self) -> Mapping[int, str]:
        """See Agent."""
        return self._agent.failures()


def _parameter_shapes(spec: AgentSpec) -> Mapping[str, tuple[np.dtype, tuple[int, ...]]]:
    match spec:
        case MlpSpec():
            return {name: (value.dtype, value.shape) for name, value in spec.parameters.items()}
        case OnnxSpec() | PythonSpec():
            return spec.shapes
    text = f"some came, but an agent of kind {kind_of(spec)} has none"
    raise InvalidValueError(text, field="parameters")


def _merged(spec: MlpSpec | Any, stacked: Mapping[str, np.ndarray], member: int) -> Mapping[str, np.ndarray]:
    """All parameters of a member: its own, and else the agent's."""
    return {**spec.parameters, **{name: values[member, ...] for name, values in stacked.items()}}
