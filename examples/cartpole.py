"""A trainer learns CartPole-v1 through Rollserve, with nothing but the public client.

    python examples/cartpole.py                            # starts a server of its own
    python examples/cartpole.py --server HOST:PORT         # uses the one that is there

Exits with 0 only if the mean return of 100 fresh episodes reaches 475, where gymnasium calls CartPole-v1 solved; with 1
if it does not, and with 3 if the server cannot be used.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

# Matrices this small are multiplied fastest by one thread; numpy reads this when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import matplotlib as mpl
import numpy as np
from numpy_ppo import Ppo
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

import rollserve

ENV = "CartPole-v1"
SOLVED_RETURN = 475.0
TRAINED_RETURN = 490.0
NUM_EVALUATION_EPISODES = 100
STEPS_PER_ITERATION = 8192
MAX_ITERATIONS = 150


@dataclass
class Curve:
    """What came of each iteration: the steps so far, and the returns of its episodes."""

    num_steps: list[int] = field(default_factory=list)
    means: list[float] = field(default_factory=list)
    quartiles: list[np.ndarray] = field(default_factory=list)

    def add(self, num_steps: int, returns: np.ndarray) -> None:
        """Takes in an iteration."""
        self.num_steps.append(num_steps)
        self.means.append(float(returns.mean()))
        self.quartiles.append(np.quantile(returns, (0.25, 0.75)))

    def save(self, path: Path) -> None:
        """Draws the learning curve into a PNG file."""
        mpl.use("Agg")
        import matplotlib.pyplot as plt  # after the choice of how to draw

        low, high = np.transpose(self.quartiles)
        figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
        axes.fill_between(self.num_steps, low, high, alpha=0.25, label="middle half of the episodes")
        axes.plot(self.num_steps, self.means, marker=".", label="mean return")
        axes.axhline(SOLVED_RETURN, color="gray", linestyle="--", linewidth=1, label=f"solved: {SOLVED_RETURN:g}")
        axes.set(title=f"PPO learns {ENV} through Rollserve", xlabel="steps", ylabel="return", ylim=(0, 520))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.legend(loc="lower right")
        figure.savefig(path, dpi=120)
        plt.close(figure)


class Display:
    """Shows how the training goes: one line that is kept up to date on a terminal, else a line for each iteration."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("iteration {task.fields[iteration]:>3}"),
            BarColumn(bar_width=16),
            TextColumn("mean return {task.completed:5.1f}"),
            TextColumn("{task.fields[num_steps]:>7,} steps"),
            TextColumn("{task.fields[rate]:>7,.0f} steps/s"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=TRAINED_RETURN, iteration=0, num_steps=0, rate=0.0)

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def show(self, iteration: int, mean_return: float, num_steps: int) -> None:
        """Shows an iteration."""
        rate = num_steps / (time.monotonic() - self._began)
        self._progress.update(self._task, completed=mean_return, iteration=iteration, num_steps=num_steps, rate=rate)
        if not self._console.is_terminal:
            print(
                f"iteration {iteration:>3}: mean return {mean_return:5.1f}, {num_steps:,} steps, {rate:,.0f} steps/s",
                flush=True,
            )


def train(sampler: rollserve.Sampler, display: Display, curve: Curve, seed: int) -> tuple[float, int]:
    """Trains until an evaluation reaches the goal, or for as long as it may; returns its mean return and all steps."""
    status = sampler.status()
    learner = Ppo(status.observation_space.flat_size, status.action_space.flat_size, seed=seed, learning_rate=1e-3)
    sampler.update_agent(learner.agent())
    num_steps, mean_return = 0, 0.0
    for iteration in range(1, MAX_ITERATIONS + 1):
        batch = sampler.obtain_samples(STEPS_PER_ITERATION)
        num_steps += batch.num_steps
        curve.add(num_steps, batch.returns)
        display.show(iteration, batch.returns.mean(), num_steps)
        if batch.returns.mean() >= TRAINED_RETURN:
            returns, evaluation_steps = evaluate(sampler)
            num_steps += evaluation_steps
            mean_return = float(returns.mean())
            if mean_return >= SOLVED_RETURN:
                break
        learner.learn(batch, rate=1.0 - iteration / (MAX_ITERATIONS + 1))
        sampler.update_agent(learner.policy.parameters)
    else:
        returns, evaluation_steps = evaluate(sampler)
        num_steps += evaluation_steps
        mean_return = float(returns.mean())
    return mean_return, num_steps


def evaluate(sampler: rollserve.Sampler) -> tuple[np.ndarray, int]:
    """The returns of fresh episodes of the agent that is there, and how many steps they took."""
    num_workers = sampler.status().num_workers
    batch = sampler.obtain_exact_episodes(-(-NUM_EVALUATION_EPISODES // num_workers))
    return batch.returns[:NUM_EVALUATION_EPISODES], batch.num_steps


@contextlib.contextmanager
def server_address(console: Console, given: str | None, log: Path) -> Iterator[str]:
    """The address of the server that was named, or of one that runs for as long as the block."""
    if given is not None:
        yield given
        return
    from rollserve_server.local import local_server  # a trainer elsewhere has no server

    with contextlib.ExitStack() as stack:
        with console.status("starting the server"):
            server = stack.enter_context(local_server("--env", ENV, "--rows", "32", log=log))
        console.print(f"server at {server.address}, its log in {log}")
        yield server.address
        console.print("stopping the server")


def main() -> int:
    """Runs the demonstration; returns its exit status."""
    parser = argparse.ArgumentParser(description=f"Learn {ENV} through Rollserve.")
    parser.add_argument("--server", metavar="HOST:PORT", help="a server that is there; else one is started")
    parser.add_argument("--curve", type=Path, default=Path("demo.png"), help="where to draw the learning curve")
    parser.add_argument("--log", type=Path, default=Path("demo-server.log"), help="where a started server logs")
    parser.add_argument("--seed", type=int, default=0, help="of the trainer's network (default: %(default)s)")
    options = parser.parse_args()

    console = Console(highlight=False)
    curve = Curve()
    with server_address(console, options.server, options.log) as address, rollserve.connect(address) as sampler:
        sampler.update_env(ENV)
        began = time.monotonic()
        with Display(console) as display:
            mean_return, num_steps = train(sampler, display, curve, options.seed)
        seconds = time.monotonic() - began
    curve.save(options.curve)
    console.print(f"learning curve in {options.curve.resolve()}")
    print(
        f"demo: {ENV} mean return {mean_return:.1f} over {NUM_EVALUATION_EPISODES} episodes, "
        f"{num_steps} steps in {seconds:.1f} s, {num_steps / seconds:.0f} steps/s"
    )
    return 0 if mean_return >= SOLVED_RETURN else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except rollserve.RollserveError as error:
        print(f"demo: {' '.join(error.message.split())}", file=sys.stderr)
        sys.exit(3)
