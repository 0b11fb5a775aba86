"""Maps from agents to policies, as data."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rollserve
from rollserve_wire.policy_map import PolicyChoice, PolicyMap, PolicyRule, policy_map_from_proto, policy_map_to_proto

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="*"), min_size=1, max_size=5)
CHOICES = st.lists(
    st.tuples(NAMES, st.integers(-(2**63), 2**63 - 1), st.floats(1e-6, 1e6)).map(tuple), min_size=1, max_size=4
)
KEYS = NAMES | NAMES.map(lambda name: f"{name}*") | st.integers(0, 2**32 - 1)


@given(st.dictionaries(KEYS, CHOICES | NAMES, min_size=1, max_size=6))
def test_maps_survive_the_wire(mapping: dict[Any, Any]) -> None:
    made = PolicyMap.of(mapping)
    assert policy_map_from_proto(policy_map_to_proto(made)) == made
    assert len(made.rules) == len(mapping)


@given(st.dictionaries(KEYS | st.just("*"), NAMES, min_size=1, max_size=6), st.lists(NAMES, max_size=6))
def test_rules_go_to_names_then_positions_then_the_longest_prefix(mapping: dict[Any, str], agents: list[str]) -> None:
    made = PolicyMap.of(mapping)
    for index, (agent, rule) in enumerate(zip(agents, made.rules_of(agents), strict=True)):
        prefixes = [key for key in mapping if isinstance(key, str) and key[-1] == "*" and agent.startswith(key[:-1])]
        keys = [key for key in (agent, index, max(prefixes, key=len, default=None)) if key in mapping]
        assert rule == (list(mapping).index(keys[0]) if keys else None)


@given(CHOICES, st.lists(st.booleans(), min_size=4, max_size=4), st.floats(0, 1, exclude_max=True))
def test_choices_of_weight_0_are_never_drawn(choices: Any, zeros: list[bool], number: float) -> None:
    kept = [(*choice[:2], 0.0 if is_zero else choice[2]) for choice, is_zero in zip(choices, zeros, strict=False)]
    if any(choice[2] for choice in kept):
        drawn = PolicyMap.of({"a": kept}).rules[0].choose(number)
        assert drawn == PolicyMap.of({"a": [choice for choice in kept if choice[2]]}).rules[0].choose(number)


@given(CHOICES, st.floats(0, 1, exclude_max=True))
def test_choices_are_the_part_of_their_weights_that_the_number_falls_into(choices: Any, number: float) -> None:
    rule = PolicyMap.of({"a": choices}).rules[0]
    weights = [choice[2] for choice in choices]
    position = rule.choices.index(rule.choose(number))
    total = math.fsum(weights)
    assert math.fsum(weights[:position]) <= number * total * (1 + 1e-9) + 1e-9
    assert number * total <= math.fsum(weights) * (1 + 1e-9)


def test_choices_come_as_often_as_their_weights_say() -> None:
    rule = PolicyMap.of({"opponent": [("main", -1, 0.2), ("main", 0, 0.8)]}).rules[0]
    drawn = Counter(rule.choose(number).version for number in np.random.default_rng(0).random(10_000))
    assert drawn[0] == pytest.approx(8_000, abs=200)


def test_by_names_gives_policies_the_agents_that_are_called_like_them() -> None:
    made = PolicyMap.by_names(["adversary", "agent"])
    rules = made.rules_of(["adversary_0", "agent_0", "agent_1", "agent", "other"])
    assert [rule if rule is None else made.rules[rule].choices[0].policy for rule in rules] == [
        "adversary",
        "agent",
        "agent",
        "agent",
        None,
    ]
    assert PolicyMap.by_names(["shared"]).rules_of(["x", "y"]) == [0, 0]
    assert str(PolicyRule("red_", True, (PolicyChoice("a"),))) == "red_*"


@pytest.mark.parametrize(
    ("mapping", "error", "text"),
    [
        ([], TypeError, "policy_map: expected a mapping from agents to policies, got"),
        ({}, rollserve.InvalidArgumentError, "policy_map: expected at least one rule, got none"),
        ({"a": []}, rollserve.InvalidArgumentError, r"policy_map\['a'\]: expected a policy, .* got none"),
        ({"a": 3}, TypeError, r"policy_map\['a'\]: expected a policy, a pair"),
        ({"a": ("p", 0.5)}, TypeError, r"policy_map\['a'\]: expected an integer"),
        (
            {"a": [("p", 0)]},
            TypeError,
            r"policy_map\['a'\]\[0\]: expected a triple \(policy, version, weight\), got \('p', 0\)",
        ),
        ({"a": [("p", 0, -1.0)]}, rollserve.InvalidArgumentError, "expected a finite weight from 0, got -1.0"),
        ({"a": [("p", 0, math.inf)]}, rollserve.InvalidArgumentError, "expected a finite weight from 0, got inf"),
        ({"a": [("p", 0, 1e308), ("p", 1, 1e308)]}, rollserve.InvalidArgumentError, "a positive, finite sum"),
        ({"a": [("p", 0, 0.0)]}, rollserve.InvalidArgumentError, r"a positive, finite sum, got \[0.0\]"),
        ({"a": ""}, rollserve.InvalidArgumentError, "expected the name of a policy, got an empty text"),
        ({-1: "p"}, rollserve.InvalidArgumentError, r"policy_map\[-1\]: expected an integer from 0"),
        ({1.5: "p"}, TypeError, r"policy_map\[1.5\]: expected an agent's name"),
    ],
)
def test_maps_refuse_by_name(mapping: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        PolicyMap.of(mapping)
