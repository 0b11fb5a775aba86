"""Recurrent states of models: inputs that take what outputs gave at the previous action."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollserve_server.agents.previous import PREVIOUS_ACTION, PREVIOUS_REWARD
from rollserve_server.agents.roles import NEXT_STATE, STATE
from rollserve_server.agents.specs.onnx import Port
from rollserve_server.errors import InvalidValueError, listed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from rollserve_server.agents.onnx.model import Declared

__all__ = ["check_next_states", "missing", "next_state_roles", "state_ports"]


_TAKEN = (PREVIOUS_ACTION, PREVIOUS_REWARD)
"""First parts of names that the model's own states may not have."""


def state_ports(names: Mapping[str, str], inputs: Mapping[str, Declared]) -> list[Port]:
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
            raise missing("input", role, name, inputs)
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


def next_state_roles(
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


def check_next_states(states: Iterable[Port], outputs: Mapping[str, Port]) -> None:
    """Raise InvalidValueError unless the outputs, by role, have the states' dtypes and shapes."""
    for state in states:
        port = outputs[f"{NEXT_STATE}{state.role.removeprefix(STATE)}"]
        field, source = f"model.output[{port.name!r}]", f"as the input {state.name!r} has"
        if port.dtype != state.dtype:
            raise InvalidValueError.of(field, expected=f"{state.dtype}, {source}", got=port.dtype)
        if port.shape != state.shape:
            expected = f"rows of shape {state.shape}, {source}"
            raise InvalidValueError.of(field, expected=expected, got=f"rows of shape {port.shape}")


def missing(kind: str, role: str, name: str, names: Collection[str]) -> InvalidValueError:
    """Return the error for an input or output, as `kind` says, that the model lacks among its names."""
    expected = f"an {kind} {name!r} for the role {role!r}"
    return InvalidValueError.of(f"model.{kind}", expected=expected, got=f"{kind}s {listed(names)}")


def _names_by_role(prefix: str, names: Mapping[str, str], ports: Iterable[str]) -> dict[str, str]:
    """Return the names of ports by their role, for roles that begin with the prefix."""
    taken = set(names.values())
    roles = {name: name for name in ports if name.startswith(prefix) and name not in taken}
    return roles | {role: name for role, name in names.items() if role.startswith(prefix)}
