"""Environments of EnvPool with several players, compared to plain loops over EnvPool to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import raises

import rollserve
from rollserve import EnvSpec, Policies, RandomAgent, Sampler, Wrapper
from rollserve_server.envs import ManyEnvs
from rollserve_server.errors import InvalidValueError

envpool = pytest.importorskip("envpool")

IN_TURN = ("ConnectFour-v1", "LeducHoldem-v1", "Backgammon-v1")
FOUR = EnvSpec("ConnectFour-v1", vectorization="envpool", multi_agent="aec")
CROSSING = EnvSpec(
    "IntersectionMultiAgent-v1", {"max_episode_steps": 9}, vectorization="envpool", multi_agent="parallel"
)


def pool_of(env_id: str, seed: int, **kwargs: Any) -> Any:
    return envpool.make_gymnasium(env_id, num_envs=1, num_threads=1, seed=[seed], **kwargs)


@pytest.mark.parametrize("env_id", IN_TURN)
def test_players_in_turn_get_what_a_plain_loop_gets(env_id: str) -> None:
    envs = ManyEnvs(EnvSpec(env_id, vectorization="envpool", multi_agent="aec"), 2)
    for seed, row in ((3, 1), (4, 0), (5, 1)):
        rng, pool = np.random.default_rng(seed), pool_of(env_id, seed)
        observations, infos = pool.reset()
        turns = envs.reset(row, seed)
        sums = np.zeros(2)
        for _ in range(60):
            player = int(infos["current_player"][0])
            (turn,) = turns
            assert turn[0] == player
            np.testing.assert_array_equal(turn.observation, observations[player])
            np.testing.assert_array_equal(envs.observations(player)[0][row * 2 + player], observations[player])
            assert turn.reward == sums[player]
            mask = infos["legal_action_mask"][0]
            np.testing.assert_array_equal(turn.info["legal_action_mask"], mask)
            action = int(rng.choice(np.flatnonzero(mask)))
            sums[player] = 0
            turns = envs.step(row, {player: np.int64(action)})
            others = rng.integers(len(mask), size=2)
            others[0] = action  # EnvPool takes the first action for the current player, whoever that is
            observations, rewards, terminated, truncated, infos = pool.step(others.astype(np.int32))
            sums += rewards
            if terminated[0] or truncated[0]:
                break
            assert [each.reward for each in envs.cut(row)] == [sums[1 - int(infos["current_player"][0])]]
        else:
            assert env_id == "Backgammon-v1"
            continue
        assert [each.agent for each in turns] == [0, 1]
        for each in turns:
            assert (each.reward, each.terminated, each.truncated) == (sums[each.agent], terminated[0], truncated[0])
            np.testing.assert_array_equal(each.observation, observations[each.agent])
    envs.close()


def test_players_in_each_step_get_what_a_plain_loop_gets() -> None:
    envs, num_steps = ManyEnvs(CROSSING, 1), 0
    for seed in (3, 4):
        rng, pool = np.random.default_rng(seed), pool_of(CROSSING.id, seed, max_episode_steps=9)
        observations, _ = pool.reset()
        turns = envs.reset(0, seed)
        while not turns[0].ended:
            actions = rng.integers(3, size=2)
            turns = envs.step(0, dict(enumerate(actions)))
            observations, rewards, terminated, truncated, infos = pool.step(actions.astype(np.int32))
            for turn in turns:
                np.testing.assert_array_equal(turn.observation, observations[turn.agent])
                assert turn.reward == rewards[turn.agent]
                assert (turn.terminated, turn.truncated) == (terminated[0], truncated[0])
                assert turn.info["speed"] == infos["players"]["speed"][turn.agent]
            num_steps += 1
        assert terminated[0] or truncated[0]
    assert num_steps > 4
    envs.close()


def test_policies_play_each_other_in_envpool(thread_sampler: Sampler) -> None:
    mask = rollserve.ActionMask(info="legal_action_mask")
    updated = thread_sampler.update_env(FOUR)
    assert updated.agents == ("player_0", "player_1")
    agents = {"main": RandomAgent(mask), "other": RandomAgent(mask)}
    thread_sampler.update_agent(Policies(agents, {0: "main", 1: "other"}))
    batch = thread_sampler.multi_agent.obtain_samples(100, seed=3)
    steps = batch.joint()
    assert (steps["player_0"].acted ^ steps["player_1"].acted).all()
    assert batch.terminated.all()
    table = thread_sampler.cross_play(["main", "other"], 10)
    np.testing.assert_allclose(table.evaluation.returns, 0)  # a game's rewards add up to nothing
    rows = thread_sampler.multi_agent.obtain_fragments(12 * 8, seed=3, soft_horizon=True, max_episode_length=4)
    assert rows.lengths[rows.truncated].tolist() == [4] * rows.truncated.sum()
    whole = {int(each.env_seeds[0]): each for each in batch.by_policy()["main"].split()}  # type: ignore[index]
    for each in rows.by_policy()["main"].split():
        if each.episode_indices[0] == 8:  # row 0 goes on in the state of its first episode
            np.testing.assert_array_equal(each.observations[0], whole[int(each.env_seeds[0])].observations[2])  # type: ignore[index]
    own = [space.spaces["player_0"] for space in (updated.observation_space, updated.action_space)]
    agent = rollserve.MlpAgent.initial(*own, hidden_sizes=(8,), action_mask=mask)
    thread_sampler.update_agent({"main": agent})
    members = {"1/bias": np.eye(7, dtype=np.float32)[:2]}
    result = thread_sampler.evaluate_population({"main": members}, 3, seed=3)
    thread_sampler.update_agent({"main": {**agent.parameters, "1/bias": members["1/bias"][1]}})
    np.testing.assert_array_equal(result.lengths[1], thread_sampler.evaluate(3, seed=3).lengths)
    thread_sampler.update_agent(Policies(agents, {0: "main", 1: "other"}))
    thread_sampler.resize(1)
    again = thread_sampler.multi_agent.obtain_samples(100, seed=3)
    for name, expected in batch.by_policy().items():
        np.testing.assert_array_equal(again.by_policy()[name].actions, expected.actions)


@pytest.mark.parametrize(
    ("spec", "field", "text"),
    [
        (
            EnvSpec(FOUR.id, vectorization="envpool", multi_agent="parallel"),
            "multi_agent",
            "'aec', because the players",
        ),
        (EnvSpec(CROSSING.id, vectorization="envpool", multi_agent="aec"), "multi_agent", "'parallel', because"),
        (
            EnvSpec("CartPole-v1", vectorization="envpool", multi_agent="aec"),
            "id",
            "an environment with several players",
        ),
        (
            EnvSpec(FOUR.id, vectorization="envpool", multi_agent="aec", wrappers=[Wrapper("flatten_v0")]),
            "vectorization",
            "take no wrappers",
        ),
        (
            EnvSpec(FOUR.id, vectorization="envpool", multi_agent="aec", global_state=True),
            "global_state",
            "no `state_sp",
        ),
        (
            EnvSpec(FOUR.id, {"max_num_players": 3}, vectorization="envpool", multi_agent="aec"),
            "kwargs_json",
            "belongs to the pool",
        ),
        (
            EnvSpec(FOUR.id, vectorization="envpool"),
            "id",
            "one player, or multi_agent beside it, got .* with 2 players",
        ),
    ],
)
def test_players_are_refused_by_field(thread_sampler: Sampler, spec: EnvSpec, field: str, text: str) -> None:
    if spec.multi_agent is None:
        with raises(rollserve.InvalidArgumentError, match=text):
            thread_sampler.update_env(spec)
        return
    with raises(InvalidValueError, field=field, match=text):
        ManyEnvs(spec, 1)
