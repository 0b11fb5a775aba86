"""Has models tried in a process of its own, which may crash, hang or run out of memory without harm to this one."""

from __future__ import annotations

import json
import pickle
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_server.agents.fixed import leaf_bounds
from rollserve_server.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollserve_server.agents.onnx_model import ModelParts
    from rollserve_server.agents.specs import Port
    from rollserve_server.envs import Leaf

__all__ = ["Trial", "TrialSettings", "try_out"]

_SCRIPT = Path(__file__).with_name("onnx_trial.py")
_NUM_ROWS = 80
_PATIENCE = 5
"""How many times as long as its processor's time a trial may take, on a machine that has much to do."""
_FAR = 1e4
"""Bounds beyond are as good as none."""


@dataclass(frozen=True)
class TrialSettings:
    """What limits the trial of a model.

    Attributes:
        seconds: how much of a processor's time it may take.
        memory_bytes: how much memory it may have, beside eight times the model's size.
    """

    seconds: int = 60
    memory_bytes: int = 4 << 30


@dataclass(frozen=True)
class Trial:
    """What has come of the trial of a model.

    Attributes:
        outputs: for each its type and a row's shape.
        batching: as of Batching.
    """

    outputs: Mapping[str, tuple[np.dtype, tuple[int, ...]]]
    batching: tuple[int, int]


def try_out(
    parts: ModelParts,
    inputs: Sequence[Port],
    leaves: Sequence[Leaf],
    providers: Sequence[str],
    settings: TrialSettings,
) -> Trial:
    """Tries a model on random observations.

    Args:
        parts: the model.
        inputs: for each leaf, then for all that it takes beside them: any floats.
        leaves: of the observation space.
        providers: what is to run it.
        settings: what limits the trial.

    Raises:
        InvalidValueError: it cannot be used; the field is `model`.
    """
    arguments = {
        "graph": parts.graph,
        "parameters": dict(parts.parameters),
        "providers": list(providers),
        "rows": _random_rows(inputs, leaves),
    }
    num_bytes = len(parts.graph) + sum(value.nbytes for value in parts.parameters.values())
    limits = {"memory_bytes": settings.memory_bytes + 8 * num_bytes, "seconds": settings.seconds}
    # Without -P, Python would take the modules beside it for others.
    command = [sys.executable, "-P", str(_SCRIPT)]
    try:
        ended = subprocess.run(  # noqa: S603
            command,
            input=pickle.dumps((limits, arguments), protocol=5),
            capture_output=True,
            timeout=_PATIENCE * settings.seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _refused(f"it did not end its trial within {_PATIENCE * settings.seconds} s") from None
    if ended.returncode == -signal.SIGXCPU:
        raise _refused(f"it did not end its trial within {settings.seconds} s of a processor's time")
    answer = _read(ended.stdout)
    if answer is None:
        raise _refused(f"it ended the process that tried it, {_manner(ended.returncode)}")
    if "error" in answer:
        raise _refused(str(answer["error"]))
    outputs = {name: (np.dtype(dtype), tuple(shape)) for name, (dtype, shape) in answer["outputs"].items()}
    multiple, most = answer["batching"]
    return Trial(outputs, (multiple, most))


def _random_rows(inputs: Sequence[Port], leaves: Sequence[Leaf]) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    rows = {
        port.name: _random_leaf(leaf, generator).astype(port.dtype)
        for port, leaf in zip(inputs[: len(leaves)], leaves, strict=True)
    }
    for port in inputs[len(leaves) :]:
        rows[port.name] = generator.standard_normal((_NUM_ROWS, *port.shape)).astype(port.dtype)
    return rows


def _random_leaf(leaf: Leaf, generator: np.random.Generator) -> np.ndarray:
    """Values of the leaf: between its bounds, or normal where these are far away."""
    low, high = leaf_bounds(leaf)
    far = (low < -_FAR) | (high > _FAR)
    near_low, near_high = np.where(far, 0, low), np.where(far, 0, high)
    shape = (_NUM_ROWS, low.size)
    if leaf.dtype.kind == "f":
        values = generator.uniform(near_low, near_high, shape)
    else:
        values = generator.integers(near_low, near_high, shape, endpoint=True).astype(np.float64)
    normal = np.clip(generator.standard_normal(shape), low, high)
    values = np.where(far, normal if leaf.dtype.kind == "f" else np.trunc(normal), values)
    return values.astype(leaf.dtype).reshape(_NUM_ROWS, *leaf.shape)


def _read(output: bytes) -> dict[str, Any] | None:
    try:
        answer = json.loads(output)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _manner(status: int) -> str:
    try:
        return f"by {signal.Signals(-status).name}"
    except ValueError:
        return f"with status {status}"


def _refused(text: str) -> InvalidValueError:
    return InvalidValueError(text, field="model")
