"""`make bench-learning` in small: participants learn for some iterations, in the environment of the tests."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from benchmarks.learning.attempts import Attempt, learn
from benchmarks.learning.catalogue import PARTICIPANTS, TASKS, Participant
from benchmarks.learning.chart import save_chart
from rollserve_server.local import LocalServer

LIBRARIES = {"rollserve": "torch", "stable_baselines3": "stable_baselines3", "rllib": "ray.rllib"}


def point(seconds: float, mean_return: float, num_episodes: int = 100) -> dict[str, float]:
    return {
        "seconds": seconds,
        "num_steps": 100 * seconds,
        "mean_return": mean_return,
        "num_episodes": num_episodes,
    }


def test_time_to_a_return_is_that_of_a_hundred_episodes() -> None:
    curve = [point(1, 500, 99), point(2, 474), point(3, 475), point(4, 500)]
    attempt = Attempt("Rollserve", "cartpole-ppo", 0, curve)
    assert attempt.time_to(475) == {"seconds": 3, "num_steps": 300}
    assert attempt.time_to(501) is None


def test_chart_shows_attempts_with_and_without_a_curve(tmp_path: Path) -> None:
    attempts = [
        Attempt(each.title, task, 0, [point(1, 20), point(2, 30)]) for each in PARTICIPANTS.values() for task in TASKS
    ]
    save_chart([*attempts, Attempt("Rollserve", "cartpole-ppo", 1, failure="not installed")], tmp_path / "chart.png")
    save_chart([], tmp_path / "empty.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.filterwarnings("ignore")  # PyTorch's own
def test_hyperparameters_are_those_of_the_examples() -> None:
    pytest.importorskip("torch", reason="PyTorch is an extra: make test-bridges")
    import ppo_torch
    import sac_torch

    for task in TASKS.values():
        usual = sac_torch.Settings() if task.algorithm == "sac" else ppo_torch.settings_of(task.env)
        assert dataclasses.replace(usual, **task.settings) == usual


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "participant"),
    [
        (name, participant)
        for name in ("cartpole-ppo", "halfcheetah-ppo", "pendulum-sac")
        for participant, who in PARTICIPANTS.items()
        if TASKS[name].algorithm in who.module
    ],
)
def test_participant_reports_its_progress(name: str, participant: str, small_server: LocalServer) -> None:
    for library in ("torch", LIBRARIES[participant]):
        pytest.importorskip(library, reason=f"{library} is an extra: make test-bridges")
    task, who = TASKS[name], PARTICIPANTS[participant]
    if task.env == "HalfCheetah-v5":
        task = dataclasses.replace(task, env="Pendulum-v1")  # whose episodes end sooner
    max_steps = 4 * task.settings["num_rows"] * task.settings["row_steps"] + task.settings.get("random_steps", 0)
    here = Participant(who.title, who.module, None)
    attempt = learn(
        name, dataclasses.replace(task, max_steps=max_steps), here, Path(sys.executable), 0, small_server.address, 200
    )
    assert attempt.failure == ""
    assert attempt.versions.keys() > {"python"}
    assert len(attempt.curve) >= 2
    assert [each["num_steps"] for each in attempt.curve] == sorted({each["num_steps"] for each in attempt.curve})
    # RLlib's iterations have some steps more than are asked for.
    assert attempt.curve[-1]["num_steps"] <= max_steps + 32 * (participant == "rllib")
    assert 0 < attempt.curve[0]["seconds"] < attempt.curve[-1]["seconds"]
