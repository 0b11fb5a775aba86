"""How many parameter sets a second are evaluated, in one call for many and one after the other.

    python benchmarks/population.py [--workers N] [--members K] [--episodes M] [--rounds R] [--chart FILE.png]

One after the other, each set is sent with `update_agent`, and then evaluated with `evaluate`, or sampled with
`obtain_exact_episodes`; the environment's rows are stepped in the way that is usual for it. The ways take turns, and
what is shown is the median of the rounds. Where rows are stepped one by one, `evaluate` has to find the same returns.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import rollserve
from rollserve_server.local import local_server

Members = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Workload:
    """What is evaluated.

    Attributes:
        name: of it.
        env: where.
        sizes: of the hidden layers.
        most_steps: of an episode.
        spread: how far members are from each other; far ones end soon.
    """

    name: str
    env: rollserve.EnvSpec
    sizes: tuple[int, ...]
    most_steps: int
    spread: float


WORKLOADS = [
    Workload("CartPole 4-32-32-2", rollserve.EnvSpec("CartPole-v1"), (32, 32), 500, 1.0),
    Workload("CartPole 4-32-32-2, rows", rollserve.EnvSpec("CartPole-v1", vectorization="rows"), (32, 32), 500, 1.0),
    Workload("HalfCheetah 17-64-64-6", rollserve.EnvSpec("HalfCheetah-v5"), (64, 64), 50, 1.0),
]


def members_of(agent: rollserve.MlpAgent, num_members: int, spread: float) -> Members:
    """Parameter sets around those of an agent."""
    source = np.random.default_rng(0)
    return {
        name: value + np.float32(spread) * source.standard_normal((num_members, *value.shape), np.float32)
        for name, value in agent.parameters.items()
    }


class Ways:
    """The ways to evaluate members, each from members to their returns (K, M) and steps."""

    def __init__(self, sampler: rollserve.Sampler, workload: Workload, num_episodes: int) -> None:
        self._sampler = sampler
        self._num_episodes = num_episodes
        self._options = {"deterministic": True, "max_episode_length": workload.most_steps, "seed": 1}
        self._num_workers = sampler.status().num_workers

    def population(self, members: Members) -> tuple[np.ndarray, int]:
        """All in one call."""
        result = self._sampler.evaluate_population(members, self._num_episodes, **self._options)
        return result.returns, result.num_steps

    def evaluate(self, members: Members) -> tuple[np.ndarray, int]:
        """One after the other."""
        returns, num_steps = [], 0
        for member in range(len(next(iter(members.values())))):
            self._sampler.update_agent({name: value[member] for name, value in members.items()})
            result = self._sampler.evaluate(self._num_episodes, **self._options)
            returns.append(result.returns)
            num_steps += int(result.lengths.sum())
        return np.array(returns), num_steps

    def obtain(self, members: Members) -> tuple[np.ndarray, int]:
        """One after the other, with the episodes."""
        returns, num_steps = [], 0
        per_worker = -(-self._num_episodes // self._num_workers)
        for member in range(len(next(iter(members.values())))):
            self._sampler.update_agent({name: value[member] for name, value in members.items()})
            batch = self._sampler.obtain_exact_episodes(per_worker, **self._options)
            returns.append(batch.returns[: self._num_episodes])
            num_steps += batch.num_steps
        return np.array(returns), num_steps


def measure(
    sampler: rollserve.Sampler, workload: Workload, options: argparse.Namespace
) -> dict[str, tuple[float, float]]:
    """For each way, the median of its sets and of its steps a second."""
    env = sampler.update_env(workload.env)
    head = "categorical" if isinstance(env.action_space, rollserve.spaces.Discrete) else "diagonal_gaussian"
    spaces = env.observation_space, env.action_space
    agent = rollserve.MlpAgent.initial(*spaces, hidden_sizes=workload.sizes, head=head, seed=0)
    sampler.update_agent(agent)
    members = members_of(agent, options.members, workload.spread)
    few = {name: value[: max(options.members // 16, 2)] for name, value in members.items()}
    ways = Ways(sampler, workload, options.episodes)
    named: dict[str, tuple[Callable[[Members], tuple[np.ndarray, int]], Members]] = {
        "all in one call": (ways.population, members),
        "evaluate, one by one": (ways.evaluate, few),
        "obtain, one by one": (ways.obtain, few),
    }
    speeds: dict[str, list[tuple[float, float]]] = {name: [] for name in named}
    for round_ in range(options.rounds + 1):
        found: dict[str, np.ndarray] = {}
        for name, (way, its_members) in named.items():
            began = time.perf_counter()
            returns, num_steps = way(its_members)
            seconds = time.perf_counter() - began
            found[name] = returns
            if round_:  # the first one is to warm up
                speeds[name].append((len(returns) / seconds, num_steps / seconds))
        if env.reproducibility is rollserve.Reproducibility.EPISODE:
            first = found["all in one call"][: len(found["evaluate, one by one"])]
            assert np.array_equal(first, found["evaluate, one by one"]), "the ways differ"  # noqa: S101
    return {
        name: (statistics.median(sets for sets, _ in each), statistics.median(steps for _, steps in each))
        for name, each in speeds.items()
    }


def draw(figures: Mapping[str, Mapping[str, tuple[float, float]]], path: Path) -> None:
    """Draws sets a second into a PNG file."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(figures), figsize=(5 * len(figures), 3.5), layout="constrained", squeeze=False)
    for axis, (workload, ways) in zip(axes[0], figures.items(), strict=True):
        bars = axis.barh(list(ways)[::-1], [sets for sets, _ in list(ways.values())[::-1]])
        axis.bar_label(bars, fmt="{:,.0f}", padding=3)
        axis.set(title=workload, xlabel="parameter sets per second")
        axis.margins(x=0.2)
        axis.label_outer()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description="Measure how fast parameter sets are evaluated.")
    parser.add_argument("--workers", default="2", help="how many workers (default: %(default)s)")
    parser.add_argument("--members", type=int, default=256, help="parameter sets of a call (default: %(default)s)")
    parser.add_argument("--episodes", type=int, default=4, help="of each of them (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured (default: %(default)s)")
    parser.add_argument("--chart", type=Path, metavar="FILE.png", help="where to draw a chart")
    options = parser.parse_args()
    table = Table("workload", "way", "sets/s", "steps/s", "times as fast")
    figures: dict[str, dict[str, tuple[float, float]]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        local_server("--env", "CartPole-v1", "--workers", options.workers, log=Path(folder) / "log") as server,
        rollserve.connect(server.address) as sampler,
    ):
        for workload in WORKLOADS:
            if "Cheetah" in workload.name and importlib.util.find_spec("mujoco") is None:
                continue
            figures[workload.name] = speeds = measure(sampler, workload, options)
            first, _ = speeds["all in one call"]
            for name, (sets, steps) in speeds.items():
                table.add_row(workload.name, name, f"{sets:,.0f}", f"{steps:,.0f}", f"{first / sets:.1f}")
    Console().print(table)
    if options.chart is not None:
        draw(figures, options.chart)


if __name__ == "__main__":
    main()
