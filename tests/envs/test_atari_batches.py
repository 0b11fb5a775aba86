"""PPO's usual batches in Atari: fragments of 84 x 84 x 4 bytes a step, on a server with its default settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import rollserve
from rollserve import EnvSpec, Wrapper
from rollserve_server.local import local_server

FRAME_BYTES = 84 * 84
NUM_ROW_STEPS = 128
MIB = 1 << 20
KINDS = {
    "native": EnvSpec("ALE/Pong-v5", vectorization="native"),
    "envpool": EnvSpec("Pong-v5", vectorization="envpool"),
    "rows": EnvSpec(
        "ALE/Pong-v5",
        {"frameskip": 1},
        (Wrapper("AtariPreprocessing"), Wrapper("FrameStackObservation", {"stack_size": 4})),
        vectorization="rows",
    ),
}


@pytest.fixture(scope="module")
def sampler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rollserve.Sampler]:
    """The sampler of a server on Ray with its default settings."""
    log = tmp_path_factory.mktemp("server") / "log"
    # ALE's native rows take 0.3 s each to make, and several times as long on a busy machine.
    with (
        local_server("--env", "CartPole-v1", log=log) as server,
        rollserve.connect(server.address, timeout=300) as connected,
    ):
        yield connected
    assert "Traceback" not in log.read_text()


def peak_bytes(process_id: int, *, reset: bool = False) -> int:
    """Return the largest resident size of a process so far, or start again from its present size."""
    if reset:
        Path(f"/proc/{process_id}/clear_refs").write_text("5")
    (line,) = (line for line in Path(f"/proc/{process_id}/status").read_text().splitlines() if "VmHWM" in line)
    return int(line.split()[1]) << 10


def checked_batch(sampler: rollserve.Sampler, kind: str, num_rows: int, num_workers: int) -> rollserve.EpisodeBatch:
    """Return 128 steps of each row, and check them, their account, and the memory of the workers."""
    num_steps = num_rows * NUM_ROW_STEPS
    sampler.resize(num_workers)
    sampler.update_env(dataclasses.replace(KINDS[kind], num_rows=num_rows // num_workers))
    sampler.update_agent(rollserve.RandomAgent())
    sampler.obtain_fragments(num_rows, seed=3)
    processes = [worker.process_id for worker in sampler.status().workers]
    before = [peak_bytes(process, reset=True) for process in processes]
    batch = sampler.obtain_fragments(num_steps, seed=3)
    growth = [peak_bytes(process) - size for process, size in zip(processes, before, strict=True)]
    # Each frame once, beside messages and a buffer for further steps.
    assert max(growth) < 1.3 * num_steps * FRAME_BYTES / num_workers + 96 * MIB

    assert batch.observations.shape == (num_steps, 4, 84, 84)
    assert batch.observations.dtype == np.uint8
    assert len(batch.last_observations) == len(batch.lengths) == num_rows
    assert batch.lengths.tolist() == [NUM_ROW_STEPS] * num_rows  # Pong's episodes are longer
    assert batch.row_indices is not None
    assert batch.row_indices.tolist() == list(range(num_rows))
    assert np.ptp(batch.observations[::NUM_ROW_STEPS]) > 0
    account = batch.account
    assert (account.num_steps, account.num_simulated_steps, account.num_lost_steps) == (num_steps, num_steps, 0)
    assert account.num_retried_episodes == account.num_missing_steps == account.num_broken_off_episodes == 0
    return batch


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_small_batch_is_delivered_with_one_and_two_workers(kind: str, sampler: rollserve.Sampler) -> None:
    one, two = (checked_batch(sampler, kind, 8, num_workers) for num_workers in (1, 2))
    if kind == "rows":  # the others are functions of the rows that are stepped together
        for name in ("observations", "last_observations", "actions", "rewards"):
            assert np.array_equal(getattr(one, name), getattr(two, name)), name


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_large_batch_is_delivered(kind: str, sampler: rollserve.Sampler) -> None:
    checked_batch(sampler, kind, 128, 2)
