"""Policies by name: put together from an update and from what is held, checked, and built for an environment's rows."""

from __future__ import annotations

import bisect
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollserve_server.agents.agent import VALUE, Agent
from rollserve_server.agents.building import load_agent, prepare_agent
from rollserve_server.agents.specs import (
    MEMBER_VERSION,
    AgentSource,
    AgentSpec,
    HeldPolicy,
    Lineups,
    MlpSpec,
    OnnxSpec,
    PolicySet,
    PolicySource,
    PolicySpec,
    PythonSpec,
    kind_of,
)
from rollserve_server.errors import AgentFailedError, InvalidValueError, listed, show, within
from rollserve_wire.policy_map import PolicyChoice, PolicyMap, PolicyRule, policies_called_like

if TYPE_CHECKING:
    import numpy as np
    from gymnasium import Space

    from rollserve_server.settings import AgentSettings

__all__ = [
    "BuiltPolicy",
    "PolicyAgents",
    "check_delivered",
    "check_map",
    "check_value",
    "kinds_of",
    "lineups_of",
    "load_policies",
    "members_in_place",
    "policies_after",
    "policy_versions",
    "prepare_for_env",
    "spaces_of_policies",
    "with_external",
]

_EXTERNAL = "external"
"""Name of the policy of the agents that a client acts for."""


def policies_after(
    held: Sequence[PolicySet[PolicySpec]],
    sources: Mapping[str, PolicySource],
    policy_map: PolicyMap | None,
    agents: Sequence[str],
    number: int,
) -> PolicySet[PolicySource]:
    """Return the policies after an update.

    Policies that the update leaves out stay, as long as the map names them.

    Args:
        held: policies of the versions that are kept, the current ones first.
        sources: whole policies by name, new or changed.
        policy_map: the new map; None for the present one. Without one, or where that one is `PolicyMap.by_names`,
            policies act for the agents that are called like them, and others are dropped unless they are new.
        agents: names of the environment's possible agents.
        number: number of the update.

    Raises:
        InvalidValueError: the map names a policy or a version that is not held, leaves out one of the update or an
            agent, or has a rule for none of the agents.
    """
    current = held[0].policies if held else {}
    names = dict.fromkeys([*current, *sources])
    hint = ""
    if policy_map is not None:
        with within("policy_map"):
            check_map(policy_map, agents)
    else:
        if held and held[0].policy_map != PolicyMap.by_names(list(current)):
            policy_map, hint = held[0].policy_map, "the present map stays until an update brings another one"
            with within("policy_map"):
                _rules_of_agents(policy_map, agents, hint)
        else:
            called = {name for agent in agents for name in policies_called_like(agent)}
            names = dict.fromkeys(name for name in names if name in sources or name in called)
            policy_map = PolicyMap.by_names(list(names))
            if names and agents:
                example = {agents[0]: next(iter(names)), "*": next(reversed(names))}
                with within("policy_map"):
                    _rules_of_agents(policy_map, agents, f"give a map from agents to policies, such as {show(example)}")
    named: dict[str, list[PolicyChoice]] = {}
    for choice in (choice for rule in policy_map.rules for choice in rule.choices):
        if choice.policy not in names:
            raise InvalidValueError.of(
                "policy_map", expected=f"policies among {listed(names)}", got=repr(choice.policy)
            )
        named.setdefault(choice.policy, []).append(choice)
    for name in sources:
        if name not in named:
            expected, got = f"a policy that the map names, one of {listed(sorted(named))}", repr(name)
            raise InvalidValueError.of(f"policies[{name!r}]", expected=expected, got=got, hint=hint)
    policies = {}
    for name in names:
        if name in named:
            versions: dict[int, PolicySource] = {
                each.version: each.spec for policy_set in reversed(held) for each in policy_set.policies.get(name, ())
            }
            if name in sources:
                versions[number] = sources[name]
            policies[name] = _named(versions, named[name])
    return PolicySet(policies, policy_map)


def lineups_of(held: Sequence[PolicySet[PolicySpec]], policy_maps: Sequence[PolicyMap]) -> Lineups[PolicySpec]:
    """Return the policies that maps of an evaluation name.

    Args:
        held: policies of the versions that are kept, the version to evaluate first, in falling order.
        policy_maps: at least one map.

    Raises:
        InvalidValueError: a map names a policy or a version that is not held; it names a field from `policy_maps` on.
    """
    versions: dict[str, dict[int, PolicySpec]] = {}
    for policy_set in held:
        for name, its_versions in policy_set.policies.items():
            for each in its_versions:
                versions.setdefault(name, {}).setdefault(each.version, each.spec)
    named: dict[str, dict[int, PolicySpec]] = {}
    maps = []
    for position, policy_map in enumerate(policy_maps):
        rules = []
        for rule in policy_map.rules:
            choices = []
            for choice in rule.choices:
                with within(f"policy_maps[{position}]"):
                    number = _number_of(choice, versions)
                named.setdefault(choice.policy, {})[number] = versions[choice.policy][number]
                choices.append(dataclasses.replace(choice, version=number))
            rules.append(PolicyRule(rule.agents, rule.is_prefix, tuple(choices)))
        maps.append(PolicyMap(tuple(rules)))
    policies = {
        name: tuple(HeldPolicy(number, numbers[number]) for number in sorted(numbers, reverse=True))
        for name, numbers in named.items()
    }
    return Lineups(policies, maps[0], tuple(maps[1:]))


def _named(versions: Mapping[int, PolicySource], choices: Sequence[PolicyChoice]) -> tuple[HeldPolicy[Any], ...]:
    """Return the versions of a policy that choices name, in the order of `PolicySet`."""
    falling = sorted(versions, reverse=True)
    for choice in choices:
        with within("policy_map"):
            _number_of(choice, {choice.policy: versions})
    depth = 1 + max((-choice.version for choice in choices if choice.version <= 0), default=0)
    pinned = {choice.version for choice in choices if choice.version > 0}
    numbers = [*falling[:depth], *sorted(pinned.difference(falling[:depth]), reverse=True)]
    return tuple(HeldPolicy(number, versions[number]) for number in numbers)


def _number_of(choice: PolicyChoice, versions: Mapping[str, Mapping[int, object]]) -> int:
    """Return the number of the version that a choice names: the oldest one if it counts back beyond all that are held.

    Args:
        choice: the choice.
        versions: the held versions of each policy.

    Raises:
        InvalidValueError: the policy or the version is not held; without a field.
    """
    if choice.policy not in versions:
        raise InvalidValueError.of("", expected=f"policies among {listed(versions)}", got=repr(choice.policy))
    falling = sorted(versions[choice.policy], reverse=True)
    if choice.version <= 0:
        return falling[min(-choice.version, len(falling) - 1)]
    if choice.version not in falling:
        expected = f"versions of {choice.policy!r} that are held, {listed(list(map(str, falling)))}"
        raise InvalidValueError.of("", expected=expected, got=choice.version)
    return choice.version


def members_in_place(current: PolicySet[PolicySpec], names: Sequence[str]) -> PolicySet[PolicySpec]:
    """Return the policies of a population's members, as if an update had made them: the newest version of each.

    Args:
        current: policies that the members differ from in their parameters only; it has all of the names.
        names: names of the policies that members have.
    """
    policies = {name: (HeldPolicy(MEMBER_VERSION, current.policies[name][0].spec),) for name in names}
    return PolicySet(policies, current.policy_map)


def prepare_for_env(
    agent: AgentSource,
    observation_space: Space[Any],
    action_space: Space[Any],
    settings: AgentSettings,
    agents: Sequence[str] = (),
) -> AgentSpec:
    """Check an agent before workers get it, or each of several policies; see `prepare_agent`.

    Args:
        agent: an agent, or policies by name, as a request sends them, or as they were accepted before.
        observation_space: observation space of one row; of an environment with many agents, a Dict of theirs.
        action_space: action space, alike.
        settings: operator's limits and permissions.
        agents: names of the possible agents; empty for an environment with one.

    Raises:
        InvalidValueError: as of `prepare_agent`; policies by name in an environment with one agent, or one agent in an
            environment with many; an agent without a policy, a policy without an agent, or agents of different spaces
            that share one.
    """
    if isinstance(agent, PolicySet):
        if not agents:
            expected = "an agent, because the environment has a single one"
            raise InvalidValueError.of("", expected=expected, got="policies by name")
        return _prepare_policies(agent, observation_space, action_space, settings, agents)
    if agents:
        expected = f"policies by name, such as {{'policy': agent}}, for the agents {listed(agents)}"
        raise InvalidValueError.of("", expected=expected, got=f"one agent of kind {kind_of(agent)}")
    return prepare_agent(agent, observation_space, action_space, settings)


def _prepare_policies(
    policies: PolicySet[PolicySource],
    observation_space: Any,
    action_space: Any,
    settings: AgentSettings,
    agents: Sequence[str],
) -> PolicySet[PolicySpec]:
    """Return the policies, each checked against the spaces of the agents that it may act for."""
    has_lineups = isinstance(policies, Lineups)
    acts_for: dict[str, dict[str, None]] = {}
    for position, policy_map in enumerate(policies.policy_maps):
        with within(f"policy_maps[{position}]" if has_lineups else "policy_map"):
            rules = _rules_of_agents(policy_map, agents)
        for agent, rule in zip(agents, rules, strict=True):
            for choice in policy_map.rules[rule].choices:
                acts_for.setdefault(choice.policy, {})[agent] = None
    spaces = observation_space, action_space
    differ = [functools.cache(lambda one, other, space=space: space[one] != space[other]) for space in spaces]
    prepared: dict[str, tuple[HeldPolicy[PolicySpec], ...]] = {}
    for name, held in policies.policies.items():
        with within(f"policy_maps[{name!r}]" if has_lineups else f"policies[{name!r}]"):
            if name not in acts_for:
                expected = f"a policy that acts for one of the agents {listed(agents)}"
                raise InvalidValueError.of("", expected=expected, got="one for none of them")
            first = next(iter(acts_for[name]))
            for space, differs in zip(spaces, differ, strict=True):
                other = next((other for other in acts_for[name] if differs(first, other)), None)
                if other is not None:
                    expected = f"agents with the same spaces, as {first!r} has with {show(space[first])}"
                    raise InvalidValueError.of("", expected=expected, got=f"{other!r} with {show(space[other])}")
            prepared[name] = tuple(
                HeldPolicy(
                    each.version, prepare_agent(each.spec, observation_space[first], action_space[first], settings)
                )
                for each in held
            )
    return dataclasses.replace(policies, policies=prepared)  # type: ignore[return-value]  # accepted ones now


def load_policies(policies: PolicySet[PolicySpec]) -> PolicySet[PolicySpec]:
    """Load policies on a worker, each as `load_agent` does."""
    loaded = {
        name: tuple(HeldPolicy(each.version, load_agent(each.spec)) for each in held)
        for name, held in policies.policies.items()
    }
    return dataclasses.replace(policies, policies=loaded)


def policy_versions(agent: AgentSpec) -> dict[str, int]:
    """Return the current version of each policy by name; nothing for a single agent."""
    if not isinstance(agent, PolicySet):
        return {}
    return {name: held[0].version for name, held in agent.policies.items()}


def check_delivered(agent: AgentSpec, names: Sequence[str]) -> None:
    """Raise InvalidValueError, without a field, if policies shall be delivered that an agent does not have."""
    if names and not isinstance(agent, PolicySet):
        raise InvalidValueError.of("", expected="none for a single agent", got=listed(names))
    known = policy_versions(agent)
    for name in names:
        if name not in known:
            raise InvalidValueError.of("", expected=f"policies among {listed(known)}", got=repr(name))


def check_value(spec: AgentSpec, policies: Sequence[str] = ()) -> None:
    """Raise InvalidValueError, without a field, if the agent has no value after a segment.

    It needs a float `value` among its infos. Of policies by name, each that acts and is delivered needs one.

    Args:
        spec: the agent.
        policies: names of the policies that are delivered; empty for all.
    """
    if isinstance(spec, PolicySet):
        for name, held in spec.acting:
            if name in (policies or spec.policies):
                _check_value(held.spec, f" as policy {name!r}")
    else:
        _check_value(spec, "")


def _check_value(spec: PolicySpec, role: str) -> None:
    match spec:
        case MlpSpec():
            has_value = spec.value is not None
        case OnnxSpec():
            has_value = VALUE.name in spec.outputs
        case PythonSpec():
            infos = (info for info in spec.form.infos if info.name == VALUE.name)
            has_value = any(info.dtype.kind == "f" and not info.shape for info in infos)
        case _:
            has_value = False
    if not has_value:
        expected = "false for an agent without a number `value` among its infos"
        raise InvalidValueError.of("", expected=expected, got=f"true for an agent of kind {kind_of(spec)}{role}")


def check_map(policy_map: PolicyMap, agents: Sequence[str]) -> None:
    """Check a map that a request brings against the names of the possible agents; no names for a single agent.

    Raises:
        InvalidValueError: a rule is for none of the agents, or an agent has no rule; the field is within `rules`.
    """
    ordered = sorted(agents)
    known = {*agents, *range(len(agents))}
    for position, rule in enumerate(policy_map.rules if agents else ()):
        if rule.is_prefix:
            place = bisect.bisect_left(ordered, str(rule.agents))
            matches = ordered[place : place + 1] and ordered[place].startswith(str(rule.agents))
        else:
            matches = rule.agents in known
        if not matches:
            expected = f"a rule for some of the agents {listed(agents)}"
            got = f"one for position {rule}" if isinstance(rule.agents, int) else f"one for {str(rule)!r}"
            raise InvalidValueError.of(f"rules[{position}]", expected=expected, got=got)
    _rules_of_agents(policy_map, agents)


def _rules_of_agents(policy_map: PolicyMap, agents: Sequence[str], hint: str = "") -> list[int]:
    """Return the position of the rule of each agent.

    Raises:
        InvalidValueError: an agent has no rule; the field is `rules`, and the text ends with the hint.
    """
    found = []
    for agent, rule in zip(agents, policy_map.rules_of(agents), strict=True):
        if rule is None:
            expected = f"a rule for each of the agents {listed(agents)}"
            raise InvalidValueError.of("rules", expected=expected, got=f"none for {agent!r}", hint=hint)
        found.append(rule)
    return found


def spaces_of_policies(policies: PolicySet[PolicySpec], agents: Sequence[str], space: Any) -> dict[str, Space[Any]]:
    """Return the space of each policy that acts for an agent, given the Dict space of all agents."""
    found: dict[str, Space[Any]] = {}
    for policy_map in policies.policy_maps:
        for agent, rule in zip(agents, _rules_of_agents(policy_map, agents), strict=True):
            for choice in policy_map.rules[rule].choices:
                found.setdefault(choice.policy, space[agent])
    return found


def kinds_of(external: Sequence[str], agents: Sequence[str], spaces: Sequence[Any]) -> dict[str, list[str]]:
    """Return the agents that a client acts for by the names of their policies: agents with the same spaces share one.

    The policy of a single kind is `external`; of several kinds, each is called `external_` and like its first agent.

    Args:
        external: names of the agents that the client acts for.
        agents: names of all agents of the environment, in its order.
        spaces: Dict spaces that have the agents' spaces by their names.
    """
    kinds: list[list[str]] = []
    for agent in (each for each in agents if each in external):
        like = (kind for kind in kinds if all(space[kind[0]] == space[agent] for space in spaces))
        kind = next(like, None)
        if kind is None:
            kinds.append(kind := [])
        kind.append(agent)
    return {_EXTERNAL if len(kinds) == 1 else f"{_EXTERNAL}_{kind[0]}": kind for kind in kinds}


def with_external(
    held: PolicySet[PolicySpec] | None, kinds: Mapping[str, Sequence[str]], version: int = 0
) -> PolicySet[Any]:
    """Return policies of which a client's act for some of the agents; None stands for their specs.

    The rules of the others keep their positions, and so draw the same random numbers.

    Args:
        held: policies of the other agents; None if there are none.
        kinds: for each of the client's policies the names of its agents.
        version: version of the client's policies.

    Raises:
        InvalidValueError: one of the other policies is called like one of the client's.
    """
    rules = list(held.policy_map.rules) if held else []
    policies: dict[str, Any] = dict(held.policies) if held else {}
    for name, agents in kinds.items():
        if name in policies:
            expected = f"policies of the sampler that are not called {name!r}, as the client's is"
            raise InvalidValueError.of("agents", expected=expected, got="one")
        for agent in agents:
            rule = PolicyRule(agent, False, (PolicyChoice(name),))
            position = next(
                (i for i, each in enumerate(rules) if (each.agents, each.is_prefix) == (agent, False)), None
            )
            if position is None:
                rules.append(rule)
            else:
                rules[position] = rule
    return PolicySet({**policies, **{name: (HeldPolicy(version, None),) for name in kinds}}, PolicyMap(tuple(rules)))


@dataclass(frozen=True, eq=False)
class BuiltPolicy:
    """A version of a policy.

    Attributes:
        name: name of the policy.
        version: number of the version; 0 for the members of a population.
        agents: positions of the agents that it may act for, rising.
        num_places: K, the number of agents of all rows that it can act for at once.
        row_places: number of these agents in each row.
        agent: what acts, built for K rows.
    """

    name: str
    version: int
    agents: tuple[int, ...]
    num_places: int
    row_places: int
    agent: Agent

    def describe(self, error: AgentFailedError, agent: str) -> str:
        """Return the text of an error of the policy, with the agent that it acted for."""
        version = f", version {self.version}" if self.version else ""
        return f"policy {self.name!r}{version}, for agent {agent!r}: {error.message}"


class PolicyAgents:
    """Versions of policies that may act in an environment, and the one that acts for each agent of an episode.

    Attributes:
        agents: names of the environment's possible agents.
        policies: the versions of policies.
        num_numbers: number of random numbers that `choose` takes for an episode, at most.
    """

    def __init__(
        self,
        policy_set: PolicySet[PolicySpec],
        agents: Sequence[str],
        max_acting: int,
        num_rows: int,
        build: Callable[[str, HeldPolicy[PolicySpec], int, int], Agent],
    ) -> None:
        """Build the policies.

        Args:
            policy_set: the policies, which have been checked to fit the agents.
            agents: names of the environment's possible agents.
            max_acting: largest number of agents that act at once in a row.
            num_rows: number of rows.
            build: returns an agent for a policy, given its name and version, the position of an agent with its spaces,
                and the number of places.
        """
        self.agents = tuple(agents)
        self.num_numbers = max(len(policy_map.rules) for policy_map in policy_set.policy_maps)
        held: dict[int, HeldPolicy[PolicySpec]] = {}
        names: dict[int, str] = {}
        acts_for: dict[int, dict[int, None]] = {}
        rules_of_maps = [(each, _rules_of_agents(each, agents)) for each in policy_set.policy_maps]
        for policy_map, rules in rules_of_maps:
            for agent, rule in enumerate(rules):
                for choice in policy_map.rules[rule].acting_choices:
                    found = policy_set.find(choice)
                    held[id(found)], names[id(found)] = found, choice.policy
                    acts_for.setdefault(id(found), {})[agent] = None
        self.policies: list[BuiltPolicy] = []
        for identity, each in held.items():
            its = tuple(sorted(acts_for[identity]))
            row_places = min(len(its), max_acting)
            num_places = num_rows * row_places
            built = build(names[identity], each, its[0], num_places)
            version = 0 if each.version == MEMBER_VERSION else each.version
            self.policies.append(BuiltPolicy(names[identity], version, its, num_places, row_places, built))
        positions = {identity: position for position, identity in enumerate(held)}
        self._lineups = [
            _Lineup(policy_map, rules, lambda choice: positions[id(policy_set.find(choice))])
            for policy_map, rules in rules_of_maps
        ]

    @property
    def names(self) -> list[tuple[str, int]]:
        """Name and version of each of the policies."""
        return [(policy.name, policy.version) for policy in self.policies]

    def choose(self, index: int, numbers: np.ndarray) -> list[int]:
        """Return the position of the policy of each agent in an episode.

        Args:
            index: index of the episode.
            numbers: (num_numbers,), random numbers of the episode from 0 up to 1.
        """
        return self._lineups[index % len(self._lineups)].choose(numbers)


class _Lineup:
    """A map, with the position of the policy behind each of its choices."""

    def __init__(self, policy_map: PolicyMap, rules: Sequence[int], find: Callable[[PolicyChoice], int]) -> None:
        self._rules = rules
        # The rules that have agents.
        self._used = {rule: policy_map.rules[rule] for rule in self._rules}
        self._positions = {choice: find(choice) for rule in self._used.values() for choice in rule.acting_choices}

    def choose(self, numbers: np.ndarray) -> list[int]:
        """Return the position of the policy of each agent, given a random number for each rule."""
        chosen = {rule: self._positions[its.choose(float(numbers[rule]))] for rule, its in self._used.items()}
        return [chosen[rule] for rule in self._rules]
