"""Learning curves over time as a chart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.learning.attempts import Attempt
from benchmarks.learning.catalogue import PARTICIPANTS, TASKS

__all__ = ["save_chart"]

_COLOURS = dict(zip((each.title for each in PARTICIPANTS.values()), ("#4c72b0", "#dd8452", "#55a868"), strict=True))


def save_chart(attempts: Sequence[Attempt], path: Path) -> None:
    """Draw a panel for each task into a PNG file: the mean return of the last 100 episodes over the seconds."""
    tasks = list(dict.fromkeys(each.task for each in attempts if each.curve))
    figure = Figure(figsize=(7.5 * max(len(tasks), 1), 4.5), layout="constrained")
    panels = figure.subplots(1, max(len(tasks), 1), squeeze=False)[0]
    for axes, task in zip(panels, tasks, strict=False):
        labels = set()
        for attempt in attempts:
            if attempt.task == task and attempt.curve:
                label = None if attempt.who in labels else attempt.who
                labels.add(attempt.who)
                seconds, returns = zip(*((each["seconds"], each["mean_return"]) for each in attempt.curve), strict=True)
                axes.plot(seconds, returns, color=_COLOURS[attempt.who], label=label, linewidth=1.5)
        axes.axhline(TASKS[task].target, color="gray", linestyle="--", linewidth=1)
        axes.set(title=TASKS[task].title, xlabel="seconds", ylabel="mean return of the last 100 episodes")
        axes.set_xlim(left=0)
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right")
    figure.savefig(path, dpi=120)
