"""Rows of environments with many agents, compared to plain loops over PettingZoo to the last bit."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
import pytest
from many_agents import POLICIES, plain_env
from support import raises

import rollserve
from rollserve import EnvSpec, Reproducibility, Wrapper
from rollserve_server.envs import ManyEnvs
from rollserve_server.errors import EnvFailedError, InvalidValueError, NotAllowedError, NotFoundError

SPECS = [
    EnvSpec("sample_envs:crowd", {"length": 40}, multi_agent="parallel"),
    EnvSpec("sample_envs:relay", {"num_agents": 4}, multi_agent="aec"),
    EnvSpec("sample_envs:relay", {"num_agents": 4, "shares": True}, multi_agent="aec"),
    EnvSpec("mpe/simple_spread-v3", {"max_cycles": 10}, multi_agent="parallel"),
    EnvSpec("mpe/simple_adversary-v3", {"max_cycles": 10}, multi_agent="aec"),
    EnvSpec("classic/connect_four-v3", multi_agent="aec"),
    EnvSpec("classic/leduc_holdem-v4", multi_agent="aec"),
    EnvSpec("classic/chess-v6", multi_agent="aec"),
    EnvSpec("butterfly/pistonball-v6", {"max_cycles": 6}, multi_agent="parallel"),
    EnvSpec("sisl/multiwalker-v9", {"max_cycles": 20}, multi_agent="parallel"),
    EnvSpec("sisl/pursuit-v5", {"max_cycles": 20}, multi_agent="aec"),
    EnvSpec(
        "butterfly/pistonball-v6",
        {"max_cycles": 5, "n_pistons": 4},
        [
            Wrapper("color_reduction_v0", {"mode": "B"}),
            Wrapper("resize_v1", {"x_size": 12, "y_size": 16}),
            Wrapper("frame_stack_v1", {"stack_size": 3}),
            Wrapper("sticky_actions_v0", {"repeat_action_probability": 0.5}),
            Wrapper("reshape_v0", {"shape": [16, 36]}),
        ],
        multi_agent="parallel",
    ),
    EnvSpec(
        "mpe/simple_adversary-v3",
        {"max_cycles": 10},
        [
            Wrapper("pad_observations_v0"),
            Wrapper("clip_reward_v0", {"lower_bound": -0.5}),
            Wrapper("agent_indicator_v0"),
        ],
        multi_agent="aec",
    ),
    EnvSpec(
        "sample_envs:relay",
        {"num_agents": 3},
        [Wrapper("OrderEnforcingWrapper"), Wrapper("sample_envs:halved_rewards")],
        multi_agent="aec",
    ),
]


def relay_in(*wrappers: Wrapper) -> EnvSpec:
    return EnvSpec("sample_envs:relay", wrappers=wrappers, multi_agent="aec")


class Event(NamedTuple):
    """Observations and rewards of an agent, all numbers as bytes."""

    agent: str
    observation: tuple[bytes, ...]
    reward: float
    flags: tuple[bool, bool]


def parts_of(observation: Any) -> list[Any]:
    return [observation[key] for key in sorted(observation)] if isinstance(observation, dict) else [observation]


def content(observation: Any) -> tuple[bytes, ...]:
    return tuple(np.asarray(part).tobytes() for part in parts_of(observation))


def legal_action(space: Any, observation: Any, info: Any) -> Any:
    """Return a random action, heeding the mask that an agent is shown."""
    shown = [each for each in (info, observation) if isinstance(each, dict) and "action_mask" in each]
    return space.sample(np.asarray(shown[0]["action_mask"], np.int8) if shown else None)


def plain_parallel(env: Any, seed: int, spaces: dict[str, Any], max_steps: int) -> list[Event]:
    """Run an episode as the documentation of PettingZoo's parallel interface does."""
    events = []
    observations, infos = env.reset(seed=seed)
    for _ in range(max_steps):
        if not env.agents:
            break
        actions = {
            agent: legal_action(spaces[agent], observations[agent], infos.get(agent, {})) for agent in env.agents
        }
        observations, rewards, terminated, truncated, infos = env.step(actions)
        for agent in actions:
            flags = bool(terminated.get(agent, False)), bool(truncated.get(agent, False))
            if any(flags) or agent in env.agents:
                events.append(Event(agent, content(observations[agent]), float(rewards[agent]), flags))
    return events


def plain_aec(env: Any, seed: int, spaces: dict[str, Any], max_steps: int) -> list[Event]:
    """Run an episode as the documentation of PettingZoo's AEC interface does."""
    events, acted, num_steps = [], set(), 0
    env.reset(seed=seed)
    for agent in env.agent_iter(max_iter=1 << 20):
        observation, reward, terminated, truncated, info = env.last()
        if agent in acted:
            events.append(Event(agent, content(observation), float(reward), (bool(terminated), bool(truncated))))
        if terminated or truncated:
            env.step(None)
            continue
        if num_steps == max_steps:
            break
        env.step(legal_action(spaces[agent], observation, info))
        acted.add(agent)
        num_steps += 1
    return events


def turns_of(envs: ManyEnvs, row: int, seed: int, spaces: dict[str, Any], max_steps: int) -> list[Event]:
    """Run an episode in a row, and return what agents got for their actions."""
    events: list[Event] = []
    acted: set[int] = set()
    turns = envs.reset(row, seed)
    for _ in range(max_steps):
        actions = {}
        for turn in turns:
            if not turn.ended:
                space = spaces[envs.agents[turn.agent]]
                actions[turn.agent] = legal_action(space, turn.observation, turn.info)
        if not actions:
            break
        acted |= actions.keys()
        turns = envs.step(row, actions)
        for turn in turns:
            if turn.agent in acted:
                place = row * len(envs.agents) + turn.agent
                columns = [column[place] for column in envs.observations(turn.agent)]
                for column, part in zip(columns, parts_of(turn.observation), strict=True):
                    np.testing.assert_array_equal(column, part)
                flags = turn.terminated, turn.truncated
                events.append(Event(envs.agents[turn.agent], content(turn.observation), turn.reward, flags))
    return events


def seeded_spaces(env: Any, seed: int) -> dict[str, Any]:
    spaces = {agent: env.action_space(agent) for agent in env.possible_agents}
    for number, space in enumerate(spaces.values()):
        space.seed(seed + number)
    return spaces


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.id} {spec.multi_agent} {spec.kwargs}")
def test_rows_equal_plain_loops(spec: EnvSpec) -> None:
    envs, plain = ManyEnvs(spec, 2), plain_env(spec)
    run = plain_aec if spec.multi_agent == "aec" else plain_parallel
    num_events = 0
    try:
        assert envs.agents == tuple(plain.possible_agents)
        for seed, row in ((1, 1), (8, 0), (9, 1), (13, 1), (11, 0)):
            expected = run(plain, seed, seeded_spaces(plain, seed), 60)
            spaces = dict(zip(envs.agents, envs.action_spaces, strict=True))
            for number, agent in enumerate(envs.agents):
                spaces[agent].seed(seed + number)
            events = turns_of(envs, row, seed, spaces, 60)
            num_events += len(expected)
            if "crowd" in spec.id:  # agents that were absent have no observation in a plain loop until they are back
                known = {event[:2] for event in events}
                assert {event[:2] for event in expected} <= known
            else:
                assert events == expected
        assert num_events > 6
    finally:
        envs.close()
        plain.close()


def crowd_lives(seed: int) -> tuple[dict[str, float], dict[str, float], int]:
    """Return the sums of rewards by agent of an episode of `crowd`, of its turns and of a plain loop, and its lives."""
    spec = EnvSpec("sample_envs:crowd", {"length": 40}, multi_agent="parallel")
    envs, plain = ManyEnvs(spec, 1), plain_env(spec)
    sums, expected = dict.fromkeys(envs.agents, 0.0), dict.fromkeys(envs.agents, 0.0)
    turns = envs.reset(0, seed)
    plain.reset(seed=seed)
    num_ended = 0
    while any(not turn.ended for turn in turns):
        actions = {turn.agent: envs.action_spaces[turn.agent].sample() for turn in turns if not turn.ended}
        turns = envs.step(0, actions)
        for turn in turns:
            sums[envs.agents[turn.agent]] += turn.reward
            num_ended += turn.ended
        _, rewards, *_ = plain.step({agent: actions[envs.agents.index(agent)] for agent in plain.agents})
        for agent, reward in rewards.items():
            expected[agent] += reward
    return sums, expected, num_ended


def test_rewards_of_agents_that_come_and_go_are_all_there() -> None:
    num_ended = 0
    for seed in range(5):
        sums, expected, ended = crowd_lives(seed)
        assert sums == pytest.approx(expected)
        num_ended += ended
    assert num_ended > 5 * 4  # more lives than agents


@pytest.mark.parametrize("shares", [False, True])
def test_cut_returns_what_waiting_agents_of_an_aec_environment_have_got(shares: bool) -> None:
    spec = EnvSpec("sample_envs:relay", {"num_agents": 3, "shares": shares}, multi_agent="aec")
    envs, plain = ManyEnvs(spec, 1), plain_env(spec)
    (turn,) = envs.reset(0, 1)
    plain.reset(seed=1)
    action = int(np.flatnonzero(turn.info["action_mask"])[0])
    (following,) = envs.step(0, {turn.agent: action})
    plain.step(action)
    cut = envs.cut(0)
    assert {envs.agents[each.agent] for each in (*cut, following)} == set(plain.agents)
    for each in (*cut, following):
        agent = envs.agents[each.agent]
        assert each.reward == plain._cumulative_rewards[agent] != 0
        (column,) = envs.observation(0, each.agent)
        assert content(column) == content(plain.observe(agent))


@pytest.mark.parametrize(
    ("env_id", "api", "fault", "text"),
    [
        ("crowd", "parallel", "unknown", "agents: expected some of possible_agents, .* got 'stranger'"),
        ("crowd", "parallel", "stays", "agents: expected an agent '.*' that is terminated or truncated to leave them"),
        ("crowd", "parallel", "twice", "agents: expected each agent once, got "),
        ("crowd", "parallel", "no reward", "rewards: expected one for agent 'guard', got some for "),
        ("crowd", "parallel", "odd flag", "agent 'guard': terminated: expected a truth value, got 'False'"),
        ("crowd", "parallel", "no infos", "step: infos: expected a mapping with a value for each agent, got None"),
        ("crowd", "parallel", "list of rewards", "step: rewards: expected a mapping .*, got a list of "),
        ("crowd", "parallel", "one flag for all", "terminations: expected a mapping .*, got a value of type bool"),
        ("crowd", "parallel", "no termination", "terminations: expected one for agent 'guard', got some for "),
        ("crowd", "parallel", "no truncations", r"truncations: expected one for agent '.*', got some for \[\]"),
        ("crowd", "parallel", "info 0", r"agent 'guard': info: expected a mapping, got 0 \(int\)"),
        ("crowd", "parallel", "info text", r"agent 'guard': info: expected a mapping, got '' \(str\)"),
        ("crowd", "parallel", "info flag", r"agent 'guard': info: expected a mapping, got False \(bool\)"),
        ("crowd", "parallel", "info list", r"agent 'guard': info: expected a mapping, got \[\] \(list\)"),
        ("relay", "aec", "odd info", r"agent 'relay_.': info: expected a mapping, got 0 \(int\)"),
        ("relay", "aec", "odd reward", r"agent 'relay_.': reward: expected a number, got '1\.5' \(str\)"),
        ("relay", "aec", "out_of_turn", "agent_selection: expected one of agents, .* got 'nobody'"),
    ],
)
def test_rows_name_broken_rules(env_id: str, api: rollserve.MultiAgentApi, fault: str, text: str) -> None:
    envs = ManyEnvs(EnvSpec(f"sample_envs:{env_id}", {"fault": fault}, multi_agent=api), 1)
    with pytest.raises(EnvFailedError, match=text):
        envs.trace(0, 8, np.inf)
    assert envs.reset(0, 1)  # in a new environment


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("only observations", "reset: expected an observation and infos, in a tuple, got a dict"),
        ("observations in a list", "reset: observations: expected a mapping with a value for each .*, got a list of 3"),
        ("list of infos at reset", "reset: infos: expected a mapping .*, got a list of 3"),
    ],
)
def test_rows_name_what_resets_return(fault: str, text: str) -> None:
    envs = ManyEnvs(EnvSpec("sample_envs:crowd", {"fault": fault}, multi_agent="parallel"), 1)
    with pytest.raises(EnvFailedError, match=text):
        envs.reset(0, 1)


def test_agents_need_no_infos() -> None:
    envs = ManyEnvs(EnvSpec("sample_envs:crowd", {"fault": "infos left out"}, multi_agent="parallel"), 1)
    assert len(envs.trace(0, 8, np.inf).steps) > 3


@pytest.mark.parametrize("fault", ["info 0", "no termination", "only observations"])
def test_calls_name_the_agent_and_the_step(thread_sampler: rollserve.Sampler, fault: str) -> None:
    texts = {
        "info 0": "after 1 steps: .* returned from step: agent 'guard': info: expected a mapping, got 0",
        "no termination": "after 1 steps: .* returned from step: terminations: expected one for agent 'guard', got ",
        "only observations": "after 0 steps: .* returned from reset: expected an observation and infos, in a tuple",
    }
    thread_sampler.update_env(EnvSpec("sample_envs:crowd", {"fault": fault}, multi_agent="parallel"))
    thread_sampler.update_agent(POLICIES["sample_envs:crowd"])
    with raises(rollserve.ServerError, reason=rollserve.Reason.ENV_FAILED, match=f"^episode 0 .*{texts[fault]}"):
        thread_sampler.obtain_samples(1, seed=3, timeout=60)
    assert all(worker.healthy and not worker.num_restarts for worker in thread_sampler.status().workers)


@pytest.mark.parametrize(
    ("spec", "error", "text"),
    [
        (
            EnvSpec("classic/connect_five-v3", multi_agent="aec"),
            NotFoundError,
            "id: .*did you mean 'classic/connect_four",
        ),
        (EnvSpec("classic/connect_four-v3", multi_agent="parallel"), NotFoundError, "id: expected a registered id"),
        (EnvSpec("mpe/simple_nothing-v3", multi_agent="aec"), NotFoundError, "id: .*mpe2.simple_nothing_v3"),
        (EnvSpec("sample_envs:relay", multi_agent="parallel"), InvalidValueError, "id: .*ParallelEnv"),
        (EnvSpec("sample_envs:nothing", multi_agent="aec"), NotFoundError, "id: expected a function of module"),
        (
            EnvSpec("sample_envs:relay", {"num_agents": 0}, multi_agent="aec"),
            InvalidValueError,
            "id: .*possible_agents",
        ),
        (EnvSpec("sample_envs:relay", {"x": 0}, multi_agent="aec"), InvalidValueError, "kwargs_json: refused by"),
        (
            relay_in(Wrapper("TimeLimit")),
            NotFoundError,
            r"wrappers\[0\].name: expected a wrapper of PettingZoo or SuperSuit",
        ),
        (relay_in(Wrapper("frame_stack_v9")), NotFoundError, "did you mean 'frame_stack_v"),
        (relay_in(Wrapper("observation_lambda_v0")), NotFoundError, "name: expected a wrapper"),
        (relay_in(Wrapper("RecordVideo")), NotAllowedError, "name: .* it writes files on the server"),
        (
            relay_in(Wrapper("pettingzoo.utils.wrappers:CaptureStdoutWrapper")),
            NotAllowedError,
            "name: .* it takes what",
        ),
        (
            relay_in(Wrapper("MultiEpisodeParallelEnv", {"num_episodes": 2})),
            InvalidValueError,
            "kwargs_json: refused by MultiEpisodeP",
        ),
        (relay_in(Wrapper("frame_stack_v1", {"size": 2})), InvalidValueError, "kwargs_json: refused by frame_stack_v1"),
        (
            relay_in(Wrapper("dtype_v0", {"dtype": "number"})),
            InvalidValueError,
            "kwargs_json: expected the name of a dtype",
        ),
        (relay_in(Wrapper("sample_envs:nothing")), NotFoundError, "name: expected a class or function of module"),
        (relay_in(Wrapper("sample_envs:crowded")), InvalidValueError, "name: expected a wrapper that returns"),
        (
            EnvSpec("sample_envs:relay", vectorization="native", multi_agent="aec"),
            InvalidValueError,
            "vectorization: expected 'rows'",
        ),
    ],
)
def test_rows_refuse_by_field(spec: EnvSpec, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        ManyEnvs(spec, 1)
    assert re.search(text, caught.value.message)  # type: ignore[attr-defined]


def test_classify_finds_environments_that_repeat() -> None:
    assert ManyEnvs(SPECS[0], 2).classify() is Reproducibility.EPISODE
    assert ManyEnvs(SPECS[1], 1).classify() is Reproducibility.EPISODE
