"""Commands that write agents and samplers to files, restore samplers, and replay and repair recorded episodes."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rollserve import data
from rollserve._calls.recorded_dataset import repair
from rollserve.agents import MlpAgent, OnnxAgent
from rollserve.cli.arguments import check_writable, write
from rollserve_wire.errors import InvalidArgumentError, RollserveError
from rollserve_wire.reasons import Reason
from rollserve_wire.spaces import Dict, space_to_proto

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollserve.cli.arguments import Commands
    from rollserve.sampler import Sampler
    from rollserve.status import SamplerStatus
    from rollserve_wire.spaces import Space

__all__ = ["add_agent", "add_repair", "add_restore", "add_save", "add_verify"]


def add_agent(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the command that writes an agent to a file."""
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
    export.add_argument("--policy", metavar="NAME", help="policy to write, in an environment with many agents")
    export.add_argument(
        "--acts-for", metavar="AGENT", help="agent whose spaces the policy has, where those of the agents differ"
    )
    export.set_defaults(run=_export)


def add_save(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the command that saves a sampler."""
    save = commands.add_parser(
        "save",
        parents=[common],
        help="write a sampler to a file",
        description="Write all that another server needs to go on as the sampler would: agents, environments, and "
        "where its sequences stand.",
    )
    save.add_argument("file", type=Path, metavar="FILE", help="file to write")
    save.set_defaults(run=_save)


def add_restore(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the command that restores a sampler."""
    restore = commands.add_parser(
        "restore",
        parents=[common],
        help="replace a sampler by a saved one",
        description="Replace a sampler by one that `rollserve save` has written, of this server or another. Its calls "
        "that run fail.",
    )
    restore.add_argument("file", type=Path, metavar="FILE", help="file to read")
    restore.set_defaults(run=_restore)


def _export(sampler: Sampler, options: argparse.Namespace) -> None:
    check_writable(options.onnx)
    agent, status = sampler.agent(options.policy_version, policy=options.policy), sampler.status()
    if isinstance(agent, MlpAgent):
        try:
            agent = OnnxAgent.from_mlp(agent, *_spaces(status, options.acts_for))
        except (ImportError, ValueError) as error:
            raise InvalidArgumentError(str(error), code="INVALID_ARGUMENT", reason=Reason.INVALID_VALUE) from error
    if not isinstance(agent, OnnxAgent):
        got = f"an agent of the class {type(agent).__name__}"
        raise InvalidArgumentError.of("agent", expected="an MLP or a model", got=got)
    model = agent.model
    assert isinstance(model, bytes)  # noqa: S101  # a path has been read
    write(options.onnx, lambda path: path.write_bytes(model))


def _spaces(status: SamplerStatus, agent: str | None) -> tuple[Space, Space]:
    """Return the observation space and the action space; in an environment with many agents, an agent's."""
    spaces = status.observation_space, status.action_space
    if not status.agents:
        return spaces
    of_agents = {name: tuple(_spaces_of(space)[name] for space in spaces) for name in status.agents}
    forms = {tuple(space_to_proto(space).SerializeToString() for space in each) for each in of_agents.values()}
    if agent not in of_agents and (agent is not None or len(forms) > 1):
        raise InvalidArgumentError.of("acts_for", expected=f"one of the agents {', '.join(of_agents)}", got=agent)
    observations, actions = of_agents[agent or status.agents[0]]
    return observations, actions


def _spaces_of(space: Space) -> Mapping[str, Space]:
    """Return the space of each agent, given the Dict space of all."""
    assert isinstance(space, Dict)  # noqa: S101  # environments with many agents have no others
    return dict(space.spaces)


def _save(sampler: Sampler, options: argparse.Namespace) -> None:
    check_writable(options.file)
    saved = sampler.save()
    write(options.file, lambda path: path.write_bytes(saved))


def _restore(sampler: Sampler, options: argparse.Namespace) -> None:
    sampler.restore(options.file)
    status = sampler.status()
    print(
        f"sampler restored: policy version {status.policy_version}, environment version {status.env_version}, "
        f"{status.num_workers} workers"
    )


def add_verify(commands: Commands) -> None:
    """Add the command that replays a file."""
    verify = commands.add_parser(
        "verify",
        help="replay recorded episodes in plain gymnasium, without a server",
        description="Replay the episodes of a file in plain gymnasium, and say of each whether it is equal bit by bit. "
        "Needs gymnasium: pip install 'rollserve[data]'. The exit status is 1 if something differs, and 4 if the file "
        "cannot be verified.",
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
    verify.set_defaults(run_here=_run_verify)


def _run_verify(options: argparse.Namespace) -> int:
    """Verify a file and return the exit status: 1 if something differs, 4 if the file cannot be verified."""
    try:
        return 0 if _verify(options) else 1
    except (ImportError, OSError, RollserveError, ValueError) as error:
        print(f"rollserve: {' '.join(str(error).split())}", file=sys.stderr)
        return 4
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
    errors = check.log_prob_error
    if check.difference:
        text += f"differs: {check.difference}"
    elif not check.is_probable:
        return f"{text}differs: log-probabilities by up to {errors:.1e}"
    else:
        text += "equal"
    return text if errors is None else f"{text}, log-probabilities within {errors:.1e}"


def add_repair(commands: Commands) -> None:
    """Add the command that finishes what a kill has left of a dataset."""
    parser = commands.add_parser(
        "repair",
        help="finish a Minari dataset whose writing was killed",
        description="Write what a killed server or process has left beside a Minari dataset into it. Needs Minari: "
        "pip install 'rollserve[data]'. The exit status is 4 if the dataset cannot be written.",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder of the dataset, which holds `data`")
    parser.set_defaults(run_here=_repair)


def _repair(options: argparse.Namespace) -> int:
    try:
        num_episodes, num_recovered = repair(options.folder)
    except (ImportError, OSError, ValueError) as error:
        print(f"rollserve: {' '.join(str(error).split())}", file=sys.stderr)
        return 4
    print(f"{options.folder}: {num_episodes} episodes ({num_recovered} episodes recovered)")
    return 0
