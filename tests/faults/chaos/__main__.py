"""`make chaos`: the run, its tables, and an exit status."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from faults.chaos.catalogue import ENVS
from faults.chaos.report import print_report
from faults.chaos.run import DEFAULT_ENVS, Options, run
from faults.chaos.schedule import DEFAULT_KINDS, KINDS


def main() -> int:
    parser = argparse.ArgumentParser("chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="for how long things go wrong")
    parser.add_argument("--seed", type=int, default=0, help="of everything that is drawn")
    parser.add_argument("--faults", default=",".join(DEFAULT_KINDS), help=f"of {', '.join(KINDS)}")
    parser.add_argument("--envs", default=",".join(DEFAULT_ENVS), help=f"of {', '.join(ENVS)}")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--pause", type=float, default=0.1, help="seconds between two calls of a client, on average")
    parser.add_argument("--folder", type=Path, default=Path("chaos-run"), help="for the logs; what is there is removed")
    parser.add_argument("--cluster", action="store_true", help="workers on a Ray cluster, which outlive the gateway")
    parser.add_argument("server", nargs="*", help="options of the server, behind --")
    given = parser.parse_args()
    shutil.rmtree(given.folder, ignore_errors=True)
    options = Options(
        folder=given.folder.resolve(),
        seed=given.seed,
        seconds=given.seconds,
        kinds=[kind for kind in given.faults.split(",") if kind],
        envs=given.envs.split(","),
        num_workers=given.workers,
        num_clients=given.clients,
        pause_seconds=given.pause,
        server_options=given.server,
        on_cluster=given.cluster,
    )
    outcome = run(options)
    print_report(outcome.story, outcome.verdict, outcome.growths, outcome.wrong)
    if outcome.wrong:
        sys.stderr.write(
            f"chaos: {len(outcome.wrong)} things are wrong; seed {options.seed}, logs in {options.folder}\n"
        )
    return bool(outcome.wrong)


if __name__ == "__main__":
    sys.exit(main())
