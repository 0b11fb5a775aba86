"""Agents: which are accepted, how models run, and how many versions are kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from rollserve_server.settings.groups import Group, Names

__all__ = ["AgentSettings", "SandboxLimits", "VersionSettings"]


@dataclass(frozen=True)
class SandboxLimits:
    """Limits of the child process in which an agent is tried.

    Attributes:
        seconds: processor time.
        patience: wall-clock time, as a multiple of `seconds`: the machine may be busy.
        memory_bytes: memory, beside eight times the agent's own size.
    """

    seconds: int = 60
    patience: int = 5
    memory_bytes: int = 4 << 30


class AgentSettings(Group):
    """Settings of agents: the accepted kinds, and how models run."""

    max_model_bytes: int = Field(
        default=192 << 20,
        ge=1,
        lt=2**31,
        description="Size of the largest ONNX model or pickled agent that is accepted in a request.",
    )
    allow_pickle: bool = Field(
        default=False,
        description="Whether agents may come as pickles. Reading a pickle runs whatever code it holds: whoever "
        "reaches the server can then run code as the user of the server and its workers.",
    )
    onnx_providers: Annotated[tuple[str, ...], Names] = Field(
        default=("CPUExecutionProvider",),
        description="An execution provider of ONNX Runtime, the best first. Can be given more than once; in the "
        "environment variable, separated by commas. Equal bits are guaranteed for the CPU's provider alone.",
    )
    model_sandbox: SandboxLimits = SandboxLimits()
    """Limits of the sandbox for ONNX models."""
    python_sandbox: SandboxLimits = SandboxLimits(seconds=25, patience=2)
    """Limits of the sandbox for Python agents."""


class VersionSettings(Group):
    """How many versions of agents and environments are kept."""

    keep_versions: int = Field(
        default=4,
        ge=1,
        le=1000,
        description="Number of versions of agents, and of environments, that the workers keep, so that an interrupted "
        "call can go on after an update.",
    )
    max_kept_agent_bytes: int = Field(
        default=1 << 30,
        ge=0,
        description="Bytes that kept versions of agents may take in a process, beside the current one and those that "
        "calls use; beyond that, the oldest are forgotten.",
    )
