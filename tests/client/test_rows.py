"""Fragments by row: which row a segment ran in, and columns of shape (steps, rows, …)."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import raises

import rollserve
from rollserve import EpisodeBatch
from rollserve_server.local import LocalServer

NEITHER, TERMINATED, TRUNCATED, BOTH = range(4)


@st.composite
def row_batches(draw: st.DrawFn) -> tuple[EpisodeBatch, dict[str, np.ndarray]]:
    """Draw R rows with T steps each; return their segments in any order that keeps each row's, and the rows as arrays.

    The observation before step t of row r is 100 r + t, except after an end: the true last observation is its negative.
    """
    num_rows, num_steps = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    kinds = st.sampled_from([NEITHER, NEITHER, TERMINATED, TRUNCATED, BOTH])
    ends = np.array(draw(st.lists(kinds, min_size=num_rows * num_steps, max_size=num_rows * num_steps)))
    ends = ends.reshape(num_steps, num_rows)
    observations = 100 * np.arange(num_rows) + np.arange(num_steps)[:, np.newaxis]
    truth = {
        "observations": observations,
        "next_observations": np.where(ends == NEITHER, observations + 1, -(observations + 1)),
        "rewards": draw(st.floats(-9, 9)) * observations,
        "terminated": (ends == TERMINATED) | (ends == BOTH),
        "truncated": (ends == TRUNCATED) | (ends == BOTH),
    }
    segments: list[list[EpisodeBatch]] = []
    for row in range(num_rows):
        segments.append([])
        episode, first, start = row, draw(st.integers(0, 3)), 0
        for stop in sorted({*(np.flatnonzero(ends[:, row]) + 1).tolist(), num_steps}):
            columns = {name: truth[name][start:stop, row] for name in ("observations", "rewards")}
            segments[-1].append(
                EpisodeBatch(
                    **columns,
                    last_observations=truth["next_observations"][stop - 1 : stop, row],
                    actions=columns["observations"],
                    terminated=truth["terminated"][stop - 1 : stop, row],
                    truncated=truth["truncated"][stop - 1 : stop, row],
                    lengths=np.array([stop - start]),
                    episode_indices=np.array([episode]),
                    first_steps=np.array([first]),
                    row_indices=np.array([row]),
                    agent_infos={"state/h": columns["observations"]},
                    initial_states={"h": columns["observations"][:1]},
                )
            )
            episode, first, start = episode + num_rows, 0, stop
    order = draw(st.permutations([row for row in range(num_rows) for _ in segments[row]]))
    return EpisodeBatch.concatenate(*(segments[row].pop(0) for row in order)), truth


@given(row_batches())
def test_rows_are_the_steps_that_each_row_made(drawn: tuple[EpisodeBatch, dict[str, np.ndarray]]) -> None:
    batch, truth = drawn
    rows: dict[str, Any] = batch.as_rows()
    for name, expected in truth.items():
        assert np.array_equal(rows[name], expected), name
        assert rows[name].dtype == expected.dtype
    assert np.array_equal(rows["actions"], truth["observations"])
    assert np.array_equal(rows["agent_infos"]["state/h"], truth["observations"])
    assert np.array_equal(rows["initial_states"]["h"], truth["observations"][0])


@pytest.mark.parametrize("vectorization", ["rows", "native"])
def test_rows_of_calls_continue(sampler: rollserve.Sampler, vectorization: Any) -> None:
    env = sampler.update_env(rollserve.EnvSpec("CartPole-v1", {"max_episode_steps": 20}, vectorization=vectorization))
    batches = [sampler.obtain_fragments(50 * 2 * env.num_rows) for _ in range(2)]
    first, second = (batch.as_rows() for batch in batches)
    num_rows = 2 * env.num_rows
    for batch, rows in zip(batches, (first, second), strict=True):
        assert batch.row_indices is not None
        assert batch.worker_indices is not None
        assert np.array_equal(batch.row_indices // env.num_rows, batch.worker_indices)
        assert set(batch.row_indices.tolist()) == set(range(num_rows))
        assert rows["observations"].shape == (50, num_rows, 4)  # type: ignore[union-attr]
        assert rows["rewards"].sum() == batch.num_steps  # type: ignore[union-attr]
        for name in ("terminated", "truncated"):
            assert rows[name].sum() == getattr(batch, name).sum()  # type: ignore[union-attr]
        check_continuous(rows, rows, slice(None, -1), slice(1, None))
    check_continuous(first, second, slice(-1, None), slice(None, 1))


def check_continuous(first: Any, second: Any, before: slice, after: slice) -> None:
    """Check that steps of all rows go on where others end, except where an episode ended."""
    goes_on = ~(first["terminated"] | first["truncated"])[before]
    assert goes_on.any()
    assert np.array_equal(first["next_observations"][before][goes_on], second["observations"][after][goes_on])
    begun = second["observations"][after][~goes_on]
    assert (np.abs(begun) <= 0.05).all()  # CartPole's resets


def test_streams_and_asyncio_name_the_rows(sampler: rollserve.Sampler, server: LocalServer) -> None:
    expected = sampler.obtain_fragments(80, seed=3)
    with sampler.stream_fragments(80, seed=3) as stream:
        parts = EpisodeBatch.concatenate(*stream).joined()
    assert parts.row_indices is not None
    assert expected.row_indices is not None
    assert parts.row_indices.tolist() == expected.row_indices.tolist()

    async def sample() -> EpisodeBatch:
        async with rollserve.aconnect(server.address) as connected:
            return await connected.obtain_fragments(80, seed=3)

    batch = asyncio.run(sample())
    assert batch.row_indices is not None
    assert batch.row_indices.tolist() == expected.row_indices.tolist()
    assert batch.as_rows().keys() == expected.as_rows().keys()


def test_steps_of_each_row_can_be_asked_for(sampler: rollserve.Sampler, server: LocalServer) -> None:
    assert sampler.status().num_rows == 2 * 4
    rows = sampler.obtain_fragments(steps_per_row=5, seed=3).as_rows()
    assert rows["rewards"].shape == (5, 8)

    async def fragments() -> EpisodeBatch:
        async with rollserve.aconnect(server.address, shared=True) as connected:
            return await connected.obtain_fragments(steps_per_row=5, seed=3)

    assert np.array_equal(asyncio.run(fragments()).as_rows()["observations"], rows["observations"])
    for arguments, field in (((), {}), "num_steps"), (((8,), {"steps_per_row": 1}), "num_steps"):
        with raises(TypeError, field=field, match="either num_steps or steps_per_row"):
            sampler.obtain_fragments(*arguments[0], **arguments[1])
    with raises(rollserve.InvalidArgumentError, field="steps_per_row"):
        sampler.obtain_fragments(steps_per_row=0)


def test_as_rows_rejects_batches_without_equal_rows(sampler: rollserve.Sampler) -> None:
    with raises(ValueError, field="row_indices", quotes="None"):
        sampler.obtain_samples(10).as_rows()
    first, second = sampler.obtain_fragments(80, seed=3), sampler.obtain_fragments(80, seed=4)
    with raises(ValueError, field="lengths", quotes="1 to 10"):
        first.without_first_steps(9).as_rows()
    with raises(ValueError, field="first_steps", quotes=("episode", "row")):
        EpisodeBatch.concatenate(first, second).as_rows()


def test_printed_batch_shows_its_columns(sampler: rollserve.Sampler) -> None:
    batch = sampler.obtain_samples(300)
    lines = str(batch).splitlines()
    assert lines[0] == repr(batch)
    low, middle, high = np.quantile(batch.returns, (0, 0.5, 1))
    expected = f"returns: mean {batch.returns.mean():.4g}, min {low:g}, median {middle:g}, max {high:g}"
    assert lines[1] == expected
    assert lines[3].startswith("lengths: mean ")
    assert lines[4].startswith("versions: policy ")
    table = {line.split()[0]: line.split(maxsplit=2)[1:] for line in lines[5:]}
    assert table["observations"] == ["float32", str(batch.observations.shape)]  # type: ignore[union-attr]
    assert table["agent_infos/log_prob"] == ["float32", f"({batch.num_steps},)"]
    assert table["terminated"] == ["bool", f"({len(batch)},)"]
    many = dataclasses.replace(batch, env_infos={f"x{i}": batch.rewards for i in range(20)})
    assert sum("env_infos/" in line for line in str(many).splitlines()) == 9
    assert "12 more" in str(many)
