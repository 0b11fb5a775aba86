"""Agents written in Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from rollserve_server.agents.specs.inputs import NO_INPUTS, AgentInputs

if TYPE_CHECKING:
    import numpy as np
    from gymnasium import Space

    from rollserve_server.agents.agent import InfoSpec
    from rollserve_server.agents.python_policy import PythonPolicy
    from rollserve_server.agents.specs.batching import Batching
    from rollserve_server.agents.specs.shapes import Shapes

__all__ = ["Factory", "InstalledFactory", "PickledFactory", "PythonForm", "PythonSource", "PythonSpec"]


@dataclass(frozen=True)
class InstalledFactory:
    """An installed factory.

    Attributes:
        name: name of an entry point in the group `rollserve.agents`.
        kwargs: keyword arguments of the factory.
    """

    name: str
    kwargs: Mapping[str, object]


@dataclass(frozen=True, eq=False)
class PickledFactory:
    """A pickled factory."""

    data: bytes


Factory = InstalledFactory | PickledFactory
"""Factory that makes an agent's policy."""


@dataclass(frozen=True, eq=False)
class PythonSource:
    """An agent as a request sends it, as PythonAgent in `protos/rollserve/v1/agent.proto` defines it.

    Attributes:
        factory: factory of the policy.
        parameters: parameters by name.
        inputs: what the agent gets beside the observation.
    """

    factory: Factory
    parameters: Mapping[str, np.ndarray]
    inputs: AgentInputs = NO_INPUTS


class PythonForm(NamedTuple):
    """Inputs and outputs of a policy, found by a probe in a sandbox.

    Attributes:
        noise_width: random numbers per action.
        states: name, dtype and shape of each array of the recurrent state.
        infos: infos that the policy returns.
        batching: numbers of rows in which the policy is called.
        inputs: names of what the policy asks for beside the observation.
    """

    noise_width: int
    states: tuple[InfoSpec, ...]
    infos: tuple[InfoSpec, ...]
    batching: Batching
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class PythonSpec:
    """An agent that was probed in a sandbox.

    Attributes:
        factory: factory of the policy.
        parameters: parameters by name.
        observation_space: observation space that the policy was probed with.
        action_space: action space that the policy was probed with.
        form: inputs and outputs of the policy.
        shapes: dtypes and shapes of the parameters that the policy was probed with.
        inputs: what the agent gets beside the observation.
        policy: policy, where the factory has made it; it never leaves its process.
    """

    factory: Factory
    parameters: Mapping[str, np.ndarray]
    observation_space: Space[Any]
    action_space: Space[Any]
    form: PythonForm
    shapes: Shapes
    inputs: AgentInputs = NO_INPUTS
    policy: PythonPolicy | None = None
