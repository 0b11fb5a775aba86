"""Agents from specs, checked against the spaces that they are to act in."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_server.agents.fixed import ConstantAgent, RandomAgent
from rollserve_server.agents.heads import build_head
from rollserve_server.agents.mlp import Flattener, MlpAgent, Network
from rollserve_server.agents.specs import AgentSpec, ConstantSpec, MlpSpec, RandomSpec
from rollserve_server.envs import leaves_of_space
from rollserve_server.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gymnasium import Space

    from rollserve_server.agents.agent import Agent

__all__ = ["build_agent", "kind_of", "with_parameters"]

_MOST_LAYERS = 1000
_MOST_LISTED = 8
"""Names in the text of an error."""

_KINDS: dict[type, str] = {MlpSpec: "mlp", RandomSpec: "random", ConstantSpec: "constant"}


def kind_of(spec: AgentSpec) -> str:
    """The name of the agent's kind: `mlp`, `random` or `constant`."""
    return _KINDS[type(spec)]


def with_parameters(spec: AgentSpec, parameters: Mapping[str, np.ndarray]) -> AgentSpec:
    """The same agent with other parameters, which are checked when it is built.

    Raises:
        InvalidValueError: the agent is of a kind without parameters.
    """
    if not isinstance(spec, MlpSpec):
        text = f"{len(parameters)} came, but an agent of kind {kind_of(spec)} has none"
        raise InvalidValueError(text, field="parameters")
    return dataclasses.replace(spec, parameters=parameters)


def build_agent(
    spec: AgentSpec, observation_space: Space[Any], action_space: Space[Any], num_rows: int, *, together: bool = False
) -> Agent:
    """An agent for so many rows.

    Args:
        spec: what it is.
        observation_space: of one row.
        action_space: of one row.
        num_rows: how many rows it acts in at once.
        together: whether all rows are of one environment, and so always the same ones. Then it is faster, but the last
            bits of a row's results may depend on the rows beside it.

    Raises:
        InvalidValueError: the spec is malformed, or does not fit the spaces; the message names the field.
    """
    match spec:
        case MlpSpec():
            return _build_mlp(spec, observation_space, action_space, num_rows, together=together)
        case RandomSpec():
            return RandomAgent(leaves_of_space(action_space))
        case ConstantSpec():
            return _build_constant(spec, action_space, num_rows)


def _build_mlp(
    spec: MlpSpec, observation_space: Space[Any], action_space: Space[Any], num_rows: int, *, together: bool
) -> MlpAgent:
    flattener = Flattener(leaves_of_space(observation_space))
    (num_outputs,) = build_head(spec.head, action_space).inputs[0].shape
    _check_layers(spec, flattener.size, num_outputs)
    _check_parameters(spec.parameters, _parameter_shapes(spec))
    head = build_head(spec.head, action_space, spec.parameters.get("log_std"))
    network = Network(spec.layer_sizes, spec.activation, spec.parameters, num_rows, together=together)
    return MlpAgent(flattener, network, head)


def _check_layers(spec: MlpSpec, input_size: int, output_size: int) -> None:
    sizes = spec.layer_sizes
    if not 2 <= len(sizes) <= _MOST_LAYERS + 1:
        expected = f"from 2 to {_MOST_LAYERS + 1}: one of the input, and one of each layer,"
        raise InvalidValueError.of("layer_sizes", f"{len(sizes)} sizes", expected)
    for position, size in enumerate(sizes):
        if size < 1:
            raise InvalidValueError.of(f"layer_sizes[{position}]", size, "a positive size")
    if sizes[0] != input_size:
        expected = f"{input_size}, the flat size of the observation space,"
        raise InvalidValueError.of("layer_sizes[0]", sizes[0], expected)
    if sizes[-1] != output_size:
        expected = f"{output_size}, as the action space needs it,"
        raise InvalidValueError.of(f"layer_sizes[{len(sizes) - 1}]", sizes[-1], expected)
    if len(sizes) > 2 and spec.activation is None:
        raise InvalidValueError.of("activation", "none", "one for the hidden layers")


def _parameter_shapes(spec: MlpSpec) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for layer, (inputs, outputs) in enumerate(zip(spec.layer_sizes[:-1], spec.layer_sizes[1:], strict=True)):
        shapes[f"{layer}/weight"] = (outputs, inputs)
        shapes[f"{layer}/bias"] = (outputs,)
    if spec.head == "diagonal_gaussian":
        shapes["log_std"] = (spec.layer_sizes[-1],)
    return shapes


def _check_parameters(parameters: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]]) -> None:
    missing = [name for name in shapes if name not in parameters]
    unknown = sorted(parameters.keys() - shapes.keys())
    if missing:
        text = f"{missing[0]!r} is missing, {_listed(shapes)} were expected"
        raise InvalidValueError(text, field="parameters")
    if unknown:
        text = f"{unknown[0]!r} is unknown, {_listed(shapes)} were expected"
        raise InvalidValueError(text, field="parameters")
    for name, shape in shapes.items():
        field, value = f"parameters[{name!r}]", parameters[name]
        if value.dtype != np.float32:
            raise InvalidValueError.of(f"{field}.data_type", value.dtype, "float32")
        if value.shape != shape:
            raise InvalidValueError.of(f"{field}.shape", value.shape, shape)
        finite = np.isfinite(value)
        if not finite.all():
            position = tuple(int(i) for i in np.argwhere(~finite)[0])
            raise InvalidValueError.of(f"{field}{list(position)}", value[position], "a finite number")


def _build_constant(spec: ConstantSpec, action_space: Space[Any], num_rows: int) -> ConstantAgent:
    leaves = leaves_of_space(action_space)
    names = [leaf.name for leaf in leaves]
    if set(spec.action) != set(names):
        came, expected = (f"leaves {_listed(sorted(each))}" for each in (spec.action, names))
        raise InvalidValueError.of("action", came, expected)
    actions = []
    for leaf in leaves:
        field, value = f"action[{leaf.name!r}]", spec.action[leaf.name]
        if value.shape != leaf.shape:
            raise InvalidValueError.of(f"{field}.shape", value.shape, leaf.shape)
        if not np.can_cast(value.dtype, leaf.dtype, "same_kind"):
            raise InvalidValueError.of(f"{field}.data_type", value.dtype, leaf.dtype)
        with np.errstate(over="ignore"):  # what is too large becomes infinite
            action = value.astype(leaf.dtype)
        same = np.isfinite(action).all() if leaf.dtype.kind == "f" else np.array_equal(action, value)
        if not (same and leaf.space.contains(action if leaf.shape else leaf.dtype.type(action))):
            raise InvalidValueError.of(field, value, f"a value of {leaf.space}")
        actions.append(action)
    return ConstantAgent(actions, num_rows)


def _listed(names: Collection[str]) -> str:
    """The names in brackets, or the first of them."""
    first = ", ".join(repr(name) for name in itertools.islice(names, _MOST_LISTED))
    more = f", and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return f"[{first}{more}]"
