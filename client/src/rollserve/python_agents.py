"""Agents in Python, as a caller writes them; the server runs them."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollserve._checks import check_text, check_type
from rollserve.environments import kwargs_to_json
from rollserve.mlp_agent import parameters_to_proto
from rollserve.v1 import agent_pb2

if TYPE_CHECKING:
    import numpy as np

__all__ = ["PickledAgent", "PythonAgent", "pickled_to_proto", "python_to_proto"]


@dataclass(frozen=True, eq=False)
class PythonAgent:
    """An agent that is installed beside the server. docs/agents.md tells how to write one.

    Attributes:
        name: of an entry point of the group `rollserve.agents`.
        kwargs: the keyword arguments that it is made with, as JSON has them.
        parameters: by name; an update can bring any of them alone.

    Raises:
        TypeError: an attribute is of another type.
        InvalidArgumentError: the name cannot be encoded.
    """

    name: str
    kwargs: Mapping[str, object] = field(default_factory=dict)
    parameters: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_text("name", self.name)
        check_type("kwargs", self.kwargs, Mapping, "a mapping")
        check_type("parameters", self.parameters, Mapping, "a mapping from names to arrays")


@dataclass(frozen=True, eq=False)
class PickledAgent:
    """An agent whose code is sent as a pickle, to a server that was started with `--allow-pickle`.

    Attributes:
        factory: what makes it, called with the observation space and the action space, which are gymnasium's; or the
            bytes of its pickle. What is no bytes is pickled by cloudpickle where that is installed, which takes the
            code of `__main__` and of functions within functions with it, else by Python's pickle, which takes names of
            what the server has to have installed.
        parameters: by name; an update can bring any of them alone.

    Raises:
        TypeError: an attribute is of another type.
        Exception: the factory cannot be pickled.
    """

    factory: object
    parameters: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.factory, bytes) and not callable(self.factory):
            raise TypeError(f"factory: {type(self.factory).__name__} came, a callable or its pickle was expected")
        check_type("parameters", self.parameters, Mapping, "a mapping from names to arrays")
        if not isinstance(self.factory, bytes):
            has_cloudpickle = importlib.util.find_spec("cloudpickle") is not None
            pickler = importlib.import_module("cloudpickle" if has_cloudpickle else "pickle")
            object.__setattr__(self, "factory", pickler.dumps(self.factory))


def python_to_proto(agent: PythonAgent) -> agent_pb2.PythonAgent:
    """The agent as a message.

    Raises:
        ValueError: an argument cannot be written as JSON, or an array's dtype has no place on the wire.
    """
    return agent_pb2.PythonAgent(
        name=agent.name,
        kwargs_json=kwargs_to_json(agent.name, agent.kwargs),
        parameters=parameters_to_proto(agent.parameters),
    )


def pickled_to_proto(agent: PickledAgent) -> agent_pb2.PickledAgent:
    """The agent as a message.

    Raises:
        ValueError: an array's dtype has no place on the wire.
    """
    assert isinstance(agent.factory, bytes)  # noqa: S101
    return agent_pb2.PickledAgent(data=agent.factory, parameters=parameters_to_proto(agent.parameters))
