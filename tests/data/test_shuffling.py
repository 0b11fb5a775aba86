"""Statistics of the shuffle, and mixes of several sources."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from data.conftest import assert_same
from learner_batches import random_batch

import rollserve
from rollserve import EpisodeBatch
from rollserve.data.shuffling import shuffled

NUM_STEPS = 4096


def numbered(num_steps: int) -> EpisodeBatch:
    """Return one episode whose actions number its steps."""
    actions = np.arange(num_steps)
    return random_batch([num_steps], 0, first_steps=np.zeros(1, np.int64), actions=actions)


def order_of(num_steps: int, seed: int) -> np.ndarray:
    """Return the order in which a buffer of some steps gives back steps that come one after the other."""
    parts = numbered(NUM_STEPS).cut(1)
    blocks = (parts.take(slice(start, start + 64)) for start in range(0, NUM_STEPS, 64))
    generator = np.random.default_rng(seed)
    return np.concatenate([batch.actions for batch in shuffled(blocks, num_steps, generator)])


def test_each_step_comes_once() -> None:
    for num_steps in (1, 64, 500, NUM_STEPS, 10 * NUM_STEPS):
        assert np.array_equal(np.sort(order_of(num_steps, 0)), np.arange(NUM_STEPS))


def test_buffer_as_large_as_the_data_gives_a_uniform_permutation() -> None:
    """Test independence of origin and place by chi²: of 64 cells (16 of origin by 4 of place), chi² has 45 degrees."""
    counts = np.zeros((16, 4))
    for seed in range(20):
        order = order_of(NUM_STEPS, seed)
        np.add.at(counts, (order // (NUM_STEPS // 16), np.arange(NUM_STEPS) // (NUM_STEPS // 4)), 1)
    expected = counts.sum() / counts.size
    assert ((counts - expected) ** 2 / expected).sum() < 80  # 0.1 % quantile of chi² with 45 degrees: 80.1
    pairs = np.array(
        [np.corrcoef(order_of(NUM_STEPS, seed)[:-1], order_of(NUM_STEPS, seed)[1:])[0, 1] for seed in range(5)]
    )
    assert (np.abs(pairs) < 4 / np.sqrt(NUM_STEPS)).all()


def test_small_buffer_moves_steps_by_about_its_size() -> None:
    size = 512
    shifts = np.concatenate([np.arange(NUM_STEPS) - order_of(size, seed) for seed in range(10)])
    assert shifts.min() >= -size - 64  # a step cannot leave before it came
    # A step leaves at each turn with probability 1/2, turns are size / 2 steps apart, so it waits one turn on average;
    # its place within the part that leaves is uniform.
    assert abs(np.abs(shifts).mean() / size - 0.4) < 0.15
    assert (np.abs(shifts) < 8 * size).mean() > 0.995


@pytest.mark.parametrize("length", [None, 1, 4])
@pytest.mark.parametrize("num_steps", [20, 90, 10_000])
def test_fragments_of_all_batches_come_once_each(length: int | None, num_steps: int) -> None:
    """Shuffled sequences equal sequences that are cut first, with their states and values."""
    batch = with_states(random_batch([5, 1, 12, 7, 3, 30, 2, 9], 0, first_steps=np.zeros(8, np.int64)))
    parts = batch if length is None else batch.cut(length)
    batches = [batch.take(slice(start, start + 3)) for start in range(0, len(batch), 3)]
    found = [*shuffled(batches, num_steps, np.random.default_rng(1), length=length, page_size=2)]
    assert num_steps > batch.num_steps or len(found) > 1
    together = EpisodeBatch.concatenate(*found)
    assert not np.array_equal(together.observations, parts.observations)
    assert_same(parts, together.take(np.lexsort((together.first_steps, together.episode_indices))))


def with_states(batch: EpisodeBatch) -> EpisodeBatch:
    """Return the batch with recurrent states of all steps, and values and states after the segments."""
    starts = np.cumsum(batch.lengths) - batch.lengths
    states = np.arange(batch.num_steps, dtype=float)[:, np.newaxis]
    return dataclasses.replace(
        batch,
        agent_infos={**batch.agent_infos, "state/h": states},
        initial_states={"h": states[starts]},
        last_states={"h": states[starts] + 0.5},
        last_values=np.arange(len(batch), dtype=float),
    )


def test_order_depends_on_seed_and_epoch_alone(tmp_path: Path) -> None:
    numbered(300).save(tmp_path / "a.npz")

    def orders(seed: int) -> list[list[int]]:
        reader = rollserve.data.read(tmp_path / "a.npz", length=1, batch_size=300, num_epochs=2, shuffle_seed=seed)
        return [batch.actions.tolist() for batch in reader]  # type: ignore[union-attr]

    first, other = orders(1), orders(2)
    assert first == orders(1)
    assert len({tuple(order) for order in first + other}) == 4


def numbered_source(number: int, length: int | None = None) -> Iterator[EpisodeBatch]:
    """Yield batches of one step each, whose actions hold the number, for ever or a number of times."""
    batch = random_batch([1], 0, actions=np.array([number]))
    while length is None or length > 0:
        yield batch
        length = None if length is None else length - 1


def test_mix_draws_by_weights() -> None:
    mixed = rollserve.data.mix([(numbered_source(0), 1.0), (numbered_source(1), 3.0)], seed=5)
    counts = Counter(int(next(mixed).actions[0]) for _ in range(4000))
    assert abs(counts[1] / 4000 - 0.75) < 4 * np.sqrt(0.75 * 0.25 / 4000)


def test_mix_goes_on_where_another_ended() -> None:
    def mixed(num_drawn: int) -> Iterator[EpisodeBatch]:
        return rollserve.data.mix([(numbered_source(i), 1.0) for i in range(3)], seed=5, num_drawn=num_drawn)

    whole, later = mixed(0), mixed(10)
    numbers = [int(next(whole).actions[0]) for _ in range(50)]
    assert [int(next(later).actions[0]) for _ in range(40)] == numbers[10:]


def test_mix_ends_with_the_first_source_or_the_last() -> None:
    def numbers(until: str) -> list[int]:
        sources = [(numbered_source(0, 3), 1.0), (numbered_source(1, 40), 1.0)]
        return [int(batch.actions[0]) for batch in rollserve.data.mix(sources, seed=1, until=until)]

    assert Counter(numbers("last")) == {0: 3, 1: 40}
    first = numbers("first")
    assert first.count(0) == 3
    assert len(first) < 43


def test_live_experience_is_mixed_with_files(thread_sampler: rollserve.Sampler, tmp_path: Path) -> None:
    thread_sampler.update_agent(rollserve.RandomAgent())
    thread_sampler.obtain_samples(100).save(tmp_path / "a.npz")
    live = iter(lambda: thread_sampler.obtain_samples(50), None)
    stored = rollserve.data.read(tmp_path / "a.npz", batch_size=2, num_epochs=None)
    mixed = rollserve.data.mix([(live, 1.0), (stored, 1.0)], seed=3)
    kinds = {next(mixed).account_or_none is None for _ in range(12)}
    assert kinds == {True, False}


@pytest.mark.parametrize(
    ("sources", "text"),
    [
        ([], "sources: expected at least one, got none"),
        ([([], 0.0)], "sources[0]: expected a positive weight, got 0.0"),
    ],
)
def test_mix_rejects_sources(sources: list[tuple[list[EpisodeBatch], float]], text: str) -> None:
    with pytest.raises(rollserve.InvalidArgumentError) as raised:
        rollserve.data.mix(sources, seed=1)
    assert raised.value.message == text


def test_mix_rejects_sources_of_other_types() -> None:
    with pytest.raises(TypeError, match=r"^sources\[0\]: expected a positive weight, got str$"):
        rollserve.data.mix([(iter([]), "a")], seed=1)  # type: ignore[list-item]
    with pytest.raises(
        TypeError, match=r"^sources\[0\]: expected a pair of an iterable and a weight, got list_iterator$"
    ):
        rollserve.data.mix([iter([])], seed=1)  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"^sources\[0\]: expected an iterable of batches, got int$"):
        rollserve.data.mix([(5, 1.0)], seed=1)  # type: ignore[list-item]


def test_mix_draws_by_weights_whose_sum_is_infinite() -> None:
    mixed = rollserve.data.mix([(numbered_source(i), 1e308) for i in range(2)], seed=5)
    assert {int(next(mixed).actions[0]) for _ in range(20)} == {0, 1}
