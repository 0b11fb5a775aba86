"""Whether ONNX models fit the spaces that they are to act in, and what they are made into if they do."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_server.agents.contents import model_digest
from rollserve_server.agents.exploration import AS_THE_AGENT_SAYS
from rollserve_server.agents.heads.head import ActionsHead, build_head, leaf_role
from rollserve_server.agents.onnx.model import read_model
from rollserve_server.agents.onnx.sandboxed import probe
from rollserve_server.agents.onnx.states import STATE, check_next_states, next_state_roles, state_ports
from rollserve_server.agents.parameters import check_parameters, listed
from rollserve_server.agents.specs import Batching, OnnxSpec, Port
from rollserve_server.envs import leaves_of_space
from rollserve_server.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gymnasium import Space

    from rollserve_server.agents.exploration import Exploration
    from rollserve_server.agents.heads.head import Head
    from rollserve_server.agents.onnx.model import Declared, ModelParts
    from rollserve_server.agents.specs import OnnxHeadKind, OnnxModel
    from rollserve_server.envs import Leaf
    from rollserve_server.settings import AgentSettings

__all__ = ["check_onnx", "onnx_head", "prepare_onnx"]

_NOISE = "noise"
_OPTIONAL_OUTPUTS = ("log_prob", "value")


def prepare_onnx(
    model: OnnxModel, observation_space: Space[Any], action_space: Space[Any], settings: AgentSettings
) -> OnnxSpec:
    """Looks at a model, and tries it in a process of its own.

    Raises:
        InvalidValueError: it is malformed, does not fit the spaces, or fails; the message names the field.
        OverLimitError: it is too large.
    """
    parts = read_model(model.data, settings.max_model_bytes)
    inputs = _match_inputs(model, parts, leaves_of_space(observation_space))
    states = [port for port in inputs if port.role.startswith(STATE)]
    found = probe(parts, inputs, leaves_of_space(observation_space), settings.onnx_providers, settings.model_sandbox)
    spec = OnnxSpec(
        graph=parts.graph,
        inputs=inputs,
        outputs=_match_outputs(model, found.outputs, action_space, states),
        head=model.head,
        infos=model.infos,
        batching=Batching(*found.batching),
        providers=settings.onnx_providers,
        parameters=parts.parameters,
        shapes={name: (value.dtype, value.shape) for name, value in parts.parameters.items()},
        source=model_digest(model),
    )
    check_onnx(spec, observation_space, action_space)
    return spec


def check_onnx(spec: OnnxSpec, observation_space: Space[Any], action_space: Space[Any]) -> None:
    """Raises InvalidValueError if the model does not fit the spaces, or its parameters do not fit it."""
    leaves = leaves_of_space(observation_space)
    ports = [port for port in spec.inputs if port.role != _NOISE and not port.role.startswith(STATE)]
    roles = [leaf_role("observation", leaf) for leaf in leaves]
    if [port.role for port in ports] != roles:
        raise InvalidValueError.of(
            "inputs", expected=f"inputs for {roles}", got=f"inputs for {[port.role for port in ports]}"
        )
    for leaf, port in zip(leaves, ports, strict=True):
        _check_converts(leaf.dtype, port)
        if port.shape != leaf.shape:
            raise InvalidValueError.of(
                f"model.input[{port.name!r}]", expected=leaf.shape, got=f"rows of shape {port.shape}"
            )
    for wanted in onnx_head(spec.head, spec.outputs, action_space).inputs:
        port = spec.outputs[wanted.name]
        _check_output(port, wanted.dtype, wanted.shape[0])
    check_parameters(spec.parameters, spec.shapes)


def onnx_head(
    kind: OnnxHeadKind,
    outputs: Mapping[str, Port],
    action_space: Space[Any],
    exploration: Exploration = AS_THE_AGENT_SAYS,
) -> Head:
    """The head for a model with these outputs.

    Raises:
        InvalidValueError: it is not one for the action space, or an output is missing.
    """
    if kind == "actions":
        head: Head = ActionsHead(leaves_of_space(action_space), has_log_prob="log_prob" in outputs)
    else:
        head = build_head(kind, action_space, exploration=exploration)
    for wanted in head.inputs:
        if wanted.name not in outputs:
            came = listed([port.name for port in outputs.values()])
            text = f"an output {wanted.name!r} is missing, or one that `outputs` names for it: {came} are used"
            raise InvalidValueError(text, field="model.output")
    return head


def _match_inputs(model: OnnxModel, parts: ModelParts, leaves: tuple[Leaf, ...]) -> tuple[Port, ...]:
    roles = {leaf_role("observation", leaf): leaf for leaf in leaves}
    states = state_ports(model.inputs, parts.inputs)
    _check_roles("inputs", model.inputs, (*roles, _NOISE, *(port.role for port in states)))
    ports = []
    for role, leaf in roles.items():
        name = model.inputs.get(role, role)
        if name not in parts.inputs:
            text = f"an input {name!r} for {role!r} is missing, {listed(parts.inputs)} came"
            raise InvalidValueError(text, field="model.input")
        dtype, shape = parts.inputs[name]
        port = Port(role, name, dtype, leaf.shape)
        _check_converts(leaf.dtype, port)
        _check_axes(name, shape, leaf.shape)
        ports.append(port)
    name = model.inputs.get(_NOISE, _NOISE)
    if name in parts.inputs:
        ports.append(_noise_port(name, parts.inputs[name]))
    elif _NOISE in model.inputs:
        raise InvalidValueError(f"an input {name!r} is missing, {listed(parts.inputs)} came", field="model.input")
    for port in states:
        _check_axes(port.name, parts.inputs[port.name][1], port.shape)
        ports.append(port)
    names = [port.name for port in ports]
    if len(set(names)) < len(names) or set(names) != set(parts.inputs):
        expected = f"inputs {listed(names)}, each for one role"
        raise InvalidValueError.of("model.input", expected=expected, got=f"inputs {listed(parts.inputs)}")
    return tuple(ports)


def _noise_port(name: str, declared: Declared) -> Port:
    dtype, shape = declared
    width = shape[1] if shape and len(shape) == 2 else None
    if dtype.kind != "f" or not isinstance(width, int) or width < 1:
        raise InvalidValueError.of(
            f"model.input[{name!r}]", expected="floats of shape (N, K)", got=f"{dtype} of shape {shape}"
        )
    _check_axes(name, shape, (width,))
    return Port(_NOISE, name, dtype, (width,))


def _match_outputs(
    model: OnnxModel,
    described: Mapping[str, tuple[np.dtype, tuple[int, ...]]],
    action_space: Space[Any],
    states: Sequence[Port],
) -> dict[str, Port]:
    """The outputs by role; the role of one that is an info is its name."""
    heads_own = ActionsHead(leaves_of_space(action_space), has_log_prob=True).inputs if model.head == "actions" else ()
    roles = [wanted.name for wanted in heads_own]
    if model.head != "actions":
        roles = [wanted.name for wanted in build_head(model.head, action_space).inputs]
    roles = list(dict.fromkeys([*roles, "value", *next_state_roles(states, model.outputs, described, model.infos)]))
    _check_roles("outputs", model.outputs, roles)
    names = {role: model.outputs.get(role, role) for role in roles}
    for role, name in list(names.items()):
        if name not in described:
            if role in _OPTIONAL_OUTPUTS and role not in model.outputs:
                del names[role]
            else:
                text = f"an output {name!r} for {role!r} is missing, {listed(described)} came"
                raise InvalidValueError(text, field="model.output")
    told = {*names, *(port.role for port in states)}
    for position, name in enumerate(model.infos):
        if name not in described or name in told or name in model.infos[:position] or name.startswith("_"):
            expected = f"another one of the outputs {listed(described)}, that is not called like what is told anyway"
            expected = f"{expected} nor begins with '_'"
            raise InvalidValueError.of(f"infos[{position}]", expected=expected, got=repr(name))
        names[name] = name
    if unused := [name for name in described if name not in names.values()]:
        expected = "outputs that have a role, or stand in `infos`"
        raise InvalidValueError.of("model.output", expected=expected, got=f"output {unused[0]!r}")
    ports = {role: Port(role, name, *described[name]) for role, name in names.items()}
    check_next_states(states, ports)
    if "value" in ports:
        _check_output(ports["value"], np.dtype(np.float32), 1)
    return ports


def _check_roles(field: str, names: Mapping[str, str], known: tuple[str, ...] | list[str]) -> None:
    for role in names:
        if role not in known:
            raise InvalidValueError.of(field, expected=f"one of {listed(known)}", got=f"role {role!r}")


def _check_converts(dtype: np.dtype, port: Port) -> None:
    if port.dtype.kind != "f" and not np.can_cast(dtype, port.dtype, "same_kind"):
        expected = f"floats, or a type that {dtype} converts to"
        raise InvalidValueError.of(f"model.input[{port.name!r}]", expected=expected, got=port.dtype)


def _check_axes(name: str, axes: tuple[int | str, ...] | None, shape: tuple[int, ...]) -> None:
    """Raises unless the declared axes take any number of rows of a shape."""
    if axes is None:
        return
    field = f"model.input[{name!r}]"
    if len(axes) != 1 + len(shape) or any(
        isinstance(axis, int) and 0 <= axis != size for axis, size in zip(axes[1:], shape, strict=True)
    ):
        raise InvalidValueError.of(field, expected=f"shape {('N', *shape)}", got=f"shape {axes}")
    if isinstance(axes[0], int) and axes[0] >= 0:
        text = f"the fixed batch axis {axes[0]} came, one of any size was expected: give it a name instead of a size"
        raise InvalidValueError(text, field=field)


def _check_output(port: Port, dtype: np.dtype, size: int) -> None:
    field = f"model.output[{port.name!r}]"
    if math.prod(port.shape) != size:
        raise InvalidValueError.of(
            field, expected=f"{size} elements for {port.role!r}", got=f"rows of shape {port.shape}"
        )
    if not np.can_cast(port.dtype, dtype, "same_kind"):
        raise InvalidValueError.of(field, expected=f"a type that converts to {dtype}", got=port.dtype)
