"""Command line `rollserve`: shows, samples from, evaluates, resizes, saves, creates and deletes samplers."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import functools
import itertools
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from rollserve import __version__, data
from rollserve._calls.time_limits import DEFAULT_TIMEOUT
from rollserve._codec.batch_tables import range_text
from rollserve.agents import MlpAgent, OnnxAgent, RandomAgent
from rollserve.environments import EnvSpec
from rollserve.errors import AccessError, InvalidArgumentError, RollserveError, UnavailableError, mismatch
from rollserve.multi_agent_batch import MultiAgentBatch
from rollserve.plots import check_plot, plot_batch
from rollserve.reasons import Reason
from rollserve.sampler import Sampler, connect
from rollserve.samplers import Quota
from rollserve.spaces import Space
from rollserve.top import show_top

if TYPE_CHECKING:
    import numpy as np

    from rollserve.episode_batch import EpisodeBatch
    from rollserve.options import SamplingOptions
    from rollserve.samplers import SamplerSummary
    from rollserve.status import EnvProfile, SamplerStatus, WorkerStatus

    _Commands = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["main"]

_EXPLORATIONS = {
    "temperature": "divide the logits of actions by X",
    "noise_scale": "multiply the standard deviations of actions by X",
    "epsilon": "make an epsilon-greedy agent act at random with probability X",
}

_TLS_FILES = {
    "ca": "authorities that the server's certificate is signed by, to encrypt the connection",
    "cert": "the client's own certificate, for servers that ask for one",
    "key": "the private key of the client's certificate",
}

_EXIT_STATUSES = """\
exit status:
  0    success
  1    the server rejected the call, or the call failed
  2    the command line is wrong
  3    the server is out of reach
  4    the result cannot be written
  5    the server is up and does not permit the call: no valid token, or no scope
  130  interrupted
"""
_STATUSES: Mapping[type[RollserveError], int] = {UnavailableError: 3, AccessError: 5}
"""Exit statuses of errors; 1 for others."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    options = _parser().parse_args(arguments)
    if options.run is _verify:
        return _run_verify(options)
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
        description="Show, sample from, evaluate, resize, save, restore, create and delete samplers of a server.",
        epilog=_EXIT_STATUSES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"rollserve {__version__}")
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
        _add_status,
        _add_top,
        _add_sample,
        _add_evaluate,
        _add_resize,
        _add_samplers,
        _add_create,
        _add_delete,
        _add_agent,
        _add_save,
        _add_restore,
    ):
        add(commands, common)
    _add_verify(commands)
    return parser


def _add_status(commands: _Commands, common: argparse.ArgumentParser) -> None:
    status = commands.add_parser("status", parents=[common], help="show the state and the counters of a sampler")
    status.add_argument("--json", action="store_true", help="print a JSON object")
    status.set_defaults(run=_status)


def _add_top(commands: _Commands, common: argparse.ArgumentParser) -> None:
    top = commands.add_parser(
        "top",
        parents=[common],
        help="show workers, calls, rates and returns live",
        description="Show a sampler's workers, calls, rates, and the returns of its last episodes, until Ctrl-C. "
        "Needs rich: pip install 'rollserve[top]'.",
    )
    top.add_argument("--once", action="store_true", help="print one screen; no terminal is needed")
    top.set_defaults(run=_top)


def _add_sample(commands: _Commands, common: argparse.ArgumentParser) -> None:
    sample = commands.add_parser(
        "sample",
        parents=[common],
        help="sample episodes with the sampler's agent",
        description="Sample with the sampler's agent, and show the returns and lengths of the episodes.",
    )
    sample.add_argument("--steps", type=_count, required=True, metavar="N", help="minimum number of steps, such as 1e6")
    sample.add_argument(
        "--fragments",
        action="store_true",
        help="sample exactly N steps, a multiple of the number of rows; episodes continue from call to call",
    )
    sample.add_argument(
        "--fraction-of-workers",
        type=float,
        metavar="X",
        help="with --fragments: fraction of the workers that have to make all their steps before the others stop",
    )
    sample.add_argument(
        "--fraction-of-samples",
        type=float,
        metavar="X",
        help="with --fraction-of-workers: fraction of its steps that each of the others has to make before it stops",
    )
    sample.add_argument("--out", type=Path, metavar="FILE.npz", help="file for the episodes; no ending is added")
    sample.add_argument(
        "--plot",
        type=Path,
        metavar="FILE.png",
        help="file for a picture of returns and lengths; needs matplotlib: pip install 'rollserve[plot]'",
    )
    sample.add_argument("--seed", type=int, metavar="N", help="root seed of the episodes")
    sample.add_argument("--first-episode-index", type=int, metavar="N", help="with --seed: episode to start at")
    sample.add_argument("--policy-version", type=int, metavar="N", help="version that acts")
    sample.add_argument("--min-policy-version", type=int, metavar="N", help="oldest version that may act")
    sample.add_argument(
        "--skip-failed-episodes",
        action="store_true",
        help="leave out episodes whose environments raise errors in every attempt",
    )
    sample.add_argument("--deterministic", action="store_true", help="act without randomness")
    for name, effect in _EXPLORATIONS.items():
        help_text = f"{effect}; episodes take turns with several numbers"
        sample.add_argument(f"--{name.replace('_', '-')}", type=_numbers, metavar="X[,X...]", help=help_text)
    sample.add_argument(
        "--random-agent", action="store_true", help="first give the sampler an agent that acts at random"
    )
    sample.set_defaults(run=_sample)


def _add_evaluate(commands: _Commands, common: argparse.ArgumentParser) -> None:
    evaluate = commands.add_parser(
        "evaluate",
        parents=[common],
        help="evaluate the sampler's agent",
        description="Evaluate the sampler's agent beside all other calls, and show the returns and lengths.",
    )
    evaluate.add_argument(
        "--episodes", type=_count, default=100, metavar="N", help="number of episodes (default: %(default)s)"
    )
    evaluate.add_argument("--deterministic", action="store_true", help="act without randomness")
    evaluate.add_argument(
        "--seed", type=int, metavar="N", help="root seed of the episodes (default: the same for every evaluation)"
    )
    evaluate.set_defaults(run=_evaluate)


def _add_resize(commands: _Commands, common: argparse.ArgumentParser) -> None:
    resize = commands.add_parser(
        "resize",
        parents=[common],
        help="change the number of workers",
        description="Add or remove workers while the sampler runs. Calls that are running keep their workers.",
    )
    resize.add_argument("workers", type=_count, metavar="N", help="new number of workers")
    resize.set_defaults(run=_resize)


def _add_samplers(commands: _Commands, common: argparse.ArgumentParser) -> None:
    samplers = commands.add_parser("samplers", parents=[common], help="list the samplers of a server")
    samplers.add_argument("--json", action="store_true", help="print a JSON array")
    samplers.set_defaults(run=_samplers)


def _add_create(commands: _Commands, common: argparse.ArgumentParser) -> None:
    create = commands.add_parser(
        "create",
        parents=[common],
        help="create a sampler, whose name --sampler gives",
        description="Create a sampler beside the default one. --sampler gives its name.",
    )
    create.add_argument("--env", required=True, metavar="ID", help="environment to start with")
    create.add_argument("--env-kwargs", type=_json_object, metavar="JSON", help="its keyword arguments")
    create.add_argument("--workers", type=_count, default=1, metavar="N", help="number of workers (default: 1)")
    create.add_argument("--rows", type=_count, metavar="N", help="rows of each worker (default: the server's setting)")
    create.add_argument("--seed", type=int, metavar="N", help="root seed of the episodes (default: a random one)")
    create.add_argument(
        "--lease-seconds",
        type=float,
        metavar="SECONDS",
        help="time without a call after which the sampler is deleted; 0 for never (default: the server's setting)",
    )
    create.add_argument("--max-workers", type=_count, default=0, metavar="N", help="workers that a resize may set")
    create.add_argument("--max-rows", type=_count, default=0, metavar="N", help="rows of all workers together")
    create.add_argument("--max-bytes", type=_count, default=0, metavar="N", help="bytes of results on their way")
    create.add_argument("--max-calls", type=_count, default=0, metavar="N", help="calls that sample at a time")
    create.add_argument("--max-steps-per-second", type=float, default=0.0, metavar="X", help="steps per second")
    create.add_argument("--exist-ok", action="store_true", help="use a sampler that an equal command has created")
    create.set_defaults(run=_create)


def _add_delete(commands: _Commands, common: argparse.ArgumentParser) -> None:
    delete = commands.add_parser("delete", parents=[common], help="delete the sampler that --sampler names")
    delete.set_defaults(run=_delete)


def _add_agent(commands: _Commands, common: argparse.ArgumentParser) -> None:
    agent = commands.add_parser("agent", help="write an agent of a sampler to a file")
    actions = agent.add_subparsers(required=True, metavar="ACTION")
    export = actions.add_parser(
        "export",
        parents=[common],
        help="write an agent as an ONNX model",
        description="Write an agent as an ONNX model. A model is written as it is, with the present parameters; an MLP "
        "becomes one. Needs onnx for that: pip install 'rollserve[onnx]'.",
    )
    export.add_argument("--onnx", type=Path, required=True, metavar="FILE", help="file to write")
    export.add_argument(
        "--policy-version", type=int, metavar="N", help="version of the agent (default: the current one)"
    )
    export.set_defaults(run=_export)


def _add_save(commands: _Commands, common: argparse.ArgumentParser) -> None:
    save = commands.add_parser(
        "save",
        parents=[common],
        help="write a sampler to a file",
        description="Write all that another server needs to go on as the sampler would: agents, environments, and "
        "where its sequences stand.",
    )
    save.add_argument("file", type=Path, metavar="FILE", help="file to write")
    save.set_defaults(run=_save)


def _add_restore(commands: _Commands, common: argparse.ArgumentParser) -> None:
    restore = commands.add_parser(
        "restore",
        parents=[common],
        help="replace a sampler by a saved one",
        description="Replace a sampler by one that `rollserve save` has written, of this server or another. Its calls "
        "that run fail.",
    )
    restore.add_argument("file", type=Path, metavar="FILE", help="file to read")
    restore.set_defaults(run=_restore)


def _add_verify(commands: _Commands) -> None:
    verify = commands.add_parser(
        "verify",
        help="replay recorded episodes in plain gymnasium, without a server",
        description="Replay the episodes of a file in plain gymnasium, and say of each whether it is equal bit by bit. "
        "Needs gymnasium: pip install 'rollserve[data]'. The exit status is 1 if something differs.",
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
    verify.set_defaults(run=_verify)


def _json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(mismatch("a JSON object", repr(text)))
    return value


def _count(text: str) -> int:
    """Parse a whole number, which may be written as 1e6."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
        if number.is_integer():
            return int(number)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(mismatch("a whole number, such as 10000 or 1e4", repr(text)))


def _numbers(text: str) -> list[float]:
    """Parse numbers with commas between them."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(mismatch("numbers with commas between them", repr(text))) from None


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


def _sample(sampler: Sampler, options: argparse.Namespace) -> None:
    if options.plot is not None:
        check_plot(options.plot)
    for path in filter(None, (options.out, options.plot)):
        _check_writable(path)
    if options.random_agent:
        sampler.update_agent(RandomAgent())
    began = time.monotonic()
    sampling_options: SamplingOptions = {
        "seed": options.seed,
        "first_episode_index": options.first_episode_index,
        "policy_version": options.policy_version,
        "min_policy_version": options.min_policy_version,
        "skip_failed_episodes": options.skip_failed_episodes,
        "deterministic": options.deterministic,
        "temperature": options.temperature,
        "noise_scale": options.noise_scale,
        "epsilon": options.epsilon,
        "progress": True,
    }
    if options.fragments:
        batch = sampler.obtain_fragments(
            options.steps,
            fraction_of_workers=options.fraction_of_workers,
            fraction_of_samples=options.fraction_of_samples,
            **sampling_options,
        )
    else:
        batch = sampler.obtain_samples(options.steps, **sampling_options)
    seconds = time.monotonic() - began
    received: object = batch
    if isinstance(received, MultiAgentBatch):
        expected = "an environment with one agent, because the command shows and writes its episodes"
        raise InvalidArgumentError.of("sample", expected=expected, got=f"agents {', '.join(received.agents)}")
    print(_summary(batch, seconds))
    if options.out is not None:
        _write(options.out, _with_receipt(sampler, batch).save)
    if options.plot is not None:
        _write(options.plot, functools.partial(plot_batch, batch))


def _with_receipt(sampler: Sampler, batch: EpisodeBatch) -> EpisodeBatch:
    """Return the batch with a receipt, or as it is and say why it has none."""
    try:
        return sampler.with_receipt(batch)
    except ValueError as error:
        print(f"without a receipt: {error}")
        return batch


def _evaluate(sampler: Sampler, options: argparse.Namespace) -> None:
    result = sampler.evaluate(options.episodes, deterministic=options.deterministic, seed=options.seed, progress=True)
    print(f"return {result.return_summary}, {range_text(result.returns)}")
    print(f"length {result.length_summary}, {range_text(result.lengths)}")
    print(
        f"{len(result)} episodes, policy version {result.policy_version}, environment version {result.env_version}, "
        f"seed {result.seed}"
    )


def _resize(sampler: Sampler, options: argparse.Namespace) -> None:
    previous = sampler.resize(options.workers)
    print(f"{options.workers} workers, previously {previous}")


def _samplers(sampler: Sampler, options: argparse.Namespace) -> None:
    samplers = sampler.list_samplers()
    print(json.dumps(samplers, default=_to_json, indent=2) if options.json else _table_of(samplers))


def _create(sampler: Sampler, options: argparse.Namespace) -> None:
    quota = Quota(
        options.max_workers, options.max_rows, options.max_bytes, options.max_calls, options.max_steps_per_second
    )
    env = EnvSpec(options.env, options.env_kwargs or {}, num_rows=options.rows)
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


def _export(sampler: Sampler, options: argparse.Namespace) -> None:
    _check_writable(options.onnx)
    agent, status = sampler.agent(options.policy_version), sampler.status()
    if isinstance(agent, MlpAgent):
        try:
            agent = OnnxAgent.from_mlp(agent, status.observation_space, status.action_space)
        except (ImportError, ValueError) as error:
            code, reason = grpc.StatusCode.INVALID_ARGUMENT, Reason.INVALID_VALUE
            raise InvalidArgumentError(str(error), code=code, reason=reason) from error
    if not isinstance(agent, OnnxAgent):
        got = f"an agent of the class {type(agent).__name__}"
        raise InvalidArgumentError.of("agent", expected="an MLP or a model", got=got)
    model = agent.model
    assert isinstance(model, bytes)  # noqa: S101  # a path has been read
    _write(options.onnx, lambda path: path.write_bytes(model))


def _save(sampler: Sampler, options: argparse.Namespace) -> None:
    _check_writable(options.file)
    saved = sampler.save()
    _write(options.file, lambda path: path.write_bytes(saved))


def _restore(sampler: Sampler, options: argparse.Namespace) -> None:
    sampler.restore(options.file)
    status = sampler.status()
    print(
        f"sampler restored: policy version {status.policy_version}, environment version {status.env_version}, "
        f"{status.num_workers} workers"
    )


def _run_verify(options: argparse.Namespace) -> int:
    """Verify a file and return the exit status."""
    try:
        return 0 if _verify(options) else 1
    except (ImportError, OSError, RollserveError, ValueError) as error:
        print(f"rollserve: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
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
    text += f"differs: {check.difference}" if check.difference else "equal"
    if check.log_prob_error is not None:
        text += f", log-probabilities within {check.log_prob_error:.1e}"
    return text


def _table_of(samplers: Sequence[SamplerSummary]) -> str:
    rows = [("SAMPLER", "OWNER", "WORKERS", "POLICY", "LEASE LEFT", "ENVIRONMENT")]
    for each in samplers:
        lease = "-" if each.lease_left_seconds is None else f"{each.lease_left_seconds:.0f} s"
        row = each.sampler, each.owner or "-", str(each.num_workers), str(each.policy_version), lease
        rows.append((*row, ", ".join(each.env_ids)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _describe_quota(status: SamplerStatus) -> str:
    quota = status.quota
    limits = {
        "workers": quota.num_workers,
        "rows": quota.num_rows,
        "bytes of results": quota.result_bytes,
        "calls at a time": quota.num_calls,
        "steps/s": quota.steps_per_second,
    }
    lease = "no lease" if status.lease_seconds is None else f"lease {status.lease_seconds:g} s"
    limited = ", ".join(f"{value:,.15g} {name}" for name, value in limits.items() if value)
    return f"owner {status.owner or 'none'}, {lease}, at most {limited or 'anything'}"


def _check_writable(path: Path) -> None:
    """Raise OSError before sampling if a file cannot be written to."""
    if path.is_fifo():  # opening and closing it would end its reader's input
        return
    is_new = not os.path.lexists(path)
    path.open("ab").close()
    if is_new:
        path.unlink()


def _write(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file, and say so; an OSError names the file."""
    try:
        write(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None
    print(f"written to {path}")


def _summary(batch: EpisodeBatch, seconds: float) -> str:
    ended = f"{int(batch.terminated.sum())} terminated, {int(batch.truncated.sum())} truncated"
    rate = batch.num_steps / max(seconds, 1e-9)
    segments = "episodes" if (batch.terminated | batch.truncated).all() else "fragments of episodes"
    lines = [
        f"{len(batch)} {segments} ({ended}), {batch.num_steps} steps in {seconds:.1f} s, {rate:.0f} steps/s",
        _distribution("return", batch.returns),
        _distribution("length", batch.lengths),
    ]
    if batch.account is not None:
        account = batch.account
        lines.append(
            f"policy version {account.policy_version}, environment version {account.env_version}, "
            f"seed {account.seed}, first episode {account.first_episode_index}"
        )
        if account.num_retried_episodes or account.num_failed_episodes:
            lines.append(f"{account.num_retried_episodes} episodes retried, {account.num_failed_episodes} skipped")
        lines += [f"skipped: {failure.text}" for failure in account.episode_failures if failure.skipped]
    return "\n".join(lines)


def _distribution(name: str, values: np.ndarray) -> str:
    return f"{name}: mean {values.mean():.1f}, {range_text(values)}"


def _describe(status: SamplerStatus) -> str:
    counters = status.counters
    lines = [
        f"sampler {status.sampler}, server {status.server_version}, up {counters.uptime_seconds:.0f} s",
        f"environment: {_describe_envs(status.envs)} (version {status.env_version})",
        _describe_quota(status),
        *([f"hidden arguments: {', '.join(status.hidden_arguments)}"] if status.hidden_arguments else ()),
        *map(_describe_profile, status.profiles),
        f"observations: {status.observation_space}, actions: {status.action_space}",
        f"agent: {', '.join(status.agent_kinds) or 'none yet'} (version {status.policy_version})",
        f"seed {status.seed}, next episode {status.next_episode_index}, reproducible by {status.reproducibility.value}",
        f"calls: {counters.num_completed_calls} completed, {counters.num_failed_calls} failed, "
        f"{counters.num_cancelled_calls} cancelled",
        f"delivered: {counters.num_episodes} episodes, {counters.num_steps} steps, {counters.message_bytes} bytes; "
        f"simulated: {counters.num_simulated_steps} steps",
        f"faults: {counters.num_env_failures} errors of environments, {counters.num_retried_episodes} episodes "
        f"retried, {counters.num_failed_episodes} skipped",
        f"stragglers: {counters.num_straggler_episodes} episodes started a second time on another worker",
    ]
    return "\n".join([*lines, *map(_describe_worker, status.workers)])


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


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"rollserve: {message}", file=sys.stderr)


def _one_line(error: RollserveError) -> str:
    message = " ".join(error.message.split())
    if isinstance(error, UnavailableError) and not error.reason:
        return f"the server is out of reach: {message}"
    if error.reason == Reason.NO_AGENT:
        message += ", or sample with --random-agent"
    return f"{message} ({error.reason or error.code.name})"
