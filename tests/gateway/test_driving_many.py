"""Sessions in environments with many agents, what is recorded of them, and what is behind PettingZoo's interfaces."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import itertools
import os
import queue
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from many_agents import (
    CONNECT_FOUR,
    CROWD,
    MASKED,
    PHOENIX,
    POLICIES,
    RELAY,
    SPREAD,
    check_against_plain_loops,
    many_equal,
    plain_env,
    whole_episodes,
)
from support import raises

import rollserve
from rollserve import (
    AgentTurns,
    EnvSpec,
    InvalidArgumentError,
    MlpAgent,
    MultiAgentBatch,
    MultiAgentStep,
    Policies,
    Sampler,
)
from rollserve_server.local import LocalServer
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1.sampler_service_pb2_grpc import SamplerServiceStub

PAGE = (Path(__file__).parents[2] / "docs" / "many-agents.md").read_text()
EXAMPLES = re.findall(r"<!-- tested -->\n```python\n(.*?)```", PAGE, re.DOTALL)
SPECS = [SPREAD, CONNECT_FOUR, CROWD, RELAY, PHOENIX]
SOME = [(CONNECT_FOUR, ["player_1"]), (RELAY, ["relay_0", "relay_2"]), (SPREAD, ["agent_2"]), (CROWD, ["guard"])]
ADVERSARY = EnvSpec("mpe/simple_adversary-v3", {"max_cycles": 7}, multi_agent="parallel")

Choose = Callable[[MultiAgentStep, str, AgentTurns], np.ndarray]


@pytest.fixture(scope="module")
def server(light_server: LocalServer) -> LocalServer:
    return light_server


@pytest.fixture
def many(thread_sampler: Sampler) -> Sampler:
    """A sampler of two workers, which a test may give other rows and workers."""
    return thread_sampler


@pytest.fixture
def row(thread_sampler: Sampler) -> Iterator[Sampler]:
    """A sampler with a single row."""
    thread_sampler.resize(1)
    yield thread_sampler
    thread_sampler.resize(2)


def prepare(sampler: Sampler, spec: EnvSpec, num_rows: int = 2) -> None:
    sampler.update_env(dataclasses.replace(spec, num_rows=num_rows))


class Driven:
    """What a session shows, and what it records."""

    def __init__(
        self,
        sampler: Sampler,
        num_steps: int,
        choose: Choose | None = None,
        kill_at: int | None = None,
        batches_at: tuple[int, ...] = (),
        version_steps: int | None = None,
        **options: Any,
    ) -> None:
        self.batches: list[MultiAgentBatch] = []
        session: Any
        with sampler.multi_agent.drive(**{"seed": 3, "infos": True, **options}) as session:
            self.steps = [session.observe()]
            chosen = choose or legal_actions(session.action_space)
            while self.steps[-1].number < num_steps:
                step = self.steps[-1]
                session.policy_version = version_steps and step.number // version_steps
                if len(self.steps) == kill_at:
                    os.kill(sampler.status().workers[0].process_id, signal.SIGKILL)
                actions = {agent: chosen(step, agent, turns) for agent, turns in step.turns.items()}
                self.steps.append(session.step(actions))
                if len(self.steps) in batches_at:
                    self.batches.append(session.batch())
            self.batches.append(session.batch())
        self.account = session.account

    @property
    def batch(self) -> MultiAgentBatch:
        """All that was recorded, without the spaces."""
        batch = MultiAgentBatch.concatenate(*self.batches)
        parts = [
            dataclasses.replace(part, batch=dataclasses.replace(part.batch, observation_space=None, action_space=None))
            for part in batch.policies
        ]
        return dataclasses.replace(batch, policies=tuple(parts))

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Driven)
        shown = zip(self.steps, other.steps, strict=True)
        return all(same_step(*each) for each in shown) and many_equal(self.batch, other.batch)

    __hash__ = None  # type: ignore[assignment]


def legal_actions(space: Any) -> Choose:
    """Return what draws random legal actions, the same at each use."""
    generator = np.random.default_rng(0)

    def choose(step: MultiAgentStep, agent: str, turns: AgentTurns) -> np.ndarray:
        own, count = space[agent], len(turns.rows)
        if not isinstance(own, rollserve.spaces.Discrete):
            return generator.uniform(-1, 1, (count, *own.shape)).astype(np.float32)
        mask: Any = turns.infos.get("action_mask", np.ones((count, own.n)))
        if isinstance(turns.observations, dict) and "action_mask" in turns.observations:
            mask = turns.observations["action_mask"]
        return np.array([generator.choice(np.flatnonzero(each)) for each in mask])

    return choose


def same_turns(one: AgentTurns, other: AgentTurns) -> bool:
    return all(
        np.array_equal(value[key], vars(other)[name][key])
        if isinstance(value, dict)
        else np.array_equal(value, vars(other)[name])
        for name, value in vars(one).items()
        for key in (value if isinstance(value, dict) else [""])
    )


def same_step(one: MultiAgentStep, other: MultiAgentStep) -> bool:
    for mine, its in ((one.turns, other.turns), (one.ends, other.ends)):
        if mine.keys() != its.keys() or not all(same_turns(mine[agent], its[agent]) for agent in mine):
            return False
    return one.number == other.number and np.array_equal(one.episode_indices, other.episode_indices)


@pytest.mark.parametrize("spec", SPECS, ids=[spec.id for spec in SPECS])
def test_recorded_episodes_are_those_of_plain_environments(many: Sampler, spec: EnvSpec) -> None:
    prepare(many, spec)
    driven = Driven(many, 60, fragment_length=7, batches_at=(5, 30))
    assert len(driven.batches) == 3
    assert driven.batch.num_steps == driven.account.num_steps == 4 * 60
    episodes = whole_episodes(driven.batches)
    assert len(episodes) >= 4
    check_against_plain_loops(episodes, spec)


@pytest.mark.parametrize("limit", [None, 5])
@pytest.mark.parametrize("spec", SPECS[:4], ids=[spec.id for spec in SPECS[:4]])
def test_steps_show_what_is_recorded(many: Sampler, spec: EnvSpec, limit: int | None) -> None:
    prepare(many, spec)
    driven = Driven(many, 41, fragment_length=9, max_episode_length=limit)
    recorded = whole_episodes(driven.batches).by_agent()
    for agent, batch in recorded.items():
        rewards, ends = shown_of(driven.steps, agent)
        for index in np.unique(batch.episode_indices).tolist():
            lives = np.flatnonzero(batch.episode_indices == index)
            assert rewards[index] == pytest.approx(batch.episode_returns[lives].sum())
            flags = [(bool(batch.terminated[life]), bool(batch.truncated[life])) for life in lives]
            if spec is not CROWD:
                assert ends[index] == flags
            else:  # lives without an action are not recorded, nor are ends of lives whose agents are absent
                assert {each for each in flags if any(each)} <= set(ends[index])


def shown_of(steps: list[MultiAgentStep], agent: str) -> tuple[dict[int, float], dict[int, list[tuple[bool, bool]]]]:
    """Return what an agent got in each episode, by its index: the sum of its rewards, and the ends of its lives."""
    rewards: dict[int, float] = {}
    ends: dict[int, list[tuple[bool, bool]]] = {}
    for before, step in itertools.pairwise(steps):
        for turns in (each[agent] for each in (step.ends, step.turns) if agent in each):
            for row, reward, *flags in zip(
                turns.rows.tolist(),
                turns.rewards.tolist(),
                turns.terminated.tolist(),
                turns.truncated.tolist(),
                strict=True,
            ):
                index = int((before if any(flags) else step).episode_indices[row])
                rewards[index] = rewards.get(index, 0.0) + reward
                if any(flags):
                    ends.setdefault(index, []).append((flags[0], flags[1]))
    return rewards, ends


class Recorded:
    """Chooses what agents have done in a batch of whole episodes, or of fragments from the beginning on."""

    def __init__(self, batch: MultiAgentBatch) -> None:
        self._actions: dict[tuple[str, int], list[Any]] = {}
        for agent, its in batch.by_agent().items():
            episodes = np.repeat(its.episode_indices, its.lengths)
            assert isinstance(its.actions, np.ndarray)
            for index, action in zip(episodes.tolist(), its.actions, strict=True):
                self._actions.setdefault((agent, index), []).append(action)

    def __call__(self, step: MultiAgentStep, agent: str, turns: AgentTurns) -> np.ndarray:
        return np.array([self._actions[agent, int(step.episode_indices[row])].pop(0) for row in turns.rows])


def same_agents(one: MultiAgentBatch, other: MultiAgentBatch) -> None:
    """Compare what each agent has done and got in the episodes of the first batch, whatever its policy is called."""
    names = "episode_indices", "lengths", "terminated", "truncated", "rewards", "actions", "observations", "env_seeds"
    others = other.by_agent()
    for agent, batch in one.by_agent().items():
        its = others[agent].take(np.flatnonzero(np.isin(others[agent].episode_indices, one.episode_indices)))
        for name in names:
            np.testing.assert_equal(getattr(batch, name), getattr(its, name), err_msg=f"{name} of {agent}")


@pytest.mark.parametrize(("spec", "agents"), SOME, ids=[spec.id for spec, _ in SOME])
def test_policies_act_for_the_others_as_in_streams(many: Sampler, spec: EnvSpec, agents: list[str]) -> None:
    prepare(many, spec)
    many.update_agent(POLICIES[spec.id])
    with many.multi_agent.stream(fragment_length=11, seed=3) as stream:
        rounds = [next(stream) for _ in range(6)]
    driven = Driven(many, 44, Recorded(MultiAgentBatch.concatenate(*rounds)), agents=agents, fragment_length=11)
    found, expected = whole_episodes(driven.batches), whole_episodes(rounds)
    assert len(found) >= 4
    same_agents(found, expected)
    assert set(found.by_policy()) - set(expected.by_policy()) == {"external"}
    assert {agent for step in driven.steps for agent in step.turns} == set(agents)


def versions(sampler: Sampler) -> None:
    """Let the sampler hold two versions of a policy, of which each episode draws one for the second player."""
    sampler.update_env(dataclasses.replace(CONNECT_FOUR, num_rows=2))
    spaces = [getattr(sampler.status(), name)["player_1"] for name in ("observation_space", "action_space")]
    mask = rollserve.ActionMask(observation="action_mask")
    first, second = (MlpAgent.initial(*spaces, seed=seed, action_mask=mask) for seed in range(2))
    sampler.update_agent(Policies({"past": first}, {"*": [("past", 0, 0.5), ("past", -1, 0.5)]}))
    sampler.update_agent({"past": second.parameters})


def test_client_plays_against_earlier_versions(many: Sampler) -> None:
    versions(many)
    driven = Driven(many, 100, agents=["player_0"], fragment_length=16)
    policies = whole_episodes(driven.batches).by_policy()
    assert set(np.unique(policies["past"].policy_versions)) == {1, 2}
    assert set(np.unique(policies["external"].policy_versions)) == {0}
    own = Driven(many, 100, agents=["player_0"], fragment_length=16, deliver=["external"])
    assert own.batch.by_policy().keys() == {"external"}
    assert all(map(same_step, own.steps, driven.steps))
    numbers = [step.number for step in driven.steps]
    assert numbers == sorted(set(numbers))
    check_against_plain_loops(whole_episodes(driven.batches), CONNECT_FOUR)


def test_client_acts_alone_where_it_is_asked(row: Sampler) -> None:
    versions(row)
    row.update_env(dataclasses.replace(CONNECT_FOUR, num_rows=1))
    driven = Driven(row, 60, agents=["player_1"], fragment_length=16)
    assert len(driven.steps) < 40
    assert all(list(step.turns) == ["player_1"] for step in driven.steps)


def test_new_policies_act_from_the_next_fragment_on(many: Sampler) -> None:
    versions(many)
    with many.multi_agent.drive(seed=3, agents=["player_0"], fragment_length=8) as session:
        step, choose = session.observe(), legal_actions(session.action_space)
        for number in range(12):
            if number == 6:
                many.update_agent({"past": rollserve.RandomAgent(rollserve.ActionMask(observation="action_mask"))})
            step = session.step({agent: choose(step, agent, turns) for agent, turns in step.turns.items()})
        found = session.batch().by_policy()["past"].policy_versions
    assert {1, 2} >= set(found[:4].tolist())
    assert 3 in found


@pytest.mark.parametrize("agents", [(), ("player_0",)], ids=["all", "one"])
@pytest.mark.parametrize("length", [5, 64])
def test_policy_versions_are_those_of_the_actions(many: Sampler, agents: tuple[str, ...], length: int) -> None:
    versions(many)
    shown, batches = [], []
    for changes in (0, 1):
        with many.multi_agent.drive(
            seed=3, agents=agents, fragment_length=length, agent_infos={"version": np.int64(0)}
        ) as session:
            step, choose = session.observe(), legal_actions(session.action_space)
            shown.append([step])
            while step.number < 60:
                version = session.policy_version = changes * (5 + step.number // 9)
                infos = {agent: {"version": np.full(len(its.rows), version)} for agent, its in step.turns.items()}
                step = session.step({agent: choose(step, agent, its) for agent, its in step.turns.items()}, infos)
                shown[-1].append(step)
            batches.append(session.batch())
    for name, part in batches[1].by_policy().items():
        its_versions = np.repeat(part.policy_versions, part.lengths)
        if name == "external":
            assert np.array_equal(its_versions, part.agent_infos["version"])
            assert set(its_versions) == set(range(5, 12))
        else:
            assert set(its_versions) == {1, 2}
    assert all(itertools.starmap(same_step, zip(*shown, strict=True)))


@pytest.mark.parametrize("agents", [(), ("player_0",)], ids=["all", "one"])
def test_worker_that_is_killed_makes_the_same_steps_again(ray_server: LocalServer, agents: tuple[str, ...]) -> None:
    with rollserve.connect(ray_server.address) as sampler:
        versions(sampler)
        whole = Driven(sampler, 40, version_steps=9, agents=agents, fragment_length=16)
        disturbed = Driven(sampler, 40, version_steps=9, agents=agents, fragment_length=16, kill_at=13)
    assert disturbed == whole
    account = disturbed.account
    assert account.num_simulated_steps == account.num_steps + account.num_lost_steps
    assert account.num_lost_steps > 0


@pytest.mark.parametrize("num_workers", [1, 3])
def test_sessions_are_functions_of_seed_and_actions(many: Sampler, num_workers: int) -> None:
    prepare(many, SPREAD, num_rows=3)
    first = Driven(many, 25, fragment_length=6)
    many.resize(num_workers)
    prepare(many, SPREAD, num_rows=6 // num_workers)
    second = Driven(many, 25, fragment_length=10)
    many.resize(2)
    assert all(map(same_step, first.steps, second.steps))


def test_agents_with_the_same_spaces_share_a_policy(many: Sampler) -> None:
    prepare(many, ADVERSARY)
    with many.multi_agent.drive(seed=3, agent_infos={"value": np.float32(0)}) as session:
        step, choose = session.observe(), legal_actions(session.action_space)
        assert session.agents == ("adversary_0", "agent_0", "agent_1")
        for number in range(9):
            infos = {agent: {"value": np.full(4, 10 * number + len(agent), np.float32)} for agent in step.turns}
            step = session.step({agent: choose(step, agent, its) for agent, its in step.turns.items()}, infos)
        batch = session.batch()
    policies = batch.by_policy()
    assert set(policies) == {"external_adversary_0", "external_agent_0"}
    assert set(batch.by_agent()) == set(session.agents)
    for agent, its in batch.by_agent().items():
        assert set((its.agent_infos["value"] % 10).tolist()) == {len(agent) % 10}


def test_players_of_envpool_are_driven(many: Sampler) -> None:
    pytest.importorskip("envpool")
    many.update_env(EnvSpec("ConnectFour-v1", vectorization="envpool", multi_agent="aec"))
    with many.multi_agent.drive(infos=True) as session:
        step = session.observe()
        for _ in range(30):
            masks = {agent: turns.infos["legal_action_mask"] for agent, turns in step.turns.items()}
            step = session.step({agent: mask.argmax(1) for agent, mask in masks.items()})
        batch = session.batch()
    assert (batch.terminated | batch.truncated).any()
    assert {float(reward) for reward in batch.by_policy()["external"].rewards} == {-1.0, 0.0, 1.0}


def test_steps_that_are_not_recorded_are_discarded(many: Sampler) -> None:
    prepare(many, SPREAD)
    with many.multi_agent.drive(record=False, fragment_length=2) as session:
        session.observe()
        for _ in range(6):
            session.step(spread_actions(session, {}))
    assert (session.account.num_discarded_steps, session.account.num_steps) == (24, 0)


def spread_actions(session: Any, action: Any) -> dict[str, Any]:
    return {**dict.fromkeys(session.agents, np.zeros(4, np.int64)), **action}


@pytest.mark.parametrize(
    ("action", "field"),
    [
        ({"agent_1": np.full(4, 5)}, "actions.agents[0].actions[''][1]"),
        ({"agent_1": np.zeros(3, np.int64)}, "actions['agent_1']"),
        ({"agent_1": np.zeros(4)}, "actions['agent_1']"),
        ({"agent_3": np.zeros(4, np.int64)}, "actions"),
    ],
    ids=["outside", "too few", "dtype", "agent"],
)
def test_wrong_actions_are_refused(many: Sampler, action: Any, field: str) -> None:
    prepare(many, SPREAD)
    with raises(InvalidArgumentError, field=field), many.multi_agent.drive() as session:
        session.observe()
        session.step(spread_actions(session, action))


@pytest.mark.parametrize(
    ("actions", "field", "text"),
    [
        ({}, "actions.agents", "actions of 1 kinds of agents, and no idle rows"),
        ({"agents": [pb.AgentActions()]}, "actions.agents[0].actions", "the tensors ''"),
        ({"agents": [pb.AgentActions()], "idle": [True] * 4}, "actions.agents", "no idle rows"),
    ],
    ids=["none", "empty", "idle"],
)
def test_actions_of_another_form_are_refused(
    many: Sampler, thread_server: LocalServer, actions: Any, field: str, text: str
) -> None:
    prepare(many, SPREAD)
    spec = pb.DriveEnvironmentsRequest(spec=pb.DriveSpec(fragment_length=1))
    sent = pb.DriveEnvironmentsRequest(actions=pb.DrivenActions(**actions))
    with grpc.insecure_channel(thread_server.address) as channel:
        requests: queue.SimpleQueue[pb.DriveEnvironmentsRequest] = queue.SimpleQueue()
        requests.put(spec)
        call = SamplerServiceStub(channel).DriveEnvironments(iter(requests.get, None))
        assert [next(call).WhichOneof("content") for _ in range(2)] == ["beginning", "step"]
        requests.put(sent)
        with pytest.raises(grpc.RpcError, match=re.escape(field) + ".*" + re.escape(text)):
            next(call)
        requests.put(None)  # type: ignore[arg-type]  # the end


@pytest.mark.parametrize(
    ("agents", "field", "text"),
    [
        (["agent_7"], "spec.agents[0]", "one of the agents"),
        (["agent_0", "agent_0"], "spec.agents[1]", "each agent once"),
    ],
)
def test_wrong_agents_are_refused(many: Sampler, agents: list[str], field: str, text: str) -> None:
    prepare(many, SPREAD)
    with raises(InvalidArgumentError, field=field, match=text), many.multi_agent.drive(agents=agents) as session:
        session.observe()


def test_agents_without_a_policy_are_refused(many: Sampler) -> None:
    prepare(many, SPREAD)
    with (
        raises(rollserve.PreconditionError, reason="NO_AGENT"),
        many.multi_agent.drive(agents=["agent_0"]) as session,
    ):
        session.observe()


def test_policies_called_like_the_clients_are_refused(many: Sampler) -> None:
    prepare(many, SPREAD)
    many.update_agent(Policies({"external": rollserve.RandomAgent()}, {"*": "external"}))
    with (
        raises(InvalidArgumentError, field="spec.agents", match="not called 'external'"),
        many.multi_agent.drive(agents=["agent_0"]) as session,
    ):
        session.observe()


def test_other_kind_of_sampler_is_refused(many: Sampler) -> None:
    with raises(InvalidArgumentError, field="environment"), many.multi_agent.drive() as session:
        session.observe()
    prepare(many, SPREAD)
    with raises(InvalidArgumentError, field="environment", quotes="sampler.multi_agent"), many.drive() as session:
        session.observe()


# PettingZoo's interfaces.


def shipped(name: str) -> Any:
    """Return a test that PettingZoo ships, whose module warns of deprecated modules when it is imported."""
    return getattr(importlib.import_module("pettingzoo.test"), name)


@pytest.mark.filterwarnings("ignore")
def test_parallel_env_passes_the_tests_of_pettingzoo(row: Sampler) -> None:
    prepare(row, SPREAD, num_rows=1)
    with contextlib.closing(row.parallel_env()) as env:
        shipped("parallel_api_test")(env, 30)
    shipped("parallel_seed_test")(row.parallel_env, 5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("agents", [(), ("player_1",)], ids=["all", "one"])
def test_aec_env_passes_the_tests_of_pettingzoo(row: Sampler, agents: tuple[str, ...]) -> None:
    prepare(row, CONNECT_FOUR, num_rows=1)
    row.update_agent(Policies({"past": MASKED}, {"*": "past"}))
    with contextlib.closing(row.aec_env(agents=agents)) as env:
        shipped("api_test")(env, 30)
    shipped("seed_test")(lambda: row.aec_env(agents=agents), 10)


def test_parallel_env_equals_pettingzoos(row: Sampler) -> None:
    prepare(row, ADVERSARY, num_rows=1)
    plain = plain_env(ADVERSARY)
    with contextlib.closing(row.parallel_env(record=True)) as env:
        for episode, seed in enumerate((5, None, 6, None)):
            shown = env.reset(seed=seed)
            np.testing.assert_equal(shown, plain.reset(seed=env.env_seed))
            while plain.agents:
                assert env.agents == plain.agents
                for agent in plain.agents:
                    assert env.action_space(agent) == plain.action_space(agent)
                    assert env.observation_space(agent) == plain.observation_space(agent)
                actions = {agent: (episode + len(agent)) % 5 for agent in plain.agents}
                np.testing.assert_equal(env.step(actions), plain.step(actions))
            assert not env.agents
        assert env.batch().num_steps == 14  # of the two episodes of the last session


def test_aec_env_equals_pettingzoos(row: Sampler) -> None:
    prepare(row, CONNECT_FOUR, num_rows=1)
    plain, generator = plain_env(CONNECT_FOUR), np.random.default_rng(0)
    with contextlib.closing(row.aec_env()) as env:
        for seed in (5, None, None):
            env.reset(seed=seed)
            plain.reset(seed=env.env_seed)
            for agent in plain.agent_iter():
                assert (env.agent_selection, env.agents) == (agent, plain.agents)
                shown = plain.last()
                np.testing.assert_equal(env.last(), shown)
                mask = shown[0]["action_mask"]
                action = None if shown[2] or shown[3] else int(generator.choice(np.flatnonzero(mask)))
                env.step(action)
                plain.step(action)
            assert not env.agents


@pytest.mark.parametrize("method", ["parallel_env", "aec_env"])
def test_several_rows_are_refused(many: Sampler, method: str) -> None:
    spec = SPREAD if method == "parallel_env" else CONNECT_FOUR
    prepare(many, spec)
    with raises(InvalidArgumentError, field="environment", quotes="a single row"):
        getattr(many, method)()


@pytest.mark.parametrize("method", ["parallel_env", "aec_env"])
def test_other_interfaces_are_refused(row: Sampler, method: str) -> None:
    prepare(row, CONNECT_FOUR if method == "parallel_env" else SPREAD, num_rows=1)
    with raises(InvalidArgumentError, field="environment", quotes="multi_agent="):
        getattr(row, method)()


def test_parallel_env_begins_with_a_reset(row: Sampler) -> None:
    prepare(row, SPREAD, num_rows=1)
    with (
        contextlib.closing(row.parallel_env()) as env,
        raises(rollserve.PreconditionError, field="step"),
    ):
        env.step({})


@pytest.mark.parametrize("method", ["parallel_env", "aec_env"])
def test_missing_pettingzoo_is_named(many: Sampler, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    monkeypatch.setitem(sys.modules, "pettingzoo", None)  # as if it were not installed
    with pytest.raises(ImportError, match=r"rollserve\[pettingzoo\]"):
        getattr(many, method)()


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_of_the_page_run(row: Sampler, thread_server: LocalServer, example: str) -> None:
    prepare(row, CONNECT_FOUR, num_rows=1)
    row.update_agent(Policies({"past": MASKED}, {"*": "past"}))
    exec(example.replace("127.0.0.1:50051", thread_server.address), {})
