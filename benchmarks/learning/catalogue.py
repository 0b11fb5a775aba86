"""Tasks, participants and hyperparameters of the comparison. Imports the standard library alone, for the peers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["PARTICIPANTS", "TASKS", "Participant", "Task"]


@dataclass(frozen=True)
class Task:
    """An environment to learn, and the hyperparameters of everybody who learns it.

    Attributes:
        title: name in table and chart.
        env: id of the environment.
        target: mean return of the last 100 episodes at which the time is taken.
        max_steps: number of steps after which learning ends, and over which learning rates fall to zero.
        algorithm: `ppo`; `normalized_ppo`, with normalized observations and scaled rewards; or `sac`.
        settings: hyperparameters by the names in the examples' `Settings`.
    """

    title: str
    env: str
    target: float
    max_steps: int
    algorithm: str
    settings: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the task as JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Participant:
    """A library that learns.

    Attributes:
        title: name in table and chart.
        module: module in `runs` that trains, by algorithm.
        environment: name of the peer's virtual environment; None for the one of `make test-bridges`.
    """

    title: str
    module: dict[str, str]
    environment: str | None


_PPO = {
    "num_rows": 8,
    "row_steps": 128,
    "minibatch_size": 256,
    "num_epochs": 10,
    "learning_rate": 1e-3,
    "gamma": 0.99,
    "lam": 0.95,
    "clip": 0.2,
    "entropy_bonus": 0.0,
    "value_weight": 0.5,
    "max_gradient_norm": 0.5,
}
_CONTINUOUS_PPO = {**_PPO, "row_steps": 256, "minibatch_size": 64, "learning_rate": 3e-4}
_SAC = {
    "num_rows": 4,
    "row_steps": 16,
    "updates_per_step": 1.0,
    "random_steps": 1000,
    "buffer_size": 1_000_000,
    "batch_size": 256,
    "learning_rate": 1e-3,
    "gamma": 0.99,
    "tau": 0.005,
    "hidden_size": 256,
}

TASKS = {
    "cartpole-ppo": Task("CartPole-v1 to 475, PPO", "CartPole-v1", 475, 200_000, "ppo", _PPO),
    "halfcheetah-ppo": Task(
        "HalfCheetah-v5 to 1,000, PPO", "HalfCheetah-v5", 1000, 1_000_000, "normalized_ppo", _CONTINUOUS_PPO
    ),
    "pendulum-sac": Task("Pendulum-v1 to -200, SAC", "Pendulum-v1", -200, 40_000, "sac", _SAC),
    "halfcheetah-sac": Task("HalfCheetah-v5 to 2,000, SAC", "HalfCheetah-v5", 2000, 300_000, "sac", _SAC),
}
"""Tasks by name. The first one is the default: the others take minutes to hours."""

PARTICIPANTS = {
    "rollserve": Participant(
        "Rollserve", {"ppo": "rollserve_ppo", "normalized_ppo": "rollserve_ppo", "sac": "rollserve_sac"}, None
    ),
    "stable_baselines3": Participant(
        "Stable-Baselines3",
        {
            "ppo": "stable_baselines3_ppo",
            "normalized_ppo": "stable_baselines3_ppo",
            "sac": "stable_baselines3_sac",
        },
        "stable_baselines3",
    ),
    "rllib": Participant("RLlib", {"ppo": "rllib_ppo"}, "rllib"),
}
"""Libraries by name."""
