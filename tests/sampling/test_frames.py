"""Observations that are stacks of frames: recorded and sent once each, spilled where they are many, always the same."""

from __future__ import annotations

import gc
import itertools
import os
import random
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fragment_calls import MODULES, fragments, in_calls, num_lost_despite_kills
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from pools import pool_of, sample, until
from sample_envs.stacks import checksum
from scripted_env import SPEC, Sampling, Script, Scripted
from support import equal

import rollserve
from rollserve import EnvSpec, Reason
from rollserve_server.agents import Exploration, RandomSpec
from rollserve_server.pool import AtLeast, Backend, InProcessBackend
from rollserve_server.sampling import (
    ColumnFormat,
    FragmentAssignment,
    FragmentOrder,
    RowSequenceSpec,
    RowState,
    Worker,
)
from rollserve_server.sampling.record.columns import MAX_BUFFER_BYTES
from rollserve_server.settings import WorkerSettings

KIB = 1 << 10
FRAMES, FRAME_BYTES = (4, 84, 84), 84 * 84
ONCE, WHOLE = ColumnFormat(frames_once=True), ColumnFormat()
SPILLED = {"worker_buffer_bytes": 60 * KIB}
"""Settings that leave memory for a few steps of a worker."""


def stacks(kind: str, **kwargs: Any) -> EnvSpec:
    return EnvSpec("sample_envs:FrameStacks-v0", kwargs, vectorization=kind, num_rows=3, num_episodes_per_row=2)  # type: ignore[arg-type]


def check(batch: rollserve.EpisodeBatch) -> None:
    """Check each observation against the environment's own checksum of it."""
    shown, after = leaves_of_steps(batch.observations), leaves_of_steps(batch.next_observations)
    assert batch.env_infos["checksum"].tolist() == [checksum(observation) for observation in after]
    starts = np.concatenate([[0], np.cumsum(batch.lengths)[:-1]])
    for segment, start in enumerate(starts.tolist()):
        if batch.first_steps[segment] == 0:
            assert batch.episode_infos["checksum"][segment] == checksum(shown[start])


def leaves_of_steps(column: Any) -> list[dict[str, np.ndarray]]:
    num_steps = len(next(iter(column.values())))
    return [{name: leaf[step] for name, leaf in column.items()} for step in range(num_steps)]


@pytest.mark.parametrize("kind", [pytest.param("rows", marks=pytest.mark.slow), "native"])
@settings(max_examples=12, deadline=None)
@given(
    num_frames=st.integers(2, 4),
    length=st.sampled_from([2, 7, 40]),
    odd=st.sampled_from([0.0, 0.0, 0.03, 0.5, 1.0]),
    calls=st.lists(st.integers(1, 60), min_size=1, max_size=3),
    max_message_bytes=st.sampled_from([40 * KIB, 200 * KIB, 4096 * KIB]),
)
@pytest.mark.slow
async def test_observations_are_delivered_as_the_environment_made_them(
    kind: str, num_frames: int, length: int, odd: float, calls: list[int], max_message_bytes: int
) -> None:
    env = stacks(kind, num_frames=num_frames, length=length, odd=odd)
    expected: list[rollserve.EpisodeBatch] = []
    for limits, columns in itertools.product([{}, SPILLED], [WHOLE, ONCE]):
        async with pool_of(InProcessBackend(), env, **MODULES, **limits) as pool:
            await pool.update_agent([RandomSpec()])
            options: dict[str, Any] = {"columns": columns, "max_message_bytes": max_message_bytes}
            batches = await in_calls(pool, calls, seed=5, **options)
            batches.append(await sample(pool, AtLeast(60), seed=6, **options))
        for batch in batches:
            check(batch)
        expected = expected or batches
        assert all(map(equal, batches, expected))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rows", "native"])
async def test_spilled_fragments_are_the_same_when_workers_are_killed(ray_backend: Backend, kind: str) -> None:
    env = EnvSpec("sample_envs:FrameStacks-v0", {"length": 200}, vectorization=kind, num_rows=2)  # type: ignore[arg-type]
    async with pool_of(ray_backend, env, **MODULES, **SPILLED) as pool:
        await pool.update_agent([RandomSpec()])
        assert await num_lost_despite_kills(pool, [20, 1000], random.Random(3), 0.5, columns=ONCE) > 0


@pytest.fixture
def spill_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of this process, which is empty."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def open_files(folder: Path) -> list[str]:
    """Return the files of a folder that this process has open, with or without a name."""
    links = [Path(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    return [target for link in links if os.path.lexists(link) and (target := os.readlink(link)).startswith(str(folder))]


@pytest.mark.parametrize("kind", ["rows", "native"])
async def test_spilled_steps_leave_no_files(kind: str, spill_folder: Path) -> None:
    async def in_calls() -> None:
        async with pool_of(InProcessBackend(), stacks(kind), **MODULES, **SPILLED) as pool:
            await pool.update_agent([RandomSpec()])
            for _ in range(3):
                await fragments(pool, 6 * 200)
                assert 0 < len(open_files(spill_folder)) < 10
                assert not os.listdir(spill_folder)  # the files have no names

    def are_closed() -> bool:
        gc.collect()
        return not open_files(spill_folder)

    await in_calls()
    await until(are_closed)  # a thread that has worked ends a little later than its pool


@pytest.mark.parametrize("kind", ["rows", "native"])
def test_further_orders_of_a_call_whose_steps_cannot_be_spilled_do_nothing(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call sends an order ahead, which the worker may begin before the call has the report of the first."""
    monkeypatch.setattr(tempfile, "tempdir", "/no/such/folder")
    worker = Worker(0, WorkerSettings(worker_spill_bytes=1 << 30, **SPILLED))
    worker.add_env(1, stacks(kind))
    worker.add_agent(1, RandomSpec())
    sequence = RowSequenceSpec(1, 0, 1, None, soft_horizon=False, stride=3)
    assignment = FragmentAssignment(1, 1, Exploration(), 1000, 0, 1 << 22, report_actions=False, columns=ONCE)
    states = [RowState(row, row, 0, 0, ()) for row in range(3)]
    first, _ = worker.work(FragmentOrder(sequence, assignment, states, write_bytes=1, seconds=100.0))
    second, _ = worker.work(FragmentOrder(sequence, assignment, None, write_bytes=1, seconds=100.0))
    worker.close()
    assert first.failure is not None
    assert first.failure.reason == Reason.FRAGMENTS_TOO_LARGE
    assert (second.num_simulated_steps, second.messages, second.rows) == (0, (), None)


def atari_like(step: int) -> np.ndarray:
    """Return four frames of 84 x 84, the oldest first."""
    shades = (np.arange(step, step + 4) % 250).astype(np.uint8)
    return np.broadcast_to(shades[:, np.newaxis, np.newaxis], FRAMES)


@pytest.fixture
def _traced() -> Iterator[None]:
    Scripted.script = Script(1000, observation=atari_like, observation_space=spaces.Box(0, 255, FRAMES, np.uint8))
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("_traced")
@pytest.mark.parametrize(("num_rows", "num_row_steps"), [(8, 1024), (64, 128)])
def test_worker_holds_each_frame_of_fragments_once(num_rows: int, num_row_steps: int) -> None:
    worker, num_steps = Worker(0, WorkerSettings(vectorization="rows", rows=num_rows)), num_rows * num_row_steps
    worker.add_env(1, SPEC)
    worker.add_agent(1, RandomSpec())
    sequence = RowSequenceSpec(1, 0, 1, None, soft_horizon=False, stride=num_rows)
    states = [RowState(row, row, 0, 0, ()) for row in range(num_rows)]
    assignment = FragmentAssignment(1, 1, Exploration(), num_row_steps, 0, 1 << 22, report_actions=False, columns=ONCE)
    before = tracemalloc.get_traced_memory()[0]
    report, _ = worker.work(FragmentOrder(sequence, assignment, states, write_bytes=1, seconds=100.0))
    peak = tracemalloc.get_traced_memory()[1] - before
    worker.close()
    assert report.num_simulated_steps == num_steps
    # Also some room for frames of stacks that do not continue, most of it never written.
    assert 1.0 < peak / (num_steps * FRAME_BYTES) < 1.4


@pytest.mark.usefixtures("_traced")
def test_worker_holds_each_frame_of_whole_episodes_once() -> None:
    sampling = Sampling(num_rows=4)
    before = tracemalloc.get_traced_memory()[0]
    report, _ = sampling.sample(4)
    num_bytes = 0
    while report.num_simulated_steps:
        num_bytes += sum(ended.num_bytes for ended in report.finished)
        report, _ = sampling.sample()
    assert 1.0 < num_bytes / (4000 * FRAME_BYTES) < 1.1
    held = tracemalloc.get_traced_memory()[0] - before
    assert num_bytes < held < 1.1 * num_bytes + MAX_BUFFER_BYTES  # of the buffer for further steps
    sampling.worker.close()
