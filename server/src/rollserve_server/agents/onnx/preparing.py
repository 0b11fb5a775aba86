"""ONNX models before workers get them: matched with the spaces, and probed in a sandbox."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_server.agents.action_masks import action_mask_of
from rollserve_server.agents.agent import (
    ACTION_MASK,
    OBSERVATION,
    PREVIOUS_ACTION,
    PREVIOUS_REWARD,
    STATE,
    ActionMask,
    is_previous,
    leaf_role,
)
from rollserve_server.agents.identity import content_digest
from rollserve_server.agents.onnx.model import ModelParts, read_model
from rollserve_server.agents.onnx.ports import check_converts, check_output, match_inputs, match_outputs, onnx_head
from rollserve_server.agents.parameters import check_parameters
from rollserve_server.agents.sandbox import NUM_PROBE_ROWS, SandboxError, random_masks, random_rows, run_in_sandbox
from rollserve_server.agents.specs import Batching, ModelTrial, OnnxModel, OnnxSpec, Port, Shapes, shapes_of
from rollserve_server.envs import Leaf, leaves_of_space
from rollserve_server.errors import InvalidValueError, listed

if TYPE_CHECKING:
    from gymnasium import Space

    from rollserve_server.settings import AgentSettings, SandboxLimits

__all__ = ["check_onnx", "check_providers", "prepare_onnx"]

_ALWAYS_AVAILABLE = "CPUExecutionProvider"
_MAX_OTHER_NUMBERS = 1 << 16  # made here for all rows of the probe, then by each worker for all of its rows
_SCRIPT = Path(__file__).with_name("probe.py")


def check_providers(names: Sequence[str]) -> None:
    """Raise InvalidValueError unless all execution providers are available: ONNX Runtime leaves out the others."""
    if set(names) <= {_ALWAYS_AVAILABLE}:
        return
    import onnxruntime  # imported late: it takes a while

    available = onnxruntime.get_available_providers()
    for name in names:
        if name not in available:
            expected = f"execution providers of this machine ({', '.join(available)})"
            raise InvalidValueError.of("onnx_providers", expected=expected, got=repr(name))


def prepare_onnx(
    model: OnnxModel, observation_space: Space[Any], action_space: Space[Any], settings: AgentSettings
) -> OnnxSpec:
    """Read a model, and probe it in a sandbox unless it was tried before.

    Raises:
        InvalidValueError: the model is malformed, does not fit the spaces, or fails; the error names the field.
        OverLimitError: the model is too large.
    """
    parts = read_model(model.data, settings.max_model_bytes)
    mask = action_mask_of(model.agent_inputs.action_mask, observation_space, action_space)
    leaves, action_leaves = _observed(observation_space, mask), leaves_of_space(action_space)
    inputs = match_inputs(model, parts, leaves, action_leaves, mask)
    states = [port for port in inputs if port.role.startswith(STATE)]
    by_role = _leaves_by_role(leaves, action_leaves)
    trial = model.trial
    if trial is None:
        found = _run_probe(parts, inputs, by_role, mask, settings.onnx_providers, settings.model_sandbox)
        trial = ModelTrial(*found, settings.onnx_providers, content_digest(model))
    spec = OnnxSpec(
        graph=parts.graph,
        inputs=inputs,
        outputs=match_outputs(model, trial.outputs, action_space, states),
        head=model.head,
        infos=model.infos,
        batching=trial.batching,
        providers=trial.providers,
        parameters=parts.parameters,
        shapes=shapes_of(parts.parameters),
        agent_inputs=model.agent_inputs,
        leaf_heads=model.leaf_heads,
        source=trial.source,
    )
    check_onnx(spec, observation_space, action_space)
    return spec


def check_onnx(spec: OnnxSpec, observation_space: Space[Any], action_space: Space[Any]) -> None:
    """Raise InvalidValueError if the model does not fit the spaces, or its parameters do not fit the model."""
    mask = action_mask_of(spec.agent_inputs.action_mask, observation_space, action_space)
    leaves = _observed(observation_space, mask)
    ports = [port for port in spec.inputs if port.role == OBSERVATION or port.role.startswith(f"{OBSERVATION}/")]
    expected, got = [leaf_role(OBSERVATION, leaf) for leaf in leaves], [port.role for port in ports]
    if got != expected:
        raise InvalidValueError.of("inputs", expected=f"inputs for {expected}", got=f"inputs for {got}")
    for leaf, port in zip(leaves, ports, strict=True):
        _check_leaf(leaf, port)
    _check_previous(spec, action_space)
    for port in spec.inputs:
        if mask is not None and port.role == ACTION_MASK and port.shape != (mask.size,):
            field, wanted = f"model.input[{port.name!r}]", f"rows of shape {(mask.size,)}"
            raise InvalidValueError.of(field, expected=wanted, got=f"rows of shape {port.shape}")
    for column in onnx_head(spec, spec.outputs, action_space).inputs:
        check_output(spec.outputs[column.name], column.dtype, column.shape[0])
    check_parameters(spec.parameters, spec.shapes)


def _run_probe(
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


def _check_previous(spec: OnnxSpec, action_space: Space[Any]) -> None:
    """Raise InvalidValueError unless the inputs for the action before fit the action space."""
    leaves = _leaves_by_role((), leaves_of_space(action_space))
    for port in spec.inputs:
        if is_previous(port.role) and port.role != PREVIOUS_REWARD:
            if port.role not in leaves:
                raise InvalidValueError.of("inputs", expected=f"inputs among {listed(leaves)}", got=repr(port.role))
            _check_leaf(leaves[port.role], port)


def _check_leaf(leaf: Leaf, port: Port) -> None:
    check_converts(leaf.dtype, port)
    if port.shape != leaf.shape:
        field = f"model.input[{port.name!r}]"
        raise InvalidValueError.of(field, expected=f"rows of shape {leaf.shape}", got=f"rows of shape {port.shape}")


def _leaves_by_role(leaves: Iterable[Leaf], action_leaves: Iterable[Leaf]) -> dict[str, Leaf]:
    """Return the leaves of observations, and of the action before, by their roles."""
    observed = {leaf_role(OBSERVATION, leaf): leaf for leaf in leaves}
    return observed | {leaf_role(PREVIOUS_ACTION, leaf): leaf for leaf in action_leaves}


def _observed(observation_space: Space[Any], mask: ActionMask | None) -> list[Leaf]:
    """Return the leaves of the observation space that the model gets as observations."""
    leaves = leaves_of_space(observation_space)
    return list(leaves) if mask is None else mask.without_hidden(leaves)
