"""The command `rollserve-env-host ENV`."""

from __future__ import annotations

import argparse
import os

from rollserve_env_host.environments import environment_factory
from rollserve_env_host.serving import DESCRIPTOR, listen, serve

__all__ = ["main"]


def main() -> None:
    """Serve an environment: to the worker that has started this process, or to all that connect."""
    parser = argparse.ArgumentParser(prog="rollserve-env-host", description="Serve an environment to Rollserve.")
    ids = "an id of gymnasium or gym, gym:ID, module:NAME for a class or function, or dm_env_rpc:// or openenv://HOST:PORT"
    parser.add_argument("env", help=ids)
    parser.add_argument("--listen", metavar="HOST:PORT", help="serve all workers that connect; port 0 takes a free one")
    arguments = parser.parse_args()
    make = environment_factory(arguments.env)
    if arguments.listen:
        listen(make, arguments.env, arguments.listen)
    elif DESCRIPTOR in os.environ:
        serve(make, arguments.env)
    else:
        parser.error("--listen: expected HOST:PORT, because no worker has started this process, got none")


if __name__ == "__main__":
    main()
