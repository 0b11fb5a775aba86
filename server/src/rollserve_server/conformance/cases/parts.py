"""Operations, and steps of scripts, that cases are made of."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_server.conformance.operations import array

if TYPE_CHECKING:
    from rollserve_server.conformance.cases.case import Json

__all__ = ["RANDOM", "abort", "breaking", "env", "envs_per_worker", "fragments", "mlp", "samples"]


def env(**kwargs: Any) -> Json:
    """Return an update to the environment of the kit with these arguments."""
    return {"do": "update_env", "id": "Conformance-v0", "kwargs": kwargs}


def envs_per_worker(*updates: Json | None) -> Json:
    """Return an update with an element for each worker: an update of all, a change, or None."""
    elements = [update and {name: value for name, value in update.items() if name != "do"} for update in updates]
    return {"do": "update_env_per_worker", "updates": elements}


RANDOM: Json = {"do": "update_agent", "agent": {"kind": "random"}}
"""An update to the random agent."""


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
