"""Shared parts of the trainers in this folder: options, a server, progress, checkpoints and the learning curve."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

import rollserve

PICTURES_PER_SECOND, PICTURE_SIZE, NUM_COLORS = 8, 200, 24
"""Limits of a GIF: pictures per second, pixels of a side, and colors."""


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
    parser.add_argument("--video", type=Path, metavar="FILE.gif", help="file for an episode of the trained agent")
    return parser


@contextlib.contextmanager
def sampler_of(address: str | None, folder: Path, env: str = "") -> Generator[rollserve.Sampler]:
    """Yield a sampler of a running server, or of one that lives as long as the block and logs into a folder.

    Such a server allows the module in the id of an environment, `module:Class`.
    """
    with contextlib.ExitStack() as stack:
        if address is None:
            from rollserve_server.local import local_server  # here, because a trainer needs the client alone

            folder.mkdir(parents=True, exist_ok=True)
            module = env.rpartition(":")[0]
            allowed = ["--allow-module", module] if module else []
            server = local_server("--env", "CartPole-v1", *allowed, log=folder / "server.log")
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
        if self.num_steps >= options.steps:
            raise SystemExit(f"--steps: expected more than the {self.num_steps:,} that are done, got {options.steps:,}")
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


def finish(
    sampler: rollserve.Sampler,
    video: Path | None,
    *,
    num_episodes: int = 20,
    num_video_steps: int = 200,
    deterministic: bool = True,
) -> None:
    """Evaluate the trained agent, and write the beginning of an episode as a GIF unless the file is None."""
    print(f"evaluation: {sampler.evaluate(num_episodes, deterministic=deterministic)}", flush=True)
    if video is not None:
        save_video(sampler, video, num_video_steps, deterministic=deterministic)


def save_video(sampler: rollserve.Sampler, path: Path, num_steps: int = 200, *, deterministic: bool = True) -> None:
    """Write the first steps of an episode of the current agent, as the server renders it, as a GIF."""
    video = sampler.render(index=0, max_episode_length=num_steps, deterministic=deterministic, format="raw")
    save_gif(path, video.frames, video.fps)


def save_gif(path: Path, frames: Sequence[np.ndarray] | np.ndarray, fps: float) -> None:
    """Write some of the pictures of an episode, smaller and with fewer colors, as a GIF that plays at its speed.

    Args:
        path: the file.
        frames: (height, width, 3) uint8 each.
        fps: pictures of the episode per second.
    """
    every = math.ceil(fps / PICTURES_PER_SECOND)
    pictures = [Image.fromarray(frame) for frame in frames[::every]]
    for picture in pictures:
        picture.thumbnail((PICTURE_SIZE, PICTURE_SIZE))
    palette = pictures[-1].quantize(NUM_COLORS)  # the same in all pictures, so that they differ little
    first, *others = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    milliseconds = [1000 * every / fps] * len(others) + [2000]  # the last picture stays for a while
    first.save(path, save_all=True, append_images=others, duration=milliseconds, loop=0)
