"""The command `rollserve-env-host ENV`."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from typing import Callable

from rollserve_env_host.real_time import factory_of
from rollserve_env_host.serving import DESCRIPTOR, Make, listen, serve

__all__ = ["main"]


def main() -> None:
    """Serve an environment: to the worker that has started this process, to all that connect, or over a gateway."""
    parser = argparse.ArgumentParser(prog="rollserve-env-host", description="Serve an environment to Rollserve.")
    ids = "an id of gymnasium or gym, gym:ID, module:NAME for a class or function, or dm_env_rpc:// or openenv://HOST:PORT"
    parser.add_argument("env", help=ids)
    parser.add_argument("--listen", metavar="HOST:PORT", help="serve all workers that connect; port 0 takes a free one")
    parser.add_argument(
        "--step-seconds", type=float, help="make a step each so many seconds, whether actions come or not"
    )
    parser.add_argument("--default-action", metavar="JSON", help="the action of steps for which none has come in time")
    gateway = parser.add_argument_group("to connect to a server, whose samplers have the environment as host:NAME")
    gateway.add_argument("--connect", metavar="GATEWAY", help="HOST:PORT, or several gateways with commas between them")
    gateway.add_argument("--name", help="the NAME, which the server's operator has allowed")
    gateway.add_argument(
        "--seats", type=int, default=1, metavar="N", help="number of workers to serve at the same time"
    )
    gateway.add_argument("--token-file", default="", metavar="FILE", help="the token, for servers that ask for one")
    gateway.add_argument("--tls-ca", default="", metavar="FILE", help="PEM file of the server's authority, to use TLS")
    gateway.add_argument("--tls-cert", default="", metavar="FILE", help="PEM file of a certificate of this host's own")
    gateway.add_argument("--tls-key", default="", metavar="FILE", help="PEM file of its key")
    arguments = parser.parse_args()
    if (arguments.step_seconds is None) != (arguments.default_action is None):
        parser.error("--step-seconds: expected with --default-action, got one without the other")
    if arguments.connect and not arguments.name:
        parser.error("--name: expected a name of the host, got none")
    if arguments.seats < 1:
        parser.error("--seats: expected a positive integer, got {}".format(arguments.seats))
    find = functools.partial(factory_of, arguments.env, arguments.step_seconds, arguments.default_action)
    if arguments.connect:
        _connect(parser, arguments, find)
    elif arguments.listen:
        listen(find(), arguments.env, arguments.listen)
    elif DESCRIPTOR in os.environ:
        serve(find(), arguments.env)
    else:
        parser.error("--listen or --connect: expected an address, because no worker has started this process, got none")


def _connect(parser: argparse.ArgumentParser, arguments: argparse.Namespace, find: Callable[[], Make]) -> None:
    try:
        from rollserve_env_host.connecting import Gateway, RefusedError, connect, connect_seats
    except ImportError as error:
        parser.error(
            "--connect: expected grpcio, as rollserve-env-host[connect] installs it, got none ({})".format(error)
        )
    files = arguments.token_file, arguments.tls_ca, arguments.tls_cert, arguments.tls_key
    gateway = Gateway(arguments.connect, *files)
    try:
        if arguments.seats == 1:
            connect(find(), arguments.env, gateway, arguments.name)
        else:
            connect_seats(find, arguments.env, gateway, arguments.name, arguments.seats)
    except (RefusedError, OSError) as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
