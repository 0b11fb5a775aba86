"""Maps from the agents of an environment to policies: data, not code."""

from __future__ import annotations

import math
import numbers
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollserve_wire.checks import check_integer, check_text, type_error
from rollserve_wire.errors import InvalidArgumentError, mismatch
from rollserve_wire.representations import briefly
from rollserve_wire.v1 import policies_pb2

__all__ = [
    "PolicyChoice",
    "PolicyMap",
    "PolicyRule",
    "policies_called_like",
    "policy_map_from_proto",
    "policy_map_to_proto",
]

_CHOICES = "a policy, a pair (policy, version), or a list of triples (policy, version, weight)"


@briefly
@dataclass(frozen=True)
class PolicyChoice:
    """A version of a policy that may act, with its weight among the choices of a rule.

    Attributes:
        policy: name of the policy.
        version: 0 for the policy's current version, -k for the k-th version before it (the oldest one if fewer are
            held), or the version's number.
        weight: a number from 0; the chance of the choice is its part of the sum of the rule's weights. A choice of
            weight 0 never acts: the sampler holds its version for evaluations.
    """

    policy: str
    version: int = 0
    weight: float = 1.0


@briefly
@dataclass(frozen=True)
class PolicyRule:
    """Policies of the agents of a name, of a prefix, or at a position.

    Attributes:
        agents: the agent's name; its position among the environment's possible agents; or with `is_prefix`, what the
            names of the agents begin with.
        is_prefix: whether `agents` is a prefix.
        choices: what is held. One choice is drawn for each episode, for all agents of the rule together.
    """

    agents: str | int
    is_prefix: bool
    choices: tuple[PolicyChoice, ...]

    @property
    def acting_choices(self) -> tuple[PolicyChoice, ...]:
        """The choices that may be drawn: all but choices of weight 0."""
        return tuple(choice for choice in self.choices if choice.weight)

    def choose(self, number: float) -> PolicyChoice:
        """Return the choice for a random number from 0 up to 1."""
        acting = self.acting_choices
        if len(acting) == 1:
            return acting[0]
        ends = np.cumsum([choice.weight for choice in acting])
        position = int(np.searchsorted(ends, number * ends[-1], "right"))
        return acting[min(position, len(acting) - 1)]

    def __str__(self) -> str:
        return f"{self.agents}*" if self.is_prefix else str(self.agents)


@briefly
@dataclass(frozen=True)
class PolicyMap:
    """A map from the agents of an environment to policies.

    Where several rules match an agent, its name comes before its position, and that before the longest prefix.

    Attributes:
        rules: the rules, no two for the same agents.
    """

    rules: tuple[PolicyRule, ...]

    @classmethod
    def of(cls, value: Any, name: str = "policy_map") -> PolicyMap:
        """Return the map that a mapping describes.

        A key is an agent's name, a prefix with `*` behind it, or a position. A value is the name of a policy; a pair of
        name and version; or a list of triples of name, version and weight: each episode draws one of them.

        >>> PolicyMap.of({"red_*": "main", "blue": [("main", 0, 0.8), ("main", -1, 0.2)]})  # doctest: +SKIP

        Args:
            value: the mapping.
            name: what to call it in errors.

        Raises:
            TypeError: a key or a value of another form.
            InvalidArgumentError: an empty mapping or list, a version or weight out of range, or weights that are all 0.
        """
        if not isinstance(value, Mapping):
            raise type_error(name, "a mapping from agents to policies", value)
        if not value:
            raise InvalidArgumentError.of(name, expected="at least one rule", got="none")
        return cls(tuple(_rule(key, choices, f"{name}[{key!r}]") for key, choices in value.items()))

    @classmethod
    def by_names(cls, policies: Sequence[str]) -> PolicyMap:
        """Return the map where nothing else is said.

        A policy acts for the agent of its name, and for agents whose names are its name, `_` and more. A single policy
        acts for all agents.
        """
        if len(policies) == 1:
            return cls((PolicyRule("", True, (PolicyChoice(policies[0]),)),))
        choices = [(policy, (PolicyChoice(policy),)) for policy in policies]
        return cls(
            (
                *(PolicyRule(policy, False, choice) for policy, choice in choices),
                *(PolicyRule(f"{policy}_", True, choice) for policy, choice in choices),
            )
        )

    def rules_of(self, agents: Sequence[str]) -> list[int | None]:
        """Return the position of the rule for each agent; None for an agent without one."""
        names = {rule.agents: position for position, rule in enumerate(self.rules) if not rule.is_prefix}
        prefixes = {str(rule.agents): position for position, rule in enumerate(self.rules) if rule.is_prefix}
        lengths = sorted({len(prefix) for prefix in prefixes}, reverse=True)
        found: list[int | None] = []
        for index, agent in enumerate(agents):
            beginnings = (agent[:length] for length in lengths if length <= len(agent))
            by_prefix = next((prefixes[each] for each in beginnings if each in prefixes), None)
            found.append(names.get(agent, names.get(index, by_prefix)))
        return found


def policies_called_like(agent: str) -> list[str]:
    """Return the names of policies that an agent is called like: its own, and all that are followed by `_` in it."""
    return [agent, *(agent[:end] for end, character in enumerate(agent) if character == "_")]


def policy_map_to_proto(policy_map: PolicyMap) -> policies_pb2.PolicyMap:
    """Return a map as a message."""
    rules = []
    for rule in policy_map.rules:
        choices = [
            policies_pb2.PolicyChoice(policy=choice.policy, version=choice.version, weight=choice.weight)
            for choice in rule.choices
        ]
        message = policies_pb2.PolicyRule(choices=choices)
        if isinstance(rule.agents, int):
            message.position = rule.agents
        elif rule.is_prefix:
            message.prefix = rule.agents
        else:
            message.name = rule.agents
        rules.append(message)
    return policies_pb2.PolicyMap(rules=rules)


def policy_map_from_proto(message: policies_pb2.PolicyMap) -> PolicyMap:
    """Return the map that a message describes.

    Raises:
        InvalidArgumentError: a part is missing, out of range, or there twice; it has the field within the map.
    """
    if not message.rules:
        raise InvalidArgumentError.of("rules", expected="at least one rule", got="none")
    rules: dict[tuple[str | int, bool], PolicyRule] = {}
    for position, rule in enumerate(message.rules):
        kind, field = rule.WhichOneof("agents"), f"rules[{position}]"
        if kind is None:
            raise InvalidArgumentError.of(f"{field}.agents", expected="name, prefix or position", got="none")
        choices = tuple(PolicyChoice(choice.policy, choice.version, choice.weight) for choice in rule.choices)
        _check_choices(choices, f"{field}.choices")
        made = PolicyRule(getattr(rule, kind), kind == "prefix", choices)
        if (made.agents, made.is_prefix) in rules:
            raise InvalidArgumentError.of(
                f"{field}.{kind}", expected="one rule", got=f"another one for {made.agents!r}"
            )
        rules[made.agents, made.is_prefix] = made
    return PolicyMap(tuple(rules.values()))


def _rule(key: object, value: Any, name: str) -> PolicyRule:
    choices = tuple(_choices(value, name))
    _check_choices(choices, name)
    if isinstance(key, str):
        check_text(name, key)
        return PolicyRule(key.removesuffix("*"), key.endswith("*"), choices)
    if isinstance(key, bool) or not isinstance(key, numbers.Integral):
        raise type_error(name, "an agent's name, a prefix with * behind it, or a position as key", key)
    check_integer(name, key, 32, signed=False)
    return PolicyRule(int(key), False, choices)


def _choices(value: Any, name: str) -> list[PolicyChoice]:
    """Return the choices that a value of a mapping describes."""
    if isinstance(value, str):
        return [PolicyChoice(value)]
    if isinstance(value, tuple) and len(value) == 2:
        return [_choice((*value, 1.0), name)]
    if not isinstance(value, list):
        raise type_error(name, _CHOICES, value)
    return [_choice(each, f"{name}[{position}]") for position, each in enumerate(value)]


def _choice(value: Any, name: str) -> PolicyChoice:
    if not isinstance(value, tuple | list) or len(value) != 3:
        raise TypeError(f"{name}: {mismatch('a triple (policy, version, weight)', reprlib.repr(value))}")
    policy, version, weight = value
    check_text(name, policy)
    check_integer(name, version, 64, signed=True)
    if isinstance(weight, bool) or not isinstance(weight, numbers.Real):
        raise type_error(name, "a number as weight", weight)
    return PolicyChoice(policy, int(version), float(weight))


def _check_choices(choices: Sequence[PolicyChoice], name: str) -> None:
    """Raise InvalidArgumentError unless there are choices with names and positive, finite weights."""
    if not choices:
        raise InvalidArgumentError.of(name, expected=_CHOICES, got="none")
    for choice in choices:
        if not choice.policy:
            raise InvalidArgumentError.of(name, expected="the name of a policy", got="an empty text")
        if not 0 <= choice.weight < math.inf:
            raise InvalidArgumentError.of(name, expected="a finite weight from 0", got=choice.weight)
    if not 0 < sum(choice.weight for choice in choices) < math.inf:
        expected = "weights with a positive, finite sum"
        raise InvalidArgumentError.of(name, expected=expected, got=[each.weight for each in choices])
