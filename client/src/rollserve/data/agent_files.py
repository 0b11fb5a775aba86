"""Agents in files, and their digests."""

from __future__ import annotations

import hashlib
import os

from google.protobuf.message import DecodeError

from rollserve.agents import Agent, agent_to_proto
from rollserve_wire.errors import mismatch
from rollserve_wire.v1 import agent_pb2

__all__ = ["agent_bytes", "agent_digest", "load_agent", "save_agent"]


def agent_bytes(agent: Agent) -> bytes:
    """Return an agent as the bytes of its message, the same for the same agent."""
    return agent_to_proto(agent).SerializeToString(deterministic=True)


def agent_digest(agent: Agent) -> str:
    """Return the SHA-256 of an agent's bytes, in hex, as receipts hold it."""
    return hashlib.sha256(agent_bytes(agent)).hexdigest()


def save_agent(agent: Agent, path: str | os.PathLike[str]) -> None:
    """Write an agent to a file, for `rollserve verify --agent`: the message `rollserve.v1.Agent`, without pickles.

    Raises:
        TypeError: not an agent.
        ValueError: a dtype that the wire does not have, an MLP without layers, or an argument that JSON cannot hold.
        OSError: a file that cannot be written.
    """
    data = agent_bytes(agent)
    with open(path, "wb") as file:
        file.write(data)


def load_agent(path: str | os.PathLike[str]) -> tuple[agent_pb2.Agent, str]:
    """Return the message in a file of `save_agent`, and its digest; raise ValueError for another file."""
    with open(path, "rb") as file:
        data = file.read()
    try:
        message = agent_pb2.Agent.FromString(data)
    except DecodeError as error:
        raise ValueError(f"{path}: {mismatch('an agent', error)}") from None
    if message.WhichOneof("kind") is None:
        raise ValueError(f"{path}: {mismatch('an agent', 'a message without one')}")
    return message, hashlib.sha256(data).hexdigest()
