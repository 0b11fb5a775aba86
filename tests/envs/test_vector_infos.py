"""Infos of vector environments that are no columns, and last observations that are missing or do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import raises

import rollserve
from rollserve import EnvSpec, Reason

BLOCKS: dict[str, Any] = {"vectorization": "native", "num_rows": 4}
NAME = "sample_envs:OddInfoRows-v0"


@pytest.fixture
def sampler(thread_sampler: rollserve.Sampler) -> Any:
    """The sampler of a server with threads; checks that the test loses no worker."""
    before = _workers(thread_sampler)
    yield thread_sampler
    assert _workers(thread_sampler) == before


def _workers(sampler: rollserve.Sampler) -> list[tuple[int, bool]]:
    return [(worker.num_restarts, worker.healthy) for worker in sampler.status().workers]


def _set(sampler: rollserve.Sampler, **kwargs: object) -> None:
    sampler.update_env(EnvSpec(NAME, kwargs, **BLOCKS))
    sampler.update_agent(rollserve.RandomAgent())


@pytest.mark.parametrize("mode", ["SameStep", "NextStep"])
@pytest.mark.parametrize(
    ("infos", "delivered", "dropped"),
    [
        ("number", set(), {"count", "nested/count"}),
        ("text", set(), {"map"}),
        ("nothing", set(), {"nothing"}),
        ("int name", {"7", "8/9"}, set()),
        ("few rows", set(), {"few", "fewer"}),
        ("no axes", set(), {"scalar"}),
        ("empty", set(), {"empty"}),
        ("mask", {"all"}, {"masked"}),
    ],
)
def test_infos_that_are_no_columns_are_dropped_and_counted(
    sampler: rollserve.Sampler, mode: str, infos: str, delivered: set[str], dropped: set[str]
) -> None:
    """Whole episodes and fragments have one rule: each value of a step and of a reset is delivered or counted."""
    _set(sampler, infos=infos, mode=mode)
    whole = sampler.obtain_samples(64, seed=3, timeout=60)
    batches = [whole]
    if mode == "SameStep":  # fragments need it
        batches.append(sampler.obtain_fragments(64, seed=3, timeout=60))
    for batch in batches:
        assert delivered <= set(batch.env_infos)
        assert set(batch.account.dropped_infos) == dropped
        assert all(count >= batch.num_steps for count in batch.account.dropped_infos.values())


@pytest.mark.parametrize(
    ("final", "text"),
    [
        ("old key", "expected the last observation of row ., whose .*, got none in a dict with .*final_observation"),
        ("none", "expected the last observation of row ., whose episode has ended, got none in a dict with "),
        ("shape", r"observation 'made': expected float32 of shape \(., 2\), got float32 of shape \(., 1\)"),
        ("dtype", r"observation 'length': expected int64 of shape \(.,\), got float64 of shape "),
        ("leaf", r"observation 'length': expected int64 of shape \(4,\), got none in a dict with .*made"),
        ("few rows", r"observation 'length': expected int64 of shape \(4,\), got int64 of shape \(3,\)"),
        ("list", "expected 4 observations, got a list of 1"),
        ("mask", "expected the last observation of row ., .*, got a mask '_final_obs' without it"),
    ],
)
@pytest.mark.parametrize("fragments", [False, True])
def test_last_observations_are_missing_or_wrong(
    sampler: rollserve.Sampler, final: str, text: str, fragments: bool
) -> None:
    _set(sampler, final=final)
    match = rf"episode \d+ .*, after \d steps: .*{NAME} returned from step: info 'final_obs': {text}"
    obtain = sampler.obtain_fragments if fragments else sampler.obtain_samples
    with raises(rollserve.ServerError, reason=Reason.ENV_FAILED, match=match):
        obtain(64, seed=3, timeout=60)


def test_infos_of_last_steps_are_no_mapping(sampler: rollserve.Sampler) -> None:
    _set(sampler, final="final infos")
    text = r"info 'final_info': expected a mapping of columns, got object of shape \(4,\)"
    with raises(rollserve.ServerError, reason=Reason.ENV_FAILED, match=text):
        sampler.obtain_samples(64, seed=3, timeout=60)


def test_last_observations_of_each_row_are_as_good_as_columns(sampler: rollserve.Sampler) -> None:
    batches = []
    for final in ("", "objects"):
        _set(sampler, final=final)
        batches.append(sampler.obtain_samples(64, seed=3, timeout=60))
    one, other = batches
    for name in ("made", "length"):
        assert np.array_equal(one.last_observations[name], other.last_observations[name])
