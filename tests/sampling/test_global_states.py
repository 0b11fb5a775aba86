"""Global states of environments with many agents: equal to plain loops, and aligned to environment steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cutting_proxy import cutting_proxy
from many_agents import CROWD, POLICIES, RELAY, SPREAD, many_equal, plain_env
from support import raises

import rollserve
from rollserve import EnvSpec, InvalidArgumentError, MultiAgentBatch, Sampler, ServerError
from rollserve_server.local import LocalServer

PARALLEL = EnvSpec(SPREAD.id, SPREAD.kwargs, multi_agent="parallel", global_state=True)
IN_TURN = EnvSpec(SPREAD.id, SPREAD.kwargs, multi_agent="aec", global_state=True)
LONG = EnvSpec(CROWD.id, {"length": 300}, multi_agent="parallel", global_state=True)


def obtain(sampler: Sampler, num_steps: int, **options: Any) -> MultiAgentBatch:
    return sampler.multi_agent.obtain_samples(num_steps, seed=3, **options)


def replayed(spec: EnvSpec, batch: MultiAgentBatch) -> list[np.ndarray]:
    """Return the states of each episode in a plain environment with the same actions, (T + 1, S) each."""
    steps, starts = batch.joint(), np.cumsum(batch.lengths) - batch.lengths
    (part,) = batch.policies
    found = []
    for index, start, length in zip(batch.episode_indices, starts, batch.lengths, strict=True):
        env = plain_env(spec)
        env.reset(seed=int(part.batch.env_seeds[part.batch.episode_indices == index][0]))  # type: ignore[index]
        states = [env.state()]
        for row in range(start, start + length):
            actions = {agent: its.actions[row] for agent, its in steps.items() if its.acted[row]}  # type: ignore[index]
            env.step(actions if spec.multi_agent == "parallel" else actions[env.agent_selection])
            states.append(env.state())
        found.append(np.stack(states))
    return found


@pytest.mark.parametrize("spec", [PARALLEL, IN_TURN], ids=["parallel", "aec"])
@pytest.mark.parametrize("limit", [None, 7])
def test_states_equal_plain_loops(thread_sampler: Sampler, spec: EnvSpec, limit: int | None) -> None:
    thread_sampler.update_env(spec)
    thread_sampler.update_agent(POLICIES[SPREAD.id])
    batch = obtain(thread_sampler, 60, max_episode_length=limit)
    states = replayed(spec, batch)
    assert batch.global_states is not None
    np.testing.assert_array_equal(batch.global_states, np.concatenate([each[:-1] for each in states]))
    np.testing.assert_array_equal(batch.last_global_states, np.stack([each[-1] for each in states]))
    assert len(batch.global_states) == len(batch.joint()["agent_0"].rewards)


def test_states_are_the_same_however_they_are_made(thread_sampler: Sampler, thread_server: LocalServer) -> None:
    thread_sampler.update_env(LONG)
    thread_sampler.update_agent(POLICIES[CROWD.id])
    expected = obtain(thread_sampler, 700)
    assert expected.global_states is not None
    assert expected.global_states.shape == (expected.num_steps, 2, 2)
    assert expected.global_states[:3, 0, 0].tolist() == [0, 1, 2]
    with rollserve.connect(thread_server.address, max_message_bytes=1 << 13, compression="lz4") as narrow:
        with narrow.multi_agent.stream_samples(700, seed=3) as stream:
            parts = list(stream)
        assert len(parts) > 3
        joined = MultiAgentBatch.concatenate(*parts).joined()
        assert many_equal(joined, expected)
        rest = expected.without_first_steps(299)
        np.testing.assert_array_equal(rest.global_states, expected.global_states[299:])
        np.testing.assert_array_equal(rest.last_global_states, expected.last_global_states)
        assert len(rest.without_first_steps(1).last_global_states) == len(expected) - 1  # type: ignore[arg-type]
    with (
        cutting_proxy(thread_server.address, num_cuts=2, max_bytes=40_000, seed=1) as proxy,
        rollserve.connect(proxy.address, max_message_bytes=1 << 13) as distant,
    ):
        distant.status()
        assert many_equal(obtain(distant, 700), expected)
        assert proxy.num_cuts > 0
    thread_sampler.resize(1)
    assert many_equal(obtain(thread_sampler, 700), expected)


@pytest.mark.parametrize("num_workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_states_go_on_from_fragment_to_fragment(thread_sampler: Sampler, num_workers: int) -> None:
    thread_sampler.resize(num_workers)
    thread_sampler.update_env(LONG)
    thread_sampler.update_agent(POLICIES[CROWD.id])
    rows_of_worker = thread_sampler.status().workers[0].num_rows
    states: dict[int, list[np.ndarray]] = {}
    last: dict[int, np.ndarray] = {}
    for clock, length in [(0, 130), (130, 100), (230, 90)]:
        num_steps = num_workers * rows_of_worker * length
        batch = thread_sampler.multi_agent.obtain_fragments(num_steps, seed=3, row_step_count=clock)
        assert batch.global_states is not None
        assert batch.last_global_states is not None
        parts = np.split(batch.global_states, np.cumsum(batch.lengths)[:-1])
        for index, part, after in zip(batch.episode_indices, parts, batch.last_global_states, strict=True):
            if index in last:
                np.testing.assert_array_equal(part[0], last[index])
            states.setdefault(index, []).append(part)
            last[index] = after
    whole = thread_sampler.multi_agent.obtain_exact_episodes(rows_of_worker, seed=3)
    assert whole.global_states is not None
    wholes = np.split(whole.global_states, np.cumsum(whole.lengths)[:-1])
    for index, expected in zip(whole.episode_indices, wholes, strict=True):
        np.testing.assert_array_equal(np.concatenate(states[index]), expected)


def test_states_are_in_no_batch_without_being_asked_for(thread_sampler: Sampler) -> None:
    thread_sampler.update_env(SPREAD)
    thread_sampler.update_agent(POLICIES[SPREAD.id])
    without = obtain(thread_sampler, 40)
    assert without.global_states is None
    assert without.last_global_states is None
    thread_sampler.update_env(PARALLEL)
    batch = obtain(thread_sampler, 40)
    assert all(
        np.array_equal(mine.batch.rewards, other.batch.rewards)
        for mine, other in zip(batch.policies, without.policies, strict=True)
    )
    with pytest.raises(ValueError, match="global_states: expected states in all batches or in none"):
        MultiAgentBatch.concatenate(batch, without)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (EnvSpec(RELAY.id, multi_agent="aec", global_state=True), "false for an environment that has no global state"),
        (EnvSpec("CartPole-v1", global_state=True), "false for an environment with one agent"),
        ([EnvSpec("CartPole-v1", global_state=True)] * 4, "false for an environment with one agent"),
    ],
)
def test_states_of_environments_without_any_are_refused(thread_sampler: Sampler, spec: Any, text: str) -> None:
    with raises(InvalidArgumentError, match=f"global_state: expected {text}"):
        thread_sampler.update_env(spec)
    with pytest.raises(TypeError, match="global_state: expected"):
        EnvSpec("CartPole-v1", global_state=1)  # type: ignore[arg-type]


def test_states_of_another_shape_fail_the_episode(thread_sampler: Sampler) -> None:
    spec = EnvSpec(CROWD.id, {"fault": "stateless", "length": 30}, multi_agent="parallel", global_state=True)
    with raises((InvalidArgumentError, ServerError), match=r"returned from state: .*\(2, 2\)"):
        thread_sampler.update_env(spec)
        thread_sampler.update_agent(POLICIES[CROWD.id])
        obtain(thread_sampler, 100)


def test_servers_start_in_environments_with_many_agents() -> None:
    from rollserve_server.local import local_server

    options = ("--env", SPREAD.id, "--multi-agent", "parallel", "--global-state", "--rows", "2", "--workers", "1")
    with (
        local_server(*options, "--backend", "in-process") as server,
        rollserve.connect(server.address) as sampler,
    ):
        assert sampler.status().agents == ("agent_0", "agent_1", "agent_2")
        sampler.update_agent(POLICIES[SPREAD.id])
        assert obtain(sampler, 50).global_states is not None
