"""`sampler.vector_env`: what gymnasium's wrappers, checkers and users expect of a vector of environments."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import vector as wrappers
from row_env import RowEnv

import rollserve
from rollserve_server.local import LocalServer, local_server

WRAPPERS: dict[str, Callable[[VectorEnv], VectorEnv]] = {
    "ClipAction": wrappers.ClipAction,
    "ClipReward": lambda envs: wrappers.ClipReward(envs, -1, 1),
    "DictInfoToList": wrappers.DictInfoToList,
    "DtypeObservation": lambda envs: wrappers.DtypeObservation(envs, np.int32),
    "FlattenObservation": wrappers.FlattenObservation,
    "NormalizeObservation": wrappers.NormalizeObservation,
    "NormalizeReward": wrappers.NormalizeReward,
    "RescaleAction": lambda envs: wrappers.RescaleAction(envs, -1, 1),
    "RescaleObservation": lambda envs: wrappers.RescaleObservation(envs, -1, 1),
    "ReshapeObservation": lambda envs: wrappers.ReshapeObservation(envs, (3, 1)),
    "TransformAction": lambda envs: wrappers.TransformAction(envs, lambda actions: -actions),
    "TransformObservation": lambda envs: wrappers.TransformObservation(envs, lambda observations: -observations),
    "TransformReward": lambda envs: wrappers.TransformReward(envs, np.negative),
    "VectorizeTransformAction": lambda envs: wrappers.VectorizeTransformAction(envs, gymnasium.wrappers.ClipAction),
    "VectorizeTransformObservation": lambda envs: wrappers.VectorizeTransformObservation(
        envs, gymnasium.wrappers.FlattenObservation
    ),
    "VectorizeTransformReward": lambda envs: wrappers.VectorizeTransformReward(
        envs, gymnasium.wrappers.TransformReward, func=np.negative
    ),
}


@pytest.fixture(scope="module")
def server(light_server: LocalServer) -> LocalServer:
    return light_server


@pytest.fixture
def pendulum(sampler: rollserve.Sampler[Any]) -> rollserve.Sampler[Any]:
    sampler.update_env(rollserve.EnvSpec("Pendulum-v1", vectorization="rows"))
    return sampler


def plain(env_id: str, envs: VectorEnv) -> SyncVectorEnv:
    """Return the same vector in this process."""
    mode = envs.metadata["autoreset_mode"]
    return SyncVectorEnv([lambda: gymnasium.make(env_id)] * envs.num_envs, autoreset_mode=mode)


@pytest.mark.parametrize("name", WRAPPERS)
def test_wrapper_does_as_around_plain_environments(pendulum: rollserve.Sampler[Any], name: str) -> None:
    with contextlib.closing(WRAPPERS[name](pendulum.vector_env(max_episode_length=200))) as envs:
        expected = WRAPPERS[name](plain("Pendulum-v1", envs.unwrapped))
        assert (envs.observation_space, envs.action_space) == (expected.observation_space, expected.action_space)
        assert data_equivalence(envs.reset(seed=3), expected.reset(seed=3), exact=True)
        expected.action_space.seed(0)
        for _ in range(5):
            actions = expected.action_space.sample()
            assert data_equivalence(envs.step(actions), expected.step(actions), exact=True)


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_statistics_of_episodes_are_those_of_plain_environments(
    cartpole: rollserve.Sampler[Any], autoreset: Any
) -> None:
    with contextlib.closing(wrappers.RecordEpisodeStatistics(cartpole.vector_env(autoreset=autoreset))) as envs:
        expected = wrappers.RecordEpisodeStatistics(plain("CartPole-v1", envs.unwrapped))
        envs.reset(seed=5), expected.reset(seed=5)
        is_first = np.ones(envs.num_envs, np.bool_)  # later episodes have seeds of their own
        while is_first.any():
            actions = np.ones(envs.num_envs, np.int64)
            infos, others = envs.step(actions)[4], expected.step(actions)[4]
            ended = is_first & others.get("_episode", False)
            for name in ("r", "l") if ended.any() else ():
                assert np.array_equal(infos["episode"][name][ended], others["episode"][name][ended])
            is_first &= ~ended


def test_arrays_of_steps_may_be_changed(tmp_path: Path) -> None:
    options = "--env", "HalfCheetah-v5", "--vectorization", "rows", "--workers", "1", "--backend", "in-process"
    with (
        local_server(*options, log=tmp_path / "server.log") as running,
        rollserve.connect(running.address) as sampler,
        contextlib.closing(sampler.vector_env()) as envs,
    ):
        shown, infos = envs.reset(seed=1)
        step = envs.step(np.zeros(envs.action_space.shape, np.float32))
        for array in (shown, *step[:4], *infos.values(), *step[4].values()):
            array[:] = 0


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.filterwarnings("ignore:.*(space|spec):UserWarning")  # of the environment itself
def test_rows_pass_gymnasiums_checker(sampler: rollserve.Sampler[Any], env_id: str) -> None:
    sampler.update_env(rollserve.EnvSpec(env_id, vectorization="rows"))
    with contextlib.closing(sampler.vector_env()) as envs:
        check_env(RowEnv(envs))


def test_vector_env_looks_like_gymnasiums(cartpole: rollserve.Sampler[Any]) -> None:
    with contextlib.closing(cartpole.vector_env()) as envs:
        assert isinstance(envs, VectorEnv)
        assert envs.unwrapped is envs
        assert envs.autoreset_mode is AutoresetMode.NEXT_STEP
        assert (envs.num_envs, envs.spec, envs.render_mode, envs.closed) == (8, None, None, False)
        assert repr(envs) == "VectorEnv(num_envs=8)"
        assert envs.get_attr("render_mode") == (None,) * 8
        for refused in (lambda: envs.call("reset"), lambda: envs.get_attr("gravity"), lambda: envs.set_attr("x", 1)):
            with pytest.raises(AttributeError, match="the server's"):
                refused()
    assert envs.closed
    envs.close()


def test_pickled_vector_begins_a_session_of_its_own(cartpole: rollserve.Sampler[Any]) -> None:
    with contextlib.ExitStack() as stack:
        envs = stack.enter_context(contextlib.closing(cartpole.vector_env(autoreset="same_step", seed=3)))
        copy = stack.enter_context(contextlib.closing(pickle.loads(pickle.dumps(envs))))
        first, _ = envs.reset()
        envs.step(np.zeros(8, np.int64))
        assert copy.autoreset_mode is AutoresetMode.SAME_STEP
        assert np.array_equal(copy.reset()[0], first)


def test_vector_of_a_sampler_with_a_secret_is_not_pickled(light_server: LocalServer) -> None:
    with (
        rollserve.connect(light_server.address, token="secret") as sampler,
        contextlib.closing(sampler.vector_env(autoreset="same_step")) as envs,
        pytest.raises(TypeError, match="token"),
    ):
        pickle.dumps(envs)
