"""Agents that a sampler returns whole: equal to what was sent, to the last bit."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx_models import agent_of, categorical
from support import equal, raises

import rollserve
from rollserve import Reason
from rollserve_server.local import LocalServer


def mlp(sampler: rollserve.Sampler, **options: Any) -> rollserve.MlpAgent:
    status = sampler.status()
    return rollserve.MlpAgent.initial(status.observation_space, status.action_space, **options)


AGENTS: dict[str, tuple[str, Callable[[rollserve.Sampler], rollserve.Agent]]] = {
    "plain": ("CartPole-v1", mlp),
    "separate value": ("CartPole-v1", lambda sampler: mlp(sampler, value="separate", activation="gelu_tanh")),
    "shared value": ("CartPole-v1", lambda sampler: mlp(sampler, value="shared", layer_norm=True)),
    "recurrent": ("CartPole-v1", lambda sampler: mlp(sampler, core="lstm", previous_action=True, previous_reward=True)),
    "normalized": (
        "CartPole-v1",
        lambda sampler: dataclasses.replace(mlp(sampler, normalization=True), normalization_clip=3.0),
    ),
    "epsilon": ("CartPole-v1", lambda sampler: dataclasses.replace(mlp(sampler, head="epsilon_greedy"), epsilon=0.25)),
    "boltzmann": ("CartPole-v1", lambda sampler: dataclasses.replace(mlp(sampler, head="boltzmann"), temperature=3.0)),
    "gaussian": (
        "Pendulum-v1",
        lambda sampler: dataclasses.replace(mlp(sampler, predicted_log_std=True), min_log_std=-2.0, max_log_std=1.0),
    ),
    "random": ("CartPole-v1", lambda _: rollserve.RandomAgent()),
    "constant": ("CartPole-v1", lambda _: rollserve.ConstantAgent(1)),
    "model": ("CartPole-v1", lambda _: agent_of(categorical())),
    "python": (
        "CartPole-v1",
        lambda _: rollserve.PythonAgent("matrix", parameters={"first": np.eye(4), "second": np.ones((4, 2))}),
    ),
}


@pytest.mark.parametrize("name", AGENTS)
def test_returned_agent_is_the_one_that_was_sent(thread_sampler: rollserve.Sampler, name: str) -> None:
    env_id, make = AGENTS[name]
    thread_sampler.update_env(env_id)
    thread_sampler.update_agent(make(thread_sampler))
    if thread_sampler.agent_parameters():  # a model's and an MLP's present parameters count
        changed = {key: value + 0.5 for key, value in thread_sampler.agent_parameters().items()}
        thread_sampler.update_agent(changed)
    expected = thread_sampler.obtain_samples(60, seed=1)
    version = thread_sampler.status().policy_version
    held = thread_sampler.agent()
    assert type(held) is type(make(thread_sampler))
    thread_sampler.update_agent(rollserve.RandomAgent())
    thread_sampler.update_agent(held)
    batch = thread_sampler.obtain_samples(60, seed=1)
    assert equal(dataclasses.replace(batch, policy_versions=expected.policy_versions), expected)
    hashes = {each.policy_version: each.agents[0].content_hash for each in thread_sampler.agent_versions()}
    assert hashes[version] == hashes[version + 2]


def test_version_and_worker_choose_the_agent(thread_sampler: rollserve.Sampler, thread_server: LocalServer) -> None:
    agents = [mlp(thread_sampler, seed=seed) for seed in range(2)]
    thread_sampler.update_agent(per_worker=agents)
    thread_sampler.update_agent(rollserve.RandomAgent())
    for worker, expected in enumerate(agents):
        held = thread_sampler.agent(1, worker=worker)
        assert isinstance(held, rollserve.MlpAgent)
        assert all(np.array_equal(held.parameters[name], expected.parameters[name]) for name in expected.parameters)

    async def scenario() -> rollserve.Agent:
        async with rollserve.aconnect(thread_server.address) as sampler:
            return await sampler.agent()

    assert asyncio.run(scenario()) == rollserve.RandomAgent()
    with raises(rollserve.InvalidArgumentError, field="worker_index"):
        thread_sampler.agent(1, worker=2)
    with raises(rollserve.PreconditionError, reason=Reason.POLICY_VERSION):
        thread_sampler.agent(9)
    with pytest.raises(ValueError, match="version: expected a version, from 1 up"):
        thread_sampler.agent(0)


def test_sampler_without_an_agent_returns_none(thread_sampler: rollserve.Sampler) -> None:
    with raises(rollserve.PreconditionError, reason=Reason.NO_AGENT):
        thread_sampler.agent()
