"""States of recurrent models: inputs that take what outputs gave with the action before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollserve_server.agents.parameters import listed
from rollserve_server.agents.specs import Port
from rollserve_server.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from rollserve_server.agents.onnx.model import Declared

__all__ = ["NEXT_STATE", "STATE", "check_next_states", "next_state_roles", "state_ports"]

STATE, NEXT_STATE = "state/", "next_state/"
"""What roles begin with, before a state's name."""


def state_ports(names: Mapping[str, str], inputs: Mapping[str, Declared]) -> list[Port]:
    """The inputs that take states.

    Args:
        names: names by role, where they differ from it.
        inputs: of the model.

    Raises:
        InvalidValueError: one is missing, is not of floats, or does not say of what shape its rows are.
    """
    ports = []
    for role, name in _names_of(STATE, names, inputs).items():
        if name not in inputs:
            text = f"an input {name!r} for {role!r} is missing, {listed(inputs)} came"
            raise InvalidValueError(text, field="model.input")
        if role.removeprefix(STATE).startswith("_"):
            text = f"{role!r} came, but names that begin with '_' are those of masks"
            raise InvalidValueError(text, field="model.input")
        dtype, axes = inputs[name]
        field = f"model.input[{name!r}]"
        if dtype.kind != "f":
            raise InvalidValueError.of(field, expected="floats", got=dtype)
        shape = tuple(axis for axis in (axes or ())[1:] if isinstance(axis, int) and axis > 0)
        if not axes or len(shape) < len(axes) - 1:
            expected = "positive numbers for all axes but the first, as in ('N', 64)"
            text = f"shape {axes} came, {expected} were expected: a state is zeros of that shape at first"
            raise InvalidValueError(text, field=field)
        ports.append(Port(role, name, dtype, shape))
    return ports


def next_state_roles(
    states: Iterable[Port], names: Mapping[str, str], outputs: Collection[str], infos: Collection[str]
) -> list[str]:
    """The roles of the outputs that states come from.

    Args:
        states: what takes them.
        names: names by role, where they differ from it.
        outputs: of the model.
        infos: those that are infos.

    Raises:
        InvalidValueError: nothing takes what one of them gives.
    """
    roles = [f"{NEXT_STATE}{port.role.removeprefix(STATE)}" for port in states]
    for role, name in _names_of(NEXT_STATE, names, outputs).items():
        if role not in roles and name not in infos:
            state = f"{STATE}{role.removeprefix(NEXT_STATE)}"
            text = f"an input {state!r} for the output {name!r} is missing, or one that `inputs` names for it"
            raise InvalidValueError(text, field="model.input")
    return roles


def check_next_states(states: Iterable[Port], outputs: Mapping[str, Port]) -> None:
    """Raises InvalidValueError unless the outputs, by role, are of the states' types and shapes."""
    for state in states:
        port = outputs[f"{NEXT_STATE}{state.role.removeprefix(STATE)}"]
        field, expected = f"model.output[{port.name!r}]", f"as of the input {state.name!r}"
        if port.dtype != state.dtype:
            raise InvalidValueError.of(field, expected=f"{state.dtype}, {expected}", got=port.dtype)
        if port.shape != state.shape:
            raise InvalidValueError.of(field, expected=f"{state.shape}, {expected}", got=f"rows of shape {port.shape}")


def _names_of(prefix: str, names: Mapping[str, str], there: Iterable[str]) -> dict[str, str]:
    """The names by their roles, of those whose roles begin with the prefix."""
    taken = set(names.values())
    roles = {name: name for name in there if name.startswith(prefix) and name not in taken}
    return roles | {role: name for role, name in names.items() if role.startswith(prefix)}
