"""Lost workers do not change what agents of an environment with many get."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest
from many_agents import CROWD, POLICIES, RELAY, many_equal
from pools import adds_up

import rollserve
from rollserve import EnvSpec

LONG = EnvSpec(CROWD.id, {"length": 200}, num_rows=4, multi_agent="parallel")


@pytest.mark.slow
def test_calls_survive_lost_workers_with_the_same_bits(sampler: rollserve.Sampler) -> None:
    updated = sampler.update_env(LONG)
    spaces = [space.spaces["runner_0"] for space in (updated.observation_space, updated.action_space)]
    agent = rollserve.MlpAgent.initial(*spaces, seed=0, core="gru", core_size=4)
    sampler.update_agent(rollserve.Policies({**POLICIES[CROWD.id].updates, "runner": agent}))
    expected = sampler.multi_agent.obtain_samples(8_000, seed=3)
    victim = sampler.status().workers[0].process_id

    def kill() -> None:
        time.sleep(0.2)
        os.kill(victim, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    batch = sampler.multi_agent.obtain_samples(8_000, seed=3)
    thread.join()
    assert many_equal(batch, expected)
    assert batch.account.num_retried_episodes > 0
    assert adds_up(batch.account)
    # A replaced worker has the policies, too.
    assert many_equal(sampler.multi_agent.obtain_samples(8_000, seed=3), expected)


@pytest.mark.slow
def test_cross_play_survives_lost_workers_with_the_same_bits(sampler: rollserve.Sampler) -> None:
    sampler.update_env(LONG)
    versions = sampler.update_agent(POLICIES[CROWD.id]), sampler.update_agent({"runner": rollserve.RandomAgent()})
    maps = [{"runner_*": ("runner", version), "guard": "guard", "late": "late"} for version in versions]
    expected = sampler.evaluate(60, policy_map=maps, seed=3).agent_returns
    victim = sampler.status().workers[0].process_id
    thread = threading.Timer(0.2, os.kill, (victim, signal.SIGKILL))
    thread.start()
    result = sampler.evaluate(60, policy_map=maps, seed=3)
    thread.join()
    assert expected is not None
    assert result.agent_returns is not None
    assert result.account.num_retried_episodes > 0
    assert result.agent_returns.policies == expected.policies
    np.testing.assert_array_equal(result.agent_returns.returns, expected.returns)
    np.testing.assert_array_equal(result.agent_returns.policy_positions, expected.policy_positions)


@pytest.mark.slow
def test_populations_survive_lost_workers_with_the_same_bits(sampler: rollserve.Sampler) -> None:
    updated = sampler.update_env(LONG)
    spaces = [space.spaces["runner_0"] for space in (updated.observation_space, updated.action_space)]
    agent = rollserve.MlpAgent.initial(*spaces, seed=0)
    sampler.update_agent(rollserve.Policies({**POLICIES[CROWD.id].updates, "runner": agent}))
    source = np.random.default_rng(0)
    members = {  # large enough for Ray's object store
        name: value + 0.1 * source.standard_normal((40, *value.shape), np.float32)
        for name, value in agent.parameters.items()
    }
    expected = sampler.evaluate_population({"runner": members}, 2, seed=3)
    for member in (0, 39):
        sampler.update_agent({"runner": {name: value[member] for name, value in members.items()}})
        np.testing.assert_array_equal(expected.returns[member], sampler.evaluate(2, seed=3).returns)
    victim = sampler.status().workers[0].process_id
    thread = threading.Timer(0.3, os.kill, (victim, signal.SIGKILL))
    thread.start()
    result = sampler.evaluate_population({"runner": members}, 2, seed=3)
    thread.join()
    assert result.account.num_retried_episodes > 0
    assert adds_up(result.account)
    np.testing.assert_array_equal(result.returns, expected.returns)
    for policy, returns in expected.by_policy().items():
        np.testing.assert_array_equal(result.by_policy()[policy], returns)


@pytest.mark.slow
@pytest.mark.parametrize("limits", [{}, {"soft_horizon": True, "max_episode_length": 6}], ids=["", "soft_horizon"])
def test_fragments_survive_lost_workers_with_the_same_bits(sampler: rollserve.Sampler, limits: dict[str, Any]) -> None:
    """A lost worker's rows are brought back, with the steps whose reward had not come when its last call ended."""
    updated = sampler.update_env(EnvSpec(RELAY.id, {"num_agents": 4}, num_rows=4, multi_agent="aec"))
    spaces = [space.spaces["relay_0"] for space in (updated.observation_space, updated.action_space)]
    mask = rollserve.ActionMask(info="action_mask")
    agent = rollserve.MlpAgent.initial(*spaces, seed=0, core="gru", core_size=4, action_mask=mask)
    sampler.update_agent({"main": agent})
    num_steps = 500 * 4 * len(sampler.status().workers)
    before = sampler.multi_agent.obtain_fragments(num_steps, seed=3, **limits)
    expected = sampler.multi_agent.obtain_fragments(num_steps, seed=3, row_step_count=500, **limits)
    assert many_equal(sampler.multi_agent.obtain_fragments(num_steps, seed=3, **limits), before)
    victim = sampler.status().workers[0].process_id

    def kill() -> None:
        time.sleep(0.1)
        os.kill(victim, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    batch = sampler.multi_agent.obtain_fragments(num_steps, seed=3, row_step_count=500, **limits)
    thread.join()
    assert many_equal(batch, expected)
    assert batch.account.num_retried_episodes > 0
    assert batch.account.num_broken_off_episodes == 0
    assert adds_up(batch.account)
