"""Agents written in Python, which the server runs."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollserve.mlp_agent import ActionMask, check_mask, mask_to_proto, parameters_to_proto
from rollserve_wire.checks import check_text, check_type, type_error
from rollserve_wire.json_arguments import kwargs_to_json
from rollserve_wire.representations import briefly
from rollserve_wire.v1 import agent_pb2
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    import numpy as np

__all__ = ["AgentChange", "PickledAgent", "PythonAgent", "agent_change_to_proto", "pickled_to_proto", "python_to_proto"]


@briefly
@dataclass(frozen=True, eq=False)
class PythonAgent:
    """An agent that is installed beside the server; docs/python-agents.md says how to write one.

    >>> agent = rollserve.PythonAgent("example-linear", {"noise_scale": 0.1}, {"bias": bias})  # doctest: +SKIP

    Attributes:
        name: name of an entry point of the group `rollserve.agents`.
        kwargs: keyword arguments of its factory; JSON has to be able to hold them.
        parameters: arrays by name. An update may replace any of them alone.
        action_mask: source of the action mask, which the policy gets if it asks for it.

    Raises:
        TypeError: an attribute of the wrong type.
        InvalidArgumentError: a name that UTF-8 cannot encode.
    """

    name: str
    kwargs: Mapping[str, object] = field(default_factory=dict)
    parameters: Mapping[str, np.ndarray] = field(default_factory=dict)
    action_mask: ActionMask | None = None

    def __post_init__(self) -> None:
        check_text("name", self.name)
        check_type("kwargs", self.kwargs, Mapping, "a mapping")
        check_type("parameters", self.parameters, Mapping, "a mapping from names to arrays")
        check_mask(self.action_mask)


@briefly
@dataclass(frozen=True, eq=False)
class AgentChange:
    """A change of the settings of the present agent, a `PythonAgent`. Its other parameters stay as they are.

    >>> sampler.update_agent(rollserve.AgentChange({"noise_scale": 0.05}))  # doctest: +SKIP

    Attributes:
        kwargs: keyword arguments of the agent's factory that are added or replaced; JSON has to be able to hold them.
        parameters: arrays by name that are added or replaced.

    Raises:
        TypeError: an attribute of the wrong type.
    """

    kwargs: Mapping[str, object] = field(default_factory=dict)
    parameters: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_type("kwargs", self.kwargs, Mapping, "a mapping")
        check_type("parameters", self.parameters, Mapping, "a mapping from names to arrays")


@briefly
@dataclass(frozen=True, eq=False)
class PickledAgent:
    """An agent whose code is sent as a pickle, to a server that was started with `--allow-pickle`.

    Attributes:
        factory: callable that creates the agent from gymnasium's observation space and action space; or the bytes of
            its pickle. A callable is pickled by cloudpickle if that is installed, which includes the code of `__main__`
            and of nested functions; otherwise by Python's pickle, which refers to code that the server has installed.
        parameters: arrays by name. An update may replace any of them alone.
        action_mask: source of the action mask, which the policy gets if it asks for it.

    Raises:
        TypeError: an attribute of the wrong type.
        Exception: a factory that cannot be pickled.
    """

    factory: object
    parameters: Mapping[str, np.ndarray] = field(default_factory=dict)
    action_mask: ActionMask | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.factory, bytes) and not callable(self.factory):
            raise type_error("factory", "a callable or its pickle", self.factory)
        check_type("parameters", self.parameters, Mapping, "a mapping from names to arrays")
        check_mask(self.action_mask)
        if not isinstance(self.factory, bytes):
            has_cloudpickle = importlib.util.find_spec("cloudpickle") is not None
            pickler = importlib.import_module("cloudpickle" if has_cloudpickle else "pickle")
            object.__setattr__(self, "factory", pickler.dumps(self.factory))


def python_to_proto(agent: PythonAgent) -> agent_pb2.PythonAgent:
    """Return the agent as a message.

    Raises:
        ValueError: an argument that JSON cannot hold, or a dtype that the wire does not have.
    """
    return agent_pb2.PythonAgent(
        name=agent.name,
        kwargs_json=kwargs_to_json("kwargs", agent.kwargs),
        parameters=parameters_to_proto(agent.parameters),
        action_mask=mask_to_proto(agent.action_mask),
    )


def agent_change_to_proto(change: AgentChange) -> pb.AgentChange:
    """Return the change as a message.

    Raises:
        ValueError: an argument that JSON cannot hold, or a dtype that the wire does not have.
    """
    return pb.AgentChange(
        kwargs_json=kwargs_to_json("kwargs", change.kwargs), parameters=parameters_to_proto(change.parameters)
    )


def pickled_to_proto(agent: PickledAgent) -> agent_pb2.PickledAgent:
    """Return the agent as a message.

    Raises:
        ValueError: a dtype that the wire does not have.
    """
    assert isinstance(agent.factory, bytes)  # noqa: S101
    return agent_pb2.PickledAgent(
        data=agent.factory,
        parameters=parameters_to_proto(agent.parameters),
        action_mask=mask_to_proto(agent.action_mask),
    )
