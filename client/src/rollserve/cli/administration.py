"""Commands that show samplers, resize, create and delete them."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, get_args

from rollserve.cli.argument_types import count, json_object
from rollserve.cli.descriptions import describe, table_of, to_json
from rollserve.status import Quota
from rollserve.top import show_top
from rollserve_wire.environments import EnvSpec, MultiAgentApi
from rollserve_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    from rollserve.cli.argument_types import Commands
    from rollserve.sampler import Sampler

__all__ = ["add_create", "add_delete", "add_resize", "add_samplers", "add_status", "add_top"]


def add_status(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the command that shows a sampler."""
    status = commands.add_parser("status", parents=[common], help="show the state and the counters of a sampler")
    status.add_argument("--json", action="store_true", help="print a JSON object")
    status.set_defaults(run=_status)


def add_top(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the command that shows a sampler live."""
    top = commands.add_parser(
        "top",
        parents=[common],
        help="show workers, calls, rates and returns live",
        description="Show a sampler's workers, calls, rates, and the returns of its last episodes, until Ctrl-C. "
        "Needs rich: pip install 'rollserve[top]'.",
    )
    top.add_argument("--once", action="store_true", help="print one screen; no terminal is needed")
    top.set_defaults(run=_top)


def add_resize(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the command that changes the number of workers."""
    resize = commands.add_parser(
        "resize",
        parents=[common],
        help="change the number of workers",
        description="Add or remove workers while the sampler runs. Calls that are running keep their workers.",
    )
    resize.add_argument("workers", type=count, metavar="N", help="new number of workers")
    resize.set_defaults(run=_resize)


def add_samplers(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the command that lists samplers."""
    samplers = commands.add_parser("samplers", parents=[common], help="list the samplers of a server")
    samplers.add_argument("--json", action="store_true", help="print a JSON array")
    samplers.set_defaults(run=_samplers)


def add_create(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the command that creates a sampler."""
    create = commands.add_parser(
        "create",
        parents=[common],
        help="create a sampler, whose name --sampler gives",
        description="Create a sampler beside the default one. --sampler gives its name.",
    )
    create.add_argument("--env", required=True, metavar="ID", help="environment to start with")
    create.add_argument("--env-kwargs", type=json_object, metavar="JSON", help="its keyword arguments")
    create.add_argument(
        "--multi-agent",
        choices=get_args(MultiAgentApi),
        help="interface of PettingZoo that the environment has, if it has many agents",
    )
    create.add_argument("--workers", type=count, default=1, metavar="N", help="number of workers (default: 1)")
    create.add_argument("--rows", type=count, metavar="N", help="rows of each worker (default: the server's setting)")
    create.add_argument("--seed", type=int, metavar="N", help="root seed of the episodes (default: a random one)")
    create.add_argument(
        "--lease-seconds",
        type=float,
        metavar="SECONDS",
        help="time without a call after which the sampler is deleted; 0 for never (default: the server's setting)",
    )
    create.add_argument("--max-workers", type=count, default=0, metavar="N", help="workers that a resize may set")
    create.add_argument("--max-rows", type=count, default=0, metavar="N", help="rows of all workers together")
    create.add_argument("--max-bytes", type=count, default=0, metavar="N", help="bytes of results on their way")
    create.add_argument("--max-calls", type=count, default=0, metavar="N", help="calls that sample at a time")
    create.add_argument("--max-steps-per-second", type=float, default=0.0, metavar="X", help="steps per second")
    create.add_argument("--exist-ok", action="store_true", help="use a sampler that an equal command has created")
    create.set_defaults(run=_create)


def add_delete(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the command that deletes a sampler."""
    delete = commands.add_parser("delete", parents=[common], help="delete the sampler that --sampler names")
    delete.set_defaults(run=_delete)


def _status(sampler: Sampler, options: argparse.Namespace) -> None:
    status = sampler.status()
    print(json.dumps(status, default=to_json, indent=2) if options.json else describe(status))


def _top(sampler: Sampler, options: argparse.Namespace) -> None:
    try:
        from rich.console import Console  # an extra, and it takes a tenth of a second
    except ImportError:
        hint = "pip install 'rollserve[top]'"
        raise InvalidArgumentError.of("top", expected="the package rich", got="none", hint=hint) from None
    console = Console(highlight=False, markup=False)
    if not (options.once or console.is_terminal):
        raise InvalidArgumentError.of("top", expected="a terminal, or --once", got="standard output that is none")
    show_top(sampler, options.target, console, once=options.once)


def _resize(sampler: Sampler, options: argparse.Namespace) -> None:
    previous = sampler.resize(options.workers)
    print(f"{options.workers} workers, previously {previous}")


def _samplers(sampler: Sampler, options: argparse.Namespace) -> None:
    samplers = sampler.list_samplers()
    print(json.dumps(samplers, default=to_json, indent=2) if options.json else table_of(samplers))


def _create(sampler: Sampler, options: argparse.Namespace) -> None:
    quota = Quota(
        options.max_workers, options.max_rows, options.max_bytes, options.max_calls, options.max_steps_per_second
    )
    env = EnvSpec(options.env, options.env_kwargs or {}, num_rows=options.rows, multi_agent=options.multi_agent)
    created = sampler.create_sampler(
        env,
        num_workers=options.workers,
        seed=options.seed,
        lease_seconds=options.lease_seconds,
        quota=quota,
        exist_ok=options.exist_ok,
    )
    print(f"sampler {options.sampler}: observations {created.observation_space}, actions {created.action_space}")


def _delete(sampler: Sampler, options: argparse.Namespace) -> None:
    sampler.delete_sampler()
    print(f"sampler {options.sampler} deleted")
