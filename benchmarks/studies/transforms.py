"""What do transforms cost: how fast are rows with them, compared with the same rows without?

    python -m benchmarks.studies.transforms [--workers N] [--rounds N] [--scale X]

Each pair samples fragments in turns, without transforms and with them, from the same server. Speeds are steps per
second of CPU time of the workers, the gateway and this client together, so that other load on the machine matters
less. Which of both goes first alternates. The table has the medians of the rounds, the median of their ratios, and the
lowest and the highest ratio of a round.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import time
from collections.abc import Mapping, Sequence

import psutil
from rich.console import Console
from rich.table import Table

import rollserve
from benchmarks.studies.server import add_workers, cartpole_server, cpu_seconds
from rollserve.transforms import (
    CastObservations,
    ClipActions,
    ClipRewards,
    RescaleActions,
    ScaleObservations,
    ScaleRewards,
    SignRewards,
    Transform,
)
from rollserve_server.local import LocalServer

CARTPOLE = rollserve.EnvSpec("CartPole-v1", vectorization="native", num_rows=64)
CHEETAH = rollserve.EnvSpec("HalfCheetah-v5", vectorization="rows", num_rows=16)
CHEETAH_POOL = rollserve.EnvSpec("HalfCheetah-v5", vectorization="envpool", num_rows=64)
PONG_POOL = rollserve.EnvSpec("Pong-v5", vectorization="envpool", num_rows=16)
TRAINERS = (ScaleRewards(0.1), ClipRewards(-1, 1), RescaleActions(), ClipActions(), CastObservations("float32"))
"""What trainers of continuous actions usually have."""

PAIRS: Mapping[str, tuple[rollserve.EnvSpec, Sequence[Transform], int]] = {
    "CartPole, native: rewards": (CARTPOLE, (ScaleRewards(0.1),), 400_000),
    "CartPole, native: rewards and observations": (
        CARTPOLE,
        (ScaleRewards(0.1), ClipRewards(-1, 1), ScaleObservations(0.5)),
        400_000,
    ),
    "HalfCheetah, rows: all five of a trainer": (CHEETAH, TRAINERS, 32_000),
    "HalfCheetah, EnvPool: all five of a trainer": (CHEETAH_POOL, TRAINERS, 64_000),
    "Pong, EnvPool: rewards": (PONG_POOL, (SignRewards(),), 4_000),
}
"""Environment, transforms and number of steps of a call, by name."""


def steps_per_second(
    server: LocalServer, sampler: rollserve.Sampler, env: rollserve.EnvSpec, num_steps: int
) -> tuple[float, float]:
    """Return the steps per second of CPU time, and of wall time, of a call for fragments after a short one."""
    updated = sampler.update_env(env)
    sampler.update_agent(rollserve.MlpAgent.initial(updated.observation_space, updated.action_space, seed=0))
    workers = sampler.status().workers
    num_rows = updated.num_rows * len(workers)
    num_steps = -(-num_steps // num_rows) * num_rows
    sampler.obtain_fragments(-(-num_steps // (10 * num_rows)) * num_rows)
    processes = [
        psutil.Process(pid) for pid in {os.getpid(), server.process.pid, *(each.process_id for each in workers)}
    ]
    began, used = time.perf_counter(), cpu_seconds(processes)
    batch = sampler.obtain_fragments(num_steps)
    seconds, used = time.perf_counter() - began, cpu_seconds(processes) - used
    assert batch.num_steps == num_steps  # noqa: S101  # checks what is measured
    assert (batch.raw_rewards is not None) == bool(env.transforms)  # noqa: S101
    return num_steps / used, num_steps / seconds


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description="Compare the speed of rows with transforms and without.")
    add_workers(parser)
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds (default: %(default)s)")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="factor of the numbers of steps (default: %(default)s)"
    )
    arguments = parser.parse_args()
    table = Table("rows", "steps/CPU s without", "with", "ratio", "of rounds", "steps/s without", "with")
    with cartpole_server(arguments.workers) as (server, sampler):
        for name, (env, transforms, num_steps) in PAIRS.items():
            plain: list[tuple[float, float]] = []
            transformed: list[tuple[float, float]] = []
            for number in range(arguments.rounds):
                turns: list[tuple[list[tuple[float, float]], Sequence[Transform]]]
                turns = [(plain, ()), (transformed, transforms)]
                for speeds, used in turns if number % 2 else reversed(turns):
                    spec = dataclasses.replace(env, transforms=used)
                    speeds.append(steps_per_second(server, sampler, spec, round(num_steps * arguments.scale)))
            (cpu, wall), (cpu_with, wall_with) = (zip(*speeds, strict=True) for speeds in (plain, transformed))
            ratios = [after / before for before, after in zip(cpu, cpu_with, strict=True)]
            medians = [statistics.median(speeds) for speeds in (cpu, cpu_with, wall, wall_with)]
            texts = [f"{each:,.0f}" for each in medians]
            ratio, spread = f"{statistics.median(ratios):.3f}", f"{min(ratios):.2f} to {max(ratios):.2f}"
            table.add_row(name, *texts[:2], ratio, spread, *texts[2:])
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
