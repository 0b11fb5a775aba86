"""Evaluations of policies by name: returns of each agent and policy, lineups, and policies against each other."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import re
from typing import Any

import numpy as np
import pytest
from many_agents import CONNECT_FOUR, CROWD, DUEL, POLICIES, RELAY, check_against_plain_loops
from support import equal, raises

import rollserve
from rollserve import (
    AgentReturns,
    CrossPlay,
    EnvSpec,
    InvalidArgumentError,
    Policies,
    PolicyVersion,
    PreconditionError,
    RandomAgent,
    Reason,
    Sampler,
)
from rollserve_server.local import LocalServer

ROCK, PAPER, SCISSORS = (rollserve.ConstantAgent(np.int64(action)) for action in range(3))
HANDS = {"rock": ROCK, "paper": PAPER, "scissors": SCISSORS, "random": RandomAgent()}


@pytest.fixture
def duel(thread_sampler: Sampler) -> Sampler:
    """Return a sampler that holds policies for rock, paper, scissors; `rock` is paper in its second version."""
    thread_sampler.update_env(DUEL)
    everybody = [(name, 0, 1.0) for name in HANDS]
    thread_sampler.update_agent(Policies(HANDS, {"*": everybody}))
    thread_sampler.update_agent({"rock": PAPER})
    return thread_sampler


@pytest.mark.parametrize("spec", [CROWD, RELAY, CONNECT_FOUR], ids=lambda spec: spec.id)
def test_evaluation_has_the_returns_of_the_same_episodes(thread_sampler: Sampler, spec: EnvSpec) -> None:
    thread_sampler.update_env(spec)
    thread_sampler.update_agent(POLICIES[spec.id])
    result = thread_sampler.multi_agent.evaluate(6, seed=3, return_episodes=True, max_episode_length=12)
    found, episodes = result.agent_returns, result.episodes
    assert found is not None
    sampled = thread_sampler.multi_agent.obtain_samples(sum(result.lengths), seed=3, max_episode_length=12)
    assert all(equal(episodes.by_policy()[name], batch) for name, batch in sampled.by_policy().items())
    check_against_plain_loops(episodes, spec)
    expected = np.full((6, len(episodes.agents)), np.nan)
    for part in episodes.policies:
        version = PolicyVersion(part.policy, int(part.batch.policy_versions[0]))
        for agent, index, total, before in zip(
            part.agent_positions, part.batch.episode_indices, part.batch.returns, part.rewards_before, strict=True
        ):
            expected[index, agent] = np.nansum([expected[index, agent], total, before])
            assert found.policies[found.policy_positions[index, agent]] == version
    np.testing.assert_allclose(found.returns, expected, rtol=1e-6)
    np.testing.assert_allclose(np.nansum(found.returns, axis=1), result.returns, rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(found.policy_positions < 0, np.isnan(expected))
    np.testing.assert_array_equal(result.lengths, episodes.lengths)
    for position, agent in enumerate(found.agents):
        own = found.returns[:, position]
        assert found.by_agent()[agent].mean == pytest.approx(np.nanmean(own))


def test_policies_that_act_for_several_agents_count_once_per_episode(thread_sampler: Sampler) -> None:
    thread_sampler.update_env(CROWD)
    thread_sampler.update_agent(POLICIES[CROWD.id])
    found = thread_sampler.evaluate(5).agent_returns
    assert found is not None
    runners = np.nanmean(found.returns[:, :2], axis=1)
    summary = found.by_policy()[PolicyVersion("runner", 1)]
    assert (summary.mean, summary.std) == pytest.approx((runners.mean(), runners.std(ddof=1)))
    assert f"runner@1  {summary}" in str(found)


def test_maps_of_an_evaluation_take_turns_and_change_nothing(duel: Sampler) -> None:
    before = duel.status()
    maps: list[Any] = [{0: "paper", 1: "scissors"}, {0: ("rock", -1), 1: ("rock", 0)}]
    result = duel.evaluate(5, policy_map=maps, first_episode_index=1)
    found = result.agent_returns
    assert found is not None
    played = [tuple(str(found.policies[policy]) for policy in row) for row in found.policy_positions]
    even, odd = ("paper@1", "scissors@1"), ("rock@1", "rock@2")
    assert played == [odd, even, odd, even, odd]
    np.testing.assert_array_equal(found.returns, [[-1.0, 1.0]] * 5)
    assert result.policy_version == 2
    assert duel.status().policies == before.policies
    assert duel.status().policy_version == 2
    whole = duel.evaluate(5, policy_map={0: "rock", 1: "rock"}, policy_version=1).agent_returns
    assert whole is not None
    assert whole.policies == (PolicyVersion("rock", 1),)


def test_lineups_give_the_same_bits_as_maps_of_the_sampler(duel: Sampler) -> None:
    policy_map = {0: "random", 1: [("random", 0, 0.5), ("paper", 0, 0.5)]}
    evaluated = duel.multi_agent.evaluate(20, seed=5, policy_map=policy_map, return_episodes=True)
    duel.update_agent(Policies({}, policy_map))
    sampled = duel.multi_agent.obtain_samples(40, seed=5)
    assert {each.policy for each in sampled.policies} == {"random", "paper"}
    for name, batch in evaluated.episodes.by_policy().items():
        assert equal(batch, sampled.by_policy()[name])


def test_cross_play_pairs_policies_in_both_seats(duel: Sampler) -> None:
    table = duel.cross_play(["scissors", "paper", ("rock", 1), "random"], 30, seed=1)
    assert list(map(str, table.players)) == ["scissors@1", "paper@1", "rock@1", "random@1"]
    np.testing.assert_array_equal(table.num_episodes, 60 * (1 - np.eye(4)))
    assert len(table.evaluation) == 4 * 3 * 30
    np.testing.assert_array_equal(table.win_rates[0, 1:3], [1.0, 0.0])
    assert table.win_rates[2, 1] == 0.0
    assert str(table.returns[0][1]) == "1.00 ± 0.00"
    assert table.returns[0][0] is None
    low, high = np.moveaxis(table.win_rate_intervals, -1, 0)
    assert (low[3, :3] < 0.5).all()
    assert (high[3, :3] > 0.5).all()
    # Each of the three wins against one, and loses against another one.
    assert np.ptp(table.elo) < 40
    assert table.elo.sum() == pytest.approx(0, abs=1e-9)
    lines = str(table).splitlines()
    assert lines[0].split() == ["win", "rate", *map(str, table.players), "Elo"]
    assert "1.00 ± 0.06" in lines[1]


def test_policies_of_weight_0_are_held_for_evaluations_and_do_not_act(thread_sampler: Sampler) -> None:
    thread_sampler.update_env(DUEL)
    held = [("rock", 0, 1.0), ("rock", -1, 0.0), ("random", 0, 0.0)]
    first = thread_sampler.update_agent(Policies({"rock": ROCK, "random": RandomAgent()}, {"*": held}))
    for hand in (PAPER, SCISSORS, PAPER, SCISSORS, PAPER, SCISSORS):
        thread_sampler.update_agent({"rock": hand})
    # A random agent could not be deterministic: it does not act.
    batch = thread_sampler.multi_agent.obtain_samples(40, deterministic=True)
    assert {part.policy for part in batch.policies} == {"rock"}
    assert set(batch.by_policy()["rock"].policy_versions) == {first + 6}
    table = thread_sampler.cross_play(["rock", ("rock", -1), "random"], 4)
    assert list(map(str, table.players)) == [f"rock@{first + 6}", f"rock@{first + 5}", f"random@{first}"]
    assert table.win_rates[0, 1] == 1.0
    thread_sampler.update_agent(Policies({}, {"*": "rock"}))
    with raises(PreconditionError, reason=Reason.NO_AGENT, match="no policy 'random' is held; a map that does not"):
        thread_sampler.update_agent({"random": {"0/weight": np.zeros(3)}})


def test_cross_play_pairs_players_with_opponents_in_their_seats(duel: Sampler) -> None:
    table = duel.cross_play(["paper"], 40, opponents=["scissors", ("rock", 1)], seats=("player_0", 1))
    assert list(map(str, table.players)) == ["paper@1", "scissors@1", "rock@1"]
    np.testing.assert_array_equal(table.num_episodes, [[0, 40, 40], [40, 0, 0], [40, 0, 0]])
    assert np.isnan(table.win_rates[1, 2])
    # 40 games and a half to a half are odds of 81 to 1.
    expected = np.array([0.0, 1.0, -1.0]) * 400 * np.log10(81)
    np.testing.assert_allclose(table.elo, expected, rtol=1e-9, atol=1e-6)
    chance = 81 / 82
    between = 1 / (41 * chance * (1 - chance))  # variance of each of both differences
    margins = 1.959964 * 400 / np.log(10) * np.sqrt(np.array([2.0, 5.0, 5.0]) / 9 * between)
    np.testing.assert_allclose(table.elo_margins, margins, rtol=1e-5)


def test_groups_of_agents_are_seats(thread_sampler: Sampler) -> None:
    thread_sampler.update_env(RELAY)
    thread_sampler.update_agent(POLICIES[RELAY.id])
    table = thread_sampler.cross_play(["first", "rest"], 4, seats=(("relay_0", "relay_3"), "relay_*"))
    found = table.evaluation.agent_returns
    assert found is not None
    np.testing.assert_array_equal(found.policy_positions[:, 0], found.policy_positions[:, 3])
    seats = found.returns[:, [0, 3]].mean(axis=1), found.returns[:, [1, 2]].mean(axis=1)
    is_first = found.policy_positions[:, 0] == table.players.index(PolicyVersion("first", 1))
    assert table.returns[0][1] is not None
    assert table.returns[0][1].mean == pytest.approx(np.where(is_first, *seats).mean())


def test_async_cross_play_equals_the_other(duel: Sampler, thread_server: LocalServer) -> None:
    async def play() -> CrossPlay:
        async with rollserve.aconnect(thread_server.address) as sampler:
            return await sampler.cross_play(["random", "paper"], 20)

    ours, theirs = duel.cross_play(["random", "paper"], 20), asyncio.run(play())
    np.testing.assert_array_equal(ours.win_rates, theirs.win_rates)
    np.testing.assert_array_equal(ours.evaluation.returns, theirs.evaluation.returns)


@pytest.mark.parametrize(
    ("options", "field", "text"),
    [
        ({"policy_map": {0: "paper", 1: "stone"}}, "options.policy_maps[0]", "policies among .* got 'stone'"),
        (
            {"policy_map": [{"*": "paper"}, {0: "paper", 1: ("rock", 7)}]},
            "options.policy_maps[1]",
            "versions of 'rock' that are held, .*'2', '1'.*, got 7",
        ),
        ({"policy_map": {0: "paper"}}, "options.policy_maps[0].rules", "a rule for each of .* none for 'player_1'"),
        (
            {"policy_map": [{"*": "paper"}, {"*": "paper", "player_2": "rock"}]},
            "options.policy_maps[1].rules[1]",
            "a rule for some of the agents .*'player_1'.*, got one for 'player_2'",
        ),
        ({"policy_map": {"*": "random"}, "deterministic": True}, "options.exploration.deterministic", "no best action"),
        ({"policy_map": {"*": "paper"}, "env": CROWD}, "options.policy_maps['paper']", "same spaces"),
        ({"policy_map": [{"*": "paper"}] * 4097}, "options.policy_maps", "at most 4096 maps, got 4097"),
    ],
)
def test_maps_of_evaluations_are_refused_by_name(duel: Sampler, options: dict[str, Any], field: str, text: str) -> None:
    with raises(InvalidArgumentError, field=field, reason=Reason.INVALID_VALUE, match=text):
        duel.evaluate(2, **options)
    assert len(duel.evaluate(2)) == 2


def test_evaluations_of_many_agents_are_bounded_by_their_results(duel: Sampler) -> None:
    with raises(InvalidArgumentError, field="episode_count", match="at most 65536 episodes, because each has 2 agents"):
        duel.evaluate(65537)


def test_maps_need_many_agents(thread_sampler: Sampler) -> None:
    thread_sampler.update_agent(RandomAgent())
    with raises(InvalidArgumentError, field="options.policy_maps", match="none in an environment with one agent"):
        thread_sampler.evaluate(2, policy_map={"*": "main"})
    with raises(InvalidArgumentError, field="evaluation", match="one in an environment with many agents"):
        CrossPlay.of(thread_sampler.evaluate(2))


@pytest.mark.parametrize(
    ("players", "options", "error", "text"),
    [
        (["paper"], {}, InvalidArgumentError, "players: expected at least two players, got 1"),
        (["paper", "paper"], {}, InvalidArgumentError, "players: expected players that differ"),
        (["paper", ("paper", 0)], {}, InvalidArgumentError, "players: expected players that differ"),
        (
            ["rock", ("rock", 2), "paper"],
            {},
            InvalidArgumentError,
            r"versions of policies that differ, got .*, which are only rock@2, paper@1",
        ),
        (["paper"], {"opponents": [("paper", -1)]}, InvalidArgumentError, "which are only paper@1"),
        ("paper", {}, TypeError, "players: expected a sequence of policies"),
        (["paper", 3], {}, TypeError, r"players\[1\]: expected a policy"),
        (["paper"], {"opponents": []}, InvalidArgumentError, "opponents: expected players that differ"),
        (["paper", "rock"], {"seats": (0, 1, 2)}, InvalidArgumentError, "seats: expected two seats, got 3"),
        (["paper", "rock"], {"seats": "01"}, TypeError, "seats: expected a pair"),
        (["paper", "rock"], {"policy_map": {"*": "paper"}}, TypeError, "policy_map: expected none beside players"),
    ],
)
def test_pairings_are_refused_by_name(
    duel: Sampler, players: Any, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        duel.cross_play(players, 2, **options)


def test_seats_are_checked(duel: Sampler) -> None:
    evaluation = duel.evaluate(4, policy_map={0: "paper", 1: "rock"})
    with raises(InvalidArgumentError, field="seats", match="keys of agents among .*, got 'nobody'"):
        CrossPlay.of(evaluation, (0, "nobody"))
    with raises(InvalidArgumentError, field="seats", match="one policy for all agents of a seat"):
        CrossPlay.of(evaluation, ((0, 1), "nobody"))


@pytest.mark.parametrize(
    ("seats", "text"),
    [
        ((0, 0), r"seats whose keys differ, got \(0, 0\)"),
        (("player_0", ("player_1", "player_0")), "seats whose keys differ"),
        ((0, 7), r"got \(0, 7\): .* got one for position 7"),
        (("player_0", "x*"), r"got one for 'x\*'"),
        (("player_0", ("x*", "player_1")), r"got one for 'x\*'"),
    ],
)
def test_seats_that_no_agent_has_are_refused_by_name(duel: Sampler, seats: Any, text: str) -> None:
    with raises(InvalidArgumentError, field="seats", reason=Reason.INVALID_VALUE, match=text):
        duel.cross_play(["paper", "rock"], 2, seats=seats)


def test_seats_leave_out_no_agent(thread_sampler: Sampler, thread_server: LocalServer) -> None:
    async def play() -> None:
        async with rollserve.aconnect(thread_server.address) as sampler:
            await sampler.cross_play(["first", "rest"], 2)

    thread_sampler.update_env(RELAY)
    thread_sampler.update_agent(POLICIES[RELAY.id])
    with raises(InvalidArgumentError, field="seats", match="got none for 'relay_2'"):
        asyncio.run(play())


def returns_of(values: list[list[Any]]) -> AgentReturns:
    """Return the returns of two agents; the second one never acts where its return is None."""
    returns = np.array(values, np.float64)
    positions = np.array([[0, -1 if each[1] is None else 1] for each in values])
    return AgentReturns(("a", "b"), (PolicyVersion("main", 1), PolicyVersion("other", 2)), returns, positions)


def test_nan_rewards_stay_in_the_means_of_agents_and_policies() -> None:
    found = returns_of([[1.0, 2.0], [math.nan, 4.0], [3.0, None]])
    assert math.isnan(found.by_agent()["a"].mean)
    assert math.isnan(found.by_policy()[PolicyVersion("main", 1)].mean)
    assert found.by_agent()["b"].mean == found.by_policy()[PolicyVersion("other", 2)].mean == 3.0
    assert "main@1   nan ± nan" in str(found)


def test_cross_play_refuses_nan_returns_and_ranks_infinite_ones(duel: Sampler) -> None:
    played = duel.evaluate(3, policy_map=[{0: "paper", 1: "rock"}])
    for values, winner in (([[1.0, 2.0], [math.nan, 4.0]], None), ([[math.inf, 1.0], [math.inf, math.inf]], 0.75)):
        evaluation = dataclasses.replace(played, agent_returns=returns_of(values))
        if winner is None:
            text = "returns that are numbers, got NaN for main@1 in the episode at position 1"
            with raises(InvalidArgumentError, field="evaluation", match=text):
                CrossPlay.of(evaluation)
        else:
            assert CrossPlay.of(evaluation).win_rates[0, 1] == winner


def test_tables_have_the_farther_end_of_each_interval(duel: Sampler) -> None:
    table = duel.cross_play(["rock", "paper", "scissors"], 10)  # where rock is paper by now
    for row, line in enumerate(str(table).splitlines()[1:]):
        cells = re.findall(r"(\S+) ± (\S+)", line)
        for column in range(3):
            if column != row:
                rate, margin = map(float, cells.pop(0))
                low, high = table.win_rate_intervals[row, column]
                assert rate == table.win_rates[row, column]
                assert rate - margin - 0.005 <= low
                assert high <= rate + margin + 0.005
                assert margin == pytest.approx(max(rate - low, high - rate), abs=0.005)
