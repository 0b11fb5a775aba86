"""What is known of an agent in Python, before and after it has been tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from gymnasium import Space

    from rollserve_server.agents.agent import InfoSpec
    from rollserve_server.agents.python.policy import PythonPolicy
    from rollserve_server.agents.specs import Batching

__all__ = ["Factory", "InstalledFactory", "PickledFactory", "PythonForm", "PythonSource", "PythonSpec", "Shapes"]

Shapes = Mapping[str, tuple["np.dtype", tuple[int, ...]]]
"""Types and shapes of arrays, by name."""


@dataclass(frozen=True)
class InstalledFactory:
    """An entry point of the group `rollserve.agents`, and the keyword arguments that it is called with."""

    name: str
    kwargs: Mapping[str, object]


@dataclass(frozen=True, eq=False)
class PickledFactory:
    """What makes an agent, pickled."""

    data: bytes


Factory = InstalledFactory | PickledFactory
"""Where an agent comes from."""


@dataclass(frozen=True, eq=False)
class PythonSource:
    """An agent as it came; see PythonAgent in `protos/rollserve/v1/agent.proto`."""

    factory: Factory
    parameters: Mapping[str, np.ndarray]


class PythonForm(NamedTuple):
    """What an agent takes and gives, found by trying it.

    Attributes:
        noise_width: how many random numbers one action takes.
        states: of what it remembers of a row the name, dtype and shape.
        infos: what it tells of each action.
        batching: in which numbers of rows it is called.
    """

    noise_width: int
    states: tuple[InfoSpec, ...]
    infos: tuple[InfoSpec, ...]
    batching: Batching


@dataclass(frozen=True, eq=False)
class PythonSpec:
    """An agent that has been tried.

    Attributes:
        factory: what makes it.
        parameters: by name.
        observation_space: that it was made for.
        action_space: likewise.
        form: what it takes and gives.
        shapes: those of the parameters that it was tried with.
        policy: what the factory has made, where that has been done; it never leaves its process.
    """

    factory: Factory
    parameters: Mapping[str, np.ndarray]
    observation_space: Space[Any]
    action_space: Space[Any]
    form: PythonForm
    shapes: Shapes
    policy: PythonPolicy | None = None
