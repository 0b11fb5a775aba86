"""A live view of a sampler for terminals: workers, calls, rates, and returns of the last episodes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rollserve.episode_records import CallKind, EpisodeRecords
from rollserve.status import duration_text
from rollserve_wire.errors import PreconditionError
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from rollserve.episode_records import RecordPosition
    from rollserve.sampler import Sampler
    from rollserve.status import SamplerStatus, WorkerStatus

__all__ = ["show_top"]

_LOOK_SECONDS = 1.0
_NUM_RECENT = 100
"""Episodes whose returns and lengths are shown."""
_NUM_LOOKS = 10
"""Looks over which the rate of episodes is taken."""
_BARS = "▁▂▃▄▅▆▇█"
_NUM_BARS = 30
_OTHER_LINES = 12
"""Lines of the screen besides the workers."""


@dataclass(frozen=True)
class _Look:
    """The state of a sampler at a moment of `time.monotonic`."""

    seconds: float
    status: SamplerStatus


class _Recent:
    """Records of the last episodes of sampling calls.

    Attributes:
        returns, lengths: (N,), of the last episodes.
        per_second: number of episodes that have ended in each second lately, evaluations included.
    """

    def __init__(self) -> None:
        self.returns = self.lengths = np.empty(0)
        self.per_second = 0.0
        self._end: RecordPosition | None = None
        # Of the last times, by `time.monotonic`: the number of episodes that had ended.
        self._counts: deque[tuple[float, int]] = deque(maxlen=_NUM_LOOKS)

    def read(self, sampler: Sampler) -> None:
        """Read the records since the last time."""
        records = self._next(sampler)
        if self._end is None or self._end.log_id != records.end.log_id:
            self._counts.clear()
        self._end = records.end
        sampled = records.call_kinds != CallKind.EVALUATION
        self.returns = np.append(self.returns, records.returns[sampled])[-_NUM_RECENT:]
        self.lengths = np.append(self.lengths, records.lengths[sampled])[-_NUM_RECENT:]
        # Of positions, because the server may have kept only some of the records.
        self._counts.append((time.monotonic(), self._end.position))
        (began, first), (ended, last) = self._counts[0], self._counts[-1]
        self.per_second = (last - first) / (ended - began) if ended > began else 0.0

    def _next(self, sampler: Sampler) -> EpisodeRecords:
        try:
            return sampler.metrics(self._end)
        except PreconditionError as error:
            if error.reason != Reason.SAMPLER_RUN:
                raise
            return sampler.metrics()  # of a server or a run that has begun since


def show_top(sampler: Sampler, target: str, console: Console, *, once: bool) -> None:
    """Show the state of a sampler until the program is interrupted.

    Args:
        sampler: the sampler.
        target: name of its server, for the title.
        console: where to show it.
        once: whether to print one screen, after two looks a second apart, instead of a live view.
    """
    from rich.live import Live

    screens = _screens(sampler, target, console)
    if once:
        console.print(next(screens))
        return
    with Live(next(screens), console=console, screen=True, auto_refresh=False) as live:
        for screen in screens:
            live.update(screen, refresh=True)


def _screens(sampler: Sampler, target: str, console: Console) -> Iterator[RenderableType]:
    """Yield a screen each second, the first one after a second."""
    recent = _Recent()
    recent.read(sampler)
    before = _Look(time.monotonic(), sampler.status())
    while True:
        time.sleep(_LOOK_SECONDS)
        now = _Look(time.monotonic(), sampler.status())
        recent.read(sampler)
        yield _screen(target, before, now, recent, max(console.height - _OTHER_LINES, 1))
        before = now


def _screen(target: str, before: _Look, now: _Look, recent: _Recent, max_workers: int) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    status, counters = now.status, now.status.counters
    head = Table.grid(padding=(0, 2))
    head.add_column(style="bold")
    head.add_column()
    envs = ", ".join(dict.fromkeys(env.id for env in status.envs))
    head.add_row("sampler", f"{status.sampler} on {target}, up {duration_text(counters.uptime_seconds)}")
    head.add_row("environment", f"{envs}, version {status.env_version}")
    age = f", set {duration_text(status.policy_age_seconds)} ago" if status.policy_version else ""
    head.add_row("policy", f"version {status.policy_version}{age}")
    head.add_row("calls", f"{status.num_running_calls} running, {status.num_queued_calls} queued")
    head.add_row("rates", f"{_steps_per_second(before, now):,.0f} steps/s, {recent.per_second:,.1f} episodes/s")
    head.add_row("restarts", f"{counters.num_worker_restarts} of workers")
    for name, values in (("return", recent.returns), ("length", recent.lengths)):
        head.add_row(name, _distribution(values))
    if bars := _bars(recent.returns):
        head.add_row("trend", f"{bars}  of the returns, the oldest first")
    workers = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("worker", "health"):
        workers.add_column(name)
    for name in ("rows", "steps/s", "steps", "restarts"):
        workers.add_column(name, justify="right")
    workers.add_column("last failure", overflow="ellipsis", no_wrap=True, ratio=1)
    # Whoever lacks something comes first, because there may be more workers than lines.
    shown = sorted(status.workers, key=lambda worker: worker.healthy)[:max_workers]
    steps = {worker.worker_index: worker.num_simulated_steps for worker in before.status.workers}
    for worker in shown:
        num_steps = worker.num_simulated_steps
        rate = max(num_steps - steps.get(worker.worker_index, num_steps), 0) / (now.seconds - before.seconds)
        health, style = _health(worker)
        workers.add_row(
            str(worker.worker_index),
            Text(health, style),
            str(worker.num_rows),
            f"{rate:,.0f}",
            f"{num_steps:,}",
            str(worker.num_restarts),
            Text(worker.last_failure),
        )
    num_more = len(status.workers) - len(shown)
    return Group(head, "", workers, *([f"and {num_more} more workers"] if num_more else ()))


def _steps_per_second(before: _Look, now: _Look) -> float:
    num_steps = now.status.counters.num_simulated_steps - before.status.counters.num_simulated_steps
    return max(num_steps, 0) / (now.seconds - before.seconds)  # a sampler that was reset counts from 0


def _health(worker: WorkerStatus) -> tuple[str, str]:
    """Return the health of a worker, and its color."""
    if worker.leaving:
        return "leaving", "yellow"
    if worker.healthy:
        return "healthy", "green"
    return ("given up", "red") if worker.has_failed else ("lost", "red")


def _distribution(values: np.ndarray) -> str:
    if not len(values):
        return "no episode has ended"
    text = f"mean {values.mean():.6g}, min {values.min():.6g}, max {values.max():.6g}"
    return f"{text} of the last {len(values)} episodes"


def _bars(values: np.ndarray) -> str:
    """Return bars for the means of consecutive values, from the smallest mean to the largest."""
    means = np.array([part.mean() for part in np.array_split(values, min(_NUM_BARS, max(len(values), 1))) if len(part)])
    if len(means) < 2 or not np.isfinite(means).all():
        return ""
    heights = (means - means.min()) / max(means.max() - means.min(), 1e-12)
    return "".join(_BARS[round(height * (len(_BARS) - 1))] for height in heights)
