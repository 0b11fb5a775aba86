"""A model's inputs and outputs, matched with what the agent and its head need."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_server.agents.agent import (
    ACTION_MASK,
    FLOAT32,
    NEXT_STATE,
    OBSERVATION,
    PREVIOUS_ACTION,
    PREVIOUS_REWARD,
    STATE,
    ActionMask,
    leaf_role,
)
from rollserve_server.agents.exploration import DEFAULT_EXPLORATION, Exploration
from rollserve_server.agents.heads import ActionsHead, build_head, build_hybrid
from rollserve_server.agents.specs import OnnxModel, OnnxSpec, Port, Shapes
from rollserve_server.envs import Leaf, leaves_of_space
from rollserve_server.errors import InvalidValueError, listed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from gymnasium import Space

    from rollserve_server.agents.distributions import Head
    from rollserve_server.agents.onnx.model import Declared, ModelParts

__all__ = ["NOISE", "check_converts", "check_output", "match_inputs", "match_outputs", "onnx_head"]

NOISE = "noise"
"""Role of the input for noise."""

_OPTIONAL_OUTPUTS = ("log_prob", "value")

_TAKEN = (PREVIOUS_ACTION, PREVIOUS_REWARD)
"""First parts of names that the model's own states may not have."""


def match_inputs(
    model: OnnxModel,
    parts: ModelParts,
    leaves: Sequence[Leaf],
    action_leaves: Sequence[Leaf],
    mask: ActionMask | None,
) -> tuple[Port, ...]:
    """Return the inputs for the leaves of the observation space, then for others, then for the model's own states.

    The others are the mask, leaves of the action before, the reward before, and noise, each if the model takes it.

    Args:
        model: model as the request sends it.
        parts: parts of the model.
        leaves: leaves of the observation space, without one that has the mask.
        action_leaves: leaves of the action space.
        mask: action mask; None without one.

    Raises:
        InvalidValueError: an input is missing, has no role, or does not fit.
    """
    roles = {leaf_role(OBSERVATION, leaf): leaf for leaf in leaves}
    states = _state_ports(model.inputs, parts.inputs)
    actions = {leaf_role(PREVIOUS_ACTION, leaf): leaf for leaf in action_leaves}
    others = [NOISE, *([] if mask is None else [ACTION_MASK]), *actions, PREVIOUS_REWARD]
    _check_roles("inputs", model.inputs, (*roles, *others, *(port.role for port in states)))
    ports = [_leaf_port(role, model.inputs.get(role, role), parts.inputs, leaf) for role, leaf in roles.items()]
    if mask is not None and (name := _optional_input(ACTION_MASK, model, parts.inputs)) is not None:
        ports.append(_number_port(ACTION_MASK, name, parts.inputs, (mask.size,), "biuf", "numbers or booleans"))
    for role, leaf in actions.items():
        if (name := _optional_input(role, model, parts.inputs)) is not None:
            ports.append(_leaf_port(role, name, parts.inputs, leaf))
    if (name := _optional_input(PREVIOUS_REWARD, model, parts.inputs)) is not None:
        ports.append(_number_port(PREVIOUS_REWARD, name, parts.inputs, (), "f", "floats"))
    if (name := _optional_input(NOISE, model, parts.inputs)) is not None:
        ports.append(_noise_port(name, parts.inputs[name]))
    for port in states:
        _check_axes(port.name, parts.inputs[port.name][1], port.shape)
        ports.append(port)
    names = [port.name for port in ports]
    if len(set(names)) < len(names) or set(names) != set(parts.inputs):
        expected = f"inputs {listed(names)}, each for one role"
        raise InvalidValueError.of("model.input", expected=expected, got=f"inputs {listed(parts.inputs)}")
    return tuple(ports)


def match_outputs(
    model: OnnxModel, outputs: Shapes, action_space: Space[Any], states: Sequence[Port]
) -> dict[str, Port]:
    """Return the outputs by role; the role of an info is its name.

    Raises:
        InvalidValueError: an output is missing, has no role, or does not fit.
    """
    head = _build_head(model, action_space, DEFAULT_EXPLORATION, has_log_prob=True)
    state_roles = _next_state_roles(states, model.outputs, outputs, model.infos)
    names = _output_names(
        model, outputs, list(dict.fromkeys([*(column.name for column in head.inputs), "value", *state_roles]))
    )
    taken = {*names, *(port.role for port in states), *((ACTION_MASK,) if model.agent_inputs.action_mask else ())}
    _add_infos(names, model.infos, outputs, taken)
    if unused := [name for name in outputs if name not in names.values()]:
        expected = "only outputs that have a role or are named in `infos`"
        raise InvalidValueError.of("model.output", expected=expected, got=f"output {unused[0]!r}")
    ports = {role: Port(role, name, *outputs[name]) for role, name in names.items()}
    _check_next_states(states, ports)
    if "value" in ports:
        check_output(ports["value"], FLOAT32, 1)
    return ports


def onnx_head(
    model: OnnxModel | OnnxSpec,
    outputs: Mapping[str, Port],
    action_space: Space[Any],
    exploration: Exploration = DEFAULT_EXPLORATION,
    mask: ActionMask | None = None,
) -> Head:
    """Build the head for a model with these outputs; with a mask, it gets the legal actions after them.

    Raises:
        InvalidValueError: the head does not fit the action space, or an output is missing.
    """
    head = _build_head(model, action_space, exploration, has_log_prob="log_prob" in outputs, mask=mask)
    for column in head.inputs:
        if column.name not in outputs:
            expected = f"an output {column.name!r}, or one that `outputs` names for it"
            got = listed([port.name for port in outputs.values()])
            raise InvalidValueError.of("model.output", expected=expected, got=got)
    return head


def check_converts(dtype: np.dtype, port: Port) -> None:
    """Raise InvalidValueError unless the input takes values of a dtype."""
    if port.dtype.kind != "f" and not np.can_cast(dtype, port.dtype, "same_kind"):
        expected = f"floats, or a type to which {dtype} converts"
        raise InvalidValueError.of(f"model.input[{port.name!r}]", expected=expected, got=port.dtype)


def check_output(port: Port, dtype: np.dtype, size: int) -> None:
    """Raise InvalidValueError unless rows of the output have a size, and convert to a dtype."""
    field = f"model.output[{port.name!r}]"
    if math.prod(port.shape) != size:
        expected = f"rows with {size} {'element' if size == 1 else 'elements'} for {port.role!r}"
        raise InvalidValueError.of(field, expected=expected, got=f"rows of shape {port.shape}")
    if not np.can_cast(port.dtype, dtype, "same_kind"):
        raise InvalidValueError.of(field, expected=f"a type that converts to {dtype}", got=port.dtype)


def _leaf_port(role: str, name: str, inputs: Mapping[str, Declared], leaf: Leaf) -> Port:
    if name not in inputs:
        raise _missing("input", role, name, inputs)
    dtype, axes = inputs[name]
    port = Port(role, name, dtype, leaf.shape)
    check_converts(leaf.dtype, port)
    _check_axes(name, axes, leaf.shape)
    return port


def _optional_input(role: str, model: OnnxModel, inputs: Mapping[str, Declared]) -> str | None:
    """Return the name of an input that a model may have; None if it has none."""
    name = model.inputs.get(role, role)
    if name not in inputs and role in model.inputs:
        raise _missing("input", role, name, inputs)
    return name if name in inputs else None


def _number_port(
    role: str, name: str, inputs: Mapping[str, Declared], shape: tuple[int, ...], kinds: str, expected: str
) -> Port:
    """Return the port of an input for numbers of these kinds."""
    dtype, axes = inputs[name]
    if dtype.kind not in kinds:
        raise InvalidValueError.of(f"model.input[{name!r}]", expected=expected, got=dtype)
    _check_axes(name, axes, shape)
    return Port(role, name, dtype, shape)


def _noise_port(name: str, declared: Declared) -> Port:
    dtype, axes = declared
    width = axes[1] if axes and len(axes) == 2 else None
    if dtype.kind != "f" or not isinstance(width, int) or width < 1:
        expected = "floats of shape (N, K), with a number for K"
        raise InvalidValueError.of(f"model.input[{name!r}]", expected=expected, got=f"{dtype} of shape {axes}")
    _check_axes(name, axes, (width,))
    return Port(NOISE, name, dtype, (width,))


def _state_ports(names: Mapping[str, str], inputs: Mapping[str, Declared]) -> list[Port]:
    """Return the inputs that take states.

    Args:
        names: names by role, where name and role differ.
        inputs: inputs of the model.

    Raises:
        InvalidValueError: an input is missing, does not take floats, or does not declare the shape of its rows.
    """
    ports = []
    for role, name in _names_by_role(STATE, names, inputs).items():
        if name not in inputs:
            raise _missing("input", role, name, inputs)
        if role.removeprefix(STATE).startswith("_"):
            expected = "names of states that do not begin with '_', as names of masks do"
            raise InvalidValueError.of("model.input", expected=expected, got=repr(role))
        if role.removeprefix(STATE).split("/")[0] in _TAKEN:
            expected = f"names of states other than {listed(_TAKEN)}, which are values of the step before"
            raise InvalidValueError.of("model.input", expected=expected, got=repr(role))
        dtype, axes = inputs[name]
        field = f"model.input[{name!r}]"
        if dtype.kind != "f":
            raise InvalidValueError.of(field, expected="floats", got=dtype)
        shape = tuple(axis for axis in (axes or ())[1:] if isinstance(axis, int) and axis > 0)
        if not axes or len(shape) < len(axes) - 1:
            expected = "positive sizes of all axes but the first, as in ('N', 64)"
            hint = "a state begins as zeros of that shape"
            raise InvalidValueError.of(field, expected=expected, got=f"shape {axes}", hint=hint)
        ports.append(Port(role, name, dtype, shape))
    return ports


def _check_axes(name: str, axes: tuple[int | str, ...] | None, shape: tuple[int, ...]) -> None:
    """Raise InvalidValueError unless the declared axes take any number of rows of a shape."""
    if axes is None:
        return
    field = f"model.input[{name!r}]"
    if len(axes) != 1 + len(shape) or any(
        isinstance(axis, int) and 0 <= axis != size for axis, size in zip(axes[1:], shape, strict=True)
    ):
        raise InvalidValueError.of(field, expected=f"shape {('N', *shape)}", got=f"shape {axes}")
    if isinstance(axes[0], int) and axes[0] >= 0:
        hint = "give the first axis a name instead of a size"
        raise InvalidValueError.of(field, expected="a batch axis of any size", got=f"size {axes[0]}", hint=hint)


def _build_head(
    model: OnnxModel | OnnxSpec,
    action_space: Space[Any],
    exploration: Exploration,
    *,
    has_log_prob: bool,
    mask: ActionMask | None = None,
) -> Head:
    if model.head == "actions":
        return ActionsHead(leaves_of_space(action_space), has_log_prob=has_log_prob, mask=mask)
    if model.head == "hybrid":
        return build_hybrid(model.leaf_heads, action_space, {}, exploration, mask)
    return build_head(model.head, action_space, exploration=exploration, mask=mask)


def _next_state_roles(
    states: Iterable[Port], names: Mapping[str, str], outputs: Collection[str], infos: Collection[str]
) -> list[str]:
    """Return the roles of the outputs that give the next states.

    Args:
        states: inputs that take states.
        names: names by role, where name and role differ.
        outputs: outputs of the model.
        infos: names of outputs that are infos.

    Raises:
        InvalidValueError: no input takes the state that an output gives.
    """
    roles = [f"{NEXT_STATE}{port.role.removeprefix(STATE)}" for port in states]
    for role, name in _names_by_role(NEXT_STATE, names, outputs).items():
        if role not in roles and name not in infos:
            expected = f"an input {f'{STATE}{role.removeprefix(NEXT_STATE)}'!r} for the output {name!r}"
            raise InvalidValueError.of("model.input", expected=expected, got="none", hint="`inputs` may name one")
    return roles


def _output_names(model: OnnxModel, outputs: Collection[str], roles: Sequence[str]) -> dict[str, str]:
    """Return the names of outputs by role; optional roles without an output are left out."""
    _check_roles("outputs", model.outputs, roles)
    names = {}
    for role in roles:
        name = model.outputs.get(role, role)
        if name in outputs:
            names[role] = name
        elif role not in _OPTIONAL_OUTPUTS or role in model.outputs:
            raise _missing("output", role, name, outputs)
    return names


def _add_infos(names: dict[str, str], infos: Sequence[str], outputs: Collection[str], taken: Collection[str]) -> None:
    for position, name in enumerate(infos):
        if name not in outputs or name in taken or name in infos[:position] or name.startswith("_"):
            expected = f"an output among {listed(outputs)} with a name that is not taken and does not begin with '_'"
            raise InvalidValueError.of(f"infos[{position}]", expected=expected, got=repr(name))
        names[name] = name


def _check_next_states(states: Iterable[Port], outputs: Mapping[str, Port]) -> None:
    """Raise InvalidValueError unless the outputs, by role, have the states' dtypes and shapes."""
    for state in states:
        port = outputs[f"{NEXT_STATE}{state.role.removeprefix(STATE)}"]
        field, source = f"model.output[{port.name!r}]", f"as the input {state.name!r} has"
        if port.dtype != state.dtype:
            raise InvalidValueError.of(field, expected=f"{state.dtype}, {source}", got=port.dtype)
        if port.shape != state.shape:
            expected = f"rows of shape {state.shape}, {source}"
            raise InvalidValueError.of(field, expected=expected, got=f"rows of shape {port.shape}")


def _check_roles(field: str, names: Mapping[str, str], known: Collection[str]) -> None:
    for role in names:
        if role not in known:
            raise InvalidValueError.of(field, expected=f"roles among {listed(known)}", got=f"role {role!r}")


def _names_by_role(prefix: str, names: Mapping[str, str], ports: Iterable[str]) -> dict[str, str]:
    """Return the names of ports by their role, for roles that begin with the prefix."""
    taken = set(names.values())
    roles = {name: name for name in ports if name.startswith(prefix) and name not in taken}
    return roles | {role: name for role, name in names.items() if role.startswith(prefix)}


def _missing(kind: str, role: str, name: str, names: Collection[str]) -> InvalidValueError:
    """Return the error for an input or output, as `kind` says, that the model lacks among its names."""
    expected = f"an {kind} {name!r} for the role {role!r}"
    return InvalidValueError.of(f"model.{kind}", expected=expected, got=f"{kind}s {listed(names)}")
