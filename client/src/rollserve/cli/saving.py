"""Commands that write agents and samplers to files, and restore samplers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rollserve.agents import MlpAgent, OnnxAgent
from rollserve.cli.files import check_writable, write
from rollserve_wire.errors import InvalidArgumentError
from rollserve_wire.reasons import Reason
from rollserve_wire.spaces import Dict, space_to_proto

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollserve.cli.argument_types import Commands
    from rollserve.sampler import Sampler
    from rollserve.status import SamplerStatus
    from rollserve_wire.spaces import Space

__all__ = ["add_agent", "add_restore", "add_save"]


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
    """Return the observation space and the action space; in an environment with many agents, those of an agent."""
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
