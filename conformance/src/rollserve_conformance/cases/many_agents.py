"""Cases about environments with many agents: policies by name, their map, batches by policy, breaks, evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rollserve_conformance.cases.case import RANDOM, Case, Json, breaking, env, fragments, mlp, samples
from rollserve_conformance.operations import array

__all__ = ["many_agent_cases"]

_MODULE = "rollserve_conformance.many_environments"
_RANDOM_AGENT: Json = {"agent": {"kind": "random"}}
_GUARD: Json = {"agent": {"kind": "random", "action_mask": {"observation": "action_mask"}}}
_SMALL = {"max_message_bytes": 24000}
"""Messages of a few steps, whose observations have 2 KiB, or 1 KiB."""
_ENDS = {"return_last_values": True, "return_last_states": True, "return_returns_before": True}
_VIEWS = {"views": ["by_agent", "joint"]}


def _crowd(*, global_state: bool = False, **kwargs: Any) -> Json:
    """Return an update to the parallel environment."""
    update = {"do": "update_env", "id": f"{_MODULE}:ConformanceCrowd", "kwargs": kwargs, "multi_agent": "parallel"}
    return {**update, "global_state": True} if global_state else update


def _ring(**kwargs: Any) -> Json:
    """Return an update to the environment whose agents act in turns."""
    return {"do": "update_env", "id": f"{_MODULE}:ConformanceRing", "kwargs": kwargs, "multi_agent": "aec"}


def _policies(*rules: Json, **updates: Json) -> Json:
    """Return an update of policies, with a map if there are rules."""
    update = {"do": "update_policies", "policies": updates}
    return {**update, "policy_map": list(rules)} if rules else update


def _case(name: str, about: str, operations: Sequence[Json], connect: Json | None = None, **settings: Any) -> Case:
    """Return a case in which calls that sample deliver batches of many agents, unless other results are expected."""
    expected: dict[int, Json] = {
        place: {"multi_agent_batch": {}}
        for place, operation in enumerate(operations)
        if operation["do"].startswith("obtain")
    }
    settings["expected"] = expected | settings.get("expected", {})
    return Case(name, about, operations, connect or {}, **settings)


def _choice(policy: str, version: int = 0, weight: float = 1.0) -> Json:
    return {"policy": policy, "version": version, "weight": weight}


def _rule(kind: str, agents: str | int, *choices: Json) -> Json:
    """Return the rule for a `name`, a `prefix` or a `position`."""
    return {kind: agents, "choices": list(choices)}


def _of_ring(seed: int) -> Json:
    """Return an update of a policy for the environment whose agents act in turns, to an MLP."""
    return {"agent": mlp(seed, (2, 4, 3))}


def _of_runners(seed: int, width: int = 3) -> Json:
    agent = mlp(seed, (width, 4, 2), head="diagonal_gaussian")
    return {"agent": {**agent, "parameters": {**agent["parameters"], "log_std": array([-0.5, 0.25], "float32")}}}


def _recurrent(num_inputs: int = 256, size: int = 3) -> Json:
    """Return an update of a policy to an MLP with a GRU and a value."""
    generator = np.random.default_rng(4)
    shapes = {
        "core/weight_ih": (3 * size, num_inputs),
        "core/weight_hh": (3 * size, size),
        "core/bias_ih": (3 * size,),
        "core/bias_hh": (3 * size,),
        "0/weight": (3, size),
        "0/bias": (3,),
        "value/weight": (1, size),
        "value/bias": (1,),
    }
    parameters = {name: array(generator.normal(size=shape) / 10, "float32") for name, shape in shapes.items()}
    return {"agent": mlp(0, (num_inputs, 3), parameters=parameters)}


def many_agent_cases() -> list[Case]:
    """Return the cases about many agents."""
    return [*_batch_cases(), *_policy_cases(), *_stream_cases(), *_evaluation_cases()]


def _batch_cases() -> list[Case]:
    of_crowd = _policies(runner=_of_runners(1), guard=_GUARD, late=_RANDOM_AGENT)
    exact = {"do": "obtain_exact_episodes", "num_episodes_per_worker": 2, "options": {"seed": "3"}}
    return [
        _case(
            "many-parallel",
            "many agents that act at once, with spaces of their own, and come and go",
            [_crowd(), of_crowd, samples(), {"do": "stream_samples", "num_steps": 40, "options": {"seed": "7"}}],
        ),
        _case(
            "many-in-turns",
            "many agents that act in turns, with rewards before their first actions",
            [_ring(), _policies(main=_of_ring(2)), samples(), samples(return_returns_before=True)],
        ),
        _case("many-exact-episodes", "an exact number of episodes with many agents", [_crowd(), of_crowd, exact]),
        _case(
            "many-global-state",
            "the global state of many agents, before each environment step and after the last one",
            [_crowd(global_state=True), of_crowd, samples()],
        ),
        _case(
            "many-views",
            "batches by agent, and the agents' steps aligned to environment steps",
            [
                *(_crowd(), of_crowd, {**samples(), **_VIEWS}),
                *(_ring(), _policies(_rule("prefix", "", _choice("a"), _choice("b")), a=_of_ring(3), b=_of_ring(4))),
                {**samples(), **_VIEWS},
                {**fragments(40), **_VIEWS},
                {**fragments(40, row_step_count=10), **_VIEWS},
            ],
        ),
    ]


def _policy_cases() -> list[Case]:
    only_red = {"parameters": _of_ring(7)["agent"]["parameters"]}
    drawn = _rule("prefix", "", _choice("red", 0, 0.25), _choice("red", -1, 0.5), _choice("red", 1, 0.25))
    red, blue = _rule("name", "first", _choice("red")), _rule("prefix", "", _choice("blue"))
    names = [_rule("name", "second", _choice("blue")), _rule("prefix", "", _choice("red"))]
    return [
        _case(
            "policy-updates",
            "whole policies by name, new parameters of some of them, and calls that bring them along",
            [
                *(_ring(), _policies(red, blue, red=_of_ring(5), blue=_of_ring(6)), samples()),
                *(_policies(red=only_red), samples()),
                *(samples(policies={"blue": only_red}), samples(policies={"red": _RANDOM_AGENT}, policy_map=names)),
            ],
            expected={1: {"policy_version": 1}, 3: {"policy_version": 2}},
        ),
        _case(
            "policy-maps",
            "maps from agents to policies by name, prefix and position, and policies drawn by weight and version",
            [
                *(_ring(), _policies(red, blue, red=_of_ring(8), blue=_of_ring(9))),
                *(_policies(red=only_red), _policies(drawn, _rule("position", 1, _choice("blue"))), samples(90)),
                *(_policies(*names, _rule("prefix", "th", _choice("red", 1))), samples(90)),
            ],
        ),
        _case(
            "policies-delivered",
            "batches of some of the policies, and calls that count the steps of all agents",
            [
                *(_crowd(), _policies(runner=_of_runners(1), guard=_GUARD, late=_RANDOM_AGENT)),
                *(samples(deliver=["runner"]), samples(deliver=["late", "guard"], count="agent_steps")),
                *(samples(150, count="agent_steps"), samples(count="env_steps")),
            ],
        ),
    ]


def _stream_cases() -> list[Case]:
    wide, main = _ring(wide=True), _policies(main=_recurrent())
    crowd = [_crowd(wide=True), _policies(runner=_of_runners(1, 256), guard=_GUARD, late=_RANDOM_AGENT)]
    later = fragments(48, row_step_count=12, **_ENDS)
    soft = {**fragments(60, max_episode_length=4), "soft_horizon": True}
    counted = samples(100, deliver=["guard", "runner"], count="agent_steps")
    return [
        _case(
            "many-fragments",
            "fragments with many agents, whose steps a later fragment completes with the version that acted",
            [
                *(_ring(), _policies(main=_of_ring(2)), fragments(40)),
                *(_policies(main=_of_ring(3)), fragments(40, row_step_count=10)),
                *(_crowd(), _policies(runner=_of_runners(1), guard=_GUARD, late=_RANDOM_AGENT)),
                *(fragments(40), fragments(40, row_step_count=10), soft),
            ],
        ),
        _case(
            "many-small-messages",
            "episodes and fragments with many agents in messages of a few steps, with all of what ends have",
            [wide, main, samples(**_ENDS), fragments(48, **_ENDS), later],
            _SMALL,
        ),
        *(
            _case(f"resume-{name}", about, operations, _SMALL, faults=breaking(*fault), resumes=True)
            for name, about, operations, fault in (
                ("many", "episodes with many agents whose stream breaks twice", [wide, main, samples(**_ENDS)], (4, 2)),
                (
                    "policies-delivered",
                    "some of the policies, counted by the steps of all agents, whose stream breaks three times",
                    [*crowd, counted],
                    (3, 3),
                ),
                (
                    "many-fragments",
                    "fragments with many agents whose stream breaks twice",
                    [wide, main, fragments(48, **_ENDS), later],
                    (5, 2),
                ),
            )
        ),
    ]


def _evaluation_cases() -> list[Case]:
    evaluation = {"do": "evaluate", "num_episodes": 6, "options": {"seed": "11"}}
    maps = [
        [_rule("name", "first", _choice("a")), _rule("prefix", "", _choice("b", -1))],
        [_rule("position", 0, _choice("b")), _rule("prefix", "", _choice("a"), _choice("b", 1, 3.0))],
    ]
    a, b = _rule("name", "first", _choice("a")), _rule("prefix", "", _choice("b"))
    refused = {"error": {"kind": "invalid_argument"}}
    return [
        _case(
            "many-evaluation",
            "evaluations with the returns of each agent and of each policy, by the sampler's map and by others",
            [
                *(_ring(), _policies(a, b, a=_of_ring(5), b=_of_ring(6)), _policies(b=_of_ring(7)), evaluation),
                {**evaluation, "policy_maps": maps},
            ],
        ),
        _case(
            "many-errors",
            "an agent without a policy, and policies and versions that are not there",
            [
                *(_ring(), _policies(_rule("name", "first", _choice("a")), a=_of_ring(5))),
                *(_policies(a={"parameters": _of_ring(5)["agent"]["parameters"]}), samples()),
                *(_policies(a, b, a=_of_ring(5), b=_of_ring(6)), samples(deliver=["c"])),
                *(_policies(_rule("prefix", "", _choice("a", 99))), _policies(a={"agent": mlp(1)}), RANDOM),
                *({**evaluation, "policy_maps": [[_rule("prefix", "", _choice("c"))]]}, samples()),
                *(env(), RANDOM, samples(deliver=["a"])),
            ],
            expected={
                1: refused,
                2: {"error": {"reason": "NO_AGENT"}},
                3: {"error": {"reason": "NO_AGENT"}},
                5: refused,
                6: refused,
                7: refused,
                8: refused,
                9: refused,
                13: refused,
            },
        ),
    ]
