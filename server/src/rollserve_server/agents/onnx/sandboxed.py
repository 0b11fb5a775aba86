"""Has models tried in a process of its own, on random observations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.agents.sandbox.run import NUM_PROBE_ROWS, SandboxError, random_values, run_in_sandbox
from rollserve_server.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollserve_server.agents.onnx.model import ModelParts
    from rollserve_server.agents.specs import Port
    from rollserve_server.envs import Leaf
    from rollserve_server.settings import SandboxLimits

__all__ = ["ModelProbe", "probe"]

_MOST_BESIDE = 1 << 16
"""They are made here, for all rows of the trial, and then by each worker, for all of its own."""
_SCRIPT = Path(__file__).with_name("probe.py")


@dataclass(frozen=True)
class ModelProbe:
    """What has come of the trial of a model.

    Attributes:
        outputs: for each its type and a row's shape.
        batching: as of Batching.
    """

    outputs: Mapping[str, tuple[np.dtype, tuple[int, ...]]]
    batching: tuple[int, int]


def probe(
    parts: ModelParts,
    inputs: Sequence[Port],
    leaves: Sequence[Leaf],
    providers: Sequence[str],
    limits: SandboxLimits,
) -> ModelProbe:
    """Tries a model on random observations.

    Args:
        parts: the model.
        inputs: for each leaf, then for all that it takes beside them: any floats.
        leaves: of the observation space.
        providers: what is to run it.
        limits: what limits the trial.

    Raises:
        InvalidValueError: it cannot be used; the field is `model`, or its inputs.
    """
    num_beside = sum(math.prod(port.shape) for port in inputs[len(leaves) :])
    if num_beside > _MOST_BESIDE:
        came, expected = f"{num_beside} numbers of each row", f"at most {_MOST_BESIDE} of noise and states in all"
        raise InvalidValueError.of("model.input", expected=expected, got=came)
    arguments = {
        "graph": parts.graph,
        "parameters": dict(parts.parameters),
        "providers": list(providers),
        "rows": _random_rows(inputs, leaves),
    }
    num_bytes = len(parts.graph) + sum(value.nbytes for value in parts.parameters.values())
    try:
        answer = run_in_sandbox([str(_SCRIPT)], arguments, num_bytes, limits)
    except SandboxError as error:
        raise InvalidValueError(error.text, field="model") from None
    outputs = {name: (np.dtype(dtype), tuple(shape)) for name, (dtype, shape) in answer["outputs"].items()}
    multiple, most = answer["batching"]
    return ModelProbe(outputs, (multiple, most))


def _random_rows(inputs: Sequence[Port], leaves: Sequence[Leaf]) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    rows = {
        port.name: random_values(leaf, generator).astype(port.dtype)
        for port, leaf in zip(inputs[: len(leaves)], leaves, strict=True)
    }
    for port in inputs[len(leaves) :]:
        rows[port.name] = generator.standard_normal((NUM_PROBE_ROWS, *port.shape)).astype(port.dtype)
    return rows
