"""Fragments of environments with many agents: all steps of whole episodes, in pieces."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
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
    check_soft_horizons,
    many_equal,
    whole_episodes,
)
from pools import adds_up
from support import raises

import rollserve
from rollserve import (
    ActionMask,
    EnvSpec,
    InvalidArgumentError,
    MlpAgent,
    MultiAgentBatch,
    Policies,
    PreconditionError,
    RandomAgent,
    Sampler,
)
from rollserve.learning import return_moments_of
from rollserve_server.local import LocalServer

SPECS = [CROWD, RELAY, SPREAD, CONNECT_FOUR]
IDS = [spec.id for spec in SPECS]


def prepare(sampler: Sampler, spec: EnvSpec, num_rows: int = 2) -> None:
    sampler.update_env(EnvSpec(spec.id, spec.kwargs, num_rows=num_rows, multi_agent=spec.multi_agent))
    sampler.update_agent(POLICIES[spec.id])


def fragments(sampler: Sampler, lengths: list[int], num_rows: int = 4, **options: Any) -> list[MultiAgentBatch]:
    """Return fragments of a row sequence, given the number of steps of each row in each call."""
    found, clock = [], 0
    for length in lengths:
        row_step_count = {"row_step_count": clock} if clock else {}
        of_call = {"seed": 3, **row_step_count, **options}
        found.append(sampler.multi_agent.obtain_fragments(length * num_rows, **of_call))
        clock += length
    return found


@pytest.mark.parametrize("spec", SPECS, ids=IDS)
def test_fragments_have_the_steps_of_whole_episodes(thread_sampler: Sampler, spec: EnvSpec) -> None:
    prepare(thread_sampler, spec)
    lengths = [1, 6, 1, 12, 3, 30]  # after the first one, nobody's step is complete where agents take turns
    parts = fragments(thread_sampler, lengths)
    for part, length in zip(parts, lengths, strict=True):
        assert part.num_steps == length * 4
        assert part.account.num_episodes == (part.terminated | part.truncated).sum()
        assert adds_up(part.account)
    episodes = whole_episodes(parts)
    assert len(episodes) >= 4
    check_against_plain_loops(episodes, spec)
    expected = thread_sampler.multi_agent.obtain_exact_episodes(20, seed=3)
    for name, batch in episodes.by_policy().items():
        other = expected.by_policy()[name]
        its = other.take(np.flatnonzero(np.isin(other.episode_indices, batch.episode_indices)))
        assert batch.lengths.tolist() == its.lengths.tolist()
        np.testing.assert_array_equal(batch.rewards, its.rewards)


def prepare_relay(sampler: Sampler, *, num_rows: int = 2) -> dict[str, MlpAgent]:
    """Let recurrent policies with a value act in the relay, where most agents wait for what follows their action."""
    updated = sampler.update_env(EnvSpec(RELAY.id, RELAY.kwargs, num_rows=num_rows, multi_agent="aec"))
    spaces = [space.spaces["relay_0"] for space in (updated.observation_space, updated.action_space)]
    options: Any = {"core": "gru", "core_size": 3, "value": "shared", "previous_reward": True}
    mask = ActionMask(info="action_mask")
    agents = {
        name: MlpAgent.initial(*spaces, seed=seed, action_mask=mask, **options)
        for seed, name in enumerate(("first", "rest"))
    }
    sampler.update_agent(Policies(agents, {"relay_0": "first", "relay_*": "rest"}))
    return agents


def in_order(batch: MultiAgentBatch) -> MultiAgentBatch:
    """Return a batch of fragments ordered by episode, without the names of workers."""
    order = np.lexsort((batch.first_steps, batch.episode_indices))
    names = ("episode_indices", "first_steps", "lengths", "terminated", "truncated", "agent_step_counts")
    parts = {part.policy: part for part in batch.policies}
    policies = []
    for name in sorted(parts):
        part = dataclasses.replace(parts[name], batch=dataclasses.replace(parts[name].batch, worker_indices=None))
        by_agent = np.lexsort((part.batch.first_steps, part.agent_positions, part.batch.episode_indices))
        policies.append(part.take(by_agent))
    headers: Any = {name: getattr(batch, name)[order] for name in names}
    return MultiAgentBatch(batch.agents, **headers, policies=tuple(policies))


SOFT: Any = {"soft_horizon": True, "max_episode_length": 5}


@pytest.mark.parametrize("spec", [*SPECS, PHOENIX], ids=[*IDS, PHOENIX.id])
def test_soft_horizons_truncate_without_a_reset(thread_sampler: Sampler, spec: EnvSpec) -> None:
    """Episodes go on where others were truncated, with the agents that live; other ends reset the environment."""
    thread_sampler.update_env(dataclasses.replace(spec, num_rows=2))
    agents, actions = dict(POLICIES[spec.id].updates), dict[str, Any]()
    if spec is CROWD:
        action = np.array([0.25, -0.5], np.float32)
        agents["runner"] = rollserve.ConstantAgent(action)
        actions = {"runner_0": action, "runner_1": action}
    thread_sampler.update_agent(Policies(agents, POLICIES[spec.id].policy_map))
    parts = fragments(thread_sampler, [7, 1, 2, 12, 3, 30], **SOFT)
    for part in parts:
        assert part.account.num_episodes == (part.terminated | part.truncated).sum()
        assert adds_up(part.account)
    episodes = whole_episodes(parts)
    check_soft_horizons(episodes, spec, 4, actions)
    assert episodes.lengths.max() == 5
    assert episodes.truncated[episodes.lengths == 5].any()
    seeds = {int(index): seed for batch in episodes.by_policy().values() for index, seed in _seeds(batch)}
    goes_on = [seeds[index] == seeds[index + 4] for index in seeds if index + 4 in seeds]
    assert any(goes_on)
    assert not all(goes_on)


def _seeds(batch: rollserve.EpisodeBatch) -> Iterator[tuple[int, int]]:
    assert batch.env_seeds is not None
    return zip(batch.episode_indices.tolist(), batch.env_seeds.tolist(), strict=True)


def test_soft_horizons_begin_with_fresh_states_and_global_states(thread_sampler: Sampler) -> None:
    """A call that begins at a horizon lets its own policies begin; a global state is the last one of before."""
    agents = prepare_relay(thread_sampler)
    options: Any = {"seed": 3, **SOFT}
    first = thread_sampler.multi_agent.obtain_fragments(5 * 4, **options)
    assert first.truncated.all()
    version = thread_sampler.update_agent({"first": agents["rest"].parameters, "rest": agents["first"].parameters})
    second = thread_sampler.multi_agent.obtain_fragments(8 * 4, row_step_count=5, **options)
    for batch in second.by_policy().values():
        assert set(batch.policy_versions) == {version}
        assert not batch.initial_states["h"][batch.first_steps == 0].any()
    again = thread_sampler.multi_agent.obtain_fragments(8 * 4, row_step_count=5, **options)
    assert many_equal(again, second)
    assert again.account.num_broken_off_episodes == 0
    thread_sampler.update_env(dataclasses.replace(SPREAD, num_rows=2, global_state=True))
    thread_sampler.update_agent(Policies({"main": RandomAgent()}, {"*": "main"}))
    for lengths in ([5, 5], [4, 6], [8, 2]):
        whole = MultiAgentBatch.concatenate(*fragments(thread_sampler, lengths, **SOFT))
        assert whole.global_states is not None
        assert whole.last_global_states is not None
        begins, starts = whole.first_steps == 0, np.cumsum(whole.lengths) - whole.lengths
        assert whole.truncated.sum() == begins.sum() == 8
        states = dict(zip(whole.episode_indices[begins].tolist(), whole.global_states[starts[begins]], strict=True))
        lasts = dict(
            zip(whole.episode_indices[whole.truncated].tolist(), whole.last_global_states[whole.truncated], strict=True)
        )
        for row in range(4):
            np.testing.assert_array_equal(states[row + 4], lasts[row])


@pytest.mark.parametrize("options", [{}, SOFT], ids=["", "soft_horizon"])
def test_rows_do_not_depend_on_the_workers_that_run_them(thread_sampler: Sampler, options: dict[str, Any]) -> None:
    expected: list[MultiAgentBatch] = []
    prepare_relay(thread_sampler)
    for num_workers, num_rows in ((2, 3), (1, 6), (3, 2)):
        thread_sampler.resize(num_workers)
        thread_sampler.update_env(EnvSpec(RELAY.id, RELAY.kwargs, num_rows=num_rows, multi_agent="aec"))
        parts = [in_order(part) for part in fragments(thread_sampler, [5, 1, 9], 6, return_last_states=True, **options)]
        expected = expected or parts
        assert all(map(many_equal, parts, expected))


@pytest.mark.parametrize("limits", [{}, SOFT], ids=["", "soft_horizon"])
def test_restored_rows_make_the_same_steps(thread_sampler: Sampler, limits: dict[str, Any]) -> None:
    """A call that is repeated brings its rows back: by actions, states, and steps whose reward came later."""
    agents = prepare_relay(thread_sampler)
    options: Any = {"seed": 3, "return_last_states": True, "return_last_values": True, "return_discount": 0.9, **limits}
    thread_sampler.multi_agent.obtain_fragments(7 * 4, **options)
    second: Any = {"first": agents["rest"].parameters, "rest": agents["first"].parameters}
    version = thread_sampler.update_agent(second)
    expected = thread_sampler.multi_agent.obtain_fragments(9 * 4, row_step_count=7, **options)
    for part in expected.policies:
        batch = part.batch
        assert set(batch.policy_versions) == {version - 1, version}
        carried = batch.policy_versions < version
        assert (batch.lengths[carried] == 1).all()
        firsts = part.env_steps[np.cumsum(batch.lengths)[carried] - 1]
        assert (firsts < 7).all()
        assert batch.last_values is not None
        assert np.isfinite(batch.last_values).all()
    again = thread_sampler.multi_agent.obtain_fragments(9 * 4, row_step_count=7, **options)
    assert many_equal(again, expected)
    assert again.account.policy_moments == expected.account.policy_moments
    assert again.account.num_lost_steps == 7 * 4
    assert again.account.num_broken_off_episodes == 0
    saved = thread_sampler.save()
    third = thread_sampler.multi_agent.obtain_fragments(4 * 4, row_step_count=16, **options)
    thread_sampler.restore(saved)
    assert many_equal(thread_sampler.multi_agent.obtain_fragments(4 * 4, row_step_count=16, **options), third)


def test_segments_go_on_with_states_returns_and_observations(thread_sampler: Sampler) -> None:
    prepare_relay(thread_sampler)
    options: Any = {"return_last_states": True, "return_discount": 0.9, "observation_moments": True}
    parts = fragments(thread_sampler, [5, 2, 8, 5], **options)
    for part in parts:
        for name, segments in part.by_policy().items():
            moments = part.account.policy_moments[name]
            assert moments.returns == return_moments_of(segments, 0.9)
            assert moments.observations is not None
            assert moments.observations.count == segments.num_steps
    last: dict[tuple[int, int], tuple[Any, ...]] = {}
    num_compared = 0
    for fragment in parts:
        for of_policy in fragment.policies:
            for position, segment in enumerate(of_policy.batch.split()):
                key = int(segment.episode_indices[0]), int(of_policy.agent_positions[position])
                assert segment.returns_before is not None
                assert segment.discounted_returns_before is not None
                if segment.first_steps[0]:
                    observations, states, stop, total, discounted = last[key]
                    np.testing.assert_array_equal(segment.observations[0], observations)  # type: ignore[index]
                    np.testing.assert_array_equal(segment.initial_states["h"][0], states)
                    assert (segment.first_steps[0], segment.returns_before[0]) == (stop, total)
                    assert segment.discounted_returns_before[0] == pytest.approx(discounted, rel=1e-12)
                    num_compared += 1
                else:
                    total, discounted = float(of_policy.rewards_before[position]), 0.0
                for reward in segment.rewards.tolist():
                    total, discounted = total + reward, 0.9 * discounted + reward
                stop = int(segment.first_steps[0]) + segment.num_steps
                observation = segment.last_observations[0]  # type: ignore[index]
                last[key] = observation, segment.last_states["h"][0], stop, total, discounted
    assert num_compared >= 16


def test_rounds_and_interrupted_calls_are_the_same(thread_sampler: Sampler, thread_server: LocalServer) -> None:
    prepare_relay(thread_sampler)
    for options in ({}, SOFT):
        expected = fragments(thread_sampler, [18, 18], **options)
        with thread_sampler.multi_agent.stream(fragment_length=18, seed=3, total_num_steps=144, **options) as stream:
            rounds = list(stream)
        assert len(rounds) == 2
        assert all(map(many_equal, rounds, expected))
    (long,) = fragments(thread_sampler, [400])
    with (
        cutting_proxy(thread_server.address, num_cuts=3, max_bytes=40_000, seed=1) as proxy,
        rollserve.connect(proxy.address, max_message_bytes=1 << 13) as distant,
    ):
        distant.status()
        (batch,) = fragments(distant, [400])
    assert many_equal(batch, long)
    assert batch.account.num_resumptions > 0


@pytest.mark.parametrize("options", [{}, SOFT], ids=["", "soft_horizon"])
def test_rows_of_failed_environments_make_their_steps_again(thread_sampler: Sampler, options: dict[str, Any]) -> None:
    prepare(thread_sampler, CROWD)
    options = {"seed": 7 + len(options), **options}  # each seed fails once only
    expected = fragments(thread_sampler, [9, 20, 4], **options)
    flaky = EnvSpec(CROWD.id, {"length": 15, "fault": "flaky"}, num_rows=2, multi_agent="parallel")
    thread_sampler.update_env(flaky)
    found = fragments(thread_sampler, [9, 20, 4], **options)
    for one, other in zip(found, expected, strict=True):
        assert adds_up(one.account)
        for part, same in zip(one.policies, other.policies, strict=True):
            np.testing.assert_array_equal(part.batch.rewards, same.batch.rewards)
            np.testing.assert_array_equal(part.batch.actions, same.batch.actions)
    assert sum(batch.account.num_retried_episodes for batch in found if batch.account_or_none is not None) > 0


def test_joint_views_of_fragments_have_what_is_complete(thread_sampler: Sampler) -> None:
    prepare(thread_sampler, RELAY)
    parts = fragments(thread_sampler, [6, 8])
    for batch in (*parts, MultiAgentBatch.concatenate(*parts)):
        joint = batch.joint()
        assert all(len(steps.acted) == batch.num_steps for steps in joint.values())
        acted = sum(steps.acted.astype(int) for steps in joint.values())
        assert acted.max() == 1
    assert sum(steps.acted.sum() for steps in joint.values()) == batch.num_agent_steps
    assert (parts[1].num_agent_steps, parts[0].num_agent_steps) != (parts[1].num_steps, parts[0].num_steps)


def test_fragments_are_refused_by_name(thread_sampler: Sampler) -> None:
    prepare(thread_sampler, CROWD)
    with raises(InvalidArgumentError, field="step_count", match="a multiple of 4"):
        thread_sampler.obtain_fragments(6)
    with raises(InvalidArgumentError, field="options.return_last_values", match="as policy 'guard'"):
        thread_sampler.obtain_fragments(8, return_last_values=True)
    with raises(PreconditionError, match="row_step_count"):
        thread_sampler.obtain_fragments(8, seed=3, row_step_count=5)
    thread_sampler.update_agent({"guard": RandomAgent(ActionMask(info="nothing"))})
    with raises(rollserve.RollserveError, match="action mask: expected .*policy 'guard'|policy 'guard'.*action mask"):
        thread_sampler.obtain_fragments(8)


@pytest.mark.slow
def test_updates_may_cut_rounds_and_drop_policies(thread_sampler: Sampler) -> None:
    agents = prepare_relay(thread_sampler)
    options: Any = {"seed": 3, "return_last_values": True, "apply_update": "next_step"}
    rounds: list[MultiAgentBatch] = []
    with thread_sampler.multi_agent.stream(fragment_length=5000, **options) as stream:
        for version in range(2, 5):
            stream.update_agent({"first": agents["first"].parameters})
            while not rounds or rounds[-1].round is None or rounds[-1].round.policy_version < version:
                rounds.append(next(iter(stream)))
    versions = [each.round.policy_version for each in rounds if each.round is not None]
    assert versions == sorted(versions)
    clock = 0
    for each in rounds:
        assert each.round is not None
        assert each.round.row_step_count == clock
        clock += each.num_steps // 4
    starts: dict[int, int] = {}
    for each in rounds:
        for index, first, length in zip(each.episode_indices, each.first_steps, each.lengths, strict=True):
            assert starts.get(int(index), 0) == first
            starts[int(index)] = int(first + length)
    # What a policy has begun that the map names no more is delivered, without a value.
    thread_sampler.multi_agent.obtain_fragments(4 * 7, seed=4)
    thread_sampler.update_agent(Policies({"only": agents["first"]}, {"*": "only"}))
    options = {"seed": 4, "row_step_count": 7, "return_last_values": True}
    batch = thread_sampler.multi_agent.obtain_fragments(4 * 9, **options)
    by_policy = batch.by_policy()
    assert by_policy.keys() == {"first", "rest", "only"} or by_policy.keys() == {"rest", "only"}
    assert np.isnan(by_policy["rest"].last_values).all()  # type: ignore[arg-type]
    assert np.isfinite(by_policy["only"].last_values).all()  # type: ignore[arg-type]
    assert (by_policy["rest"].lengths == 1).all()


def test_fragments_have_the_global_states(thread_sampler: Sampler) -> None:
    thread_sampler.update_env(dataclasses.replace(SPREAD, num_rows=2, global_state=True))
    thread_sampler.update_agent(POLICIES[SPREAD.id])
    whole = thread_sampler.multi_agent.obtain_exact_episodes(6, seed=3)
    assert whole.global_states is not None
    bounds = np.cumsum(whole.lengths)
    states = dict(zip(whole.episode_indices.tolist(), np.split(whole.global_states, bounds[:-1]), strict=True))
    for batch in (*fragments(thread_sampler, [4, 9, 7]), *fragments(thread_sampler, [4, 9])[1:]):
        assert batch.global_states is not None
        assert batch.last_global_states is not None
        parts = zip(batch.episode_indices.tolist(), batch.first_steps.tolist(), batch.lengths.tolist(), strict=True)
        stop = 0
        for position, (index, first, length) in enumerate(parts):
            start, stop = stop, stop + length
            np.testing.assert_array_equal(batch.global_states[start:stop], states[index][first : first + length])
            following = states[index][first + length : first + length + 1]
            if len(following):
                np.testing.assert_array_equal(batch.last_global_states[position], following[0])
