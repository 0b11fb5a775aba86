"""w9-recording…: recordings on the server, in turns with calls that sample the same and discard it.

A recording starts a process that takes about a second to import its libraries. Episodes per second count from then on:
from the recording's first progress, which says that the dataset is open, to its end.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

import rollserve
from benchmarks.service.agents import mlp_agent
from benchmarks.service.processes.server import Service, running_service
from benchmarks.service.results import Options, Result, check

__all__ = ["RECORDINGS", "measure_recording"]


class _Recorded(NamedTuple):
    env: rollserve.EnvSpec
    agent: rollserve.Agent
    num_steps: int


_BALANCING = {"0/weight": np.float32([[0, 0, 0, 0], [0.1, 0.5, 6, 2]]), "0/bias": np.zeros(2, np.float32)}
"""CartPole's MLP of one layer whose episodes have about 250 steps."""

RECORDINGS = {
    "w9-recording": _Recorded(
        rollserve.EnvSpec("HalfCheetah-v5", num_rows=8, vectorization="rows"),
        mlp_agent((17, 64, 64, 6), "diagonal_gaussian"),
        100_000,
    ),
    "w9-recording-cartpole": _Recorded(
        rollserve.EnvSpec("CartPole-v1", num_rows=32, vectorization="rows"),
        rollserve.MlpAgent(_BALANCING, head="categorical"),
        500_000,
    ),
}
"""Environments, with episodes of 1,000 and of about 250 steps."""


def measure_recording(name: str, options: Options) -> list[Result]:
    """Measure recordings in turns with calls that discard what they sample.

    Raises:
        CheckError: a dataset has other rewards than a call with the same seed delivers.
    """
    recorded = RECORDINGS[name]
    num_steps = options.scaled(recorded.num_steps)
    settings = {"env": recorded.env.id, "num_steps": num_steps, "num_workers": options.num_workers}
    result = Result(name, f"{recorded.env.id}, recorded as a Minari dataset", settings)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        data = "--data-dir", str(folder)
        service = stack.enter_context(running_service(recorded.env, recorded.agent, options.num_workers, *data))
        service.sampler.obtain_samples(num_steps // 10)
        for number in range(options.num_rounds):
            discarded = _discarded(service, num_steps, seed=number)
            rate, num_episodes = _recorded(service, f"round-v{number}", num_steps, seed=number)
            result.rounds.append(
                {
                    "steps_per_second": rate,
                    "discarded_steps_per_second": discarded,
                    "ratio_to_discarded": rate / discarded,
                    "num_episodes": float(num_episodes),
                }
            )
        with rollserve.data.read(folder / "round-v0") as reader:
            total = sum(float(batch.rewards.sum()) for batch in reader)
        expected = float(service.sampler.obtain_samples(num_steps, seed=0).rewards.sum())
        check(np.isclose(total, expected), f"rewards: expected {expected}, got {total}")
    result.checks.append("the dataset has the rewards of a call with the same seed")
    return [result]


def _discarded(service: Service, num_steps: int, seed: int) -> float:
    """Return the steps per second of a call that discards what it samples."""
    began = time.perf_counter()
    with service.sampler.stream_samples(num_steps, seed=seed, blackhole=True) as stream:
        list(stream)
        return stream.end().num_simulated_steps / (time.perf_counter() - began)


def _recorded(service: Service, dataset: str, num_steps: int, seed: int) -> tuple[float, int]:
    """Return the steps per second of a recording, and its number of episodes."""
    times: list[float] = []
    recording = service.sampler.record(
        dataset, num_steps=num_steps, seed=seed, progress=lambda _: times.append(time.perf_counter())
    )
    return recording.num_steps / (time.perf_counter() - times[0]), recording.num_episodes
