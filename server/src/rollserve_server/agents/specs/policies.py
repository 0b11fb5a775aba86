"""Policies by name, and the map from the agents of an environment to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from rollserve_wire.policy_map import PolicyChoice, PolicyMap, PolicyRule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["MEMBER_VERSION", "POLICY_CLASSES", "HeldPolicy", "Lineups", "PolicySet"]

_Spec = TypeVar("_Spec", covariant=True)

MEMBER_VERSION = (1 << 63) - 1
"""Number of the version of a policy that members of a population take the place of; all others are below it."""


@dataclass(frozen=True, eq=False)
class HeldPolicy(Generic[_Spec]):
    """A version of a policy.

    Attributes:
        version: number of the sampler's update that made it.
        spec: the policy, as an agent.
    """

    version: int
    spec: _Spec


@dataclass(frozen=True, eq=False)
class PolicySet(Generic[_Spec]):
    """Policies by name, as an update sends them or as they were accepted.

    Attributes:
        policies: for each policy the versions that the map names, acting or not: the current one, earlier ones in
            falling order up to the oldest one that the map counts back to, and then all that the map names by number.
        policy_map: map from agents to policies.
    """

    policies: Mapping[str, Sequence[HeldPolicy[_Spec]]]
    policy_map: PolicyMap

    @property
    def policy_maps(self) -> tuple[PolicyMap, ...]:
        """The maps that episodes have by turns: episode i has the one at position i modulo their number."""
        return (self.policy_map,)

    @property
    def acting(self) -> Iterator[tuple[str, HeldPolicy[_Spec]]]:
        """Yield the name of each policy, with each of its versions, that a map may draw for an agent, once each."""
        found = {
            id(held): (choice.policy, held)
            for policy_map in self.policy_maps
            for rule in policy_map.rules
            for choice in rule.acting_choices
            for held in (self.find(choice),)
        }
        yield from found.values()

    def find(self, choice: PolicyChoice) -> HeldPolicy[_Spec]:
        """Return the version of a policy that a choice of the map names.

        A choice that counts back beyond all versions names the oldest one.
        """
        held = self.policies[choice.policy]
        if choice.version <= 0:
            return held[min(-choice.version, len(held) - 1)]
        return next(each for each in held if each.version == choice.version)


@dataclass(frozen=True, eq=False)
class Lineups(PolicySet[_Spec]):
    """Policies of an evaluation, whose episodes have several maps by turns. All choices name versions by number.

    Attributes:
        later_maps: the maps after the first one.
    """

    later_maps: tuple[PolicyMap, ...] = ()

    @property
    def policy_maps(self) -> tuple[PolicyMap, ...]:
        """All maps."""
        return (self.policy_map, *self.later_maps)


POLICY_CLASSES: tuple[type, ...] = (HeldPolicy, PolicySet, PolicyMap, PolicyRule, PolicyChoice)
"""Classes of policies by name, and of the values within them, as samplers keep them."""
