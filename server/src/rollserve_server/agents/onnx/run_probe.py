"""Probes of models in a sandbox, on random observations."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.agents.agent import ACTION_MASK
from rollserve_server.agents.sandbox.random_rows import NUM_PROBE_ROWS, random_masks, random_rows
from rollserve_server.agents.sandbox.run import SandboxError, run_in_sandbox
from rollserve_server.agents.specs.batching import Batching
from rollserve_server.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollserve_server.agents.agent import ActionMask
    from rollserve_server.agents.onnx.model import ModelParts
    from rollserve_server.agents.specs.onnx import Port
    from rollserve_server.agents.specs.shapes import Shapes
    from rollserve_server.envs import Leaf
    from rollserve_server.settings import SandboxLimits

__all__ = ["run_probe"]

_MAX_OTHER_NUMBERS = 1 << 16  # made here for all rows of the probe, then by each worker for all of its rows
_SCRIPT = Path(__file__).with_name("probe.py")


def run_probe(
    parts: ModelParts,
    inputs: Sequence[Port],
    leaves: Mapping[str, Leaf],
    mask: ActionMask | None,
    providers: Sequence[str],
    limits: SandboxLimits,
) -> tuple[Shapes, Batching]:
    """Probe a model on random observations.

    Args:
        parts: model.
        inputs: all inputs.
        leaves: leaves of the observation and action spaces by the role of an input that has them.
        mask: action mask; None without one.
        providers: execution providers of ONNX Runtime, the best first.
        limits: limits of the sandbox.

    Returns:
        Dtype and shape of a row of each output, and the numbers of rows in which the model may run.

    Raises:
        InvalidValueError: the model is refused; the field is `model` or `model.input`.
    """
    num_others = sum(math.prod(port.shape) for port in inputs if port.role not in leaves)
    if num_others > _MAX_OTHER_NUMBERS:
        expected = f"at most {_MAX_OTHER_NUMBERS} numbers of masks, noise and states per row"
        raise InvalidValueError.of("model.input", expected=expected, got=num_others)
    arguments = {
        "graph": parts.graph,
        "parameters": dict(parts.parameters),
        "providers": list(providers),
        "rows": _random_inputs(inputs, leaves, mask),
    }
    num_bytes = len(parts.graph) + sum(value.nbytes for value in parts.parameters.values())
    try:
        result = run_in_sandbox([str(_SCRIPT)], arguments, num_bytes, limits)
    except SandboxError as error:
        raise InvalidValueError(error.text, field="model") from None
    outputs = {name: (np.dtype(dtype), tuple(shape)) for name, (dtype, shape) in result["outputs"].items()}
    return outputs, Batching(*result["batching"])


def _random_inputs(
    inputs: Sequence[Port], leaves: Mapping[str, Leaf], mask: ActionMask | None
) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    rows: dict[str, np.ndarray] = {}
    for port in inputs:
        if port.role in leaves:
            values = random_rows(leaves[port.role], generator)
        elif mask is not None and port.role == ACTION_MASK:
            values = random_masks(mask, generator)
        else:
            values = generator.standard_normal((NUM_PROBE_ROWS, *port.shape))
        rows[port.name] = values.astype(port.dtype)
    return rows
