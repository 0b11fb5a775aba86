"""Exploration: how freely an agent acts in a call."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from rollserve_server.agents.specs import (
    AgentSpec,
    HeadKind,
    HeadSettings,
    MlpSpec,
    OnnxHeadKind,
    OnnxSpec,
    PolicySet,
    RandomSpec,
    kind_of,
)
from rollserve_server.errors import InvalidValueError

__all__ = ["DEFAULT_EXPLORATION", "Exploration", "check_exploration"]


@dataclass(frozen=True)
class Exploration:
    """How freely an agent acts, as Exploration in `protos/rollserve/v1/sampler_service.proto` defines it.

    Each tuple holds one factor for all episodes, or several: episode i then uses the factor at i modulo their number.
    An empty tuple keeps what the agent does without it.

    Attributes:
        deterministic: whether the agent always takes its best action.
        temperature: divisors of logits.
        noise_scale: factors of standard deviations.
        epsilon: probabilities of a random choice, in place of the agent's own.
    """

    deterministic: bool = False
    temperature: tuple[float, ...] = ()
    noise_scale: tuple[float, ...] = ()
    epsilon: tuple[float, ...] = ()

    def factors(self, head: HeadKind, settings: HeadSettings) -> tuple[float, ...]:
        """Return the exploration factors for a head: one for all episodes, or several; see `Agent.factors`."""
        own = settings.epsilon if head == "epsilon_greedy" else 1.0
        factors: tuple[float, ...] = getattr(self, _FACTORS[head]) or (own,)
        if head == "boltzmann":
            return tuple(settings.temperature * temperature for temperature in factors)
        return factors


DEFAULT_EXPLORATION: Final = Exploration()

_MAX_SHOWN = 8  # numbers in the text of an error

_FACTORS: dict[OnnxHeadKind, str] = {
    "categorical": "temperature",
    "multi_categorical": "temperature",
    "bernoulli": "temperature",
    "boltzmann": "temperature",
    "diagonal_gaussian": "noise_scale",
    "squashed_gaussian": "noise_scale",
    "epsilon_greedy": "epsilon",
}
"""Attribute of Exploration that each kind of head uses."""

_OWNERS = {
    "random": "a random agent",
    "constant": "a constant agent",
    "python": "an agent in Python",
    "pickled": "an agent in Python",
}
"""Description of agents without a head, by kind."""

_MAX_COMBINATIONS = 1 << 16
"""Largest number of ways in which episodes may differ: the least common multiple of the numbers of factors."""


def check_exploration(spec: AgentSpec, exploration: Exploration) -> None:
    """Raise InvalidValueError if the agent cannot explore like that; it names a field of the message Exploration.

    Of several policies, each that may act has to explore like that.
    """
    if exploration == DEFAULT_EXPLORATION:
        return
    if isinstance(spec, PolicySet):
        for _, held in spec.acting:
            check_exploration(held.spec, exploration)
        return
    if exploration.deterministic and isinstance(spec, RandomSpec):
        expected = "false: a random agent has no best action"
        raise InvalidValueError.of("deterministic", expected=expected, got="true")
    heads: tuple[OnnxHeadKind, ...] = ()
    if isinstance(spec, MlpSpec | OnnxSpec):
        heads = tuple(leaf.kind for leaf in spec.leaf_heads.values()) or (spec.head,)
    used = {_FACTORS.get(head) for head in heads}
    for name in ("temperature", "noise_scale", "epsilon"):
        factors = getattr(exploration, name)
        if factors and name not in used:
            owner = f"the head {' with '.join(dict.fromkeys(heads))}" if heads else _OWNERS[kind_of(spec)]
            got = ", ".join(map(str, factors[:_MAX_SHOWN]))
            raise InvalidValueError.of(f"{name}s", expected=f"none for {owner}", got=got)
    numbers = [len(getattr(exploration, name)) or 1 for name in ("temperature", "noise_scale", "epsilon")]
    if math.lcm(*numbers) > _MAX_COMBINATIONS:
        expected = f"numbers of factors whose least common multiple is at most {_MAX_COMBINATIONS}"
        raise InvalidValueError.of("epsilons", expected=expected, got=", ".join(map(str, numbers)))
