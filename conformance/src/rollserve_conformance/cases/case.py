"""Cases, and the operations and steps of scripts that they are made of."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rollserve_conformance.operations import array

__all__ = ["RANDOM", "Case", "Json", "abort", "breaking", "env", "envs_per_worker", "fragments", "mlp", "samples"]


Json = Mapping[str, Any]
"""An object as JSON has it."""

RANDOM: Json = {"do": "update_agent", "agent": {"kind": "random"}}
"""An update to the random agent."""


@dataclass(frozen=True)
class Case:
    """A case.

    Attributes:
        name: unique, for the command line.
        about: what the case is about, as one phrase.
        operations: what the adapter performs.
        connect: how it connects, beside the address; the values `@NAME` stand for `ConformanceServer.others`.
        secure: whether the server has TLS and asks for tokens.
        scripts: answers in place of the server's; see `RpcRecorder`.
        faults: what the server does wrong; see `FaultyServer`.
        recorded: recordings that operations receive, by the operation's position.
        expected: values that results must have, by the operation's position, beside what the server sent.
        client_errors: errors that the client makes itself: values that they must have, by the operation's position.
        stops: whether the client ends the last RPC itself.
        resumes: whether the client has to resume a stream, at least once.
        seconds: time limit for the answer.
    """

    name: str
    about: str
    operations: Sequence[Json]
    connect: Json = field(default_factory=dict)
    secure: bool = False
    scripts: Sequence[Json] = ()
    faults: Sequence[Json] = ()
    recorded: Mapping[int, str] = field(default_factory=dict)
    expected: Mapping[int, Json] = field(default_factory=dict)
    client_errors: Mapping[int, Json] = field(default_factory=dict)
    stops: bool = False
    resumes: bool = False
    seconds: float = 60.0


def env(**kwargs: Any) -> Json:
    """Return an update to the environment of the kit with these arguments."""
    return {"do": "update_env", "id": "Conformance-v0", "kwargs": kwargs}


def envs_per_worker(*updates: Json | None) -> Json:
    """Return an update with an element for each worker: an update of all, a change, or None."""
    elements = [update and {name: value for name, value in update.items() if name != "do"} for update in updates]
    return {"do": "update_env_per_worker", "updates": elements}


def samples(num_steps: int = 60, seed: int = 7, **options: Any) -> Json:
    """Return a call for samples with a seed."""
    return {"do": "obtain_samples", "num_steps": num_steps, "options": {"seed": str(seed), **options}}


def fragments(num_steps: int = 32, seed: int = 5, row_step_count: int | None = None, **options: Any) -> Json:
    """Return a call for fragments with a seed."""
    call = {"do": "obtain_fragments", "num_steps": num_steps, "options": {"seed": str(seed), **options}}
    return call if row_step_count is None else {**call, "row_step_count": row_step_count}


def breaking(after: int, times: int = 1) -> list[Json]:
    """Return the fault of a stream that breaks after a number of messages."""
    return [{"fault": "break-stream", "after_messages": after, "times": times}]


def mlp(seed: int, sizes: Sequence[int] = (3, 4, 2), **changes: Any) -> Json:
    """Return an MLP with random parameters."""
    generator = np.random.default_rng(seed)
    parameters = {}
    for layer, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        parameters[f"{layer}/weight"] = array(generator.normal(size=(outputs, inputs)), "float32")
        parameters[f"{layer}/bias"] = array(generator.normal(size=outputs), "float32")
    agent = {"kind": "mlp", "layer_sizes": list(sizes), "activation": "tanh", "head": "categorical"}
    return {**agent, "parameters": parameters, **changes}


def abort(status: str, reason: str, details: str = "options.seed: expected 1, got 2") -> Json:
    """Return a step of a script that fails as servers do."""
    trailing = {"rollserve-reason": reason, "rollserve-request-id": "00112233aabbccdd"} if reason else {}
    return {"abort": {"status": status, "details": details, "trailing": trailing}}
