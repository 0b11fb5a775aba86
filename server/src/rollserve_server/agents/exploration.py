"""How freely an agent acts in a call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rollserve_server.agents.specs import ConstantSpec, MlpSpec, OnnxSpec, RandomSpec
from rollserve_server.errors import InvalidValueError

if TYPE_CHECKING:
    from rollserve_server.agents.specs import AgentSpec, OnnxHeadKind

__all__ = ["AS_THE_AGENT_SAYS", "Exploration", "check_exploration"]


@dataclass(frozen=True)
class Exploration:
    """How freely an agent acts; see Exploration in `protos/rollserve/v1/sampler_service.proto`.

    Attributes:
        deterministic: whether it does what it holds to be best always.
        temperature: what logits are divided by.
        noise_scale: what standard deviations are multiplied by.
        epsilon: how often it chooses at random, instead of what the agent says; None for that.
    """

    deterministic: bool = False
    temperature: float = 1.0
    noise_scale: float = 1.0
    epsilon: float | None = None


AS_THE_AGENT_SAYS: Final = Exploration()

_CHANGES: dict[OnnxHeadKind, str] = {
    "categorical": "temperature",
    "multi_categorical": "temperature",
    "bernoulli": "temperature",
    "boltzmann": "temperature",
    "diagonal_gaussian": "noise_scale",
    "squashed_gaussian": "noise_scale",
    "epsilon_greedy": "epsilon",
}
"""What of it means something to a head."""


def check_exploration(spec: AgentSpec, exploration: Exploration) -> None:
    """Raises InvalidValueError if an agent cannot act like that; the field is one of Exploration."""
    if exploration.deterministic and isinstance(spec, RandomSpec):
        raise InvalidValueError("a random agent knows no best actions", field="deterministic")
    taken = _CHANGES.get(spec.head, "") if isinstance(spec, MlpSpec | OnnxSpec) else ""
    for name in ("temperature", "noise_scale", "epsilon"):
        value = getattr(exploration, name)
        if name != taken and value != getattr(AS_THE_AGENT_SAYS, name):
            raise InvalidValueError.of(name, value, f"none for {_described(spec)}")


def _described(spec: AgentSpec) -> str:
    match spec:
        case MlpSpec() | OnnxSpec():
            return f"the head {spec.head}"
        case RandomSpec():
            return "a random agent"
        case ConstantSpec():
            return "a constant agent"
