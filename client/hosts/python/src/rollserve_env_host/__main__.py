"""The command `rollserve-env-host ENV`."""

from __future__ import annotations

import argparse
import json
import os

from rollserve_env_host.environments import environment_factory
from rollserve_env_host.real_time import RealTime
from rollserve_env_host.serving import DESCRIPTOR, Make, listen, serve

__all__ = ["main"]


def main() -> None:
    """Serve an environment: to the worker that has started this process, or to all that connect."""
    parser = argparse.ArgumentParser(prog="rollserve-env-host", description="Serve an environment to Rollserve.")
    ids = "an id of gymnasium or gym, gym:ID, module:NAME for a class or function, or dm_env_rpc:// or openenv://HOST:PORT"
    parser.add_argument("env", help=ids)
    parser.add_argument("--listen", metavar="HOST:PORT", help="serve all workers that connect; port 0 takes a free one")
    parser.add_argument(
        "--step-seconds", type=float, help="make a step each so many seconds, whether actions come or not"
    )
    parser.add_argument("--default-action", metavar="JSON", help="the action of steps for which none has come in time")
    arguments = parser.parse_args()
    make = environment_factory(arguments.env)
    if (arguments.step_seconds is None) != (arguments.default_action is None):
        parser.error("--step-seconds: expected with --default-action, got one without the other")
    if arguments.step_seconds is not None:
        make = _in_real_time(make, arguments.step_seconds, json.loads(arguments.default_action))
    if arguments.listen:
        listen(make, arguments.env, arguments.listen)
    elif DESCRIPTOR in os.environ:
        serve(make, arguments.env)
    else:
        parser.error("--listen: expected HOST:PORT, because no worker has started this process, got none")


def _in_real_time(make: Make, seconds: float, default_action: object) -> Make:
    return lambda kwargs: RealTime(make(kwargs), seconds, default_action)


if __name__ == "__main__":
    main()
