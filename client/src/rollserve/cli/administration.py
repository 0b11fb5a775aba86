"""Commands that show samplers, resize, create and delete them, and have a server reload its settings."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, get_args

from rollserve.cli.arguments import count, json_object, positive
from rollserve.status import Quota, duration_text
from rollserve.top import show_top
from rollserve_wire.environments import EnvSpec, MultiAgentApi
from rollserve_wire.errors import InvalidArgumentError, mismatch
from rollserve_wire.spaces import Space

if TYPE_CHECKING:
    from rollserve.cli.arguments import Commands
    from rollserve.sampler import Sampler
    from rollserve.status import EnvProfile, SamplerStatus, SamplerSummary, Scaling, WorkerStatus

__all__ = ["add_admin", "add_create", "add_delete", "add_resize", "add_samplers", "add_status", "add_top"]


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
    resize.add_argument(
        "workers", type=count, metavar="N", help="new number of workers; 0 has the number follow the load"
    )
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
    create.add_argument("--workers", type=positive, default=1, metavar="N", help="number of workers (default: 1)")
    create.add_argument(
        "--rows", type=positive, metavar="N", help="rows of each worker (default: the server's setting)"
    )
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


def add_admin(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the commands for the operator of a server."""
    admin = commands.add_parser("admin", help="administer a server")
    admin_commands = admin.add_subparsers(required=True, metavar="COMMAND")
    reload = admin_commands.add_parser(
        "reload",
        parents=[common],
        help="have the server read its configuration file again",
        description="Have the server read its configuration file again, and show what has changed, and what a restart "
        "is needed for. Needs the scope server:admin.",
    )
    reload.add_argument("--json", action="store_true", help="print a JSON object")
    reload.set_defaults(run=_reload)


def _reload(sampler: Sampler, options: argparse.Namespace) -> None:
    reload = sampler.reload_settings()
    if options.json:
        print(json.dumps(reload, default=_to_json, indent=2))
        return
    for title, changes in (("changed", reload.changed), ("needs a restart", reload.needs_restart)):
        for each in changes:
            values = f": {each.before} → {each.after}" if each.before or each.after else ""
            print(f"{title}: {each.name}{values}")
    if not (reload.changed or reload.needs_restart):
        print("nothing has changed")


def _status(sampler: Sampler, options: argparse.Namespace) -> None:
    status = sampler.status()
    print(json.dumps(status, default=_to_json, indent=2) if options.json else _describe(status))


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
    if options.workers:
        print(f"{options.workers} workers, previously {previous}")
    else:
        print(f"the number of workers, {previous}, follows the load")


def _samplers(sampler: Sampler, options: argparse.Namespace) -> None:
    samplers = sampler.list_samplers()
    print(json.dumps(samplers, default=_to_json, indent=2) if options.json else _table_of(samplers))


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


def _describe(status: SamplerStatus) -> str:
    """Return lines about a sampler, its environments, agent, counters and workers."""
    counters = status.counters
    lines = [
        f"sampler {status.sampler}, server {status.server_version}, up {duration_text(counters.uptime_seconds)}",
        f"environment: {_describe_envs(status.envs)} (version {status.env_version})",
        _describe_quota(status),
        *([_describe_scaling(status.scaling)] if status.scaling is not None else ()),
        *([f"hidden arguments: {', '.join(status.hidden_arguments)}"] if status.hidden_arguments else ()),
        *map(_describe_profile, status.profiles),
        f"observations: {status.observation_space}, actions: {status.action_space}",
        f"agent: {', '.join(status.agent_kinds) or 'none yet'} (version {status.policy_version})",
        *([f"policies: {_describe_policies(status.policies)}"] if status.policies else ()),
        f"seed {status.seed}, next episode {status.next_episode_index}, reproducible by {status.reproducibility.value}",
        f"calls: {counters.num_completed_calls} completed, {counters.num_failed_calls} failed, "
        f"{counters.num_cancelled_calls} cancelled",
        f"delivered: {counters.num_episodes} episodes, {counters.num_steps} steps, {counters.message_bytes} bytes; "
        f"simulated: {counters.num_simulated_steps} steps",
        f"faults: {counters.num_env_failures} errors of environments, {counters.num_retried_episodes} episodes "
        f"retried, {counters.num_failed_episodes} skipped",
        f"stragglers: {counters.num_straggler_episodes} episodes started a second time on another worker",
        *([f"not finite: {number} delivered steps"] if (number := counters.num_non_finite_steps) else ()),
    ]
    return "\n".join([*lines, *map(_describe_worker, status.workers)])


def _table_of(samplers: Sequence[SamplerSummary]) -> str:
    """Return a table with a line for each sampler."""
    rows = [("SAMPLER", "OWNER", "WORKERS", "POLICY", "LEASE LEFT", "ENVIRONMENT")]
    for each in samplers:
        lease = "-" if each.lease_left_seconds is None else duration_text(each.lease_left_seconds)
        row = each.sampler, each.owner or "-", str(each.num_workers), str(each.policy_version), lease
        rows.append((*row, ", ".join(each.env_ids)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _describe_policies(policies: Mapping[str, int]) -> str:
    return ", ".join(f"{name} (version {version})" for name, version in sorted(policies.items()))


def _describe_quota(status: SamplerStatus) -> str:
    quota = status.quota
    limits = {
        "workers": quota.num_workers,
        "rows": quota.num_rows,
        "bytes of results": quota.result_bytes,
        "calls at a time": quota.num_calls,
        "steps/s": quota.steps_per_second,
    }
    lease = "no lease" if status.lease_seconds is None else f"lease {duration_text(status.lease_seconds)}"
    limited = ", ".join(f"{value:,.15g} {name}" for name, value in limits.items() if value)
    return f"owner {status.owner or 'none'}, {lease}, at most {limited or 'anything'}"


def _describe_scaling(scaling: Scaling) -> str:
    bounds = f"{scaling.min_num_workers} to {scaling.max_num_workers} workers by load"
    held = f", held by {scaling.held_by}" if scaling.held_by else ""
    return f"{bounds}, {scaling.num_wanted_workers} wanted{held}"


def _describe_profile(profile: EnvProfile) -> str:
    properties = profile.arguments.get("properties")
    names = ", ".join(properties) if isinstance(properties, dict) else ""
    text = f"profile:{profile.name}({names})"
    return f"{text}: {profile.description}" if profile.description else text


def _describe_worker(worker: WorkerStatus) -> str:
    health = "given up for now" if worker.has_failed else "healthy" if worker.healthy else "lost"
    health = "leaving" if worker.leaving else health
    text = f"worker {worker.worker_index}: {health}, {worker.num_rows} rows, {worker.num_simulated_steps} steps, "
    text += f"process {worker.process_id} on {worker.host}" if worker.host else "process unknown"
    if worker.num_restarts:
        text += f"; replaced {worker.num_restarts} times, last reason: {worker.last_failure}"
    return text


def _describe_envs(specs: Sequence[EnvSpec]) -> str:
    """Describe the environments in their order; equal neighbours are described once, with their number."""
    groups = [(text, len(list(equal))) for text, equal in itertools.groupby(map(_describe_env, specs))]
    return ", ".join(text if count == 1 else f"{count} x {text}" for text, count in groups)


def _describe_env(spec: EnvSpec) -> str:
    arguments = ", ".join(f"{name}={value!r}" for name, value in spec.kwargs.items())
    around = [wrapper.name for wrapper in spec.wrappers] + [type(transform).__name__ for transform in spec.transforms]
    return " < ".join([f"{spec.id}({arguments})" if arguments else spec.id, *around])


def _to_json(value: object) -> object:
    """Return what stands for a value that `json` cannot write by itself."""
    if isinstance(value, Space):
        return str(value)
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(mismatch("a value that JSON can hold", type(value).__name__))
