"""Cases about transforms of environments, and the rewards and actions that the environment itself has."""

from __future__ import annotations

from typing import Any

from rollserve_server.conformance.cases.case import Case, Json
from rollserve_server.conformance.cases.parts import RANDOM, breaking, env, envs_per_worker, fragments, mlp, samples
from rollserve_server.conformance.operations import array

__all__ = ["transform_cases"]


def _env(*transforms: Json, **kwargs: Any) -> Json:
    """Return an update to an environment with transforms."""
    return {**env(**kwargs), "transforms": list(transforms)}


def transform_cases() -> list[Case]:
    """Return the cases."""
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
