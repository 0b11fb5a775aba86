"""A call's result depends on its request and on nothing else."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from pools import adds_up
from support import equal, server_environment

import rollserve
from rollserve.spaces import Dict
from rollserve_server.local import local_server

ENVS = [
    rollserve.EnvSpec("CartPole-v1"),
    rollserve.EnvSpec("HalfCheetah-v5", {"max_episode_steps": 300}),
    rollserve.EnvSpec("sample_envs:Nested-v0"),
]


def prepare(sampler: rollserve.Sampler, env: rollserve.EnvSpec) -> None:
    updated = sampler.update_env(env)
    heads = {"turn": "categorical", "push": "squashed_gaussian"} if isinstance(updated.action_space, Dict) else None
    agent = rollserve.MlpAgent.initial(updated.observation_space, updated.action_space, head=heads, seed=0)
    sampler.update_agent(agent)


@pytest.mark.parametrize("env", ENVS, ids=lambda env: env.id)
def test_seed_and_index_name_the_episodes(sampler: rollserve.Sampler, env: rollserve.EnvSpec) -> None:
    prepare(sampler, env)
    first = sampler.obtain_samples(1000, seed=11)
    assert equal(first, sampler.obtain_samples(1000, seed=11))
    assert not equal(first, sampler.obtain_samples(1000, seed=12))
    half = len(first) // 2
    later = sampler.obtain_samples(int(first.lengths[half:].sum()), seed=11, first_episode_index=half)
    rest = rollserve.EpisodeBatch.concatenate(*first.split()[half:])
    assert equal(later, rest)


def test_own_sequence_repeats_no_episode_and_is_named_in_the_account(sampler: rollserve.Sampler) -> None:
    seen: set[int] = set()
    for _ in range(5):
        batch = sampler.obtain_samples(300)
        assert seen.isdisjoint(batch.episode_indices.tolist())
        seen.update(batch.episode_indices.tolist())
        account = batch.account
        assert batch.episode_indices[0] == account.first_episode_index
        again = sampler.obtain_samples(300, seed=account.seed, first_episode_index=account.first_episode_index)
        assert equal(batch, again)


def test_every_simulated_step_is_accounted_for(sampler: rollserve.Sampler) -> None:
    """Over many calls, each simulated step is delivered, kept or dropped."""
    generator = np.random.default_rng(0)
    agent = rollserve.MlpAgent.initial(sampler.status().observation_space, sampler.status().action_space, seed=0)
    held = sampler.obtain_samples(1).account
    assert held is not None
    kept = held.num_kept_steps
    for _ in range(30):
        if generator.random() < 0.3:
            sampler.update_agent(agent)
        account = sampler.obtain_samples(int(generator.integers(1, 500))).account
        # Steps simulated after the last account are carried in addition to the kept ones.
        assert account.num_carried_steps >= kept
        assert adds_up(account)
        assert sum(worker.num_steps for worker in account.workers) == account.num_steps
        assert sum(worker.num_episodes for worker in account.workers) == account.num_episodes
        kept = account.num_kept_steps


@pytest.mark.parametrize(
    ("backend", "workers", "rows"), [("in-process", "1", "1"), pytest.param("ray", "3", "5", marks=pytest.mark.slow)]
)
def test_batch_does_not_depend_on_workers_or_rows(
    sampler: rollserve.Sampler, backend: str, workers: str, rows: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    options = ("--env", "CartPole-v1", "--vectorization", "rows", "--workers", workers, "--rows", rows)
    options += ("--backend", backend)
    log = tmp_path_factory.mktemp("server") / "log"
    with (
        local_server(*options, "--allow-module", "sample_envs", log=log, environment=server_environment()) as other,
        rollserve.connect(other.address) as elsewhere,
    ):
        for env in ENVS:
            prepare(sampler, env)
            prepare(elsewhere, env)
            here, there = (each.obtain_samples(2000, seed=5) for each in (sampler, elsewhere))
            there = dataclasses.replace(there, policy_versions=here.policy_versions)
            assert equal(here, there), env.id
