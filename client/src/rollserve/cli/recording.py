"""Commands that record datasets on the server, and repair those that were interrupted."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rollserve._calls.recorded_dataset import repair
from rollserve.agents import RandomAgent
from rollserve.cli.argument_types import count
from rollserve.cli.sampling import add_acting

if TYPE_CHECKING:
    from rollserve.cli.argument_types import Commands
    from rollserve.sampler import Sampler

__all__ = ["add_record", "add_repair"]


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
    amount.add_argument("--episodes", type=count, metavar="N", help="number of episodes that it has at the end")
    amount.add_argument("--steps", type=count, metavar="N", help="least number of steps, such as 1e6")
    record.add_argument("--seed", type=int, metavar="N", help="root seed of the episodes (default: a random one)")
    record.add_argument("--policy-version", type=int, metavar="N", help="version that acts")
    record.add_argument("--author", action="append", default=[], metavar="NAME", help="author; can be given again")
    record.add_argument("--description", default="", metavar="TEXT", help="what the dataset holds")
    record.add_argument("--algorithm-name", default="", metavar="NAME", help="what the agent was trained with")
    add_acting(record)
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


def add_repair(commands: Commands) -> None:
    """Add the command that finishes what a kill has left of a dataset."""
    parser = commands.add_parser(
        "repair",
        help="finish a Minari dataset whose writing was killed",
        description="Write what a killed server or process has left beside a Minari dataset into it. Needs Minari: "
        "pip install 'rollserve[data]'. The exit status is 4 if the dataset cannot be written.",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder of the dataset, which holds `data`")
    parser.set_defaults(run_here=_repair)


def _repair(options: argparse.Namespace) -> int:
    try:
        num_episodes, num_recovered = repair(options.folder)
    except (ImportError, OSError, ValueError) as error:
        print(f"rollserve: {' '.join(str(error).split())}", file=sys.stderr)
        return 4
    print(f"{options.folder}: {num_episodes} episodes ({num_recovered} episodes recovered)")
    return 0
