"""Memory of a worker: the bytes that it reports, and its limit."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from scripted_env import Sampling, Script, Scripted

from rollserve_server.sampling import Claim

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _traced() -> Iterator[None]:
    yield
    tracemalloc.stop()


def started_sampling(script: Script, num_rows: int = 2, buffer_bytes: int = 1 << 30) -> Sampling:
    """Return a worker that has sampled once; trace all memory allocated from now on."""
    Scripted.script = script
    sampling = Sampling(num_rows, buffer_bytes)
    sampling.sample()
    tracemalloc.start()
    return sampling


def run(sampling: Sampling, num_episodes: int) -> int:
    """Run episodes until no more are begun; return the number of bytes that the worker reports for them."""
    report, _ = sampling.sample(num_episodes)
    num_bytes = 0
    while report.num_simulated_steps:
        num_bytes += sum(ended.num_bytes for ended in report.finished)
        report, _ = sampling.sample()
    return num_bytes


def frame(step: int) -> Mapping[str, Any]:
    return {"frame": np.full((64, 64, 3), step, np.uint8)}


def scalars(step: int) -> Mapping[str, Any]:
    return {"a": 0.5, "b": step, "success": True}


BYTES = spaces.Box(0, 9, (20_000,), np.uint8)

CASES = {
    "frames": (Script(40, frame), 40),
    "now and then a frame": (Script(40, lambda step: frame(step) if step % 10 == 3 else {}), 100),
    "short episodes": (Script(1), 5000),
    "short episodes with infos": (Script(2, scalars), 2000),
    "long episodes with infos": (Script(2000, scalars), 5),
    "infos of resets": (Script(1, lambda step: {} if step else frame(0)), 200),
    "last observations": (
        Script(1, observation=lambda step: np.zeros(20_000, np.uint8), observation_space=BYTES),
        300,
    ),
    "names without end": (Script(500, lambda step: {f"name {step}": 1.0}), 5),
}


@pytest.mark.parametrize(("script", "num_episodes"), CASES.values(), ids=CASES)
def test_reported_bytes_match_the_memory_in_use(script: Script, num_episodes: int) -> None:
    sampling = started_sampling(script)
    num_bytes = run(sampling, num_episodes)
    held = tracemalloc.get_traced_memory()[0]
    assert 0.4 * num_bytes < held < 1.1 * num_bytes + MIB / 4
    claim = Claim(0, 0, num_episodes)
    while not sampling.sample(claim=claim)[0].parcels[0].complete:
        pass
    # The worker keeps a bounded number of names.
    assert tracemalloc.get_traced_memory()[0] < 0.1 * num_bytes + MIB / 2


@pytest.mark.parametrize("case", ["frames", "short episodes with infos", "infos of resets", "last observations"])
def test_worker_stops_when_its_buffer_is_full(case: str) -> None:
    script, _ = CASES[case]
    sampling = started_sampling(script, buffer_bytes=2 * MIB)
    num_bytes = run(sampling, 20_000)
    # Episodes that run when the buffer is full run to their end.
    assert 2 * MIB <= num_bytes < 4 * MIB
    assert tracemalloc.get_traced_memory()[0] < 1.1 * num_bytes + 2 * MIB


def test_growing_list_in_infos_takes_no_memory() -> None:
    sampling = started_sampling(Script(1000, lambda step: {"history": list(range(step))}))
    run(sampling, 2)
    assert tracemalloc.get_traced_memory()[1] < MIB


def test_large_info_takes_only_its_own_size() -> None:
    sampling = started_sampling(Script(3, lambda step: {"map": np.zeros(MIB, np.uint8)} if step else {}), num_rows=16)
    run(sampling, 16)
    assert tracemalloc.get_traced_memory()[1] < 70 * MIB
