"""w9-…: reading files of episodes, in turns with the iterators of other libraries over the same data.

Rates are steps per second of CPU time, of all threads of the process, which other processes disturb less than the
clock. Each reader makes batches: observations before and after, actions, rewards and flags of the same episodes.
Minari's own iterator yields episodes, which are concatenated. The same episodes are read from a dataset that Rollserve
has written, and from one that Minari has written, whose arrays are in chunks. RLlib's `JsonReader` yields sample
batches, which RLlib concatenates; where RLlib is not installed, that figure is missing.
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
from minari.data_collector.episode_buffer import EpisodeBuffer

import rollserve
from benchmarks.service.results import Options, Result, check
from rollserve import EpisodeBatch, spaces

__all__ = ["DATASETS", "measure_datasets"]

DATASETS = {"w9-short-episodes": (2000, 20, 300), "w9-long-episodes": (400, 1000, 1001)}
"""Numbers of episodes, and bounds of their lengths: from the first number to below the second."""
_DATASET, _MINARIS_DATASET = "benchmark/episodes-v0", "benchmark/episodes-by-minari-v0"
_BATCH_SIZE = 256
_RLLIB_BATCH_STEPS = 4000


def measure_datasets(name: str, options: Options) -> list[Result]:
    """Measure episodes as large as HalfCheetah's, short and long ones, in the files of all formats.

    Raises:
        CheckError: a reader yields another sum of rewards than was written.
    """
    batch = _episodes(options.scaled(DATASETS[name][0]), *DATASETS[name][1:])
    settings = {"num_episodes": len(batch), "num_steps": batch.num_steps, "batch_size": _BATCH_SIZE}
    result = Result(name, f"reading files of {name.removeprefix('w9-').replace('-', ' ')}", settings)
    with tempfile.TemporaryDirectory() as folder, _datasets_in(folder):
        root = Path(folder)
        batch.to_minari(_DATASET)
        _write_by_minari(batch)
        batch.to_rllib_json(root / "a.json", compress=("obs", "new_obs"))
        batch.to_parquet(root / "a.parquet")
        batch.save(root / "a.npz")
        readers = {
            "": lambda: _read(root / _DATASET),
            "minari_": lambda: _read_by_minari(_DATASET),
            "chunked_": lambda: _read(root / _MINARIS_DATASET),
            "minari_chunked_": lambda: _read_by_minari(_MINARIS_DATASET),
            "shuffled_": lambda: _read(root / _DATASET, shuffle_seed=1),
            "transitions_": lambda: _read(root / _DATASET, length=1),
            "shuffled_transitions_": lambda: _read(root / _DATASET, length=1, shuffle_seed=1),
            "json_": lambda: _read(root / "a.json"),
            "parquet_": lambda: _read(root / "a.parquet"),
            "own_": lambda: _read(root / "a.npz"),
        }
        if _rllib() is not None:
            readers["rllib_"] = lambda: _read_by_rllib(root / "a.json")
        for read in readers.values():
            read()
        for _ in range(options.num_rounds):
            result.rounds.append(_round(readers, batch))
    result.checks.append("all readers yield the rewards that were written")
    return [result]


def _round(readers: dict[str, Callable[[], float]], batch: EpisodeBatch) -> dict[str, float]:
    figures = {}
    for name, read in readers.items():
        began = time.process_time()
        total = read()
        figures[f"{name}steps_per_second"] = batch.num_steps / (time.process_time() - began)
        expected = float(batch.rewards.sum())
        check(np.isclose(total, expected, rtol=1e-6, atol=1e-3), f"{name}rewards: expected {expected}, got {total}")
    own = figures["steps_per_second"]
    figures["ratio_to_minari"] = own / figures["minari_steps_per_second"]
    figures["chunked_ratio_to_minari"] = (
        figures["chunked_steps_per_second"] / figures["minari_chunked_steps_per_second"]
    )
    figures["ratio_of_shuffled"] = figures["shuffled_steps_per_second"] / own
    figures["ratio_of_shuffled_transitions"] = (
        figures["shuffled_transitions_steps_per_second"] / figures["transitions_steps_per_second"]
    )
    if "rllib_steps_per_second" in figures:
        figures["ratio_to_rllib"] = own / figures["rllib_steps_per_second"]
        figures["json_ratio_to_rllib"] = figures["json_steps_per_second"] / figures["rllib_steps_per_second"]
    return figures


def _episodes(number: int, shortest: int, bound: int) -> EpisodeBatch:
    generator = np.random.default_rng(0)
    lengths = generator.integers(shortest, bound, number)
    num_steps = int(lengths.sum())
    return EpisodeBatch(
        observations=generator.normal(size=(num_steps, 17)),
        last_observations=generator.normal(size=(number, 17)),
        actions=generator.normal(size=(num_steps, 6)).astype(np.float32),
        rewards=generator.normal(size=num_steps),
        lengths=lengths,
        terminated=np.zeros(number, np.bool_),
        truncated=np.ones(number, np.bool_),
        env_seeds=np.arange(number),
        observation_space=spaces.Box(-np.inf, np.inf, (17,), np.dtype(np.float64)),
        action_space=spaces.Box(-np.inf, np.inf, (6,), np.dtype(np.float32)),
    )


def _read(path: Path, **options: Any) -> float:
    with rollserve.data.read(path, batch_size=_BATCH_SIZE, **options) as reader:
        return sum(float(batch.rewards.sum()) for batch in reader)


def _write_by_minari(batch: EpisodeBatch) -> None:
    """Write episodes by Minari itself, with the seeds of their resets."""
    buffers = []
    for number, episode in enumerate(batch.split()):
        is_last = np.arange(episode.num_steps) == episode.num_steps - 1
        columns = {
            "observations": np.concatenate([episode.observations, episode.last_observations]),
            "actions": episode.actions,
            "rewards": episode.rewards,
            "terminations": np.zeros(episode.num_steps, np.bool_),
            "truncations": is_last,
        }
        buffers.append(EpisodeBuffer(id=number, seed=number, infos={}, **columns))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # metadata that the dataset lacks
        minari.create_dataset_from_buffers(
            _MINARIS_DATASET,
            buffers,
            observation_space=gymnasium.spaces.Box(-np.inf, np.inf, (17,), np.float64),
            action_space=gymnasium.spaces.Box(-np.inf, np.inf, (6,), np.float32),
            data_format="hdf5",
        )


def _read_by_minari(dataset: str) -> float:
    """Make batches of the episodes that Minari's iterator yields."""
    total, episodes = 0.0, []
    for episode in minari.load_dataset(dataset).iterate_episodes():
        episodes.append(episode)
        if len(episodes) == _BATCH_SIZE:
            total += _concatenated(episodes)
            episodes = []
    return total + (_concatenated(episodes) if episodes else 0.0)


def _concatenated(episodes: list[Any]) -> float:
    np.concatenate([episode.observations[:-1] for episode in episodes])
    np.stack([episode.observations[-1] for episode in episodes])
    np.concatenate([episode.actions for episode in episodes])
    for name in ("terminations", "truncations"):
        np.array([getattr(episode, name)[-1] for episode in episodes])
    return float(np.concatenate([episode.rewards for episode in episodes]).sum())


def _read_by_rllib(path: Path) -> float:
    """Read all lines once, as many in each batch as RLlib does with its default size of batches."""
    json_reader, concat_samples = _rllib()
    total, batches, num_steps = 0.0, [], 0
    for batch in json_reader(str(path)).read_all_files():
        batches.append(batch)
        num_steps += batch.count
        if num_steps >= _RLLIB_BATCH_STEPS:
            total += float(concat_samples(batches)["rewards"].sum())
            batches, num_steps = [], 0
    return total + (float(concat_samples(batches)["rewards"].sum()) if batches else 0.0)


@functools.cache
def _rllib() -> tuple[Any, Any] | None:
    """Return RLlib's reader and what joins its batches, or None where RLlib is not installed."""
    with contextlib.suppress(ImportError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray.rllib.algorithms  # noqa: F401  # the reader imports it when it is made
        from ray.rllib.offline.json_reader import JsonReader
        from ray.rllib.policy.sample_batch import concat_samples

        return JsonReader, concat_samples
    return None


@contextlib.contextmanager
def _datasets_in(folder: str) -> Iterator[None]:
    """Let Minari keep its datasets in a folder."""
    before = os.environ.get("MINARI_DATASETS_PATH")
    os.environ["MINARI_DATASETS_PATH"] = folder
    try:
        yield
    finally:
        del os.environ["MINARI_DATASETS_PATH"]
        if before is not None:
            os.environ["MINARI_DATASETS_PATH"] = before
