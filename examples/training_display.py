"""Progress and learning curve of the trainer in cartpole.py. Nothing here concerns Rollserve."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console


class Display:
    """Shows the progress of a training: a line that is kept up to date on a terminal, else a line per iteration."""

    def __init__(self, console: Console, target_return: float) -> None:
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
        self._task = self._progress.add_task("", total=target_return, iteration=0, num_steps=0, rate=0.0)

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def show(self, iteration: int, mean_return: float, num_steps: int) -> None:
        """Show an iteration's mean return, and the number of steps so far."""
        rate = num_steps / (time.monotonic() - self._began)
        self._progress.update(self._task, completed=mean_return, iteration=iteration, num_steps=num_steps, rate=rate)
        if not self._console.is_terminal:
            print(
                f"iteration {iteration:>3}: mean return {mean_return:5.1f}, {num_steps:,} steps, {rate:,.0f} steps/s",
                flush=True,
            )


class LearningCurve:
    """Returns of each iteration's episodes, by the number of steps so far."""

    def __init__(self, title: str, solved_return: float) -> None:
        self._title = title
        self._solved_return = solved_return
        self._num_steps: list[int] = []
        self._means: list[float] = []
        self._quartiles: list[np.ndarray] = []

    def add(self, num_steps: int, returns: np.ndarray) -> None:
        """Record an iteration."""
        self._num_steps.append(num_steps)
        self._means.append(float(returns.mean()))
        self._quartiles.append(np.quantile(returns, (0.25, 0.75)))

    def save(self, path: Path) -> None:
        """Draw the curve into a PNG file."""
        low, high = np.transpose(self._quartiles)
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.subplots()
        axes.fill_between(self._num_steps, low, high, alpha=0.25, label="middle half of the episodes")
        axes.plot(self._num_steps, self._means, marker=".", label="mean return")
        label = f"solved: {self._solved_return:g}"
        axes.axhline(self._solved_return, color="gray", linestyle="--", linewidth=1, label=label)
        axes.set(title=self._title, xlabel="steps", ylabel="return", ylim=(0, 520))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.legend(loc="lower right")
        figure.savefig(path, dpi=120)
