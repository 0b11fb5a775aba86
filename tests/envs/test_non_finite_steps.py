"""Accounts count the delivered steps that have a NaN or an infinity."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from many_agents import CROWD, POLICIES, leaves

import rollserve
from rollserve import EnvSpec, EpisodeBatch, MultiAgentBatch, RandomAgent, Sampler
from rollserve.transforms import ClipRewards
from rollserve_server.local import LocalServer

ROWS: dict[str, Any] = {"num_steps": 7, "mode": "SameStep"}
NATIVE = EnvSpec("sample_envs:NoNumberRows-v0", ROWS, vectorization="native", num_rows=3)
SPECS = {
    "shown amid an episode": EnvSpec("sample_envs:NoNumbers", {"after": 3, "length": 5}),
    "shown at the end": EnvSpec("sample_envs:NoNumbers", {"after": 5, "length": 5}),
    "rewarded": EnvSpec("sample_envs:NoNumbers", {"after": 0, "length": 5, "rewarded": 2}),
    "clipped": EnvSpec(
        "sample_envs:NoNumbers", {"after": 0, "length": 5, "rewarded": 2}, transforms=[ClipRewards(-1, 1)]
    ),
    "both in one step": EnvSpec("sample_envs:NoNumbers", {"after": 3, "length": 5, "rewarded": 4}),
}


def num_non_finite(batch: EpisodeBatch) -> int:
    """Return the number of steps of a batch whose reward or observation is not finite, or the one after a segment."""
    columns, last = leaves(batch.observations), leaves(batch.last_observations)
    found = ~np.isfinite(batch.rewards)
    if batch.raw_rewards is not None:
        found |= ~np.isfinite(batch.raw_rewards)
    for name, column in columns.items():
        found |= ~np.isfinite(column).reshape(batch.num_steps, -1).all(axis=1)
        found[np.cumsum(batch.lengths) - 1] |= ~np.isfinite(last[name]).reshape(len(batch), -1).all(axis=1)
    return int(found.sum())


def counted(batch: EpisodeBatch | MultiAgentBatch) -> int:
    return batch.account.num_non_finite_steps


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_non_finite_steps_are_counted_once_each(thread_sampler: Sampler, spec: EnvSpec, num_workers: int) -> None:
    thread_sampler.resize(num_workers)
    thread_sampler.update_env(spec)
    thread_sampler.update_agent(RandomAgent())
    batch = thread_sampler.obtain_samples(60)
    assert counted(batch) == num_non_finite(batch) == len(batch) == 12
    assert thread_sampler.status().counters.num_non_finite_steps == 12
    assert "num_non_finite_steps" in batch.account._repr_html_()
    fragments = thread_sampler.obtain_fragments(8 * 7 * num_workers)
    assert counted(fragments) == num_non_finite(fragments) > 0


@pytest.mark.parametrize("num_workers", [1, 2])
def test_non_finite_steps_of_native_rows_are_counted(thread_sampler: Sampler, num_workers: int) -> None:
    thread_sampler.resize(num_workers)
    thread_sampler.update_env(NATIVE)
    thread_sampler.update_agent(RandomAgent())
    for batch in (thread_sampler.obtain_samples(300), thread_sampler.obtain_fragments(3 * 50 * num_workers)):
        assert isinstance(batch, EpisodeBatch)
        assert counted(batch) == num_non_finite(batch) > 50


def test_non_finite_steps_are_the_same_however_messages_are_cut(
    thread_sampler: Sampler, thread_server: LocalServer
) -> None:
    thread_sampler.update_agent(RandomAgent())
    for spec in (dataclasses.replace(NATIVE, kwargs=ROWS | {"num_steps": 2000}), EnvSpec("sample_envs:NoNumbers")):
        thread_sampler.update_env(spec)
        thread_sampler.update_agent(RandomAgent())
        with rollserve.connect(thread_server.address, max_message_bytes=4096, compression="lz4") as narrow:
            for each in (thread_sampler, narrow):
                for batch in (each.obtain_samples(3000, seed=3), each.obtain_fragments(3000, seed=3)):
                    assert counted(batch) == num_non_finite(batch) > 0


def test_non_finite_steps_of_many_agents_are_counted(thread_sampler: Sampler) -> None:
    thread_sampler.update_env(dataclasses.replace(CROWD, kwargs={"fault": "no number"}))
    thread_sampler.update_agent(POLICIES[CROWD.id])
    batch = thread_sampler.multi_agent.obtain_samples(60)
    assert counted(batch) == sum(num_non_finite(part.batch) for part in batch.policies) == len(batch)


def test_no_steps_are_counted_where_all_numbers_are_finite(thread_sampler: Sampler) -> None:
    for spec in (EnvSpec("CartPole-v1"), EnvSpec("sample_envs:NoNumbers", {"after": 0, "length": 5})):
        thread_sampler.update_env(spec)
        thread_sampler.update_agent(RandomAgent())
        assert counted(thread_sampler.obtain_samples(500)) == 0
    assert thread_sampler.status().counters.num_non_finite_steps == 0
