"""Commands that sample episodes, evaluate agents, record datasets, and write videos."""

from __future__ import annotations

import argparse
import functools
import time
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from rollserve._calls.time_limits import DEFAULT_RENDER_SECONDS
from rollserve._codec.batch_tables import range_text
from rollserve.agents import RandomAgent
from rollserve.cli.arguments import check_writable, numbers, positive, write
from rollserve.plots import check_plot, plot_batch
from rollserve.video import Overlay
from rollserve_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    import numpy as np

    from rollserve.cli.arguments import Commands
    from rollserve.episode_batch import EpisodeBatch
    from rollserve.options import SamplingOptions
    from rollserve.sampler import Sampler

__all__ = ["add_evaluate", "add_record", "add_sample", "add_video"]

_EXPLORATIONS = {
    "temperature": "divide the logits of actions by X",
    "noise_scale": "multiply the standard deviations of actions by X",
    "epsilon": "make an epsilon-greedy agent act at random with probability X",
}


def add_sample(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the command that samples episodes."""
    sample = commands.add_parser(
        "sample",
        parents=[common],
        help="sample episodes with the sampler's agent",
        description="Sample with the sampler's agent, and show the returns and lengths of the episodes.",
    )
    sample.add_argument(
        "--steps", type=positive, required=True, metavar="N", help="minimum number of steps, such as 1e6"
    )
    sample.add_argument(
        "--fragments",
        action="store_true",
        help="sample exactly N steps, a multiple of the number of rows; episodes continue from call to call",
    )
    sample.add_argument(
        "--fraction-of-workers",
        type=float,
        metavar="X",
        help="with --fragments: fraction of the workers that have to make all their steps before the others stop",
    )
    sample.add_argument(
        "--fraction-of-samples",
        type=float,
        metavar="X",
        help="with --fraction-of-workers: fraction of its steps that each of the others has to make before it stops",
    )
    sample.add_argument("--out", type=Path, metavar="FILE.npz", help="file for the episodes; no ending is added")
    sample.add_argument(
        "--plot",
        type=Path,
        metavar="FILE.png",
        help="file for a picture of returns and lengths; needs matplotlib: pip install 'rollserve[plot]'",
    )
    sample.add_argument("--seed", type=int, metavar="N", help="root seed of the episodes")
    sample.add_argument("--first-episode-index", type=int, metavar="N", help="with --seed: episode to start at")
    sample.add_argument("--policy-version", type=int, metavar="N", help="version that acts")
    sample.add_argument("--min-policy-version", type=int, metavar="N", help="oldest version that may act")
    sample.add_argument(
        "--skip-failed-episodes",
        action="store_true",
        help="leave out episodes whose environments raise errors in every attempt",
    )
    _add_acting(sample)
    sample.set_defaults(run=_sample)


def _add_acting(parser: argparse.ArgumentParser) -> None:
    """Add the options that say who acts, and how freely."""
    parser.add_argument("--deterministic", action="store_true", help="act without randomness")
    for name, effect in _EXPLORATIONS.items():
        help_text = f"{effect}; episodes take turns with several numbers"
        parser.add_argument(f"--{name.replace('_', '-')}", type=numbers, metavar="X[,X...]", help=help_text)
    parser.add_argument(
        "--random-agent", action="store_true", help="first give the sampler an agent that acts at random"
    )


def add_evaluate(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the command that evaluates the agent."""
    evaluate = commands.add_parser(
        "evaluate",
        parents=[common],
        help="evaluate the sampler's agent",
        description="Evaluate the sampler's agent beside all other calls, and show the returns and lengths.",
    )
    evaluate.add_argument(
        "--episodes", type=positive, default=100, metavar="N", help="number of episodes (default: %(default)s)"
    )
    evaluate.add_argument("--deterministic", action="store_true", help="act without randomness")
    evaluate.add_argument(
        "--seed", type=int, metavar="N", help="root seed of the episodes (default: the same for every evaluation)"
    )
    evaluate.set_defaults(run=_evaluate)


def _sample(sampler: Sampler, options: argparse.Namespace) -> None:
    if options.plot is not None:
        check_plot(options.plot)
    for path in filter(None, (options.out, options.plot)):
        check_writable(path)
    agents = sampler.status().agents
    if agents:
        expected = "an environment with one agent, because the command shows and writes its episodes"
        raise InvalidArgumentError.of("sample", expected=expected, got=f"agents {', '.join(agents)}")
    if options.random_agent:
        sampler.update_agent(RandomAgent())
    began = time.monotonic()
    sampling_options: SamplingOptions = {
        "seed": options.seed,
        "first_episode_index": options.first_episode_index,
        "policy_version": options.policy_version,
        "min_policy_version": options.min_policy_version,
        "skip_failed_episodes": options.skip_failed_episodes,
        "deterministic": options.deterministic,
        "temperature": options.temperature,
        "noise_scale": options.noise_scale,
        "epsilon": options.epsilon,
        "progress": True,
    }
    if options.fragments:
        batch = sampler.obtain_fragments(
            options.steps,
            fraction_of_workers=options.fraction_of_workers,
            fraction_of_samples=options.fraction_of_samples,
            **sampling_options,
        )
    else:
        batch = sampler.obtain_samples(options.steps, **sampling_options)
    seconds = time.monotonic() - began
    print(_summary(batch, seconds))
    if options.out is not None:
        write(options.out, _with_receipt(sampler, batch).save)
    if options.plot is not None:
        write(options.plot, functools.partial(plot_batch, batch))


def _evaluate(sampler: Sampler, options: argparse.Namespace) -> None:
    result = sampler.evaluate(options.episodes, deterministic=options.deterministic, seed=options.seed, progress=True)
    print(f"return {result.return_summary}, {range_text(result.returns)}")
    print(f"length {result.length_summary}, {range_text(result.lengths)}")
    if result.agent_returns is not None:
        print(f"returns of agents and policies:\n{result.agent_returns}")
    print(
        f"{len(result)} episodes, policy version {result.policy_version}, environment version {result.env_version}, "
        f"seed {result.seed}"
    )


def _with_receipt(sampler: Sampler, batch: EpisodeBatch) -> EpisodeBatch:
    """Return the batch with a receipt, or as it is and say why it has none."""
    try:
        return sampler.with_receipt(batch)
    except ValueError as error:
        print(f"without a receipt: {error}")
        return batch


def _summary(batch: EpisodeBatch, seconds: float) -> str:
    ended = f"{int(batch.terminated.sum())} terminated, {int(batch.truncated.sum())} truncated"
    rate = batch.num_steps / max(seconds, 1e-9)
    segments = "episodes" if (batch.terminated | batch.truncated).all() else "fragments of episodes"
    lines = [
        f"{len(batch)} {segments} ({ended}), {batch.num_steps} steps in {seconds:.1f} s, {rate:.0f} steps/s",
        _distribution("return", batch.returns),
        _distribution("length", batch.lengths),
    ]
    if batch.account_or_none is not None:
        account = batch.account
        lines.append(
            f"policy version {account.policy_version}, environment version {account.env_version}, "
            f"seed {account.seed}, first episode {account.first_episode_index}"
        )
        if account.num_retried_episodes or account.num_failed_episodes:
            lines.append(f"{account.num_retried_episodes} episodes retried, {account.num_failed_episodes} skipped")
        lines += [f"skipped: {failure.text}" for failure in account.episode_failures if failure.skipped]
    return "\n".join(lines)


def _distribution(name: str, values: np.ndarray) -> str:
    return f"{name}: mean {values.mean():.1f}, {range_text(values)}"


def add_record(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the command that records a dataset."""
    record = commands.add_parser(
        "record",
        parents=[common],
        help="record a Minari dataset on the server",
        description="Record whole episodes into a Minari dataset in the server's --data-dir. The same command goes on "
        "with a recording that was interrupted.",
    )
    record.add_argument("dataset", metavar="DATASET", help="Minari's id, such as cartpole/expert-v0")
    amount = record.add_mutually_exclusive_group(required=True)
    amount.add_argument("--episodes", type=positive, metavar="N", help="number of episodes that it has at the end")
    amount.add_argument("--steps", type=positive, metavar="N", help="least number of steps, such as 1e6")
    record.add_argument("--seed", type=int, metavar="N", help="root seed of the episodes (default: a random one)")
    record.add_argument("--policy-version", type=int, metavar="N", help="version that acts")
    record.add_argument("--author", action="append", default=[], metavar="NAME", help="author; can be given again")
    record.add_argument("--description", default="", metavar="TEXT", help="what the dataset holds")
    record.add_argument("--algorithm-name", default="", metavar="NAME", help="what the agent was trained with")
    _add_acting(record)
    record.set_defaults(run=_record)


def _record(sampler: Sampler, options: argparse.Namespace) -> None:
    if options.random_agent:
        sampler.update_agent(RandomAgent())
    began = time.monotonic()
    metadata = {name: getattr(options, name) for name in ("author", "description", "algorithm_name")}
    recording = sampler.record(
        options.dataset,
        num_episodes=options.episodes,
        num_steps=options.steps,
        metadata=metadata,
        seed=options.seed,
        policy_version=options.policy_version,
        deterministic=options.deterministic,
        temperature=options.temperature,
        noise_scale=options.noise_scale,
        epsilon=options.epsilon,
        progress=True,
    )
    rate = recording.num_added_steps / max(time.monotonic() - began, 1e-9)
    print(f"{recording}, {rate:.0f} steps/s")
    print(f"seed {recording.seed}, next episode {recording.next_episode_index}")


def add_video(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the command that writes a video of an episode."""
    video = commands.add_parser(
        "video",
        parents=[common],
        help="write a video of an episode",
        description="Have the server sample an episode and render it, and write the video, MP4 with H.264.",
    )
    video.add_argument("--episode", type=int, required=True, metavar="N", help="index of the episode")
    video.add_argument("--out", type=Path, required=True, metavar="FILE.mp4", help="file to write")
    video.add_argument("--seed", type=int, metavar="N", help="root seed (default: the sampler's own)")
    video.add_argument("--policy-version", type=int, metavar="N", help="version that acts (default: the current one)")
    video.add_argument("--max-episode-length", type=int, metavar="N", help="steps after which the episode is truncated")
    video.add_argument("--deterministic", action="store_true", help="act without randomness")
    video.add_argument("--fps", type=float, metavar="X", help="pictures per second (default: the environment's)")
    video.add_argument(
        "--overlay",
        action="append",
        choices=get_args(Overlay),
        default=[],
        help="line of text in the pictures; can be given more than once",
    )
    # A video has no progress to wait for while it is made.
    video.set_defaults(run=_video, timeout=DEFAULT_RENDER_SECONDS)


def _video(sampler: Sampler, options: argparse.Namespace) -> None:
    if options.out.suffix.lower() not in ("", ".mp4"):
        raise InvalidArgumentError.of("out", expected="a file FILE.mp4, because videos are MP4", got=options.out)
    check_writable(options.out)
    video = sampler.render(
        seed=options.seed,
        index=options.episode,
        version=options.policy_version,
        max_episode_length=options.max_episode_length,
        deterministic=options.deterministic,
        fps=options.fps,
        overlays=options.overlay,
        timeout=options.timeout,
    )
    print(
        f"episode {video.episode_index} of seed {video.seed}, policy version {video.policy_version}: "
        f"{video.num_frames} pictures of {video.width} x {video.height}, {video.fps:g} per second"
    )
    write(options.out, video.save)
