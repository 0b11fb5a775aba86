"""How freely an agent acts in a call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rollserve_server.agents.python.specs import PythonSpec
from rollserve_server.agents.specs import ConstantSpec, MlpSpec, OnnxSpec, RandomSpec
from rollserve_server.errors import InvalidValueError

if TYPE_CHECKING:
    from rollserve_server.agents.specs import AgentSpec, HeadKind, HeadSettings, OnnxHeadKind

__all__ = ["AS_THE_AGENT_SAYS", "Exploration", "check_exploration"]


@dataclass(frozen=True)
class Exploration:
    """How freely an agent acts; see Exploration in `protos/rollserve/v1/sampler_service.proto`.

    Attributes:
        deterministic: whether it does what it holds to be best always.
        temperature: what logits are divided by. Of this and the next two the episode of index i has the number at i
            modulo how many there are.
        noise_scale: what standard deviations are multiplied by.
        epsilon: how often it chooses at random, instead of what the agent says; none for that.
    """

    deterministic: bool = False
    temperature: tuple[float, ...] = (1.0,)
    noise_scale: tuple[float, ...] = (1.0,)
    epsilon: tuple[float, ...] = ()

    def factors(self, head: HeadKind, settings: HeadSettings) -> tuple[float, ...]:
        """What actions of a head are drawn with, one for all episodes or several; see Agent."""
        match head:
            case "epsilon_greedy":
                return self.epsilon or (settings.epsilon,)
            case "boltzmann":
                return tuple(settings.temperature * temperature for temperature in self.temperature)
            case "diagonal_gaussian" | "squashed_gaussian":
                return self.noise_scale
            case _:
                return self.temperature


AS_THE_AGENT_SAYS: Final = Exploration()

_MOST_SHOWN = 8
"""Numbers in the text of an error."""

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
            came = ", ".join(map(str, value[:_MOST_SHOWN]))
            raise InvalidValueError.of(f"{name}s", expected=f"none for {_described(spec)}", got=came)


def _described(spec: AgentSpec) -> str:
    match spec:
        case MlpSpec() | OnnxSpec():
            return f"the head {spec.head}"
        case RandomSpec():
            return "a random agent"
        case ConstantSpec():
            return "a constant agent"
        case PythonSpec():
            return "an agent in Python"
