"""ONNX models as the server runs them, evaluated on whole batches by ONNX Runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve.data.networks import active_steps, initial_state, shifted
from rollserve_wire.columns import leaves_of
from rollserve_wire.errors import mismatch
from rollserve_wire.extras import load
from rollserve_wire.spaces import Dict, Space, Tuple, named_leaves

if TYPE_CHECKING:
    from rollserve_wire.v1 import agent_pb2

__all__ = ["model_outputs"]

_DTYPES: dict[str, Any] = {
    "float": np.float32,
    "double": np.float64,
    "float16": np.float16,
    "bool": np.bool_,
    **{name: getattr(np, name) for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")},
}
_STATE = "state/"
_MAX_ROWS = 4096


def model_outputs(
    agent: agent_pb2.OnnxAgent, roles: list[str], batch: Any, observation_space: Space
) -> dict[str, np.ndarray]:
    """Return outputs of a model for each step of a batch, by role, (T, size) float64.

    Args:
        agent: the model, and the names of its inputs and outputs.
        roles: roles of the outputs.
        batch: the batch.
        observation_space: space of the observations.

    Raises:
        ImportError: ONNX Runtime is not installed.
        ValueError: a model that takes noise, or fails; or a fragment whose recurrent state is not recorded.
    """
    runtime = load("onnxruntime", "torch")
    try:
        session = runtime.InferenceSession(agent.model, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ValueError(f"agent: {mismatch('a model of ONNX', ' '.join(str(error).split()))}") from None
    roles_by_name = {name: role for role, name in agent.inputs.items()}
    ports = {roles_by_name.get(port.name, port.name): port for port in session.get_inputs()}
    if "noise" in ports:
        raise ValueError(f"agent: {mismatch('a model without noise, which is not recorded', 'one with it')}")
    values = _values(agent, batch, observation_space)
    columns: dict[str, np.ndarray] = {
        port.name: values[role].astype(_dtype(port)) for role, port in ports.items() if not role.startswith(_STATE)
    }
    states = {role: port for role, port in ports.items() if role.startswith(_STATE)}
    names = {role: agent.outputs.get(role, role) for role in roles}
    names |= {role: agent.outputs.get(role, role) for role in (f"next_{role}" for role in states)}
    memory: dict[str, np.ndarray] = {
        role: initial_state(batch, role.removeprefix(_STATE), tuple(port.shape[1:])).astype(_dtype(port))
        for role, port in states.items()
    }
    num_steps = len(next(iter(columns.values())))
    steps = active_steps(np.asarray(batch.lengths)) if states else _chunks(num_steps)
    found: dict[str, np.ndarray] = {}
    for active, rows in steps:
        feeds = {name: column[rows] for name, column in columns.items()}
        feeds |= {states[role].name: memory[role][active] for role in states}
        outputs = dict(zip(names, session.run(list(names.values()), feeds), strict=True))
        for role in states:
            memory[role][active] = outputs[f"next_{role}"]
        for role in roles:
            part = np.asarray(outputs[role], np.float64).reshape(len(rows), -1)
            found.setdefault(role, np.empty((num_steps, part.shape[1])))[rows] = part
    return found


def _values(agent: agent_pb2.OnnxAgent, batch: Any, observation_space: Space) -> dict[str, np.ndarray]:
    """Return columns of the batch by the roles of inputs, but for states."""
    is_nested = isinstance(observation_space, Dict | Tuple)
    observations = leaves_of(batch.observations)
    values = {
        f"observation/{name}" if is_nested else "observation": observations[name]
        for name in named_leaves(observation_space)
    }
    if agent.HasField("action_mask"):
        values["action_mask"] = batch.agent_infos.get("action_mask", np.zeros(0))
    actions = leaves_of(batch.actions)
    for name, column in actions.items():
        state = f"previous_action/{name}" if name else "previous_action"
        values[state] = shifted(column, batch.lengths, initial_state(batch, state, column.shape[1:]))
    values["previous_reward"] = shifted(batch.rewards, batch.lengths, initial_state(batch, "previous_reward", ()))
    return values


def _chunks(num_steps: int) -> Any:
    for start in range(0, num_steps, _MAX_ROWS):
        rows = np.arange(start, min(start + _MAX_ROWS, num_steps))
        yield rows, rows


def _dtype(port: Any) -> Any:
    """Return the dtype of an input, such as float32 for `tensor(float)`."""
    return _DTYPES[port.type.removeprefix("tensor(").removesuffix(")")]
