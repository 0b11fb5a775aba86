"""`sampler.sb3_vec_env`: what Stable-Baselines3 expects of a VecEnv, and its learners in it."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit
from row_env import RowEnv
from support import raises

import rollserve
from rollserve_server.local import LocalServer

pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is an extra: make test-bridges")

from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize


@pytest.fixture
def cartpole(light_server: LocalServer) -> Iterator[rollserve.Sampler[Any]]:
    light_server.reset()
    with rollserve.connect(light_server.address) as sampler:
        yield sampler


def test_steps_equal_those_of_environments_here(cartpole: rollserve.Sampler[Any]) -> None:
    generator, env = np.random.default_rng(0), cartpole.sb3_vec_env(seed=3, max_episode_length=12, record=True)
    here = DummyVecEnv([lambda: Monitor(gymnasium.make("CartPole-v1", max_episode_steps=12))] * env.num_envs)
    assert (env.observation_space, env.action_space) == (here.observation_space, here.action_space)
    here.seed(3)
    assert np.array_equal(env.reset(), here.reset())
    is_first = np.ones(env.num_envs, np.bool_)
    while is_first.any():
        actions = generator.integers(2, size=env.num_envs)
        one, other = env.step(actions), here.step(actions)
        ended = other[2]
        assert np.array_equal(one[0][is_first & ~ended], other[0][is_first & ~ended])
        for mine, its in zip(one[1:3], other[1:3], strict=True):
            assert mine.dtype == its.dtype
            assert np.array_equal(mine[is_first], its[is_first])
        for row in np.flatnonzero(is_first).tolist():
            assert one[3][row].keys() == other[3][row].keys()
            assert one[3][row]["TimeLimit.truncated"] is other[3][row]["TimeLimit.truncated"]
            if ended[row]:
                assert np.array_equal(one[3][row]["terminal_observation"], other[3][row]["terminal_observation"])
                mine, its = (each[3][row]["episode"] for each in (one, other))
                assert mine.keys() == its.keys()
                assert (mine["r"], mine["l"]) == (its["r"], its["l"])
        is_first &= ~ended
    assert env.batch().num_steps > 0
    env.close()


def test_seed_counts_for_the_next_reset(cartpole: rollserve.Sampler[Any]) -> None:
    env = cartpole.sb3_vec_env()
    here = DummyVecEnv([lambda: gymnasium.make("CartPole-v1")] * env.num_envs)
    for seed in (5, 5, 6):
        assert env.seed(seed) == here.seed(seed)
        first = env.reset()
        assert np.array_equal(first, here.reset())
        assert not np.array_equal(first, env.reset())
    assert env.get_attr("render_mode", [0, 2]) == [None, None]
    assert env.env_is_wrapped(TimeLimit, [1]) == [False]
    assert env.env_is_wrapped(Monitor) == [True] * 8
    for method in (env.get_attr, env.env_method):
        with pytest.raises(AttributeError, match="the server's"):
            method("gravity")
    with raises(rollserve.InvalidArgumentError, field="options"):
        env.set_options({"low": 0})
    env.close()


def test_example_of_the_page_runs(light_server: LocalServer, cartpole: rollserve.Sampler[Any]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "gymnasium.md").read_text()
    (example,) = re.findall(r"<!-- Stable-Baselines3 -->\n```python\n(.*?)```", page, re.DOTALL)
    exec(example.replace("127.0.0.1:50051", light_server.address).replace("30_000", "1_000"), {})


def test_learners_and_wrappers_work(cartpole: rollserve.Sampler[Any]) -> None:
    env = VecNormalize(cartpole.sb3_vec_env(seed=1), gamma=0.99)
    model = PPO("MlpPolicy", env, n_steps=64, batch_size=128, n_epochs=4, learning_rate=1e-3, seed=0, device="cpu")
    model.learn(16_000)
    assert np.mean([episode["r"] for episode in model.ep_info_buffer]) > 60  # random ones have 22
    env.training = env.norm_reward = False
    mean, _ = evaluate_policy(model, env, n_eval_episodes=8)
    assert mean > 60
    env.close()
    stacked = VecFrameStack(cartpole.sb3_vec_env(seed=1), 2)
    assert stacked.reset().shape == (8, 8)
    DQN("MlpPolicy", stacked, learning_starts=100, device="cpu").learn(400)
    stacked.close()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.filterwarnings("ignore:We recommend you to use a symmetric:UserWarning")  # of Pendulum's actions
def test_rows_pass_the_checker_of_environments(cartpole: rollserve.Sampler[Any], env_id: str) -> None:
    cartpole.update_env(rollserve.EnvSpec(env_id, vectorization="rows"))
    envs = cartpole.vector_env()
    check_env(RowEnv(envs))
    envs.close()


def test_pickled_env_begins_a_session_of_its_own(cartpole: rollserve.Sampler[Any]) -> None:
    env = cartpole.sb3_vec_env(seed=3)
    copy = pickle.loads(pickle.dumps(env))
    first = env.reset()
    env.step(np.zeros(8, np.int64))
    assert np.array_equal(copy.reset(), first)
    env.close()
    copy.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_sac_learns_pendulum(cartpole: rollserve.Sampler[Any]) -> None:
    cartpole.update_env(rollserve.EnvSpec("Pendulum-v1", vectorization="rows", num_rows=4))
    env = cartpole.sb3_vec_env(seed=1)
    options: dict[str, Any] = {"learning_rate": 1e-3, "gradient_steps": 8, "learning_starts": 400}
    model = SAC("MlpPolicy", env, policy_kwargs={"net_arch": [64, 64]}, seed=0, device="cpu", **options)
    model.learn(6_400)
    returns = [episode["r"] for episode in model.ep_info_buffer]
    assert np.mean(returns[-8:]) > -500 > -800 > np.mean(returns[:8])  # random ones have -1,200
    env.close()
