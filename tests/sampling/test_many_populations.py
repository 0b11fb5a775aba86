"""Populations of policies by name: each member has the outcomes of an update with its parameters."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from many_agents import CONNECT_FOUR, CROWD, MASKED, POLICIES, RELAY, SPREAD
from pools import adds_up
from support import raises

import rollserve
from rollserve import (
    ActionMask,
    EnvSpec,
    InvalidArgumentError,
    MlpAgent,
    Policies,
    PopulationEvaluation,
    PythonAgent,
    Sampler,
)
from rollserve_server.local import LocalServer

Members = Mapping[str, Mapping[str, np.ndarray]]
OPTIONS: Any = {"seed": 3, "max_episode_length": 12}


def members_of(agents: Mapping[str, Any], num_members: int = 5, scale: float = 0.5) -> dict[str, dict[str, np.ndarray]]:
    """Return parameters of members by policy: the parameters of agents plus noise."""
    source = np.random.default_rng(0)
    return {
        policy: {
            name: value + (scale * source.standard_normal((num_members, *value.shape))).astype(value.dtype)
            for name, value in agent.parameters.items()
        }
        for policy, agent in agents.items()
    }


def mlp(sampler: Sampler, agent: str, seed: int, **options: Any) -> MlpAgent:
    """Return an MLP for an agent of the sampler's environment."""
    status = sampler.status()
    spaces = [space.spaces[agent] for space in (status.observation_space, status.action_space)]  # type: ignore[union-attr]
    return MlpAgent.initial(*spaces, hidden_sizes=(16,), seed=seed, **options)


def check(sampler: Sampler, result: PopulationEvaluation, members: Members, num_episodes: int, **options: Any) -> None:
    """Compare each member with an evaluation after an update with its parameters."""
    assert result.agent_returns is not None
    assert adds_up(result.account)
    assert result.num_steps == result.lengths.sum() == result.account.num_discarded_steps
    by_agent, by_policy = result.by_agent(), result.by_policy()
    for member, agent_returns in enumerate(result.agent_returns):
        version = sampler.update_agent(
            {policy: {name: value[member] for name, value in stacked.items()} for policy, stacked in members.items()}
        )
        alone = sampler.evaluate(num_episodes, **options)
        np.testing.assert_array_equal(result.returns[member], alone.returns)
        np.testing.assert_array_equal(result.lengths[member], alone.lengths)
        expected = alone.agent_returns
        assert expected is not None
        np.testing.assert_array_equal(agent_returns.returns, expected.returns)
        for policy, acted in _acted(agent_returns).items():
            other = version if policy.version == 0 else policy.version
            np.testing.assert_array_equal(acted, _acted(expected)[rollserve.PolicyVersion(policy.policy, other)])
        for column, agent in enumerate(expected.agents):
            np.testing.assert_array_equal(by_agent[agent][member], expected.returns[:, column])
        for policy, summary in agent_returns.by_policy().items():
            returns = by_policy[policy][member]
            assert np.nanmean(returns) == pytest.approx(summary.mean, nan_ok=True)


def _acted(returns: rollserve.AgentReturns) -> dict[rollserve.PolicyVersion, np.ndarray]:
    """Return whether each policy acted for an agent in an episode, (N, P)."""
    by_policy = {policy: returns.policy_positions == position for position, policy in enumerate(returns.policies)}
    return {policy: acted for policy, acted in by_policy.items() if acted.any()}


@pytest.mark.parametrize("options", [{}, {"core": "gru", "core_size": 6}], ids=["side by side", "one at a time"])
def test_members_equal_updates_with_their_parameters(thread_sampler: Sampler, options: dict[str, Any]) -> None:
    """Two policies have members, one of them for two agents, and a third one has none."""
    thread_sampler.update_env(EnvSpec(CROWD.id, CROWD.kwargs, num_rows=3, multi_agent="parallel"))
    runner = mlp(thread_sampler, "runner_0", 1, **options)
    late = mlp(thread_sampler, "late", 2)
    agents = {"runner": runner, "late": late, "guard": MASKED}
    version = thread_sampler.update_agent(agents)
    members = members_of({"runner": runner, "late": late})
    expected = thread_sampler.evaluate_population(members, 4, **OPTIONS)
    assert expected.returns.shape == (5, 4)
    assert (len(expected), expected.policy_version) == (5, version)
    assert thread_sampler.status().policy_version == version
    for num_workers, num_rows in ((1, 5), (3, 2), (2, 4)):
        thread_sampler.resize(num_workers)
        thread_sampler.update_env(EnvSpec(CROWD.id, CROWD.kwargs, num_rows=num_rows, multi_agent="parallel"))
        result = thread_sampler.evaluate_population(members, 4, **OPTIONS)
        np.testing.assert_array_equal(result.returns, expected.returns)
        assert result.agent_returns is not None
        assert expected.agent_returns is not None
        for one, other in zip(result.agent_returns, expected.agent_returns, strict=True):
            np.testing.assert_array_equal(one.returns, other.returns)
    assert {policy for policy, version in expected.by_policy() if version == 0} == {"runner", "late"}
    check(thread_sampler, expected, members, 4, **OPTIONS)


@pytest.mark.parametrize("spec", [RELAY, CONNECT_FOUR], ids=["relay", "connect four"])
def test_members_play_by_the_maps_of_the_call(thread_sampler: Sampler, spec: EnvSpec) -> None:
    """Maps name several policies, earlier versions, and choices by chance, in AEC environments with masks."""
    agents = thread_sampler.update_env(EnvSpec(spec.id, spec.kwargs, num_rows=3, multi_agent="aec")).agents
    mask = ActionMask(info="action_mask") if spec is RELAY else ActionMask(observation="action_mask")
    red, blue = (mlp(thread_sampler, agents[0], seed, action_mask=mask) for seed in (1, 2))
    thread_sampler.update_agent(Policies({"red": red, "blue": blue}, {agents[0]: "red", "*": "blue"}))
    thread_sampler.update_agent({"red": blue.parameters})
    members = members_of({"red": red})
    by_chance = [("red", 0, 0.5), ("red", -1, 0.25), ("blue", 0, 0.25)]
    maps: list[Any] = [{"*": "red"}, {agents[1]: "red", "*": ("red", -1)}, {agents[0]: by_chance, "*": ("red", -2)}]
    options = {**OPTIONS, "max_episode_length": 30}
    result = thread_sampler.evaluate_population(members, 6, policy_map=maps, **options)
    apart = thread_sampler.evaluate_population(members, 2, policy_map=maps[1], same_episodes=False, **options)
    own = thread_sampler.evaluate_population(members, 3, deterministic=True, **options)
    current = thread_sampler.status().policies["red"]
    kept = {policy.version for policy in result.by_policy() if policy.policy == "red"}
    assert kept == {0, current, current - 1}
    check(thread_sampler, own, members, 3, deterministic=True, **options)
    # Updates of the members shift the versions that maps count back: each begins with the same ones.
    for member in range(5):
        thread_sampler.update_agent({"red": red.parameters})
        thread_sampler.update_agent({"red": blue.parameters})
        thread_sampler.update_agent({"red": {name: value[member] for name, value in members["red"].items()}})
        alone = thread_sampler.evaluate(6, policy_map=maps, **options)
        assert alone.agent_returns is not None
        assert result.agent_returns is not None
        np.testing.assert_array_equal(result.agent_returns[member].returns, alone.agent_returns.returns)
        alone = thread_sampler.evaluate(2, policy_map=maps[1], first_episode_index=2 * member, **options)
        np.testing.assert_array_equal(apart.returns[member], alone.returns)


def test_members_may_be_of_any_kind_with_parameters(thread_sampler: Sampler) -> None:
    """Members of a Python agent and of an MLP act one after the other, and share some parameters."""
    updated = thread_sampler.update_env(EnvSpec(SPREAD.id, SPREAD.kwargs, num_rows=4, multi_agent="parallel"))
    assert updated.agents == ("agent_0", "agent_1", "agent_2")
    size = updated.observation_space.spaces["agent_0"].shape[0]
    matrix = PythonAgent("matrix", {}, {"first": np.eye(size, 8), "second": np.ones((8, 2))})
    agent = mlp(thread_sampler, "agent_0", 1)
    thread_sampler.update_agent(Policies({"matrix": matrix, "mlp": agent}, {"agent_0": "matrix", "*": "mlp"}))
    members: dict[str, dict[str, np.ndarray]] = members_of({"matrix": matrix, "mlp": agent}, 3)
    members["mlp"] = {"1/bias": members["mlp"]["1/bias"]}
    result = thread_sampler.evaluate_population(members, 5, **OPTIONS)
    assert len(np.unique(result.returns[:, 0])) == 3
    for member in range(3):
        thread_sampler.update_agent(
            {
                "matrix": {name: value[member] for name, value in members["matrix"].items()},
                "mlp": {**agent.parameters, "1/bias": members["mlp"]["1/bias"][member]},
            }
        )
        np.testing.assert_array_equal(result.returns[member], thread_sampler.evaluate(5, **OPTIONS).returns)


def test_failed_episodes_of_members_run_again(thread_sampler: Sampler, thread_server: LocalServer) -> None:
    thread_sampler.update_env(EnvSpec(CROWD.id, {"length": 15}, num_rows=3, multi_agent="parallel"))
    runner = mlp(thread_sampler, "runner_0", 1)
    thread_sampler.update_agent({**POLICIES[CROWD.id].updates, "runner": runner})
    members = members_of({"runner": runner})
    options: Any = {"seed": 11, "same_episodes": False}
    expected = thread_sampler.evaluate_population(members, 3, **options)
    flaky = EnvSpec(CROWD.id, {"length": 15, "fault": "flaky"}, multi_agent="parallel")

    async def evaluate() -> PopulationEvaluation:
        async with rollserve.aconnect(thread_server.address) as other:
            return await other.evaluate_population(members, 3, env=flaky, **options)

    result = asyncio.run(evaluate())
    np.testing.assert_array_equal(result.returns, expected.returns)
    assert result.account.num_retried_episodes > 0
    assert adds_up(result.account)
    (failure, *_) = result.account.episode_failures
    member, episode = divmod(failure.episode_index, 3)
    where = (
        rf"member {member}, episode {failure.episode_index} \(environment seed \d+\), after 2 steps: .*not this time"
    )
    assert re.match(where, failure.text)
    assert 0 <= episode < 3


def test_agents_that_fail_are_named_with_member_and_policy(thread_sampler: Sampler) -> None:
    thread_sampler.update_env(EnvSpec(SPREAD.id, SPREAD.kwargs, num_rows=2, multi_agent="parallel"))
    agent = mlp(thread_sampler, "agent_0", 1)
    thread_sampler.update_agent(Policies({"main": agent}, {"*": "main"}))
    bias = np.zeros((3, *agent.parameters["1/bias"].shape), np.float32)
    bias[2] = np.finfo(np.float32).max
    weight = np.full((3, *agent.parameters["1/weight"].shape), np.finfo(np.float32).max)
    weight[:2] = 0
    text = r"member 2, episode \d.* after 0 steps: policy 'main', for agent 'agent_\d': "
    with raises(rollserve.RollserveError, match=text):
        thread_sampler.evaluate_population({"main": {"1/bias": bias, "1/weight": weight}}, 2, **OPTIONS)


@pytest.fixture
def spread(thread_sampler: Sampler) -> Sampler:
    """A sampler in `simple_spread` with two versions of a policy, and one more policy."""
    thread_sampler.update_env(SPREAD)
    agents = {name: mlp(thread_sampler, "agent_0", seed) for seed, name in enumerate(("red", "blue"))}
    policy_map = {"agent_0": "red", "agent_1": ("red", -1), "*": "blue"}
    thread_sampler.update_agent(Policies(agents, {"agent_0": "red", "*": "blue"}))
    thread_sampler.update_agent(Policies(agents, policy_map))
    return thread_sampler


BIAS = {"1/bias": np.zeros((2, 5), np.float32)}
NOT_FINITE = {"1/bias": np.array([[0] * 5, [0, 0, np.nan, 0, 0]], np.float32)}


@pytest.mark.parametrize(
    ("members", "options", "field", "text"),
    [
        ({"green": BIAS}, {}, "policies['green']", "policies among .*'red'.* got 'green'"),
        (
            {"red": BIAS},
            {"policy_map": {"*": "blue"}},
            "policies['red']",
            r"a policy whose current version \(0\) acts for an agent by one of the maps, got 'red', which acts",
        ),
        ({"red": BIAS}, {"policy_map": {"*": ("red", -1)}}, "policies['red']", "acts for none"),
        ({"red": BIAS}, {"policy_map": {"*": ("red", 77)}}, "options.policy_maps[0]", "versions of 'red'.* got 77"),
        ({"red": BIAS}, {"policy_map": {0: "red"}}, "options.policy_maps[0].rules", "none for 'agent_1'"),
        (
            {"red": BIAS, "blue": {"1/bias": np.zeros((3, 5), np.float32)}},
            {},
            "policies['red'].parameters",
            "3 members, as policy 'blue' has, got 2",
        ),
        ({"red": {"1/bias": np.zeros((2, 4), np.float32)}}, {}, "policies['red'].parameters['1/bias'].shape", "(2, 5)"),
        ({"red": {"2/bias": np.zeros((2, 4), np.float32)}}, {}, "policies['red'].parameters", "names among"),
        ({"red": {}}, {}, "policies['red'].parameters", "at least one parameter of the members, got none"),
        ({"red": NOT_FINITE}, {}, "policies['red'].parameters['1/bias'][1, 2]", "a finite number, got nan"),
        (BIAS, {}, "parameters", "none beside `policies`, because the environment has the agents .*'agent_0'"),
        ({"red": BIAS}, {"env": "CartPole-v1", "policy_map": {"*": "red"}}, "policies", "none in an environment with"),
        ({"red": BIAS}, {"skip_failed_episodes": True}, "options.skip_failed_episodes", "false for a population"),
    ],
)
def test_members_are_refused_by_name(
    spread: Sampler, members: Any, options: dict[str, Any], field: str, text: str
) -> None:
    if text.startswith("("):
        text = text.replace("(", r"\(").replace(")", r"\)")
    with raises(InvalidArgumentError, field=field, match=text):
        spread.evaluate_population(members, 2, **options)
    assert spread.status().policy_version == 2


def test_mixed_members_and_too_many_of_them_are_refused(spread: Sampler) -> None:
    with raises(TypeError, field="parameters['1/bias']", match="a mapping with arrays"):
        spread.evaluate_population({"red": BIAS, **BIAS}, 2)  # type: ignore[arg-type]
    with raises(TypeError, field="parameters", match="a string"):
        spread.evaluate_population({3: BIAS}, 2)  # type: ignore[dict-item]
    with raises(InvalidArgumentError, field="parameters", match="names of policies as keys, got an empty one"):
        spread.evaluate_population({"": BIAS}, 2)
    text = "at most 21845 episodes of each of 2 members, because each has 3 agents, got 21846"
    with raises(InvalidArgumentError, field="episode_count", match=text):
        spread.evaluate_population({"red": BIAS}, 21_846)
    spread.update_env("CartPole-v1")
    spread.update_agent(rollserve.MlpAgent.initial(*_spaces(spread), hidden_sizes=(16,)))
    with raises(InvalidArgumentError, field="policies", match="none in an environment with one agent"):
        spread.evaluate_population({"red": BIAS}, 2)
    members = {"1/bias": np.zeros((2, 2), np.float32)}
    with raises(InvalidArgumentError, field="options.policy_maps", match="none in an environment with one agent"):
        spread.evaluate_population(members, 2, policy_map={"*": "red"})
    result = spread.evaluate_population(members, 2)
    assert result.agent_returns is None
    with pytest.raises(ValueError, match="agent_returns: expected an environment with many agents, got one with one"):
        result.by_policy()


def _spaces(sampler: Sampler) -> Any:
    status = sampler.status()
    return status.observation_space, status.action_space
