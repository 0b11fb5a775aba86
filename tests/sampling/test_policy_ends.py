"""Last values and moments by policy, in environments with many agents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cutting_proxy import cutting_proxy
from many_agents import CROWD, MASKED, POLICIES, RELAY, many_equal
from support import equal, raises

import rollserve
from rollserve import (
    EnvSpec,
    InvalidArgumentError,
    MlpAgent,
    MultiAgentBatch,
    Policies,
    RandomAgent,
    RunningMoments,
    Sampler,
)
from rollserve.learning import return_moments_of
from rollserve_server.local import LocalServer
from rollserve_wire.columns import leaves_of

BOTH: Any = {"observation_moments": True, "return_discount": 0.9}


def obtain(sampler: Sampler, num_steps: int = 150, **options: Any) -> MultiAgentBatch:
    return sampler.multi_agent.obtain_samples(num_steps, seed=3, **options)


def crowd_agents(sampler: Sampler) -> dict[str, Any]:
    """Return policies for the crowd; the runners' and the late one's are recurrent and have a value."""
    updated = sampler.update_env(CROWD)
    spaces = [space.spaces for space in (updated.observation_space, updated.action_space)]
    options: Any = {"core": "gru", "core_size": 4, "value": "shared"}
    runner, late = (
        MlpAgent.initial(*(each[name] for each in spaces), seed=seed, **options)
        for seed, name in enumerate(("runner_0", "late"))
    )
    return {"runner": runner, "late": late, "guard": MASKED}


def test_last_values_are_those_of_each_policy(thread_sampler: Sampler) -> None:
    agents = crowd_agents(thread_sampler)
    thread_sampler.update_agent(Policies(agents))
    options: Any = {"return_last_values": True, "return_last_states": True, "deliver": ["runner", "late"]}
    batch = obtain(thread_sampler, **options)
    by_policy = batch.by_policy()
    assert by_policy.keys() == {"runner", "late"}
    for segments in by_policy.values():
        assert segments.last_values is not None
        assert segments.last_values[~segments.terminated].any()
        assert not segments.last_values[segments.terminated].any()
    # Where an episode is cut, the value after its last step is the value that the agent would act with.
    longer = by_policy["runner"]
    cut = obtain(thread_sampler, max_episode_length=6, **options).by_policy()["runner"]
    checked = 0
    for short in cut.split():
        for segment in longer.split():
            same = segment.episode_indices[0] == short.episode_indices[0] and segment.num_steps > short.num_steps
            if same and np.array_equal(segment.actions[: short.num_steps], short.actions):  # type: ignore[index]
                assert short.last_values is not None
                if equal_observations(segment, short):
                    np.testing.assert_array_equal(short.last_values, segment.agent_infos["value"][[short.num_steps]])
                    checked += 1
    assert checked
    for num_workers in (1, 3):
        thread_sampler.resize(num_workers)
        assert many_equal(obtain(thread_sampler, **options), batch)


def equal_observations(longer: rollserve.EpisodeBatch, short: rollserve.EpisodeBatch) -> bool:
    """Whether a segment begins with the observations of a shorter one, and goes on with its last observation."""
    count = short.num_steps
    return np.array_equal(longer.observations[:count], short.observations) and np.array_equal(  # type: ignore[index]
        longer.observations[count],  # type: ignore[index]
        short.last_observations[0],  # type: ignore[index]
    )


def test_last_values_need_a_value_of_each_delivered_policy(thread_sampler: Sampler) -> None:
    thread_sampler.update_agent(Policies(crowd_agents(thread_sampler)))
    expected = "false for an agent without a number `value` .* got true for an agent of kind random as policy 'guard'"
    with raises(InvalidArgumentError, field="options.return_last_values", match=expected):
        obtain(thread_sampler, return_last_values=True)
    version = thread_sampler.status().policy_version
    with raises(InvalidArgumentError, match="as policy 'late'"):
        obtain(thread_sampler, agent={"late": RandomAgent()}, return_last_values=True, deliver=["late"])
    assert thread_sampler.status().policy_version == version


def check_moments(batch: MultiAgentBatch, discount: float | None = 0.9) -> None:
    """Compare the moments of a batch's account with the moments that the client computes of its segments."""
    found, by_policy = batch.account.policy_moments, batch.by_policy()
    assert found.keys() >= by_policy.keys()
    for name, segments in by_policy.items():
        leaves = leaves_of(segments.observations)
        moments = found[name]
        assert moments.observations is not None
        columns = {leaf: leaves[leaf] for leaf in moments.observations.leaves}
        assert moments.observations == RunningMoments.of_segments(columns, segments.lengths)
        assert moments.observations.count == segments.num_steps
        if discount is None:
            assert moments.returns is None
        else:
            assert moments.returns == return_moments_of(segments, discount)


@pytest.mark.parametrize("spec", [CROWD, RELAY], ids=lambda spec: spec.id)
def test_moments_are_those_of_each_policy(thread_sampler: Sampler, thread_server: LocalServer, spec: EnvSpec) -> None:
    thread_sampler.update_env(spec)
    thread_sampler.update_agent(POLICIES[spec.id])
    batch = obtain(thread_sampler, **BOTH)
    check_moments(batch)
    assert (batch.account.observation_moments, batch.account.return_moments) == (None, None)
    with rollserve.connect(thread_server.address, max_message_bytes=1 << 13) as narrow:
        again = obtain(narrow, **BOTH)
        assert again.account.policy_moments == batch.account.policy_moments
    some = sorted(batch.by_policy())[:1]
    only = obtain(thread_sampler, deliver=some, observation_moments=True)
    check_moments(only, None)
    assert list(only.account.policy_moments) == some
    with thread_sampler.multi_agent.stream(num_steps=150, seed=3, total_num_steps=1, **BOTH) as stream:
        ended = next(iter(stream)).round
        assert ended is not None
        assert ended.policy_moments == batch.account.policy_moments


def test_interrupted_calls_have_moments_of_each_policy(thread_sampler: Sampler, thread_server: LocalServer) -> None:
    thread_sampler.update_env(EnvSpec(CROWD.id, {"length": 300}, multi_agent="parallel"))
    thread_sampler.update_agent(POLICIES[CROWD.id])
    with (
        cutting_proxy(thread_server.address, num_cuts=2, max_bytes=40_000, seed=1) as proxy,
        rollserve.connect(proxy.address, max_message_bytes=1 << 13) as distant,
    ):
        distant.status()
        batch = obtain(distant, 2000, **BOTH)
    assert batch.account.num_resumptions
    check_moments(batch)


def test_moments_become_parameters_of_their_policies(thread_sampler: Sampler) -> None:
    agents = crowd_agents(thread_sampler)
    updated = thread_sampler.status()
    spaces: Any = updated.observation_space, updated.action_space
    normal = MlpAgent.initial(*(space.spaces["runner_0"] for space in spaces), seed=0, normalization=True)
    thread_sampler.update_agent(Policies({**agents, "runner": normal}))
    batch = obtain(thread_sampler, observation_moments=True)
    moments = batch.account.policy_moments["runner"].observations
    assert moments is not None
    version = thread_sampler.update_agent({"runner": normal.parameters}, observation_moments={"runner": moments})
    held = thread_sampler.agent(version, policy="runner")
    assert isinstance(held, MlpAgent)
    for name, value in moments.parameters().items():
        np.testing.assert_array_equal(held.parameters[name], value)
    assert not equal(obtain(thread_sampler).by_policy()["runner"], batch.by_policy()["runner"])
    with pytest.raises(TypeError, match=r"observation_moments: expected moments of the update's policies.* got late"):
        thread_sampler.update_agent({"runner": normal.parameters}, observation_moments={"late": moments})
    with pytest.raises(TypeError, match="observation_moments: expected a mapping from names of policies"):
        thread_sampler.update_agent({"runner": normal.parameters}, observation_moments=moments)
