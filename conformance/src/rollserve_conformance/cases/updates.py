"""Cases about agents, updates and transforms: normalization, masks, updates of some workers, changes, questions."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollserve_conformance.cases.case import (
    RANDOM,
    Case,
    Json,
    breaking,
    env,
    envs_per_worker,
    fragments,
    mlp,
    samples,
)
from rollserve_conformance.operations import array

__all__ = ["transform_cases", "update_cases"]


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
    """Return the cases about agents and updates."""
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


def _env(*transforms: Json, **kwargs: Any) -> Json:
    """Return an update to an environment with transforms."""
    return {**env(**kwargs), "transforms": list(transforms)}


def transform_cases() -> list[Case]:
    """Return the cases about transforms."""
    clipped: Json = {"clip_rewards": {"low": -0.5, "high": 0.25}}
    scaled: Json = {"scale_rewards": {"factor": -2.0, "offset": 0.125}}
    wide = _env({"rescale_actions": {"low": -3.0, "high": 2.0}}, scaled, actions="dict", observations="vector")
    gaussian = mlp(
        3, head="diagonal_gaussian", parameters={**mlp(3)["parameters"], "log_std": array([0.5, 0.25], "float32")}
    )
    return [
        Case(
            "transforms-of-rewards",
            "transforms of rewards, and the environment's own",
            [
                *(_env(clipped), RANDOM, samples()),
                *(_env(scaled, {"clip_rewards": {"high": 0.5}}), samples(), {"do": "evaluate", "num_episodes": 3}),
                *(_env({"sign_rewards": {}}), samples(), fragments(return_returns_before=True)),
                fragments(row_step_count=8, return_returns_before=True),
            ],
        ),
        Case(
            "transforms-of-actions",
            "transforms of actions, and those that the environment got",
            [
                *(
                    _env({"rescale_actions": {"low": -1.0, "high": 1.0}}, actions="box"),
                    {"do": "update_agent", "agent": gaussian},
                    samples(),
                ),
                *(_env({"clip_actions": {}}, scaled, actions="box"), samples()),
                *(wide, RANDOM, samples()),
            ],
        ),
        Case(
            "transforms-of-observations",
            "transforms of observations",
            [
                *(_env({"cast_observations": {"data_type": "DATA_TYPE_FLOAT64"}}), RANDOM, samples()),
                _env(
                    {"scale_observations": {"factor": 0.01, "offset": -0.25, "leaves": ["camera/left"]}},
                    {"cast_observations": {"data_type": "DATA_TYPE_FLOAT32", "leaves": ["camera/right", "pose/0"]}},
                    observations="nested",
                ),
                samples(),
                *(_env({"rescale_observations": {"low": -1.0, "high": 0.5}}, {"flatten_observations": {}}), samples()),
            ],
        ),
        Case(
            "transforms-of-images",
            "transforms of images",
            [
                _env({"crop_observations": {"top": 1, "left": 2, "height": 6, "width": 4}}, observations="image"),
                *(RANDOM, samples()),
                _env({"grayscale_observations": {"keep_channel": True}}, observations="image"),
                samples(),
                _env({"resize_observations": {"height": 4, "width": 3}}, observations="image"),
                samples(),
            ],
        ),
        Case(
            "transforms-of-messages",
            "rewards and actions of the environment in messages of three steps",
            [wide, RANDOM, samples(120), fragments(96)],
            {"max_message_bytes": 4096},
        ),
        Case(
            "resume-transforms",
            "a stream with rewards and actions of the environment that breaks twice",
            [wide, RANDOM, samples(120)],
            {"max_message_bytes": 4096},
            faults=breaking(5, 2),
            resumes=True,
        ),
        Case(
            "transforms-of-one-worker",
            "workers of which one has transforms, and messages that lack what they add",
            [
                env(actions="box"),
                RANDOM,
                envs_per_worker(None, _env({"clip_actions": {}}, clipped, actions="box")),
                *(samples(), fragments(), {"do": "obtain_exact_episodes", "num_episodes_per_worker": 2}),
            ],
        ),
    ]
