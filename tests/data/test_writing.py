"""Batches as files that other programs load, and what is refused before anything is written."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import minari
import numpy as np
import pyarrow.parquet
import pytest
from data.conftest import assert_same, whole_episodes
from gymnasium.envs.classic_control import CartPoleEnv
from learner_batches import random_batch

import rollserve
from rollserve import EpisodeBatch, Receipt


def test_sampled_episodes_load_in_minari(
    thread_sampler: rollserve.Sampler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    updated = thread_sampler.update_env("CartPole-v1")
    thread_sampler.update_agent(rollserve.MlpAgent.initial(updated.observation_space, updated.action_space, seed=0))
    batches = [thread_sampler.obtain_samples(100, return_spaces=True) for _ in range(2)]
    for number, batch in enumerate(batches):
        folder = batch.to_minari("cartpole/mlp-v0", env="CartPole-v1", append=number > 0, author={"A"}, description="x")
        assert folder == tmp_path / "cartpole/mlp-v0"
    batch = EpisodeBatch.concatenate(*batches)
    dataset = minari.load_dataset("cartpole/mlp-v0")
    assert (dataset.total_episodes, dataset.total_steps) == (len(batch), batch.num_steps)
    assert isinstance(dataset.recover_environment().unwrapped, CartPoleEnv)
    for episode, part, attributes in zip(
        dataset.iterate_episodes(), batch.split(), dataset.storage.get_episode_metadata(range(len(batch))), strict=True
    ):
        assert np.array_equal(episode.observations[:-1], part.observations)
        assert np.array_equal(episode.observations[-1], part.last_observations[0])
        assert np.array_equal(episode.actions, part.actions)
        assert np.array_equal(episode.rewards, part.rewards)
        assert episode.terminations[-1] == part.terminated[0]
        assert episode.truncations[-1] == part.truncated[0]
        assert np.array_equal(episode.infos["agent"]["log_prob"][1:], part.agent_infos["log_prob"])
        assert part.env_seeds is not None
        assert attributes["seed"] == part.env_seeds[0]
        assert attributes["rollserve_policy_versions"] == part.policy_versions[0]
    assert_same(batch, EpisodeBatch.concatenate(*rollserve.data.read(tmp_path / "cartpole/mlp-v0")))


def test_dataset_trains_in_a_script_that_knows_only_minari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ridge regression of the returns on the observations, which any learner's script could be."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    whole_episodes().to_minari("some/episodes-v0")
    episodes = list(minari.load_dataset("some/episodes-v0").iterate_episodes())
    inputs = np.concatenate([episode.observations[:-1] for episode in episodes])
    targets = np.concatenate([np.cumsum(episode.rewards[::-1])[::-1] for episode in episodes])
    weights = np.linalg.solve(inputs.T @ inputs + np.eye(2), inputs.T @ targets)
    assert np.isfinite(weights).all()


def test_environment_names_the_spaces_of_a_batch_without_spaces(tmp_path: Path) -> None:
    batch = whole_episodes()
    plain = dataclasses.replace(batch, observation_space=None, action_space=None)
    with pytest.raises(ValueError, match="observation_space: expected the spaces of the batch, got None: the option"):
        plain.to_minari("a-v0", root=tmp_path)
    with pytest.raises(ValueError, match=r"observations: expected rows of shape \(4,\), got \(2,\)"):
        plain.to_minari("a-v0", root=tmp_path, env="CartPole-v1")
    assert not (tmp_path / "a-v0").exists()


def test_minari_gets_what_the_environment_saw(tmp_path: Path) -> None:
    batch = whole_episodes()
    changed = dataclasses.replace(batch, raw_rewards=batch.rewards * 2, env_actions=np.asarray(batch.actions) + 1)
    found = next(rollserve.data.read(changed.to_minari("a-v0", root=tmp_path)))
    assert np.array_equal(found.rewards, batch.rewards * 2)
    assert np.array_equal(np.asarray(found.actions), np.asarray(batch.actions) + 1)


def test_minari_refuses_parts_of_episodes_and_existing_datasets(tmp_path: Path) -> None:
    batch = whole_episodes()
    with pytest.raises(
        ValueError, match=r"first_steps: expected segments that begin with their episode, got segment 1"
    ):
        batch.cut(2).to_minari("a-v0", root=tmp_path)
    with pytest.raises(ValueError, match="Malformed dataset ID"):
        batch.to_minari("../a", root=tmp_path)
    batch.to_minari("a-v0", root=tmp_path)
    with pytest.raises(ValueError, match=r"dataset_id: expected a new dataset, got .*a-v0, which exists: `append`"):
        batch.to_minari("a-v0", root=tmp_path)
    with pytest.raises(ValueError, match="observations: expected leaves"):
        whole_episodes(nested=True).to_minari("a-v0", root=tmp_path, append=True)
    assert len(next(rollserve.data.read(tmp_path / "a-v0"))) == len(batch)


def test_files_hold_the_receipt(tmp_path: Path) -> None:
    receipt = Receipt({"id": "X-v0"}, 6, {"rewards": "00"}, packages={"gymnasium": "1"}, seed=2**64 - 1)
    batch = whole_episodes(receipt=receipt)
    batch.save(tmp_path / "a.npz")
    batch.to_parquet(tmp_path / "a.parquet")
    batch.to_minari("a-v0", root=tmp_path)
    batch.to_minari("a-v0", root=tmp_path, append=True)
    for name, number in (("a.npz", 1), ("a.parquet", 1), ("a-v0", 2)):
        assert rollserve.data.read(tmp_path / name).receipts == (receipt.to_json(),) * number
    assert EpisodeBatch.load(tmp_path / "a.npz").receipt == receipt


def test_parquet_has_a_row_for_each_step(tmp_path: Path) -> None:
    batch = whole_episodes()
    batch.to_parquet(tmp_path / "a.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "a.parquet")
    assert table.num_rows == batch.num_steps
    assert table["last_observations"].null_count == batch.num_steps - len(batch)


def test_rllib_json_refuses_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="compress: expected a sequence of names, got str"):
        whole_episodes().to_rllib_json(tmp_path / "a.json", compress="obs")
    with pytest.raises(ValueError, match=r"compress: expected names among .*, got \['observations'\]"):
        whole_episodes().to_rllib_json(tmp_path / "a.json", compress=["observations"])
    assert not (tmp_path / "a.json").exists()


def test_minari_refuses_episodes_that_go_on(tmp_path: Path) -> None:
    batch = whole_episodes()
    going = dataclasses.replace(batch, terminated=batch.terminated & False, truncated=batch.truncated & False)
    with pytest.raises(ValueError, match="terminated, truncated: expected episodes that have ended, got segment 0"):
        going.to_minari("a-v0", root=tmp_path)
    assert not (tmp_path / "a-v0").exists()


def test_minari_gets_no_seed_that_episodes_share(tmp_path: Path) -> None:
    """Native rows have the seed of their block, which makes none of them alone."""
    batch = whole_episodes()
    shared = dataclasses.replace(batch, env_seeds=np.array([3, 3, 3, 4, 4, 4]))
    block = dataclasses.replace(batch, receipt=Receipt({}, len(batch), {}, reproducibility="BLOCK"))
    for name, each in (("shared-v0", shared), ("block-v0", block)):
        folder = each.to_minari(name, root=tmp_path)
        assert "seed" not in next(iter(minari.MinariDataset(folder / "data").storage.get_episode_metadata([0])))
        assert next(rollserve.data.read(folder)).env_seeds is None


def test_seeds_are_added_to_datasets_with_seeds_alone(tmp_path: Path) -> None:
    batch = whole_episodes()
    plain = dataclasses.replace(batch, env_seeds=None)
    for name, first, second in (("a-v0", batch, plain), ("b-v0", plain, batch)):
        folder = first.to_minari(name, root=tmp_path)
        with pytest.raises(ValueError, match="env_seeds: expected episodes with"):
            second.to_minari(name, root=tmp_path, append=True)
        assert_same(first, next(rollserve.data.read(folder)))


@pytest.mark.parametrize("order", [1, -1])
def test_known_and_unknown_versions_are_in_one_dataset(order: int, tmp_path: Path) -> None:
    batch = whole_episodes()
    parts = [batch, dataclasses.replace(batch, policy_versions=np.zeros(len(batch), np.int64))][::order]
    for number, part in enumerate(parts):
        folder = part.to_minari("a-v0", root=tmp_path, append=number > 0)
    assert_same(EpisodeBatch.concatenate(*parts), next(rollserve.data.read(folder)))


def test_minari_names_unknown_environments_and_infos_that_hide_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    batch = whole_episodes()
    with pytest.raises(ValueError, match="env: expected the id of an environment of gymnasium, got 'No-v0'"):
        batch.to_minari("a-v0", root="relative", env="No-v0")
    nested = dataclasses.replace(batch, env_infos={"x": batch.rewards, "x/y": batch.rewards})
    with pytest.raises(
        ValueError, match="infos: expected names of which none is another one, or its beginning, got x/y"
    ):
        nested.to_minari("a-v0", root="relative")
    assert_same(batch, next(rollserve.data.read(batch.to_minari("b-v0", root="relative"))))
    assert len(next(rollserve.data.read(batch.to_minari("a-v0", root="relative")))) == len(batch)


@pytest.mark.parametrize("name", ["rewards", "obs", "t", "infos", "type", "action_logp"])
def test_rllib_json_refuses_agent_infos_with_the_name_of_a_column(name: str, tmp_path: Path) -> None:
    batch = whole_episodes()
    changed = dataclasses.replace(batch, agent_infos={"log_prob": batch.rewards, name: batch.rewards})
    with pytest.raises(ValueError, match=f"agent_infos/{name}: expected a name that is no column of RLlib, got {name}"):
        changed.to_rllib_json(tmp_path / "a.json")
    assert not (tmp_path / "a.json").exists()


def test_parquet_refuses_numbers_that_it_does_not_have(tmp_path: Path) -> None:
    batch = whole_episodes()
    changed = dataclasses.replace(batch, env_infos={"x": batch.rewards + 1j})
    with pytest.raises(ValueError, match="env_infos/x: expected numbers or truth values that Parquet has, got complex"):
        changed.to_parquet(tmp_path / "a")


@pytest.mark.parametrize("write", [EpisodeBatch.to_parquet, EpisodeBatch.to_rllib_json])
def test_batches_of_nothing_are_not_written(write: Callable[[EpisodeBatch, Path], None], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="batch: expected at least one segment, got none, which no reader takes"):
        write(whole_episodes().take([]), tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_integers_of_rllib_json_keep_their_digits(tmp_path: Path) -> None:
    batch = random_batch([2, 2], 0)
    large = {"hash": np.array([2**64 - 1, 1, 5, 2**63 + 1], np.uint64)}
    dataclasses.replace(batch, agent_infos=large).to_rllib_json(tmp_path / "a.json")
    (read,) = rollserve.data.read(tmp_path / "a.json")
    assert read.agent_infos["hash"].tolist() == large["hash"].tolist()
    record = json.loads((tmp_path / "a.json").read_text().splitlines()[0])
    for changes, field in (
        ({"hash": [2**53 + 1, 0.5]}, "hash"),
        ({"infos": [{"n": 2**53 + 1}, {"n": 0.5}]}, "infos/n"),
    ):
        (tmp_path / "b.json").write_text(json.dumps(record | changes))
        with pytest.raises(ValueError, match=f"{field}: expected numbers that one dtype can hold"):
            list(rollserve.data.read(tmp_path / "b.json"))
