"""Cases about agents and updates: normalization, action masks, updates of some workers, changes, questions."""

from __future__ import annotations

import numpy as np

from rollserve_server.conformance.cases.case import Case, Json
from rollserve_server.conformance.cases.parts import RANDOM, env, envs_per_worker, mlp, samples
from rollserve_server.conformance.operations import array

__all__ = ["update_cases"]


def _agent(agent: Json) -> Json:
    return {"do": "update_agent", "agent": agent}


def _normalizing() -> Json:
    """Return an MLP that normalizes observations, by constants that are no defaults."""
    moments = {
        "observation/mean": array([1.5, -20.0, 3.25], "float64"),
        "observation/variance": array([400.0, 0.0, 2500.0], "float64"),
    }
    parameters = {**mlp(7)["parameters"], **moments}
    return {**mlp(7), "parameters": parameters, "normalization_epsilon": 0.0625, "normalization_clip": 1.5}


def update_cases() -> list[Case]:
    """Return the cases."""
    info, leaf = {"info": "action_mask"}, {"observation": "action_mask"}
    by_info = env(masks="info", actions="multi_discrete")
    python: Json = {"kind": "python", "name": "conformance", "kwargs": {"gain": 2.0}}
    threshold = {"threshold": array([10.5], "float64")}
    other = {name: array(np.full(each["shape"], 0.25), "float32") for name, each in mlp(8)["parameters"].items()}
    return [
        Case(
            "normalization",
            "an agent that normalizes observations, and new moments for it",
            [
                *(env(), _agent(_normalizing()), samples()),
                {"do": "update_agent", "parameters": {**_normalizing()["parameters"], **other}},
                samples(),
            ],
        ),
        Case(
            "action-masks",
            "agents with action masks, from infos and from observations",
            [
                *(by_info, _agent({"kind": "random", "action_mask": info}), samples()),
                *(_agent(mlp(9, (3, 4, 5), head="multi_categorical", action_mask=info)), samples()),
                *(env(masks="observation"), samples(agent=mlp(8, action_mask=leaf))),
                samples(agent={"kind": "random", "action_mask": leaf}, seed=8),
            ],
        ),
        Case(
            "agents-of-some-workers",
            "updates per worker that leave a worker's agent as it is",
            [
                *(env(), _agent(mlp(1))),
                {"do": "update_agent_per_worker", "updates": [{"agent": mlp(2)}, None]},
                samples(),
                {"do": "update_agent_per_worker", "updates": [None, {"parameters": mlp(3)["parameters"]}]},
                *(samples(), {"do": "update_agent_per_worker", "updates": [None, None]}, {"do": "status"}),
            ],
            expected={2: {"policy_version": 2}, 4: {"policy_version": 3}, 6: {"error": {"kind": "invalid_argument"}}},
        ),
        Case(
            "environments-of-some-workers",
            "updates per worker that leave a worker's environment as it is",
            [
                *(env(scale=2.0), RANDOM),
                envs_per_worker(None, {"kwargs": {"scale": 0.5, "max_length": 4}}),
                samples(),
                envs_per_worker(env(label="new"), None),
                samples(),
            ],
            expected={2: {"environment_version": 3}, 4: {"environment_version": 4}},
        ),
        Case(
            "agent-changes",
            "an agent in Python, and changes of its settings and parameters",
            [
                *(env(), _agent(mlp(1)), {"do": "change_agent", "kwargs": {"gain": 1.0}}),
                *(_agent(python), samples()),
                *({"do": "change_agent", "kwargs": {"gain": -0.5}}, samples()),
                *({"do": "change_agent", "parameters": threshold}, samples()),
                samples(change={"kwargs": {"gain": 1.0}, "parameters": {"threshold": array([-3.5], "float64")}}),
                {"do": "status"},
            ],
            expected={2: {"error": {"kind": "invalid_argument"}}, 10: {"policy_version": 5}},
            seconds=300,  # each agent in Python is tried in a process of its own
        ),
        Case(
            "call-environments",
            "the values of a method of the environments",
            [
                env(label="größer", scale=0.25),
                {"do": "call_environments", "method": "describe"},
                {
                    "do": "call_environments",
                    "method": "describe",
                    "arguments": [{"level": [3, None, True, "世界"]}, -1.5, [], "text"],
                },
                envs_per_worker(None, {"kwargs": {"scale": 0.75}}),
                {"do": "call_environments", "method": "describe", "arguments": [1]},
                {"do": "call_environments", "method": "describe", "environment_version": 2},
                {"do": "call_environments", "method": "close"},
            ],
            expected={6: {"error": {"reason": "METHOD_NOT_ALLOWED"}}},
        ),
    ]
