"""Parser of the command line, the connection that commands use, and exit statuses."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollserve import __version__
from rollserve._calls.time_limits import DEFAULT_TIMEOUT
from rollserve.cli.administration import (
    add_admin,
    add_create,
    add_delete,
    add_resize,
    add_samplers,
    add_status,
    add_top,
)
from rollserve.cli.files import add_agent, add_repair, add_restore, add_save, add_verify
from rollserve.cli.sampling import add_evaluate, add_record, add_sample, add_video
from rollserve.sampler import connect
from rollserve_wire.errors import AccessError, InvalidArgumentError, RollserveError, UnavailableError
from rollserve_wire.reasons import Reason
from rollserve_wire.receipts import HASH_SEED, HASH_SEED_NAME

__all__ = ["main"]

_TLS_FILES = {
    "ca": "authorities that the server's certificate is signed by, to encrypt the connection",
    "cert": "the client's own certificate, for servers that ask for one",
    "key": "the private key of the client's certificate",
}

_EXIT_STATUSES = """\
exit status:
  0    success
  1    the server rejected the call, the call failed, or a verified file differs
  2    the command line is wrong
  3    the server is out of reach
  4    the result cannot be written, or a file cannot be verified or repaired
  5    the server is up and does not permit the call: no valid token, or no scope
  130  interrupted
"""
_STATUSES: Mapping[type[RollserveError], int] = {UnavailableError: 3, AccessError: 5}
"""Exit statuses of errors; 1 for others."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    options = _parser().parse_args(arguments)
    if options.run_here is not None:
        if arguments is None and os.name == "posix" and os.environ.get(HASH_SEED_NAME) != HASH_SEED:
            # It runs environments, and Python reads the seed at its start.
            variables = {**os.environ, HASH_SEED_NAME: HASH_SEED}
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], variables)  # noqa: S606
        return options.run_here(options)  # type: ignore[no-any-return]
    try:
        connected = connect(
            options.target,
            sampler=options.sampler,
            timeout=options.timeout,
            ca=options.ca,
            cert=options.cert,
            key=options.key,
            token_file=options.token_file,
        )
    except InvalidArgumentError as error:
        print(f"rollserve: {error.message}", file=sys.stderr)
        return 2
    try:
        with connected as sampler, warnings.catch_warnings():
            warnings.showwarning = _show_warning
            options.run(sampler, options)
        print(end="", flush=True)  # an error is reported here, but not at the interpreter's exit
        return 0
    except RollserveError as error:
        print(f"rollserve: {options.target}: {_one_line(error)}", file=sys.stderr)
        return next((status for kind, status in _STATUSES.items() if isinstance(error, kind)), 1)
    except OSError as error:
        if error.filename is None:  # standard output failed: drop its content, so that exiting does not fail again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"rollserve: {error.filename or 'standard output'}: {error.strerror}", file=sys.stderr)
        return 4
    except KeyboardInterrupt:
        print("rollserve: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rollserve",
        description="Show, sample from, evaluate, record, render, resize, save, restore, create and delete samplers.",
        epilog=_EXIT_STATUSES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"rollserve {__version__}")
    parser.set_defaults(run_here=None)  # commands that need no server set it
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("target", metavar="SERVER", help="HOST:PORT, or the name of a context in contexts.toml")
    common.add_argument("--sampler", default="", metavar="NAME", help="name of the sampler (default: the default one)")
    common.add_argument(
        "--timeout",
        type=float,
        default=DEFAULT_TIMEOUT,
        metavar="SECONDS",
        help="longest time without an answer or any progress (default: %(default)g)",
    )
    for name, contents in _TLS_FILES.items():
        help_text = f"PEM file with {contents} (default: ROLLSERVE_{name.upper()})"
        common.add_argument(f"--{name}", type=Path, metavar="FILE", help=help_text)
    common.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="file with a token, for servers that ask for one (default: ROLLSERVE_TOKEN_FILE, or ROLLSERVE_TOKEN)",
    )
    for add in (
        add_status,
        add_top,
        add_sample,
        add_evaluate,
        add_record,
        add_video,
        add_resize,
        add_samplers,
        add_create,
        add_delete,
        add_admin,
        add_agent,
        add_save,
        add_restore,
    ):
        add(commands, common)
    add_repair(commands)
    add_verify(commands)
    return parser


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"rollserve: {message}", file=sys.stderr)


def _one_line(error: RollserveError) -> str:
    message = " ".join(error.message.split())
    if isinstance(error, UnavailableError) and not error.reason:
        return f"the server is out of reach: {message}"
    if error.reason == Reason.NO_AGENT:
        message += ", or sample with --random-agent"
    return f"{message} ({error.reason or error.code.name})"
