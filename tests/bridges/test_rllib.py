"""Batches as RLlib's sample batches and episodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from learner_batches import random_batch

import rollserve

pytest.importorskip("torch", reason="RLlib needs PyTorch: make test-bridges")
pytest.importorskip("ray.rllib.env.single_agent_episode", reason="RLlib is an extra: make test-bridges")
pytestmark = pytest.mark.filterwarnings("ignore")  # RLlib's own


def test_sample_batch_has_the_keys_of_rllib(sampler: rollserve.Sampler) -> None:
    batch = sampler.obtain_fragments(80)
    found = batch.to_sample_batch()
    assert len(found) == 80
    for name, array in {
        "obs": batch.observations,
        "actions": batch.actions,
        "rewards": batch.rewards,
        "action_logp": batch.agent_infos["log_prob"],
        "vf_preds": batch.agent_infos["value"],
        "action_dist_inputs": batch.agent_infos["logits"],
    }.items():
        assert np.shares_memory(found[name], array), name
    assert np.array_equal(found["new_obs"], batch.next_observations)
    assert found["terminateds"].sum() == batch.terminated.sum()
    assert found["unroll_id"].tolist() == np.arange(len(batch)).repeat(batch.lengths).tolist()
    assert [len(part) for part in found.split_by_episode()] == batch.lengths.tolist()


def test_gaussian_inputs_are_means_and_log_std() -> None:
    mean, log_std = np.ones((5, 3), np.float32), np.zeros((5, 3), np.float32)
    batch = random_batch([5], 0, agent_infos={"mean": mean, "log_std": log_std})
    assert np.array_equal(batch.to_sample_batch()["action_dist_inputs"], np.concatenate([mean, log_std], axis=1))


def test_episodes_have_the_steps_of_the_segments(sampler: rollserve.Sampler) -> None:
    sampler.obtain_fragments(20)
    batch = sampler.obtain_fragments(80)
    assert batch.first_steps.any()
    for episode, segment in zip(batch.to_rllib_episodes(), batch.split(), strict=True):
        episode.validate()
        assert episode.is_numpy
        assert len(episode) == segment.num_steps
        assert episode.t_started == segment.first_steps[0]
        assert (episode.is_terminated, episode.is_truncated) == (segment.terminated[0], segment.truncated[0])
        observations = episode.get_observations()
        assert np.array_equal(observations[:-1], segment.observations)
        assert np.array_equal(observations[-1:], segment.last_observations)
        assert np.array_equal(episode.get_actions(), segment.actions)
        assert np.shares_memory(episode.rewards.data, batch.rewards)
        assert np.array_equal(episode.get_extra_model_outputs("action_logp"), segment.agent_infos["log_prob"])
        assert np.isclose(episode.get_return(), segment.returns[0])
        assert episode.id_ == str(segment.episode_indices[0])


def test_nested_observations_are_nested_in_both() -> None:
    batch = random_batch([2, 3], 0, nested=True)
    assert isinstance(batch.observations, dict)
    assert np.array_equal(batch.to_sample_batch()["obs"]["image"], batch.observations["image"])
    episode = batch.to_rllib_episodes()[1]
    assert episode.get_observations(-1)["0"]["x"] == 1003
    assert len(episode) == 3


def test_advantages_of_rllib_equal_those_of_the_batch(sampler: rollserve.Sampler) -> None:
    from ray.rllib.evaluation.postprocessing import compute_advantages

    batch = sampler.obtain_samples(100)
    last_values = np.random.default_rng(0).normal(size=len(batch)).astype(np.float32)
    expected = batch.advantages(0.99, 0.95, last_values=last_values).advantages
    parts = batch.to_sample_batch().split_by_episode()
    found = [
        compute_advantages(part, 0.0 if terminated else last, 0.99, 0.95)["advantages"]
        for part, last, terminated in zip(parts, last_values, batch.terminated, strict=True)
    ]
    assert np.allclose(np.concatenate(found), expected, atol=1e-4)


def test_rllib_reads_what_is_written_and_its_own_files_are_read(tmp_path: Path) -> None:
    pytest.importorskip("minari", reason="formats of files are an extra: make test-bridges")
    from ray.rllib.offline.json_reader import JsonReader
    from ray.rllib.offline.json_writer import JsonWriter

    batch = random_batch([5, 1, 7], 3)
    batch.to_rllib_json(tmp_path / "batch.json", compress=["obs"])
    (first, *_) = list(JsonReader(str(tmp_path / "batch.json")).read_all_files())
    assert np.array_equal(first["obs"], batch.observations[: batch.lengths[0]])
    assert first["terminateds"].tolist()[-1] == batch.terminated[0]
    writer = JsonWriter(str(tmp_path / "rllib"))
    for part in batch.split():
        writer.write(part.to_sample_batch())
    found = rollserve.EpisodeBatch.concatenate(*rollserve.data.read(tmp_path / "rllib"))
    assert found.lengths.tolist() == batch.lengths.tolist()
    for name in ("observations", "last_observations", "actions", "rewards", "terminated", "truncated", "first_steps"):
        assert np.array_equal(getattr(found, name), getattr(batch, name)), name
    for name in ("log_prob", "value"):
        assert np.array_equal(found.agent_infos[name], batch.agent_infos[name])


class _Values:
    """Model of Q-values and values that RLlib's doubly robust estimator asks for, with given numbers."""

    def __init__(self, policy: object, gamma: float, q_values: np.ndarray, values: np.ndarray) -> None:
        self.columns = {"q_values": q_values, "values": values}

    def estimate_q(self, episode: dict[str, np.ndarray]) -> np.ndarray:
        return self.columns["q_values"][episode["row"]]

    def estimate_v(self, episode: dict[str, np.ndarray]) -> np.ndarray:
        return self.columns["values"][episode["row"]]


def test_policy_estimates_are_those_of_rllib() -> None:
    from ray.rllib.offline.estimators import DoublyRobust, ImportanceSampling, WeightedImportanceSampling

    generator = np.random.default_rng(0)
    batch = random_batch([5, 3, 5], 2, first_steps=np.zeros(3, np.int64), terminated=np.ones(3, np.bool_))
    target, q_values, values = (generator.normal(size=batch.num_steps) - 1 for _ in range(3))
    target = np.minimum(target, 0)
    found = batch.policy_estimates(target, 0.9, q_values, values)
    samples = batch.to_sample_batch()
    samples["action_prob"] = np.exp(batch.agent_infos["log_prob"])
    samples["row"] = np.arange(batch.num_steps)

    def value_of(kind: type, **options: object) -> float:
        estimator = kind(None, gamma=0.9, **options)
        estimator.compute_action_probs = lambda episode: np.exp(target[episode["row"]])
        return float(estimator.estimate(samples)["v_target"])

    assert found.per_decision.value == pytest.approx(value_of(ImportanceSampling))
    assert found.weighted_per_decision.value == pytest.approx(value_of(WeightedImportanceSampling))
    model = {"type": _Values, "q_values": q_values, "values": values}
    assert found.doubly_robust is not None
    assert found.doubly_robust.value == pytest.approx(value_of(DoublyRobust, q_model_config=model))
