"""Inject faults into a server, compare all delivered data, print tables, and exit with 1 if anything is wrong."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from faults.chaos.calls import KINDS as CALLS
from faults.chaos.catalogue import ENVS
from faults.chaos.report import print_report
from faults.chaos.run import DEFAULT_ENVS, Options, run
from faults.chaos.schedule import DEFAULT_KINDS, KINDS


def main() -> int:
    parser = argparse.ArgumentParser("chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="duration of the faults")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random choices")
    parser.add_argument(
        "--faults",
        default=",".join(DEFAULT_KINDS),
        help=f"kinds of faults, separated by commas, among {', '.join(KINDS)}",
    )
    parser.add_argument(
        "--envs", default=",".join(DEFAULT_ENVS), help=f"environments, separated by commas, among {', '.join(ENVS)}"
    )
    parser.add_argument(
        "--calls",
        default=",".join(CALLS),
        help=f"kinds of calls that clients make, separated by commas, among {', '.join(CALLS)}",
    )
    parser.add_argument("--workers", type=int, default=2, help="number of workers at the start")
    parser.add_argument("--clients", type=int, default=3, help="number of clients at a time")
    parser.add_argument("--pause", type=float, default=0.1, help="mean seconds between two calls of a client")
    parser.add_argument("--folder", type=Path, default=Path("chaos-run"), help="folder for logs; replaced if it exists")
    parser.add_argument(
        "--cluster", action="store_true", help="run the workers on a Ray cluster, where they outlive the server"
    )
    parser.add_argument(
        "--share-pairs",
        type=int,
        default=6,
        help="pairs of windows, quiet and hostile, that compare the throughput; 0 for none",
    )
    parser.add_argument("server", nargs="*", help="options of the server, after --")
    given = parser.parse_args()
    shutil.rmtree(given.folder, ignore_errors=True)
    options = Options(
        folder=given.folder.resolve(),
        seed=given.seed,
        seconds=given.seconds,
        kinds=[kind for kind in given.faults.split(",") if kind],
        envs=given.envs.split(","),
        calls=given.calls.split(","),
        num_workers=given.workers,
        num_clients=given.clients,
        pause_seconds=given.pause,
        server_options=given.server,
        on_cluster=given.cluster,
        num_share_pairs=given.share_pairs,
    )
    outcome = run(options)
    print_report(outcome)
    if outcome.wrong:
        sys.stderr.write(f"chaos: {len(outcome.wrong)} problems; seed {options.seed}, logs in {options.folder}\n")
    return bool(outcome.wrong)


if __name__ == "__main__":
    sys.exit(main())
