"""Hosts with packages, and versions of Python, that the server does not have."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from old_style import OldStyle
from pools import pool_of, sample
from support import HELPERS, raises

import rollserve
from rollserve import EnvSpec, Reason, Reproducibility
from rollserve_server.agents import RandomSpec
from rollserve_server.errors import InvalidValueError
from rollserve_server.local import local_server
from rollserve_server.pool import AtLeast, InProcessBackend

pytestmark = pytest.mark.usefixtures("sandboxes_find_test_agents")
OLD_PYTHONS = ("3.8", "3.9", "3.10")
"""Versions of Python that gym 0.21 runs on."""


def old_python() -> str:
    """Return an old Python of this machine, or skip the test."""
    for version in OLD_PYTHONS:
        pythons = [Path(shutil.which(f"python{version}") or "nowhere")]
        pythons += Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python")
        for python in pythons:
            if python.exists() and not subprocess.run([python, "-c", "import venv, ensurepip"], check=False).returncode:
                return str(python)
    pytest.skip(f"this machine has no Python {', '.join(OLD_PYTHONS)}")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for virtual environments, or none where pip cannot install anything."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(tmp_path), "gym-notices"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        pytest.skip(f"pip finds no packages: {result.stderr[-300:]}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "rollserve" / "environments"


def check_episodes_of_gym(batch: rollserve.EpisodeBatch, cache: Path, env: str, version: str) -> None:
    """Check the episodes of a batch against a plain loop in the only virtual environment, to the last bit."""
    (python,) = cache.glob("*/bin/python")
    episodes = list(batch.split())
    actions = [episode.actions.tolist() for episode in episodes]
    request = [[int(episode.env_seeds[0]), each] for episode, each in zip(episodes, actions, strict=True)]  # type: ignore[index]
    command = [str(python), str(HELPERS / "plain_gym_loop.py"), env]
    found = subprocess.run(command, input=json.dumps(request), stdout=subprocess.PIPE, text=True, check=True)
    found_version, played = json.loads(found.stdout.splitlines()[-1])
    assert found_version == version
    for episode, steps in zip(episodes, played, strict=True):
        observations, rewards, terminated, truncated = zip(*steps, strict=True)
        assert [row.tobytes().hex() for row in np.array(episode.observations)] == list(observations)
        assert episode.rewards.tolist() == list(rewards)
        assert not any(terminated[:-1] + truncated[:-1])
        assert [bool(episode.terminated[0]), bool(episode.truncated[0])] == [terminated[-1], truncated[-1]]


async def test_environment_of_four_values_equals_a_plain_loop() -> None:
    profiles = {"old": {"env": "old_style:OldStyle", "python": sys.executable}}
    async with pool_of(InProcessBackend(), profiles=profiles) as pool:
        updated = await pool.update_env([EnvSpec("profile:old")])
        assert updated.description.reproducibility is Reproducibility.EPISODE
        assert updated.description.max_episode_steps == 6
        await pool.update_agent([RandomSpec()])
        batch = await sample(pool, AtLeast(200), seed=1)
    assert 0 < batch.terminated.sum() < len(batch)
    env = OldStyle()
    for episode in batch.split():
        env.seed(int(episode.env_seeds[0]) % 2**32)  # type: ignore[index]
        observation, done, infos = env.reset(), False, {}
        for position in range(episode.num_steps):
            assert not done
            assert episode.observations[position].tobytes() == observation.tobytes()
            observation, reward, done, infos = env.step(episode.actions[position])
            assert episode.rewards[position] == reward
        assert done
        assert bool(episode.truncated[0]) == infos.get("TimeLimit.truncated", False) != bool(episode.terminated[0])


@pytest.mark.slow
@pytest.mark.timeout(900)  # pip installs packages
@pytest.mark.parametrize("is_old", [True, False], ids=["gym 0.21 on an old Python", "gym 0.26"])
async def test_old_gym_equals_a_plain_loop(is_old: bool, cache: Path) -> None:
    python, version, numpy = (old_python(), "0.21.0", "numpy<1.24") if is_old else ("", "0.26.2", "numpy<2")
    packages = [f"gym=={version}", numpy]
    ids = {"pole": "CartPole-v1", "car": "gym:MountainCar-v0", "continuous": "MountainCarContinuous-v0"}
    profiles = {name: {"env": env, "python": python, "packages": packages} for name, env in ids.items()}
    async with pool_of(InProcessBackend(), profiles=profiles) as pool:
        for name, env in ids.items():
            updated = await pool.update_env([EnvSpec(f"profile:{name}")])
            assert updated.description.reproducibility is Reproducibility.EPISODE
            await pool.update_agent([RandomSpec()])
            batch = await sample(pool, AtLeast(300), seed=1)
            assert batch.terminated.all() if name == "pole" else batch.truncated.all()
            check_episodes_of_gym(batch, cache, env.removeprefix("gym:"), version)


@pytest.mark.slow
@pytest.mark.timeout(900)  # pip installs packages
@pytest.mark.usefixtures("cache")
def test_one_server_has_two_versions_of_numpy_at_once() -> None:
    versions = {"one": (1, 26), "two": (2, 2)}
    profiles = {
        name: {"env": "old_style:OldStyle", "packages": [f"numpy=={major}.{minor}.*"]}
        for name, (major, minor) in versions.items()
    }
    options = ("--env", "CartPole-v1", "--workers", "1", "--max-samplers", "3", "--profiles", json.dumps(profiles))
    with (
        local_server(*options) as server,
        rollserve.connect(server.address, sampler="one") as one,
        rollserve.connect(server.address, sampler="two") as two,
    ):
        samplers = {"one": one, "two": two}
        for name, sampler in samplers.items():
            sampler.create_sampler(f"profile:{name}", num_workers=1, seed=5)
            sampler.update_agent(rollserve.RandomAgent())
        batches = {name: sampler.obtain_samples(100, seed=1) for name, sampler in samplers.items()}
    for name, batch in batches.items():
        assert (batch.observations[:, 1:] == versions[name]).all()
    assert batches["one"].observations[:, 0].tobytes() == batches["two"].observations[:, 0].tobytes()


@pytest.mark.slow
@pytest.mark.timeout(900)  # pip installs packages
@pytest.mark.usefixtures("cache")
async def test_what_pip_says_is_told() -> None:
    profiles = {"none": {"env": "CartPole-v1", "packages": ["gym==0.0.0"]}}
    async with pool_of(InProcessBackend(), workers=1, profiles=profiles) as pool:
        with raises(InvalidValueError, reason=Reason.ENV_REFUSED, quotes="gym==0.0.0"):
            await pool.update_env([EnvSpec("profile:none")])
