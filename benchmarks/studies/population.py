"""How many parameter sets are evaluated per second, in one call for all and in calls one by one?

    python -m benchmarks.studies.population [--workers N] [--members K] [--episodes M] [--rounds R] [--chart FILE.png]

One by one, each set is sent with `update_agent`, and then evaluated with `evaluate` or, in environments with one agent,
sampled with `obtain_exact_episodes`. Where rows are stepped one by one, `evaluate` has to return the same episodes as
the one call for all. Beside them, one call of `evaluate` has as many episodes of a single set as the call for all. The
methods are measured in turns; the table shows the medians of the rounds.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

import rollserve
from benchmarks.shared.report import medians
from benchmarks.studies.server import add_workers, cartpole_server

Members = Mapping[str, np.ndarray]
"""Parameters of K members, (K, *shape) by name."""

PACKAGES = {"HalfCheetah-v5": "mujoco", "mpe/simple_spread-v3": "mpe2"}
"""Packages without which a workload is left out."""

ALL_IN_ONE, EVALUATE, OBTAIN = "all in one call", "evaluate, one by one", "obtain, one by one"
ONE_SET = "as many episodes of one set"


POLICY = "main"
"""Policy of all agents, where the environment has many."""


@dataclass(frozen=True)
class Workload:
    """An environment and a population.

    Attributes:
        name: name in the table.
        env: environment.
        hidden_sizes: sizes of the network's hidden layers.
        max_episode_length: number of steps after which episodes are truncated.
    """

    name: str
    env: rollserve.EnvSpec
    hidden_sizes: tuple[int, ...]
    max_episode_length: int


WORKLOADS = [
    Workload("CartPole 4-32-32-2", rollserve.EnvSpec("CartPole-v1"), (32, 32), 500),
    Workload("CartPole 4-32-32-2, rows", rollserve.EnvSpec("CartPole-v1", vectorization="rows"), (32, 32), 500),
    Workload("HalfCheetah 17-64-64-6", rollserve.EnvSpec("HalfCheetah-v5"), (64, 64), 50),
    Workload(
        "simple_spread 18-64-64-5", rollserve.EnvSpec("mpe/simple_spread-v3", multi_agent="parallel"), (64, 64), 25
    ),
]


class Evaluator:
    """Methods that evaluate members. Each returns the returns (K, M) and the number of steps."""

    def __init__(self, sampler: rollserve.Sampler, workload: Workload, num_episodes: int) -> None:
        self._sampler = sampler
        self._num_episodes = num_episodes
        self._options: Any = {"deterministic": True, "max_episode_length": workload.max_episode_length, "seed": 1}
        self._num_workers = sampler.status().num_workers
        self._has_many_agents = workload.env.multi_agent is not None

    def evaluate_population(self, members: Members) -> tuple[np.ndarray, int]:
        """Evaluate all members in one call."""
        result = self._sampler.evaluate_population(self._named(members), self._num_episodes, **self._options)
        return result.returns, result.num_steps

    def evaluate_one(self, members: Members) -> tuple[np.ndarray, int]:
        """Evaluate the sampler's own parameters with the episodes of all members."""
        num_members = len(next(iter(members.values())))
        result = self._sampler.evaluate(num_members * self._num_episodes, **self._options)
        return result.returns.reshape(num_members, -1), int(result.lengths.sum())

    def evaluate(self, members: Members) -> tuple[np.ndarray, int]:
        """Evaluate the members one by one."""
        returns, num_steps = [], 0
        for parameters in split_members(members):
            self._sampler.update_agent(self._named(parameters))
            result = self._sampler.evaluate(self._num_episodes, **self._options)
            returns.append(result.returns)
            num_steps += int(result.lengths.sum())
        return np.array(returns), num_steps

    def obtain(self, members: Members) -> tuple[np.ndarray, int]:
        """Sample the members' episodes, one member after the other."""
        returns, num_steps = [], 0
        num_episodes_per_worker = -(-self._num_episodes // self._num_workers)
        for parameters in split_members(members):
            self._sampler.update_agent(parameters)
            batch = self._sampler.obtain_exact_episodes(num_episodes_per_worker, **self._options)
            returns.append(batch.returns[: self._num_episodes])
            num_steps += batch.num_steps
        return np.array(returns), num_steps

    def _named(self, parameters: Members) -> Any:
        """Return parameters by policy where the environment has many agents."""
        return {POLICY: parameters} if self._has_many_agents else parameters


def random_members(agent: rollserve.MlpAgent, num_members: int) -> Members:
    """Return an agent's parameters plus standard normal noise."""
    source = np.random.default_rng(0)
    return {
        name: value + source.standard_normal((num_members, *value.shape), np.float32)
        for name, value in agent.parameters.items()
    }


def split_members(members: Members) -> list[Members]:
    """Return the parameters of each member."""
    num_members = len(next(iter(members.values())))
    return [{name: value[member] for name, value in members.items()} for member in range(num_members)]


def measure(
    sampler: rollserve.Sampler, workload: Workload, arguments: argparse.Namespace
) -> dict[str, dict[str, float]]:
    """Return the medians of the sets and steps per second, by method."""
    env = sampler.update_env(workload.env)
    spaces: Any = env.observation_space, env.action_space
    if env.agents:
        spaces = [space.spaces[env.agents[0]] for space in spaces]
    agent = rollserve.MlpAgent.initial(*spaces, hidden_sizes=workload.hidden_sizes, seed=0)
    sampler.update_agent(rollserve.Policies({POLICY: agent}, {"*": POLICY}) if env.agents else agent)
    members = random_members(agent, arguments.members)
    # Fewer, because one by one takes several times as long.
    few_members = {name: value[: max(arguments.members // 16, 2)] for name, value in members.items()}
    evaluator = Evaluator(sampler, workload, arguments.episodes)
    methods: dict[str, tuple[Callable[[Members], tuple[np.ndarray, int]], Members]] = {
        ALL_IN_ONE: (evaluator.evaluate_population, members),
        ONE_SET: (evaluator.evaluate_one, members),
        EVALUATE: (evaluator.evaluate, few_members),
    }
    if not env.agents:
        methods[OBTAIN] = evaluator.obtain, few_members
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in methods}
    for number in range(arguments.rounds + 1):
        returns = {}
        for name, (method, method_members) in methods.items():
            began = time.perf_counter()
            returns[name], num_steps = method(method_members)
            seconds = time.perf_counter() - began
            if number > 0:  # the first round is the warm-up
                rounds[name].append({"sets": len(returns[name]) / seconds, "steps": num_steps / seconds})
        if env.reproducibility is rollserve.Reproducibility.EPISODE:
            check_equal(returns)
    return {name: medians(figures) for name, figures in rounds.items()}


def check_equal(returns: Mapping[str, np.ndarray]) -> None:
    """Compare the first members' returns from one call for all with the returns from `evaluate`.

    Raises:
        RuntimeError: the returns differ.
    """
    expected = returns[EVALUATE]
    if not np.array_equal(returns[ALL_IN_ONE][: len(expected)], expected):
        raise RuntimeError(f"returns: evaluate_population and evaluate differ in the first {len(expected)} members")


def draw(figures: Mapping[str, Mapping[str, Mapping[str, float]]], path: Path) -> None:
    """Draw the sets per second, by workload and method, into a PNG file."""
    figure = Figure(figsize=(5 * len(figures), 3.5), layout="constrained")
    all_axes = figure.subplots(1, len(figures), squeeze=False)
    for axes, (workload, methods) in zip(all_axes.flat, figures.items(), strict=True):
        names = list(methods)[::-1]
        bars = axes.barh(names, [methods[name]["sets"] for name in names])
        axes.bar_label(bars, fmt="{:,.0f}", padding=3)
        axes.set(title=workload, xlabel="parameter sets per second")
        axes.margins(x=0.2)
        axes.label_outer()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description="Measure how fast parameter sets are evaluated.")
    add_workers(parser)
    parser.add_argument("--members", type=int, default=256, help="parameter sets in one call (default: %(default)s)")
    parser.add_argument("--episodes", type=int, default=4, help="episodes of each set (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, whose median is shown (default: %(default)s)")
    parser.add_argument("--chart", type=Path, metavar="FILE.png", help="file for a chart (default: none)")
    arguments = parser.parse_args()
    table = Table("workload", "method", "sets/s", "steps/s", "times as fast")
    figures: dict[str, dict[str, dict[str, float]]] = {}
    with cartpole_server(arguments.workers) as (_, sampler):
        for workload in WORKLOADS:
            package = PACKAGES.get(workload.env.id)
            if package is not None and importlib.util.find_spec(package) is None:
                continue
            figures[workload.name] = methods = measure(sampler, workload, arguments)
            for name, speeds in methods.items():
                ratio = methods[ALL_IN_ONE]["sets"] / speeds["sets"]
                table.add_row(workload.name, name, f"{speeds['sets']:,.0f}", f"{speeds['steps']:,.0f}", f"{ratio:.1f}")
    Console().print(table)
    if arguments.chart is not None:
        draw(figures, arguments.chart)


if __name__ == "__main__":
    main()
