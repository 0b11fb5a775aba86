"""Episodes of environments with many agents, through a server: correct, and the same however they are made."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from cutting_proxy import cutting_proxy
from many_agents import (
    CONNECT_FOUR,
    CROWD,
    PHOENIX,
    POLICIES,
    RELAY,
    SPREAD,
    check_against_plain_loops,
    many_equal,
    segments_of,
)
from pools import adds_up
from support import equal, raises

import rollserve
from rollserve import EnvSpec, InvalidArgumentError, MlpAgent, MultiAgentBatch, Policies, Sampler
from rollserve_server.local import LocalServer

SPECS = [CROWD, RELAY, SPREAD, CONNECT_FOUR]
IDS = [spec.id for spec in SPECS]


def prepare(sampler: Sampler, spec: EnvSpec) -> None:
    sampler.update_env(spec)
    sampler.update_agent(POLICIES[spec.id])


NUM_STEPS = 250


def obtain(sampler: Sampler, num_steps: int = NUM_STEPS, **options: Any) -> MultiAgentBatch:
    return sampler.multi_agent.obtain_samples(num_steps, seed=3, **options)


@pytest.mark.parametrize("limit", [None, 7])
@pytest.mark.parametrize("spec", SPECS, ids=IDS)
def test_samples_equal_plain_loops_with_the_same_actions(
    thread_sampler: Sampler, spec: EnvSpec, limit: int | None
) -> None:
    prepare(thread_sampler, spec)
    batch = obtain(thread_sampler, max_episode_length=limit)
    check_against_plain_loops(batch, spec)
    account = batch.account
    assert account.num_steps == batch.num_steps >= NUM_STEPS
    assert account.num_episodes == len(batch)
    assert adds_up(account)
    assert (batch.terminated | batch.truncated).all()
    if limit is not None:
        assert batch.lengths.max() == limit


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(spec, id=spec.id, marks=() if spec in (CROWD, RELAY) else pytest.mark.slow)
        for spec in (CROWD, RELAY, SPREAD, CONNECT_FOUR)
    ],
)
def test_samples_are_the_same_however_they_are_made(
    thread_sampler: Sampler, thread_server: LocalServer, spec: EnvSpec
) -> None:
    prepare(thread_sampler, spec)
    expected = obtain(thread_sampler)
    exact = thread_sampler.multi_agent.obtain_exact_episodes(4, seed=3)
    with rollserve.connect(thread_server.address, max_message_bytes=1 << 13, compression="lz4") as narrow:
        assert many_equal(obtain(narrow), expected)
        with narrow.multi_agent.stream_samples(NUM_STEPS, seed=3) as stream:
            parts = list(stream)
        assert len(parts) > 2
        for each in (each for part in parts for each in part.policies):
            assert not each.rewards_before[each.batch.first_steps > 0].any()
        assert many_equal(MultiAgentBatch.concatenate(*parts).joined(), expected.joined())
        assert many_equal(narrow.multi_agent.obtain_exact_episodes(4, seed=3), exact)
    for num_workers in (1, 3):
        thread_sampler.resize(num_workers)
        assert many_equal(obtain(thread_sampler), expected)
    assert len(exact) == 8
    thread_sampler.resize(2)
    thread_sampler.update_env(EnvSpec(spec.id, spec.kwargs, num_rows=1, multi_agent=spec.multi_agent))
    assert many_equal(obtain(thread_sampler), expected)

    async def obtain_async() -> MultiAgentBatch:
        async with rollserve.aconnect(thread_server.address) as other:
            return await other.multi_agent.obtain_samples(NUM_STEPS, seed=3)

    assert many_equal(asyncio.run(obtain_async()), expected)


def test_broken_streams_deliver_the_rest(thread_sampler: Sampler, thread_server: LocalServer) -> None:
    thread_sampler.update_env(EnvSpec(CROWD.id, {"length": 300}, multi_agent="parallel"))
    thread_sampler.update_agent(POLICIES[CROWD.id])
    expected = obtain(thread_sampler, 1000)
    with (
        cutting_proxy(thread_server.address, num_cuts=3, max_bytes=40_000, seed=1) as proxy,
        rollserve.connect(proxy.address, max_message_bytes=1 << 13) as distant,
    ):
        distant.status()
        batch = obtain(distant, 1000)
        assert proxy.num_cuts > 0
    assert many_equal(batch, expected)
    assert batch.account.num_resumptions > 0
    assert adds_up(batch.account)


def test_failed_episodes_run_again_with_the_same_bits(thread_sampler: Sampler) -> None:
    thread_sampler.update_env(EnvSpec(CROWD.id, {"length": 15, "fault": "flaky"}, multi_agent="parallel"))
    thread_sampler.update_agent(POLICIES[CROWD.id])
    batch = obtain(thread_sampler)
    assert batch.account.num_retried_episodes > 0
    assert adds_up(batch.account)
    prepare(thread_sampler, CROWD)
    expected = obtain(thread_sampler)
    assert [part.batch.rewards.tolist() for part in batch.policies] == [
        part.batch.rewards.tolist() for part in expected.policies
    ]


def test_sequences_continue_between_calls(thread_sampler: Sampler) -> None:
    prepare(thread_sampler, RELAY)
    first = thread_sampler.multi_agent.obtain_samples(60)
    second = thread_sampler.multi_agent.obtain_samples(60, prefetch=True)
    third = thread_sampler.multi_agent.obtain_samples(60)
    indices = np.concatenate([batch.episode_indices for batch in (first, second, third)])
    assert indices.tolist() == list(range(len(indices)))
    for batch in (first, second, third):
        check_against_plain_loops(batch, RELAY)
        assert adds_up(batch.account)


def test_policies_see_their_own_states_masks_and_noise(thread_sampler: Sampler) -> None:
    """A recurrent policy, and its batches: states and log-probabilities do not depend on the agents beside it."""
    updated = thread_sampler.update_env(SPREAD)
    spaces = updated.observation_space, updated.action_space
    agents = [
        MlpAgent.initial(spaces[0].spaces["agent_0"], spaces[1].spaces["agent_0"], seed=seed, core="gru", core_size=5)
        for seed in (0, 1)
    ]
    thread_sampler.update_agent(Policies({"a": agents[0], "b": agents[1]}, {"agent_0": "a", "*": "b"}))
    both = obtain(thread_sampler, return_states=True, return_last_states=True)
    thread_sampler.update_agent(Policies({"c": agents[1], "d": agents[0]}, {"agent_1": "c", "*": "d"}))
    other = obtain(thread_sampler)
    assert [part.batch.initial_states.keys() for part in both.policies] == [{"h"}] * 2
    assert all(part.batch.last_states["h"].any() for part in both.policies)
    # The agents' noise is theirs, whatever policy acts: agent_1 acts by the same policy in both.
    one, two = both.by_agent()["agent_1"], other.by_agent()["agent_1"]
    np.testing.assert_array_equal(one.actions[0], two.actions[0])  # type: ignore[index]  # with the same first observation
    np.testing.assert_array_equal(one.agent_infos["log_prob"][0], two.agent_infos["log_prob"][0])
    assert len({segment.batch.actions[0] for segment in segments_of(both)[0]}) >= 1  # type: ignore[index]


def test_maps_draw_policies_and_versions_per_episode(thread_sampler: Sampler) -> None:
    thread_sampler.update_env(CONNECT_FOUR)
    masked = POLICIES[CONNECT_FOUR.id].updates["main"]
    first = thread_sampler.update_agent({"main": masked})
    second = thread_sampler.update_agent({"main": masked})
    opponents = [("main", 0, 1.0), ("main", -1, 1.0), ("main", first, 1.0)]
    third = thread_sampler.update_agent(Policies({}, {"player_0": "main", "player_1": opponents}))
    batch = obtain(thread_sampler, 600)
    assert [part.policy for part in batch.policies] == ["main"]
    by_agent = batch.by_agent()
    assert set(by_agent["player_0"].policy_versions) == {second}
    drawn = by_agent["player_1"].policy_versions
    assert set(drawn) == {first, second}
    assert 0.35 < np.mean(drawn == first) < 0.95
    assert third == second + 1
    assert many_equal(obtain(thread_sampler, 600), batch)
    fourth = thread_sampler.update_agent({"main": masked})
    assert set(obtain(thread_sampler, 600).by_agent()["player_1"].policy_versions) == {first, second, fourth}


def test_updates_of_some_policies_keep_the_others(thread_sampler: Sampler) -> None:
    updated = thread_sampler.update_env(SPREAD)
    spaces = [space.spaces["agent_0"] for space in (updated.observation_space, updated.action_space)]
    agents = {name: MlpAgent.initial(*spaces, seed=seed) for seed, name in enumerate(("a", "b"))}
    policy_map = {"agent_0": "a", "*": "b"}
    first = thread_sampler.update_agent(Policies(agents, policy_map))
    before = obtain(thread_sampler)
    second = thread_sampler.update_agent({"b": agents["a"].parameters})
    batch = obtain(thread_sampler)
    assert {part.policy: set(part.batch.policy_versions) for part in batch.policies} == {"a": {first}, "b": {second}}
    thread_sampler.update_agent({"b": agents["b"].parameters})
    again = obtain(thread_sampler)
    for one, other in zip(before.policies, again.policies, strict=True):
        np.testing.assert_array_equal(one.batch.agent_infos["log_prob"], other.batch.agent_infos["log_prob"])
    same = thread_sampler.update_agent(Policies(agents, policy_map), skip_if_identical=True)
    assert same == second + 1


def test_views_by_agent_and_joint_have_all_steps(thread_sampler: Sampler) -> None:
    for spec in (CROWD, RELAY):
        prepare(thread_sampler, spec)
        batch = obtain(thread_sampler)
        joint, by_agent = batch.joint(), batch.by_agent()
        starts = dict(zip(batch.episode_indices.tolist(), np.cumsum(batch.lengths) - batch.lengths, strict=True))
        for index, segments in segments_of(batch).items():
            for segment in segments:
                rows, steps = starts[index] + segment.env_steps, joint[segment.agent]
                assert steps.acted[rows].all()
                np.testing.assert_array_equal(steps.rewards[rows], segment.batch.rewards)
                np.testing.assert_array_equal(steps.terminated[rows[-1:]], segment.batch.terminated)
        for agent, steps in joint.items():
            assert steps.acted.sum() == by_agent[agent].num_steps
            assert steps.rewards.sum() == pytest.approx(by_agent[agent].rewards.sum())
            assert not steps.rewards[~steps.acted].any()
        assert batch.num_agent_steps == sum(each.num_steps for each in by_agent.values())
        spaces = thread_sampler.multi_agent.obtain_samples(30, seed=3, return_spaces=True)
        assert all(part.batch.observation_space is not None for part in spaces.policies)


def test_rounds_of_streams_are_what_calls_deliver(thread_sampler: Sampler) -> None:
    for spec in (CROWD, RELAY):
        prepare(thread_sampler, spec)
        with thread_sampler.multi_agent.stream(num_steps=60, seed=3, total_num_steps=180) as stream:
            rounds = list(stream)
        assert len(rounds) == 3
        for batch in rounds:
            check_against_plain_loops(batch, spec)
            ended = batch.round
            assert ended is not None
            assert (ended.num_steps, ended.num_episodes) == (batch.num_steps, len(batch))
        whole = MultiAgentBatch.concatenate(*rounds).joined()
        assert many_equal(whole, obtain(thread_sampler, whole.num_steps).joined())


def test_deliver_leaves_other_policies_out(thread_sampler: Sampler, thread_server: LocalServer) -> None:
    prepare(thread_sampler, CROWD)
    status = thread_sampler.status()
    assert status.agents == ("runner_0", "runner_1", "guard", "late")
    assert status.policies == dict.fromkeys(("guard", "late", "runner"), status.policy_version)
    expected = obtain(thread_sampler)
    with rollserve.connect(thread_server.address, max_message_bytes=1 << 13) as narrow:
        for each in (thread_sampler, narrow):
            batch = obtain(each, deliver=["runner"])
            assert [part.policy for part in batch.policies] == ["runner"]
            assert batch.num_steps == expected.num_steps
            assert equal(batch.policies[0].batch, expected.policies[2].batch)
    with raises(InvalidArgumentError, field="options.deliver_policies", match="policies among .* got 'nobody'"):
        obtain(thread_sampler, deliver=["nobody"])
    thread_sampler.update_env("CartPole-v1")
    thread_sampler.update_agent(rollserve.RandomAgent())
    with raises(InvalidArgumentError, field="options.deliver_policies", match="none for a single agent"):
        thread_sampler.obtain_samples(10, deliver=["main"])


def test_agent_steps_count_for_the_fewest_episodes(thread_sampler: Sampler, thread_server: LocalServer) -> None:
    prepare(thread_sampler, CROWD)
    whole = obtain(thread_sampler, 400)
    counts = np.zeros(len(whole), np.int64)
    for position, index in enumerate(whole.episode_indices.tolist()):
        counts[position] = sum(segment.batch.num_steps for segment in segments_of(whole)[index])
    np.testing.assert_array_equal(whole.agent_step_counts, counts)
    target = int(counts[:4].sum()) - 1  # the fourth episode completes it
    batch = obtain(thread_sampler, target, count="agent_steps")
    assert (len(batch), batch.num_agent_steps) == (4, target + 1)
    assert many_equal(obtain(thread_sampler, batch.num_steps), batch)
    for num_workers in (1, 3):
        thread_sampler.resize(num_workers)
        assert many_equal(obtain(thread_sampler, target, count="agent_steps"), batch)
    with thread_sampler.multi_agent.stream(num_steps=target, seed=3, count="agent_steps", total_num_steps=1) as stream:
        assert many_equal(next(iter(stream)), batch)
    # An interrupted stream counts the steps of all agents, delivered or not.
    expected = obtain(thread_sampler, 9000, count="agent_steps", deliver=["late"])
    with (
        cutting_proxy(thread_server.address, num_cuts=3, max_bytes=20_000, seed=1) as proxy,
        rollserve.connect(proxy.address, max_message_bytes=1 << 13) as distant,
    ):
        distant.status()
        again = obtain(distant, 9000, count="agent_steps", deliver=["late"])
    assert again.account.num_resumptions > 0
    assert many_equal(again, expected)
    np.testing.assert_array_equal(again.agent_step_counts, expected.agent_step_counts)


def test_agent_steps_count_for_whole_episodes_only(thread_sampler: Sampler) -> None:
    thread_sampler.update_env("CartPole-v1")
    thread_sampler.update_agent(rollserve.RandomAgent())
    expected = thread_sampler.obtain_samples(100, seed=3)
    assert equal(thread_sampler.obtain_samples(100, seed=3, count="agent_steps"), expected)
    for call in (
        lambda: thread_sampler.obtain_exact_episodes(1, count="agent_steps"),
        lambda: thread_sampler.obtain_fragments(8, count="agent_steps"),
        lambda: next(iter(thread_sampler.stream(fragment_length=8, count="agent_steps"))),
    ):
        with raises(InvalidArgumentError, match="options.count_agent_steps: expected false for exact episodes and fra"):
            call()
    with raises(InvalidArgumentError, field="count", match="agent_steps"):
        thread_sampler.obtain_samples(8, count="steps")  # type: ignore[typeddict-item]


def test_agents_that_are_back_in_the_step_of_their_death_have_their_true_last_observations(
    thread_sampler: Sampler,
) -> None:
    thread_sampler.update_env(PHOENIX)
    thread_sampler.update_agent({"main": rollserve.RandomAgent()})
    batch = thread_sampler.multi_agent.obtain_exact_episodes(1, seed=1)
    check_against_plain_loops(batch, PHOENIX)
    lives = batch.by_agent()["phoenix"].take(np.arange(2))
    np.testing.assert_array_equal(lives.observations, np.array([[0, 2, 6, 7]]).T)
    np.testing.assert_array_equal(lives.last_observations, np.array([[4, 8]]).T)
    assert lives.terminated.all()


def test_returns_have_rewards_before_the_first_action_everywhere(
    thread_sampler: Sampler, thread_server: LocalServer
) -> None:
    thread_sampler.update_env(EnvSpec(PHOENIX.id, num_rows=2, multi_agent=PHOENIX.multi_agent))
    thread_sampler.update_agent({"main": rollserve.RandomAgent()})
    # The rewards of an agent's action are what the other one and itself bring about until its next turn.
    phoenix, again, mortal = (5.0, 1 + 2, 3 + 4), (5.0, 7, 8), (5.0 + 1, 2 + 3, 4)
    total = sum(phoenix + again + mortal)
    evaluation = thread_sampler.evaluate(2)
    assert evaluation.returns.tolist() == [total, total]
    assert evaluation.agent_returns is not None
    assert evaluation.agent_returns.returns.tolist() == [[sum(phoenix + again), sum(mortal)]] * 2
    batch = thread_sampler.multi_agent.obtain_exact_episodes(1, seed=1)
    assert thread_sampler.metrics().returns[-1] == total
    (part,) = batch.policies
    first = part.take(np.flatnonzero(part.batch.episode_indices == 0))
    assert first.batch.episode_returns.tolist() == [sum(phoenix), sum(again), sum(mortal)]
    assert first.rewards_before.tolist() == first.batch.returns_before.tolist() == [5.0, 5.0, 6.0]
    rest = batch.without_first_steps(1).policies[0]
    np.testing.assert_array_equal(rest.batch.episode_returns, part.batch.episode_returns)
    np.testing.assert_array_equal(rest.rewards_before[:3], [0.0, 5.0, 6.0])
    end = thread_sampler.metrics().end
    parts = [thread_sampler.multi_agent.obtain_fragments(5 * 4).policies[0] for _ in range(2)]
    lives = {sum(phoenix), sum(again), sum(mortal)}
    for part in parts:
        assert set(part.batch.episode_returns[part.batch.terminated]) <= lives
        assert not part.rewards_before[part.batch.first_steps > 0].any()
    assert set(thread_sampler.metrics(end).returns) == {total}
