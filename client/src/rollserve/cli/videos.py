"""The command that writes a video of an episode."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from rollserve._calls.time_limits import DEFAULT_RENDER_SECONDS
from rollserve.cli.files import check_writable, write
from rollserve.video import Overlay
from rollserve_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from rollserve.cli.argument_types import Commands
    from rollserve.sampler import Sampler

__all__ = ["add_video"]


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
