"""Files of saved samplers that earlier releases have written."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import equal

import rollserve

FILES = sorted(Path(__file__).parent.glob("*.saved"))
"""Files by release: CartPole-v1 with the seed 7 and random agents of versions 1 and 2, two workers with four rows;
saved behind 100 steps of whole episodes, 12 steps of each row, and 5 steps of each row with the seed 9."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_file_of_a_release_is_restored(thread_sampler: rollserve.Sampler, path: Path) -> None:
    thread_sampler.restore(path)
    status = thread_sampler.status()
    assert (status.policy_version, status.env_version, status.num_workers, status.seed) == (2, 1, 2, 7)
    assert status.counters.num_steps >= 100 + 8 * 17
    samples, fragments = thread_sampler.obtain_samples(100), thread_sampler.obtain_fragments(8 * 3)
    account = samples.account
    assert account.first_episode_index == status.next_episode_index > 0
    again = thread_sampler.obtain_samples(100, seed=7, first_episode_index=status.next_episode_index)
    assert equal(samples, again)
    assert fragments.account.row_step_count == 12
    restored = {12: fragments, 5: thread_sampler.obtain_fragments(8 * 3, seed=9, row_step_count=5)}
    for clock, seed in ((12, fragments.account.seed), (5, 9)):
        thread_sampler.obtain_fragments(8 * clock, seed=seed)
        assert equal(thread_sampler.obtain_fragments(8 * 3, seed=seed, row_step_count=clock), restored[clock])
