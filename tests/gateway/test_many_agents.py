"""Requests about environments with many agents that a server refuses by name, and that leave its state as it was."""

from __future__ import annotations

import pickle
import re
from typing import Any

import numpy as np
import pytest
from many_agents import CONNECT_FOUR, CROWD, DUEL, MASKED, MASKED_BY_INFO, POLICIES, RELAY, SPREAD, many_equal
from support import equal, raises

import rollserve
from rollserve import (
    EnvSpec,
    InvalidArgumentError,
    MlpAgent,
    Policies,
    PreconditionError,
    RandomAgent,
    Reason,
    Sampler,
)
from rollserve_server.local import LocalServer
from rollserve_wire.v1 import agent_pb2, policies_pb2
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1.sampler_service_pb2_grpc import SamplerServiceStub

POLICIES_FIELD = "all_workers.policies"
RANDOM = RandomAgent()


@pytest.fixture
def crowd(thread_sampler: Sampler) -> Sampler:
    thread_sampler.update_env(CROWD)
    thread_sampler.update_agent(POLICIES[CROWD.id])
    return thread_sampler


@pytest.mark.parametrize(
    ("update", "field", "text"),
    [
        (
            RANDOM,
            "all_workers.agent.random",
            r"expected policies by name, such as \{'policy': agent\}, for the agents .*, got one agent of kind random",
        ),
        ({"runner": RANDOM, "ghost": RANDOM}, f"{POLICIES_FIELD}.policies['ghost']", "one of the agents .* for none"),
        (
            Policies({"a": RANDOM}, {"runner_*": "a"}),
            f"{POLICIES_FIELD}.policy_map.rules",
            "a rule for each .* for 'guard'",
        ),
        *(
            (
                Policies({"a": RANDOM}, {"*": "a", key: "a"}),
                f"{POLICIES_FIELD}.policy_map.rules[1]",
                f"a rule for some of the agents .*, got one for {re.escape(named)}",
            )
            for key, named in (
                ("gaurd", "'gaurd'"),
                ("runners_*", "'runners_*'"),
                ("run*0", "'run*0'"),
                (4, "position 4"),
            )
        ),
        (Policies({"a": RANDOM}, {"*": "b"}), f"{POLICIES_FIELD}.policy_map", "policies among .*'a'.*, got 'b'"),
        (
            Policies({"a": RANDOM, "b": RANDOM}, {"*": "b"}),
            f"{POLICIES_FIELD}.policies['a']",
            "a policy that the map names, .*'b'.*, got 'a'",
        ),
        (
            Policies({"a": RANDOM}, {"*": "a"}),
            f"{POLICIES_FIELD}.policies['a']",
            "agents with the same spaces, as 'runner_0' has with Box.* got 'guard' with Dict",
        ),
        (
            Policies({}, {"runner_*": ("runner", 1 << 40), "guard": "guard", "late": "late"}),
            f"{POLICIES_FIELD}.policy_map",
            "versions of 'runner' that are held, .* got 1099511627776",
        ),
        (
            {"runner": {"0/weight": np.zeros(3)}},
            f"{POLICIES_FIELD}.policies['runner'].parameters",
            "have no parameters",
        ),
        (
            {"runner": rollserve.ConstantAgent(np.zeros(3, np.float32))},
            f"{POLICIES_FIELD}.policies['runner'].action.shape",
            "expected",
        ),
    ],
)
def test_updates_are_refused_by_name(crowd: Sampler, update: Any, field: str, text: str) -> None:
    before = crowd.multi_agent.obtain_samples(40, seed=1)
    with raises(InvalidArgumentError, field=field, reason=Reason.INVALID_VALUE, match=text):
        crowd.update_agent(update)
    after = crowd.multi_agent.obtain_samples(40, seed=1)
    assert crowd.status().policy_version == 1
    assert before.num_steps == after.num_steps


@pytest.mark.parametrize(
    ("policy_map", "field", "text"),
    [
        ({"*": "main", 0: "other"}, "policies['third']", "a policy that the map names, .* got 'third'"),
        ({"agent_*": "main", 0: "other"}, "policy_map.rules", "none for 'relay_1'"),
    ],
)
def test_updates_after_another_environment_name_the_map_that_stays(
    thread_sampler: Sampler, policy_map: dict[str | int, str], field: str, text: str
) -> None:
    thread_sampler.update_env(SPREAD)
    thread_sampler.update_agent(Policies({"main": RANDOM, "other": RANDOM}, policy_map))
    thread_sampler.update_env(RELAY)
    stays = "the present map stays until an update brings another one"
    with raises(InvalidArgumentError, field=f"{POLICIES_FIELD}.{field}", match=f"{text}: {stays}"):
        thread_sampler.update_agent({"third": RANDOM})
    thread_sampler.update_agent(Policies({"third": MASKED_BY_INFO}, {"*": "third"}))
    assert thread_sampler.multi_agent.obtain_samples(10).num_steps >= 10


def test_policies_that_are_not_called_like_agents_need_a_map(thread_sampler: Sampler) -> None:
    thread_sampler.update_env(SPREAD)
    hint = re.escape("give a map from agents to policies, such as {'agent_0': 'blue', '*': 'red'}")
    with raises(InvalidArgumentError, field=f"{POLICIES_FIELD}.policy_map.rules", match=f"none for 'agent_0': {hint}"):
        thread_sampler.update_agent({"red": RANDOM, "blue": RANDOM})
    thread_sampler.update_agent(Policies({"red": RANDOM, "blue": RANDOM}, {"agent_0": "red", "*": "blue"}))
    assert thread_sampler.status().policies == {"red": 1, "blue": 1}


def test_versions_before_the_first_are_the_oldest_one_that_is_held(thread_sampler: Sampler) -> None:
    thread_sampler.update_env(DUEL)
    opponents = Policies({"main": RANDOM}, {0: "main", 1: [("main", 0, 0.5), ("main", -2, 0.5)]})
    first = thread_sampler.update_agent(opponents)
    drawn = []
    for _ in range(4):
        batch = thread_sampler.multi_agent.obtain_samples(40, seed=1).by_agent()["player_1"]
        drawn.append({int(version) - first for version in batch.policy_versions})
        thread_sampler.update_agent({"main": RANDOM})
    assert drawn == [{0}, {0, 1}, {0, 2}, {1, 3}]


def test_parts_of_policies_that_are_not_there_are_refused(thread_sampler: Sampler) -> None:
    thread_sampler.update_env(CROWD)
    with raises(PreconditionError, reason=Reason.NO_AGENT):
        thread_sampler.update_agent({"runner": {"0/weight": np.zeros(3)}})
    with raises(InvalidArgumentError, field="per_worker.updates[0].policies", match="one update for all workers"):
        thread_sampler.update_agent(per_worker=[POLICIES[CROWD.id], POLICIES[CROWD.id]])


def test_policies_by_name_need_an_environment_with_many_agents(thread_sampler: Sampler) -> None:
    thread_sampler.update_env("CartPole-v1")
    with raises(
        InvalidArgumentError, field=POLICIES_FIELD, match="expected an agent, because the environment has a sin"
    ):
        thread_sampler.update_agent({"main": RANDOM})
    thread_sampler.update_agent(RANDOM)
    thread_sampler.update_env(SPREAD)
    with raises(
        PreconditionError, reason=Reason.AGENT_MISFIT, match="call update_agent first: .*expected policies by name"
    ):
        thread_sampler.obtain_samples(10)
    thread_sampler.update_agent({"main": RANDOM})
    with raises(InvalidArgumentError, match=r"updates by name, because .*\['main'\], got one without a name"):
        thread_sampler.update_agent({"0/weight": np.zeros(3)})
    thread_sampler.update_env("CartPole-v1")
    with raises(PreconditionError, reason=Reason.AGENT_MISFIT, match="expected an agent"):
        thread_sampler.obtain_samples(10)


def test_calls_for_one_agent_are_refused_by_name(crowd: Sampler) -> None:
    version = crowd.status().policy_version
    with raises(InvalidArgumentError, reason=Reason.INVALID_VALUE, field="method", match="one agent"):
        crowd.call_environments("set_task")
    assert crowd.status().policy_version == version


def test_calls_may_bring_policies(crowd: Sampler) -> None:
    batch = crowd.multi_agent.obtain_samples(40, agent={"guard": MASKED})
    versions = {part.policy: set(part.batch.policy_versions) for part in batch.policies}
    assert versions == {"guard": {2}, "runner": {1}, "late": {1}}


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (EnvSpec(RELAY.id, multi_agent="parallel"), "all_workers.environment.id"),
        (EnvSpec("classic/nothing-v0", multi_agent="aec"), "all_workers.environment.id"),
        (EnvSpec("os:system", multi_agent="aec"), "all_workers.environment.id"),
        (EnvSpec(CONNECT_FOUR.id, {"render_mode": "human"}, multi_agent="aec"), "all_workers.environment.kwargs_json"),
        (EnvSpec(RELAY.id, {"fault": "out_of_turn"}, multi_agent="aec"), "all_workers.environment"),
    ],
)
def test_environments_are_refused_by_name(crowd: Sampler, spec: EnvSpec, field: str) -> None:
    with raises(InvalidArgumentError, field=field):
        crowd.update_env(spec)
    assert crowd.multi_agent.obtain_samples(20).num_steps >= 20


def test_rows_of_their_own_have_one_agent(crowd: Sampler) -> None:
    with raises(InvalidArgumentError, match="multi_agent: expected none, because rows that differ have one agent each"):
        crowd.update_env([RELAY] * 4)


@pytest.mark.parametrize(
    ("update", "text"),
    [
        ({"policies": {"": agent_pb2.Agent(random=agent_pb2.RandomAgent())}}, "expected the name of a policy"),
        ({"policy_map": policies_pb2.PolicyMap()}, "policy_map.rules: expected at least one rule"),
        ({"policy_map": policies_pb2.PolicyMap(rules=[{}])}, "rules[0].agents: expected name, prefix or position"),
        ({"policy_map": policies_pb2.PolicyMap(rules=[{"name": "a"}])}, "rules[0].choices: expected a policy"),
        (
            {"policy_map": policies_pb2.PolicyMap(rules=[{"name": "a", "choices": [{"policy": "x"}]}])},
            "positive, finite sum",
        ),
    ],
)
def test_malformed_policies_are_refused(
    crowd: Sampler, thread_server: LocalServer, update: dict[str, Any], text: str
) -> None:
    import grpc

    policies = {name: pb.AgentUpdate(agent=agent) for name, agent in update.pop("policies", {}).items()}
    message = pb.AgentUpdate(policies=pb.PolicyUpdates(policies=policies, **update))
    with grpc.insecure_channel(thread_server.address) as channel, pytest.raises(grpc.RpcError) as caught:
        SamplerServiceStub(channel).UpdateAgent(pb.UpdateAgentRequest(all_workers=message))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert text in str(caught.value.details())


def test_pickles_among_policies_need_the_operators_leave(crowd: Sampler) -> None:
    with raises(InvalidArgumentError, match="pickle"):
        crowd.update_agent({"guard": rollserve.PickledAgent(b"cbuiltins\nprint\n.")})
    with raises(TypeError, match=r"updates\['a'\]: expected an agent"):
        Policies({"a": 3})  # type: ignore[dict-item]


def test_spaces_of_policies_are_checked(crowd: Sampler) -> None:
    updated = crowd.update_env(SPREAD)
    assert updated.agents == ("agent_0", "agent_1", "agent_2")
    space = rollserve.spaces.Box(np.float32(-1), np.float32(1), (3,), np.dtype(np.float32))
    agent = MlpAgent.initial(space, rollserve.spaces.Discrete(5), seed=0)
    with raises(InvalidArgumentError, match=r"policies\['main'\].*expected"):
        crowd.update_agent({"main": agent})


def test_agents_are_returned_by_policy(crowd: Sampler) -> None:
    status = crowd.status()
    spaces = status.observation_space["runner_0"], status.action_space["runner_0"]  # type: ignore[index]
    assert set(status.action_space) == set(status.agents)  # type: ignore[arg-type]
    agent = MlpAgent.initial(*spaces)
    crowd.update_agent({"runner": agent})
    held = crowd.agent(policy="runner")
    assert isinstance(held, MlpAgent)
    assert all(np.array_equal(held.parameters[name], value) for name, value in agent.parameters.items())
    for policy, got in (("ghost", "'ghost'"), (None, "none")):
        with raises(InvalidArgumentError, field="policy", match=f"one of the policies .*'runner'.* got {got}"):
            crowd.agent(policy=policy)
    crowd.update_env("CartPole-v1")
    crowd.update_agent(RANDOM)
    with raises(InvalidArgumentError, field="policy", match="none, because there is a single agent"):
        crowd.agent(policy="runner")


def test_saved_policies_go_on_with_the_same_bits(crowd: Sampler) -> None:
    crowd.update_agent(
        Policies(
            {"runner": RANDOM},
            {"runner_*": [("runner", 0, 0.5), ("runner", -1, 0.5)], "guard": "guard", "late": "late"},
        )
    )
    crowd.multi_agent.obtain_samples(60)
    saved = crowd.save()
    expected = crowd.multi_agent.obtain_samples(60)
    crowd.restore(saved)
    batch = crowd.multi_agent.obtain_samples(60)
    assert batch.by_policy().keys() == expected.by_policy().keys()
    for name, each in expected.by_policy().items():
        assert equal(batch.by_policy()[name], each)
    assert crowd.update_agent({"runner": RANDOM}) == 3


def test_buffers_are_for_one_agent(crowd: Sampler) -> None:
    buffer = rollserve.EpisodeBuffer()
    with raises(InvalidArgumentError, field="out", match="none for an environment with many agents"):
        crowd.multi_agent.obtain_samples(20, out=buffer)
    crowd.update_env("CartPole-v1")
    crowd.update_agent(RANDOM)
    assert crowd.obtain_samples(20, out=buffer).num_steps >= 20


def test_calls_are_refused_in_an_environment_of_the_other_kind(crowd: Sampler) -> None:
    one, many = "one with one agent", "one with many agents"

    def check(calls: Sampler[Any], text: str) -> None:
        for call in (
            lambda: calls.obtain_samples(20),
            lambda: calls.obtain_fragments(24),
            lambda: next(iter(calls.stream_exact_episodes(1))),
            lambda: next(iter(calls.stream(num_steps=20))),
            lambda: calls.evaluate(2, return_episodes=True),
        ):
            with raises(InvalidArgumentError, field="environment", match=text):
                call()
        assert len(calls.evaluate(2)) == 2

    check(crowd, f"expected {one}, got agents .*: call the methods of sampler.multi_agent")
    crowd.update_env("CartPole-v1")
    crowd.update_agent(RANDOM)
    check(crowd.multi_agent, f"expected {many}, got {one}: call the methods of the sampler itself")


def test_both_kinds_of_calls_share_connection_and_versions(crowd: Sampler) -> None:
    many = crowd.multi_agent
    many.update_agent(POLICIES[CROWD.id])
    copied = pickle.loads(pickle.dumps(many))
    with copied:
        assert many_equal(copied.obtain_samples(20, seed=1), many.obtain_samples(20, seed=1))
    many.close()
    with pytest.raises(rollserve.CancelledError, match="sampler"):
        crowd.status()


def test_multi_agent_batch_refuses_columns_of_one_agent_by_name(crowd: Sampler) -> None:
    batch: Any = crowd.multi_agent.obtain_samples(20)
    for name in ("save", "to_parquet", "returns", "observations"):
        with pytest.raises(AttributeError, match=f"no attribute '{name}': the batches of `by_policy"):
            getattr(batch, name)
    with pytest.raises(AttributeError, match=r"no attribute 'policys'$"):
        batch.policys  # noqa: B018
    with raises(TypeError, field="batch", match="of an environment with one agent, got MultiAgentBatch"):
        crowd.with_receipt(batch)
    with pytest.raises(TypeError, match=r"batches\[0\]: .*MultiAgentBatch\.concatenate joins .* got MultiAgentBatch"):
        rollserve.EpisodeBatch.concatenate(batch, batch)


@pytest.mark.parametrize(
    ("update", "text"),
    [
        ({5: RANDOM}, "updates: expected names of policies, which are texts, as keys, got int"),
        (
            {"a": RANDOM, "b": np.zeros(3)},
            r"updates\['b'\]: expected an agent, parameters or an AgentChange, got ndarray",
        ),
        (
            {"a": {"0/weight": np.zeros(3)}, "b": 3},
            r"updates\['b'\]: expected an agent, parameters or an AgentChange, got int",
        ),
    ],
)
def test_mappings_that_are_policies_in_part_are_refused(crowd: Sampler, update: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        crowd.update_agent(update)
