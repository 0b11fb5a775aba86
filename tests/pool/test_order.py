"""Order and ends of delivered episodes."""

from __future__ import annotations

import numpy as np
import pytest

import rollserve


def test_exact_episodes_are_ordered_by_worker(sampler: rollserve.Sampler) -> None:
    sampler.update_env("sample_envs:Ends", kwargs={"length": 3})
    sampler.update_agent(per_worker=[rollserve.ConstantAgent(5), rollserve.ConstantAgent(2)])
    for count in (1, 5, 30):
        batch = sampler.obtain_exact_episodes(count)
        assert len(batch) == 2 * count
        assert batch.actions.reshape(-1, 3)[:, 0].tolist() == [5] * count + [2] * count
        assert batch.worker_indices is not None
        assert batch.worker_indices.tolist() == [0] * count + [1] * count
        assert np.array_equal(np.diff(batch.episode_indices), np.ones(2 * count - 1))


def test_slow_worker_does_not_change_the_order(sampler: rollserve.Sampler) -> None:
    slow = rollserve.EnvSpec("sample_envs:Slow", {"step_seconds": 0.05, "length": 4})
    fast = rollserve.EnvSpec("sample_envs:Slow", {"step_seconds": 0.0, "length": 2})
    sampler.update_env(per_worker=[slow, fast])
    sampler.update_agent(rollserve.RandomAgent())
    assert sampler.obtain_exact_episodes(3).lengths.tolist() == [4, 4, 4, 2, 2, 2]
    # With environments that differ, episode i belongs to worker i modulo 2 in any call.
    batch = sampler.obtain_samples(17)
    assert batch.worker_indices is not None
    assert np.array_equal(batch.worker_indices, batch.episode_indices % 2)
    assert np.array_equal(batch.lengths, np.where(batch.worker_indices == 0, 4, 2))
    assert 17 <= batch.num_steps < 17 + batch.lengths[-1]


def test_161_steps_are_11_episodes_of_16(sampler: rollserve.Sampler) -> None:
    sampler.update_env("Pendulum-v1", kwargs={"max_episode_steps": 16})
    sampler.update_agent(rollserve.RandomAgent())
    batch = sampler.obtain_samples(161)
    assert batch.lengths.tolist() == [16] * 11
    assert batch.truncated.all()
    assert not batch.terminated.any()
    assert set(batch.step_types.reshape(11, 16)[:, -1]) == {rollserve.StepType.TIMEOUT}
    assert batch.account.num_simulated_steps == 176


@pytest.mark.parametrize("terminated", [True, False])
@pytest.mark.parametrize("truncated", [True, False])
def test_terminated_and_truncated_are_kept_apart(sampler: rollserve.Sampler, terminated: bool, truncated: bool) -> None:
    kwargs: dict[str, object] = {"length": 4, "terminated": terminated, "truncated": truncated}
    wrappers = []
    if not (terminated or truncated):
        wrappers = [rollserve.Wrapper("TimeLimit", {"max_episode_steps": 3})]
    sampler.update_env("sample_envs:Ends", kwargs=kwargs, wrappers=wrappers)
    sampler.update_agent(rollserve.ConstantAgent(1))
    batch = sampler.obtain_samples(20)
    assert (batch.terminated == terminated).all()
    assert (batch.truncated == (truncated or bool(wrappers))).all()


def test_both_flags_are_set_when_the_limit_is_the_terminal_step(sampler: rollserve.Sampler) -> None:
    wrapper = rollserve.Wrapper("TimeLimit", {"max_episode_steps": 4})
    sampler.update_env("sample_envs:Ends", kwargs={"length": 4}, wrappers=[wrapper])
    sampler.update_agent(rollserve.ConstantAgent(1))
    batch = sampler.obtain_samples(20)
    assert batch.terminated.all()
    assert batch.truncated.all()
    assert set(batch.step_types.reshape(-1, 4)[:, -1]) == {rollserve.StepType.TERMINAL}
    # The last observation is the one after the final action.
    assert np.array_equal(batch.last_observations, np.tile([1, 4], (len(batch), 1)))


def test_episodes_may_have_one_step(sampler: rollserve.Sampler) -> None:
    sampler.update_env("sample_envs:Ends", kwargs={"length": 1})
    sampler.update_agent(rollserve.ConstantAgent(3))
    batch = sampler.obtain_samples(50)
    assert batch.lengths.tolist() == [1] * 50
    assert np.array_equal(batch.observations, np.tile([-1, 0], (50, 1)))
    assert np.array_equal(batch.last_observations, np.tile([3, 1], (50, 1)))
