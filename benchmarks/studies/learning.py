"""How fast are the computations of learners, and the replay buffer?

    python -m benchmarks.studies.learning [--hold-memory]

262,144 steps as 2,048 fragments of 128 steps, as one segment, and as segments of one step. Times are CPU time of this
process, so that neighbours on the machine disturb less; the median of seven. A loop over Python's floats computes the
same advantages, and has to agree.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import rollserve

NUM_STEPS = 262_144
LENGTHS = (128, NUM_STEPS, 1)
GAMMA, LAM = 0.99, 0.95
NUM_ROUNDS = 7
SAMPLE_SIZE = 256
CAPACITIES = {"4 float32": 1_000_000, "84 x 84 x 4": 20_000}


def batch_of(length: int, num_steps: int = NUM_STEPS) -> rollserve.EpisodeBatch:
    """Return a batch of fragments of equal length."""
    generator, num_segments = np.random.default_rng(0), num_steps // length
    return rollserve.EpisodeBatch(
        observations=generator.random((num_steps, 4), np.float32),
        last_observations=generator.random((num_segments, 4), np.float32),
        actions=np.zeros(num_steps, np.int64),
        rewards=generator.random(num_steps),
        lengths=np.full(num_segments, length),
        terminated=np.zeros(num_segments, np.bool_),
        truncated=np.zeros(num_segments, np.bool_),
        agent_infos={name: -generator.random(num_steps, np.float32) for name in ("value", "log_prob")},
    )


def stacks() -> rollserve.EpisodeBatch:
    """Return four episodes of 500 steps, whose observations are stacks of four frames."""
    frames = np.random.default_rng(0).integers(0, 256, (2_004, 84, 84), np.uint8)
    starts = np.arange(2_000)[:, np.newaxis] + np.arange(4)
    return rollserve.EpisodeBatch(
        observations=frames[starts],
        last_observations=frames[500 * np.arange(1, 5)[:, np.newaxis] + np.arange(4)],
        actions=np.zeros(2_000, np.int64),
        rewards=np.zeros(2_000),
        lengths=np.full(4, 500),
        terminated=np.ones(4, np.bool_),
        truncated=np.zeros(4, np.bool_),
    )


def loop(batch: rollserve.EpisodeBatch, last_values: np.ndarray) -> list[float]:
    """Return the advantages of a batch without terminal states, by a loop over Python's floats."""
    values, rewards = batch.agent_infos["value"].tolist(), batch.rewards.tolist()
    found, step = [0.0] * len(rewards), len(rewards)
    for length, after in zip(batch.lengths[::-1].tolist(), last_values[::-1].tolist(), strict=True):
        following = 0.0
        for _ in range(length):
            step -= 1
            following = rewards[step] + GAMMA * after - values[step] + GAMMA * LAM * following
            after = values[step]
            found[step] = following
    return found


def seconds(function: Callable[[], Any]) -> float:
    """Return the median of the CPU time that calls of a function take."""
    times = []
    for _ in range(NUM_ROUNDS):
        began = time.process_time()
        function()
        times.append(time.process_time() - began)
    return statistics.median(times)


def computations() -> Table:
    """Measure the computations on batches."""
    table = Table("segments", "steps each", "advantages", "vtrace", "3-step returns", "loop over floats")
    for length in LENGTHS:
        batch = batch_of(length)
        last_values = np.random.default_rng(1).random(len(batch))
        targets = batch.agent_infos["log_prob"] * np.float32(1.1)
        found = batch.advantages(GAMMA, LAM, last_values=last_values).advantages
        assert np.allclose(found, loop(batch, last_values))  # noqa: S101  # what is measured is right
        functions: list[Callable[[], Any]] = [
            lambda: batch.advantages(GAMMA, LAM, last_values=last_values),  # noqa: B023  # called before the next round
            lambda: batch.vtrace(targets, GAMMA, last_values=last_values),  # noqa: B023
            lambda: batch.n_step_returns(3, GAMMA, last_values=last_values),  # noqa: B023
            lambda: loop(batch, last_values),  # noqa: B023
        ]
        speeds = [f"{NUM_STEPS / seconds(function) / 1e6:.0f} M/s" for function in functions]
        table.add_row(f"{len(batch):,}", f"{length:,}", *speeds)
    return table


def replay() -> Table:
    """Measure full replay buffers."""
    table = Table("observation", "capacity", "priorities", "add", f"sample {SAMPLE_SIZE}", "update", "MB")
    generator = np.random.default_rng(0)
    for (name, capacity), batch in zip(CAPACITIES.items(), (batch_of(128, 16_384), stacks()), strict=True):
        for exponent in (None, 0.6):
            buffer = rollserve.ReplayBuffer(capacity, priority_exponent=exponent)
            while len(buffer) < capacity:
                buffer.add(batch)
            added = batch.num_steps / seconds(lambda: buffer.add(batch))  # noqa: B023
            sampled = seconds(lambda: [buffer.sample(SAMPLE_SIZE, generator) for _ in range(20)]) / 20  # noqa: B023
            updated = "-"
            if exponent is not None:
                indices = buffer.sample(SAMPLE_SIZE, generator).indices
                update = seconds(lambda: [buffer.update_priorities(indices, indices + 1.0) for _ in range(20)]) / 20  # noqa: B023
                updated = f"{update * 1e3:.2f} ms"
            row = (f"{added:,.0f}/s", f"{sampled * 1e3:.2f} ms", updated, f"{buffer.nbytes / 1e6:.0f}")
            table.add_row(name, f"{capacity:,}", str(exponent or "-"), *row)
    return table


def main() -> None:
    """Measure, and print two tables."""
    parser = argparse.ArgumentParser(description="Measure the computations of learners, and the replay buffer.")
    parser.add_argument("--hold-memory", action="store_true", help="keep freed memory, by hold_on_to_memory()")
    if parser.parse_args().hold_memory:
        rollserve.hold_on_to_memory()
    console = Console()
    console.print(computations())
    console.print(replay())


if __name__ == "__main__":
    main()
