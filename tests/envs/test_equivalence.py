"""Episodes from the server beside a plain loop over `gymnasium.make`: equal to the last bit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import pytest

import rollserve
from rollserve_wire.columns import leaves_of


@dataclass
class Case:
    env: rollserve.EnvSpec
    num_steps: int
    make: Any
    agent: str = "mlp"
    module: str = field(default="")

    def __str__(self) -> str:
        return self.env.id


def make_pong() -> gymnasium.Env[Any, Any]:
    import ale_py

    gymnasium.register_envs(ale_py)
    env = gymnasium.make("ALE/Pong-v5", frameskip=1, max_episode_steps=400)
    env = gymnasium.wrappers.AtariPreprocessing(env, screen_size=84)
    return gymnasium.wrappers.FrameStackObservation(env, 4)


def make_nested() -> gymnasium.Env[Any, Any]:
    import sample_envs  # noqa: F401  # registers it

    return gymnasium.make("Nested-v0", length=7)


CASES = [
    Case(rollserve.EnvSpec("CartPole-v1"), 2000, lambda: gymnasium.make("CartPole-v1")),
    Case(rollserve.EnvSpec("HalfCheetah-v5"), 1500, lambda: gymnasium.make("HalfCheetah-v5")),
    Case(
        rollserve.EnvSpec(
            "ALE/Pong-v5",
            {"frameskip": 1, "max_episode_steps": 400},  # frames: a step takes 4
            [
                rollserve.Wrapper("AtariPreprocessing", {"screen_size": 84}),
                rollserve.Wrapper("FrameStackObservation", {"stack_size": 4}),
            ],
        ),
        300,
        make_pong,
        agent="random",
    ),
    Case(rollserve.EnvSpec("FrozenLake-v1"), 500, lambda: gymnasium.make("FrozenLake-v1")),
    Case(rollserve.EnvSpec("Blackjack-v1"), 200, lambda: gymnasium.make("Blackjack-v1")),
    Case(rollserve.EnvSpec("sample_envs:Nested-v0", {"length": 7}), 100, make_nested, agent="random"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_episodes_equal_a_plain_loop(case: Case, sampler: rollserve.Sampler) -> None:
    updated = sampler.update_env(case.env)
    if case.agent == "mlp":
        agent = rollserve.MlpAgent.initial(updated.observation_space, updated.action_space, seed=1)
        sampler.update_agent(agent)
    else:
        sampler.update_agent(rollserve.RandomAgent())

    batch = sampler.obtain_samples(case.num_steps)

    assert batch.num_steps >= case.num_steps
    assert batch.num_steps - batch.lengths[-1] < case.num_steps
    assert len(set(batch.env_seeds.tolist())) == len(batch)
    env = case.make()
    for episode in batch.split():
        check_episode(env, episode)
    env.close()


def check_episode(env: gymnasium.Env[Any, Any], episode: rollserve.EpisodeBatch) -> None:
    assert episode.env_seeds is not None
    observation, info = env.reset(seed=int(episode.env_seeds[0]))
    check_infos(info, episode.episode_infos, 0)
    for step in range(episode.num_steps):
        check_equal(observation, episode.observations, step)
        action = nested(env.action_space, {name: leaf[step] for name, leaf in leaves_of(episode.actions).items()})
        observation, reward, terminated, truncated, info = env.step(action)
        assert reward == episode.rewards[step]
        check_infos(info, episode.env_infos, step)
        last = step == episode.num_steps - 1
        assert terminated == (last and episode.terminated[0])
        assert truncated == (last and episode.truncated[0])
        assert (terminated or truncated) == last
    check_equal(observation, episode.last_observations, 0)


def nested(space: gymnasium.Space[Any], leaves: dict[str, Any], path: str = "") -> Any:
    """Return a value of the space, built from its leaves."""
    if isinstance(space, gymnasium.spaces.Dict):
        return {key: nested(part, leaves, f"{path}{key}/") for key, part in space.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return tuple(nested(part, leaves, f"{path}{i}/") for i, part in enumerate(space))
    return leaves[path.rstrip("/")]


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Return the leaves of a nested value by their paths."""
    if isinstance(value, dict):
        return {name: leaf for key, part in value.items() for name, leaf in flat(part, f"{path}{key}/").items()}
    if isinstance(value, tuple):
        return {name: leaf for i, part in enumerate(value) for name, leaf in flat(part, f"{path}{i}/").items()}
    return {path.rstrip("/"): value}


def flat_infos(infos: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Return the infos by their paths."""
    flattened = {}
    for name, value in infos.items():
        flattened |= flat_infos(value, f"{path}{name}/") if isinstance(value, dict) else {f"{path}{name}": value}
    return flattened


def check_equal(expected: Any, columns: Any, row: int) -> None:
    leaves = leaves_of(columns)
    flattened = flat(expected)
    assert leaves.keys() == flattened.keys()
    for name, value in flattened.items():
        assert np.asarray(value).dtype == leaves[name].dtype
        assert np.array_equal(value, leaves[name][row])


def check_infos(expected: dict[str, Any], columns: Any, row: int) -> None:
    flattened = {name: value for name, value in flat_infos(expected).items() if name not in ("name", "text", "ragged")}
    for name in columns:
        present = columns.get(f"_{name}", np.ones(row + 1, np.bool_))[row]
        assert present == (name in flattened) or name.startswith("_")
    for name, value in flattened.items():
        assert np.array_equal(value, columns[name][row])


def test_dropped_infos_are_counted(sampler: rollserve.Sampler) -> None:
    sampler.update_env("sample_envs:Nested-v0", kwargs={"length": 7})
    sampler.update_agent(rollserve.RandomAgent())
    batch = sampler.obtain_samples(21)
    assert len(batch) == 3  # of seven steps
    assert batch.account.dropped_infos == {"text": 21, "ragged": 21, "name": 3}
    assert set(batch.env_infos) == {"step", "vector", "inner/push", "success", "_success"}
    assert batch.env_infos["_success"].sum() == 3
    assert batch.env_infos["vector"].dtype == np.float32


def test_shape_of_the_first_episode_decides_which_infos_are_kept(sampler: rollserve.Sampler) -> None:
    """Infos of other shapes than the first episode's are dropped; dtypes are widened."""
    sampler.update_env("sample_envs:Shapes")
    sampler.update_agent(rollserve.RandomAgent())
    batch = sampler.obtain_samples(40, seed=3)
    sizes = batch.rewards.astype(int)
    shape = batch.env_infos["shape"].shape[1:]
    assert shape == (sizes[0],)
    assert np.array_equal(batch.env_infos["_shape"], sizes == sizes[0])
    assert batch.env_infos["dtype"].dtype == np.float64
    assert np.array_equal(batch.env_infos["dtype"], np.where(sizes == 1, 1.0, 0.5))
    assert batch.account.dropped_infos["shape"] == (sizes != sizes[0]).sum()
