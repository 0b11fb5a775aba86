"""Every installed environment with a vector entry point: each call steps what `UpdateEnv` announced, or is refused.

The spaces of all of them are compared, of ALE's more than 100 games, too, most of them in slow tests. Each kind of call
then runs in CartPole and in two games, which differ in their number of actions; one of the games is slow.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from typing import Any

import gymnasium
import numpy as np
import pytest
from fragment_calls import fragments
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import AutoresetMode
from native_envs import ALLOWED
from pools import adds_up, evaluate, evaluate_population, pool_of, sample
from support import raises

import rollserve
from rollserve import EnvChange, EnvSpec
from rollserve_server.agents import ConstantSpec
from rollserve_server.envs import RowEnvs, VectorEnvs, make_rows
from rollserve_server.errors import InvalidValueError
from rollserve_server.pool import AtLeast, Exactly, InProcessBackend, RowUpdates
from rollserve_server.settings import WorkerSettings

HAS_ALE = importlib.util.find_spec("ale_py") is not None
if HAS_ALE:
    importlib.import_module("ale_py")  # registers its games


COMMON = ("CartPole-v1", "ALE/Pong-v5", "ALE/Breakout-v5")


def installed() -> list[Any]:
    """Return the ids with a vector entry point whose code can be imported; each takes 0.2 s, so most are slow."""
    ids = []
    for spec in list(gymnasium.registry.values()):
        if isinstance(spec.vector_entry_point, str):
            with contextlib.suppress(ImportError):
                load_env_creator(spec.vector_entry_point)
                ids.append(pytest.param(spec.id, marks=() if spec.id in COMMON else pytest.mark.slow))
    return ids


@pytest.mark.filterwarnings("ignore:.*out of date")  # CartPole-v0
@pytest.mark.parametrize("env_id", installed())
def test_choice_is_left_open_only_where_single_rows_have_the_spaces_of_native_ones(env_id: str) -> None:
    settings = WorkerSettings(rows=1, native_rows=1)
    native, single = VectorEnvs(EnvSpec(env_id), 1), RowEnvs(EnvSpec(env_id), 1)
    same_step = VectorEnvs(EnvSpec(env_id), 1, same_step=True)
    spaces = native.observation_space, native.action_space
    assert same_step.same_step
    assert (same_step.observation_space, same_step.action_space) == spaces
    if (single.observation_space, single.action_space) == spaces:
        chosen = make_rows(EnvSpec(env_id), settings)
        assert isinstance(chosen, VectorEnvs)
        chosen.close()
    else:
        quotes = ["'native'", "'rows'", *map(str, spaces), str(single.observation_space), str(single.action_space)]
        with raises(InvalidValueError, field="vectorization", quotes=quotes):
            make_rows(EnvSpec(env_id), settings)
    for envs in (native, single, same_step):
        envs.close()


ROWS: dict[str, Any] = {"vectorization": "native", "num_rows": 2, "num_episodes_per_row": 2}
CARTPOLE = EnvSpec("CartPole-v1", **ROWS)
GAMES = [EnvSpec(f"ALE/{game}-v5", {"max_num_frames_per_episode": 60}, **ROWS) for game in ("Pong", "Breakout")]
NATIVE = [CARTPOLE, *(GAMES if HAS_ALE else [])]
ACTION = ConstantSpec({"": np.array(1)})


def marks_of(env: EnvSpec) -> Any:
    """Return the marks of tests that step an environment: a game takes seconds, and both run the same code."""
    return pytest.mark.slow if env in GAMES[1:] else ()


@pytest.mark.parametrize("env", [pytest.param(env, id=env.id, marks=marks_of(env)) for env in NATIVE])
async def test_each_call_steps_the_announced_environment(env: EnvSpec) -> None:
    async with pool_of(InProcessBackend(), workers=1, **ALLOWED) as pool:
        description = (await pool.update_env([env])).description
        await pool.update_agent([ACTION])
        batches = [await sample(pool, target, seed=1) for target in (AtLeast(30), Exactly(2))]
        batches.append(await fragments(pool, 2 * 20, seed=1))
        for batch in batches:
            assert batch.observations.shape[1:] == description.observation_space.shape
            assert batch.observations.dtype == description.observation_space.dtype
            assert batch.last_observations.shape[1:] == description.observation_space.shape
            assert adds_up(batch.account)
        episodes = batches[0].split()
        evaluation = await evaluate(pool, len(episodes), seed=1)
        for outcome, episode in zip(evaluation.outcomes, episodes, strict=True):
            assert (outcome.length, outcome.total_reward) == (episode.num_steps, episode.rewards.sum())


def plain_fragments(env: EnvSpec, seed: int, num_steps: int) -> list[list[np.ndarray]]:
    """Return observations (T, O), rewards (T,), ends (T,) and lives (T,) of each row of a plain loop."""
    plain: Any = gymnasium.make_vec(
        env.id, 2, "vector_entry_point", autoreset_mode=AutoresetMode.SAME_STEP, **env.kwargs
    )
    observations, _ = plain.reset(seed=seed)
    steps = []
    for _ in range(num_steps):
        following, rewards, terminated, truncated, infos = plain.step(np.ones(2, np.int64))
        steps.append((observations.copy(), rewards.copy(), terminated | truncated, infos["lives"].copy()))
        observations = following
    plain.close()
    return [[np.array([step[part][row] for step in steps]) for part in range(4)] for row in range(2)]


@pytest.mark.parametrize("env", [pytest.param(env, id=env.id, marks=marks_of(env)) for env in NATIVE[1:]])
async def test_fragments_of_games_equal_a_plain_loop(env: EnvSpec) -> None:
    async with pool_of(InProcessBackend(), env, workers=1, **ALLOWED) as pool:
        await pool.update_agent([ACTION])
        first, second = [await fragments(pool, 2 * 25, start, seed=3) for start in (0, 25)]
    parts = [*first.split(), *second.split()]
    (seed,) = {int(part.env_seeds[0]) for part in first.split() if part.episode_indices[0] < 2}
    for row, (observations, rewards, ended, lives) in enumerate(plain_fragments(env, seed, 50)):
        of_row = sorted((part for part in parts if part.episode_indices[0] % 2 == row), key=order)
        assert len(of_row) > 2
        assert np.array_equal(np.concatenate([part.observations for part in of_row]), observations)
        assert np.array_equal(np.concatenate([part.rewards for part in of_row]), rewards)
        last = np.flatnonzero(ended)
        assert np.cumsum([part.num_steps for part in of_row if part.truncated[0]])[: len(last)].size == len(last)
        # ALE has no infos of the step that ends an episode: those beside it belong to the next one.
        present = np.concatenate([part.env_infos["_lives"] for part in of_row])
        assert np.array_equal(present, ~ended)
        assert np.array_equal(np.concatenate([part.env_infos["lives"] for part in of_row])[~ended], lives[~ended])


def order(part: rollserve.EpisodeBatch) -> tuple[int, int]:
    return int(part.episode_indices[0]), int(part.first_steps[0])


@pytest.mark.skipif(not HAS_ALE, reason="ALE is not installed")
@pytest.mark.slow
async def test_population_and_rows_that_differ_are_refused_where_single_rows_have_other_spaces() -> None:
    game, spaces = GAMES[0], ("(4, 84, 84)", "(210, 160, 3)")
    async with pool_of(InProcessBackend(), game, **ALLOWED) as pool:
        await pool.update_agent([ACTION])
        with raises(InvalidValueError, field="options.environment", quotes=(game.id, spaces[1])):
            await evaluate_population(pool, {"weight": np.zeros(2)}, 1)
        with raises(InvalidValueError, field="options.environment.vectorization", quotes=("'rows'", spaces[1])):
            await evaluate_population(pool, {"weight": np.zeros(2)}, 1, env=GAMES[1])
        with raises(InvalidValueError, field="options.environment.vectorization", quotes=spaces):
            await evaluate(pool, 1, env=EnvSpec(game.id))
        for update in (None, EnvChange(kwargs={"frameskip": 2})):
            field = "all_workers.per_row.updates[1]"
            with raises(InvalidValueError, field=field, quotes=spaces[1]):
                await pool.update_env([RowUpdates((EnvSpec(game.id), update))])
        updated = await pool.update_env([EnvSpec(game.id, vectorization="rows", num_rows=2)])
        assert updated.description.observation_space.shape == (210, 160, 3)


NO_SINGLE_ROWS = {
    "no code": (EnvSpec("sample_envs:Coins-v0"), "sample_envs:Coins-v0"),
    "an argument of native code": (EnvSpec("ALE/Pong-v5", {"episodic_life": True}), "'episodic_life'"),
}


@pytest.mark.parametrize(("env", "quote"), NO_SINGLE_ROWS.values(), ids=NO_SINGLE_ROWS)
async def test_native_code_without_single_rows_has_to_be_chosen(env: EnvSpec, quote: str) -> None:
    async with pool_of(InProcessBackend(), **ALLOWED) as pool:
        with raises(
            InvalidValueError, field="all_workers.environment.vectorization", quotes=("'native'", "'rows'", quote)
        ):
            await pool.update_env([env])
        assert pool.status().env_version == 1
