"""How much time does a stream save a trainer, where sampling and learning do not need the same cores?

    python -m benchmarks.studies.streaming

Two workers sample rounds of 1,024 steps of CartPole, whose steps also wait, as for a simulator on another machine. The
trainer sleeps for as long as learning would take on cores of its own, and sends its parameters after each round: with
calls of `obtain_fragments`, and with a stream of lag 1. Best is what the slower of sampling and learning takes alone.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Iterator

import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from rich.console import Console
from rich.table import Table

import rollserve
from rollserve_server.local import local_server

NUM_WORKERS, NUM_ROWS, FRAGMENT_LENGTH = 2, 4, 128
NUM_STEPS = NUM_WORKERS * NUM_ROWS * FRAGMENT_LENGTH
NUM_ITERATIONS = 20
WAIT_SECONDS = 0.0004
LEARNING_SECONDS = (0.05, 0.2, 0.3, 0.6)


class Waiting(CartPoleEnv):
    """A CartPole whose steps wait."""

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, object]]:
        """Wait, and make a step."""
        time.sleep(WAIT_SECONDS)
        return super().step(action)


@dataclasses.dataclass
class Times:
    """Seconds of a trainer's iterations, after the first, and of their parts."""

    iterations: list[float] = dataclasses.field(default_factory=list)
    waits: list[float] = dataclasses.field(default_factory=list)
    updates: list[float] = dataclasses.field(default_factory=list)


def agent() -> rollserve.MlpAgent:
    """Return a policy with 4,600 parameters."""
    generator, sizes = np.random.default_rng(0), (4, 64, 64, 2)
    layers = [generator.normal(0, 0.1, shape).astype(np.float32) for shape in zip(sizes[1:], sizes, strict=False)]
    weights = {f"{index}/weight": layer for index, layer in enumerate(layers)}
    biases = {f"{index}/bias": np.zeros(size, np.float32) for index, size in enumerate(sizes[1:])}
    return rollserve.MlpAgent(weights | biases, head="categorical")


def calls(sampler: rollserve.Sampler) -> Iterator[rollserve.EpisodeBatch]:
    """Yield the batches of one call after the other."""
    while True:
        yield sampler.obtain_fragments(NUM_STEPS)


def train(sampler: rollserve.Sampler, batches: Iterator[rollserve.EpisodeBatch], learning_seconds: float) -> Times:
    """Receive rounds, sleep, and send parameters."""
    times, parameters = Times(), agent().parameters
    began = time.perf_counter()
    for number, _ in enumerate(batches):
        received = time.perf_counter()
        time.sleep(learning_seconds)
        learned = time.perf_counter()
        sampler.update_agent(parameters)
        ended = time.perf_counter()
        if number:
            times.iterations.append(ended - began)
            times.waits.append(received - began)
            times.updates.append(ended - learned)
        if number == NUM_ITERATIONS:
            return times
        began = ended
    raise AssertionError("the batches have ended")


def main() -> None:
    """Print the median times of an iteration for some times of learning."""
    table = Table("learning, ms", "trainer", "iteration, ms", "best, ms", "waits, ms", "update, ms")
    options = ("--workers", str(NUM_WORKERS), "--rows", str(NUM_ROWS), "--env", f"{__spec__.name}:Waiting")
    with local_server(*options) as server, rollserve.connect(server.address) as sampler:
        sampler.update_agent(agent())
        for learning in LEARNING_SECONDS:
            one_by_one = train(sampler, calls(sampler), learning)
            with sampler.stream(fragment_length=FRAGMENT_LENGTH, max_policy_lag=1) as stream:
                streamed = train(sampler, stream, learning)
            for name, times in (("calls", one_by_one), ("stream", streamed)):
                medians = map(statistics.median, (times.iterations, times.waits, times.updates))
                iteration, waits, update = (f"{1000 * each:.0f}" for each in medians)
                best = f"{1000 * max(learning, statistics.median(one_by_one.waits)):.0f}"
                table.add_row(f"{1000 * learning:.0f}", name, iteration, best, waits, update)
    Console().print(table)


if __name__ == "__main__":
    main()
