"""Command that replays recorded episodes without a server."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rollserve import data
from rollserve_wire.errors import RollserveError

if TYPE_CHECKING:
    from rollserve.cli.argument_types import Commands

__all__ = ["add_verify"]


def add_verify(commands: Commands) -> None:
    """Add the command that replays a file."""
    verify = commands.add_parser(
        "verify",
        help="replay recorded episodes in plain gymnasium, without a server",
        description="Replay the episodes of a file in plain gymnasium, and say of each whether it is equal bit by bit. "
        "Needs gymnasium: pip install 'rollserve[data]'. The exit status is 1 if something differs, and 4 if the file "
        "cannot be verified.",
    )
    verify.add_argument("file", metavar="FILE", help="saved batch, Parquet, or folder of a Minari dataset")
    verify.add_argument(
        "--agent", type=Path, metavar="FILE", help="file of save_agent: check that this agent would have acted so"
    )
    verify.add_argument("--env", metavar="ID", help="environment, in place of the one that the receipt names")
    verify.add_argument(
        "--allow-module",
        action="append",
        default=[],
        metavar="MODULE",
        help="module that the receipt may name for environments and wrappers, whose code then runs; can be repeated",
    )
    verify.set_defaults(run_here=_run_verify)


def _run_verify(options: argparse.Namespace) -> int:
    """Verify a file and return the exit status: 1 if something differs, 4 if the file cannot be verified."""
    try:
        return 0 if _verify(options) else 1
    except (ImportError, OSError, RollserveError, ValueError) as error:
        print(f"rollserve: {' '.join(str(error).split())}", file=sys.stderr)
        return 4
    except KeyboardInterrupt:
        print("rollserve: interrupted", file=sys.stderr)
        return 130


def _verify(options: argparse.Namespace) -> bool:
    """Replay a file, print a line for each episode, and return whether all is equal."""
    result = data.verify(
        options.file,
        env=options.env,
        agent=options.agent,
        allowed_modules=options.allow_module,
        on_episode=lambda check: print(_describe_check(check)),
    )
    for column in result.changed_columns:
        print(f"changed: {column}")
    for text in result.not_compared:
        print(f"not compared: {text}")
    for name, (recorded, here) in result.packages.items():
        print(f"{name} {recorded}, here {here or 'not installed'}")
    print(f"{result.num_equal} of {len(result.episodes)} episodes equal, {len(result.changed_columns)} columns changed")
    return result.is_equal


def _describe_check(check: data.EpisodeCheck) -> str:
    """Return a line about an episode."""
    text = f"episode {check.episode_index}, {check.num_steps} steps: "
    if not check.replayed:
        return f"{text}not replayed: {check.difference}"
    errors = check.log_prob_error
    if check.difference:
        text += f"differs: {check.difference}"
    elif not check.is_probable:
        return f"{text}differs: log-probabilities by up to {errors:.1e}"
    else:
        text += "equal"
    return text if errors is None else f"{text}, log-probabilities within {errors:.1e}"
