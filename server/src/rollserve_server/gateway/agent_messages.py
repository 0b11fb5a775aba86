"""Messages about how an agent acts, to what the pool takes."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rollserve.environments import kwargs_from_json
from rollserve.v1 import agent_pb2
from rollserve_server.agents import CoreSpec, Exploration, HeadSettings, InstalledFactory, MlpSpec, PythonSource
from rollserve_server.envs import check_arguments
from rollserve_server.errors import InvalidValueError

if TYPE_CHECKING:
    import numpy as np

    from rollserve.v1 import sampler_service_pb2 as pb
    from rollserve_server.agents import Activation, HeadKind, Value

__all__ = ["check_model_head", "exploration_from_proto", "mlp_from_proto", "python_from_proto"]

_ACTIVATIONS: Mapping[agent_pb2.Activation.ValueType, Activation] = {
    agent_pb2.ACTIVATION_TANH: "tanh",
    agent_pb2.ACTIVATION_RELU: "relu",
    agent_pb2.ACTIVATION_ELU: "elu",
    agent_pb2.ACTIVATION_GELU: "gelu",
    agent_pb2.ACTIVATION_GELU_TANH: "gelu_tanh",
    agent_pb2.ACTIVATION_SILU: "silu",
}
_NORM_EPSILON = 1e-5
_LEAST_FACTOR, _MOST_FACTOR = 1e-6, 1e6
_MOST_FACTORS = 1024
"""They come with each order to a worker."""


def mlp_from_proto(mlp: agent_pb2.MlpAgent, parameters: Mapping[str, np.ndarray]) -> MlpSpec:
    """An MLP with its parameters.

    Raises:
        InvalidValueError: a part is missing or unknown.
    """
    head: HeadKind | None = mlp.WhichOneof("head")
    if head is None:
        kinds = [field.name for field in mlp.DESCRIPTOR.oneofs_by_name["head"].fields]
        raise InvalidValueError.of("head", "none", f"{', '.join(kinds[:-1])} or {kinds[-1]}")
    if mlp.activation not in (*_ACTIVATIONS, agent_pb2.ACTIVATION_UNSPECIFIED):
        raise InvalidValueError.of("activation", mlp.activation, "a value of Activation")
    norm = mlp.layer_norm
    norm_epsilon = norm.epsilon if norm.HasField("epsilon") else _NORM_EPSILON
    return MlpSpec(
        layer_sizes=tuple(mlp.layer_sizes),
        activation=_ACTIVATIONS.get(mlp.activation),
        head=head,
        parameters=parameters,
        settings=_settings_from_proto(mlp, head),
        norm_epsilon=norm_epsilon if mlp.HasField("layer_norm") else None,
        value=_value_from_proto(mlp),
        core=_core_from_proto(mlp),
    )


def check_model_head(onnx: agent_pb2.OnnxAgent, head: str) -> None:
    """Raises InvalidValueError if the head of a model has settings, which are an MLP's."""
    for field, value in getattr(onnx, head).ListFields():
        raise InvalidValueError.of(f"{head}.{field.name}", value, "none: a model gives log_std as it is to be,")


def python_from_proto(
    python: agent_pb2.PythonAgent, parameters: Mapping[str, np.ndarray], allowed_paths: Collection[Path]
) -> PythonSource:
    """An agent that is installed, with its parameters.

    Raises:
        InvalidValueError: its arguments are no JSON of the kind that they should be.
        NotAllowedError: see `check_arguments`.
    """
    try:
        kwargs = kwargs_from_json(python.kwargs_json)
    except ValueError as error:
        raise InvalidValueError(str(error), field="kwargs_json") from None
    check_arguments({"kwargs_json": kwargs}, allowed_paths)
    return PythonSource(InstalledFactory(python.name, kwargs), parameters)


def exploration_from_proto(exploration: pb.Exploration) -> Exploration:
    """How freely an agent is to act.

    Raises:
        InvalidValueError: a value is out of range, or has no meaning beside another.
    """
    ranges = {
        "temperature": (_LEAST_FACTOR, _MOST_FACTOR),
        "noise_scale": (_LEAST_FACTOR, _MOST_FACTOR),
        "epsilon": (0.0, 1.0),
    }
    changes: dict[str, tuple[float, ...]] = {}
    for name, (least, most) in ranges.items():
        field, values = f"{name}s", tuple(getattr(exploration, f"{name}s"))
        if not values:
            continue
        if len(values) > _MOST_FACTORS:
            raise InvalidValueError.of(field, f"{len(values)} numbers", f"at most {_MOST_FACTORS}")
        for position, value in enumerate(values):
            if not least <= value <= most:
                raise InvalidValueError.of(f"{field}[{position}]", value, f"a number from {least:g} to {most:g}")
        if exploration.deterministic:
            raise InvalidValueError.of(field, f"{len(values)} numbers", "none beside deterministic")
        changes[name] = values
    return Exploration(exploration.deterministic, **changes)


def _settings_from_proto(mlp: agent_pb2.MlpAgent, head: HeadKind) -> HeadSettings:
    match head:
        case "diagonal_gaussian" | "squashed_gaussian":
            gaussian = getattr(mlp, head)
            return HeadSettings(
                predicted_log_std=gaussian.predicted_log_std,
                min_log_std=gaussian.min_log_std if gaussian.HasField("min_log_std") else -math.inf,
                max_log_std=gaussian.max_log_std if gaussian.HasField("max_log_std") else math.inf,
            )
        case "epsilon_greedy":
            return HeadSettings(epsilon=mlp.epsilon_greedy.epsilon)
        case "boltzmann":
            return HeadSettings(temperature=mlp.boltzmann.temperature if mlp.boltzmann.HasField("temperature") else 1.0)
        case _:
            return HeadSettings()


def _value_from_proto(mlp: agent_pb2.MlpAgent) -> Value | None:
    match mlp.WhichOneof("value"):
        case "shared_value":
            return "shared"
        case "separate_value":
            return tuple(mlp.separate_value.hidden_sizes)
        case _:
            return None


def _core_from_proto(mlp: agent_pb2.MlpAgent) -> CoreSpec | None:
    match mlp.WhichOneof("core"):
        case "gru":
            return CoreSpec("gru", mlp.gru.size)
        case "lstm":
            return CoreSpec("lstm", mlp.lstm.size)
        case _:
            return None
