"""What the trainers of this folder share: their options, a server, progress, checkpoints and the learning curve."""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Callable, Generator
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import rollserve


def parser_of(description: str, env: str, num_steps: int) -> argparse.ArgumentParser:
    """Return a parser with the options of all trainers, and their defaults."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--env", default=env, help="id of the environment (default: %(default)s)")
    parser.add_argument("--server", metavar="HOST:PORT", help="address of a running server (default: start one)")
    parser.add_argument("--steps", type=int, default=num_steps, help="number of steps in all (default: %(default)s)")
    parser.add_argument("--target", type=float, default=float("inf"), help="mean return at which to stop")
    parser.add_argument("--out", type=Path, default=Path("run"), help="folder for results (default: %(default)s)")
    parser.add_argument("--resume", action="store_true", help="go on with the checkpoint in that folder")
    parser.add_argument("--seed", type=int, default=0, help="seed of the learner (default: %(default)s)")
    return parser


@contextlib.contextmanager
def sampler_of(address: str | None, folder: Path) -> Generator[rollserve.Sampler]:
    """Yield a sampler of a running server, or of one that lives as long as the block and logs into a folder."""
    with contextlib.ExitStack() as stack:
        if address is None:
            from rollserve_server.local import local_server  # here, because a trainer needs the client alone

            folder.mkdir(parents=True, exist_ok=True)
            server = local_server("--env", "CartPole-v1", log=folder / "server.log")
            address = stack.enter_context(server).address
        yield stack.enter_context(rollserve.connect(address))


class Returns:
    """The returns of the last 100 episodes that have ended, whose steps can come in the fragments of several calls."""

    def __init__(self, sampler: rollserve.Sampler) -> None:
        self._sampler, self._since = sampler, sampler.metrics().end
        self._returns: list[float] = []

    def update(self) -> float:
        """Ask the server for the episodes that have ended since; return the mean, NaN without any."""
        records = self._sampler.metrics(since=self._since)
        self._since, self._returns = records.end, [*self._returns, *records.returns.tolist()][-100:]
        return float(np.mean(self._returns)) if self._returns else float("nan")

    def reached(self, target: float) -> bool:
        """Whether the mean of 100 episodes has reached a target."""
        return len(self._returns) == 100 and float(np.mean(self._returns)) >= target


class TrainingRun:
    """The folder of a run: the newest checkpoint, the learning curve as JSON and as a picture.

    Attributes:
        checkpoint: path of the newest checkpoint.
        num_steps: number of steps that are done.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        title: str,
        save_checkpoint: Callable[[Path], None],
        label: str = "mean return of the last 100 episodes",
    ) -> None:
        self.checkpoint = options.out / "checkpoint"
        self._folder, self._title, self._label, self._save_checkpoint = options.out, title, label, save_checkpoint
        self._folder.mkdir(parents=True, exist_ok=True)
        curve = self._folder / "curve.json"
        self._curve: list[list[float]] = json.loads(curve.read_text()) if options.resume else []
        self.num_steps = self._first_step = int(self._curve[-1][0]) if self._curve else 0
        self._began = self._saved = time.monotonic()

    def report(self, num_steps: int, mean_return: float, **figures: float) -> None:
        """Print a line about an iteration, and save the run every half a minute."""
        self.num_steps = num_steps
        self._curve.append([num_steps, mean_return])
        rate = (num_steps - self._first_step) / (time.monotonic() - self._began)
        shown = "".join(f", {name.replace('_', ' ')} {value:.4g}" for name, value in figures.items())
        print(f"{num_steps:>9,} steps, mean return {mean_return:.1f}{shown}, {rate:,.0f} steps/s", flush=True)
        if time.monotonic() > self._saved + 30:
            self.save()

    def save(self) -> None:
        """Write checkpoint, curve and picture."""
        new = self._folder / "checkpoint.new"
        self._save_checkpoint(new)
        new.replace(self.checkpoint)  # at once, so that a run that is ended has the one or the other
        (self._folder / "curve.json").write_text(json.dumps(self._curve))
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.subplots()
        axes.plot(*np.transpose(self._curve), label=self._label)
        axes.set(title=self._title, xlabel="steps", ylabel="return")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.legend(loc="lower right")
        axes.grid(alpha=0.3)
        figure.savefig(self._folder / "curve.png", dpi=120)
        self._saved = time.monotonic()
