"""Parameters of agents: checked against names, dtypes and shapes, and replaced."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.agents.specs import (
    InstalledFactory,
    MlpSpec,
    OnnxSpec,
    PolicySpec,
    PythonSource,
    PythonSpec,
    Shapes,
    kind_of,
    shapes_of,
)
from rollserve_server.errors import InvalidValueError, listed, show
from rollserve_wire.moments import MEAN, VARIANCE

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["check_finite", "check_names", "check_parameters", "shapes_of_agent", "with_kwargs", "with_parameters"]

_HINTS = dict.fromkeys(
    (MEAN, VARIANCE),
    "an element of the flat observation each, with mean 0 and variance 1 where it is one-hot, and none of the action "
    "mask; moments have m.parameters(observation_space, without=mask)",
)
"""Hints for parameters of a wrong shape by name."""


def with_parameters(spec: PolicySpec, parameters: Mapping[str, np.ndarray]) -> PolicySpec:
    """Return the agent with other parameters, whose values `prepare_agent` checks.

    For an MLP, `parameters` replaces all parameters. ONNX models and Python agents keep the parameters that are missing
    in it.

    Raises:
        InvalidValueError: agents of this kind have no parameters, or a model has no parameter of a given name.
    """
    match spec:
        case MlpSpec():
            return dataclasses.replace(spec, parameters=parameters)
        case OnnxSpec():
            check_names(parameters, spec.shapes)
            return dataclasses.replace(spec, parameters={**spec.parameters, **parameters}, source=None)
        case PythonSpec():
            return dataclasses.replace(spec, parameters={**spec.parameters, **parameters}, policy=None)
    raise _without_parameters(spec, parameters)


def with_kwargs(spec: PolicySpec, kwargs: Mapping[str, object], parameters: Mapping[str, np.ndarray]) -> PythonSource:
    """Return an installed Python agent with further settings and parameters, for `prepare_agent` to probe.

    Args:
        spec: agent.
        kwargs: keyword arguments of its factory that are added or replaced.
        parameters: parameters that are added or replaced.

    Raises:
        InvalidValueError: the agent is of another kind, which has no such settings.
    """
    if not isinstance(spec, PythonSpec) or not isinstance(spec.factory, InstalledFactory):
        raise InvalidValueError.of("", expected="an agent of kind python to change", got=f"one of kind {kind_of(spec)}")
    factory = InstalledFactory(spec.factory.name, {**spec.factory.kwargs, **kwargs})
    return PythonSource(factory, {**spec.parameters, **parameters}, spec.inputs)


def shapes_of_agent(spec: PolicySpec, parameters: Mapping[str, np.ndarray]) -> Shapes:
    """Return dtypes and shapes of the agent's parameters.

    Args:
        spec: agent.
        parameters: other parameters, which are compared with the agent's.

    Raises:
        InvalidValueError: agents of this kind have no parameters.
    """
    match spec:
        case MlpSpec():
            return shapes_of(spec.parameters)
        case OnnxSpec() | PythonSpec():
            return spec.shapes
    raise _without_parameters(spec, parameters)


def check_names(names: Collection[str], known: Collection[str]) -> None:
    """Raise InvalidValueError if a parameter is unknown."""
    unknown = sorted(set(names).difference(known))
    if unknown:
        raise InvalidValueError.of("parameters", expected=f"names among {listed(known)}", got=show(unknown[0]))


def check_parameters(parameters: Mapping[str, np.ndarray], shapes: Shapes) -> None:
    """Raise InvalidValueError unless the parameters have exactly these names, dtypes and shapes, and are finite."""
    missing = [name for name in shapes if name not in parameters]
    if missing:
        raise InvalidValueError.of("parameters", expected=listed(shapes), got=f"none named {missing[0]!r}")
    check_names(parameters, shapes)
    for name, (dtype, shape) in shapes.items():
        field, value = f"parameters[{name!r}]", parameters[name]
        if value.dtype != dtype:
            raise InvalidValueError.of(f"{field}.data_type", expected=dtype, got=value.dtype)
        if value.shape != shape:
            raise InvalidValueError.of(f"{field}.shape", expected=shape, got=value.shape, hint=_HINTS.get(name, ""))
    check_finite(parameters)


def check_finite(parameters: Mapping[str, np.ndarray]) -> None:
    """Raise InvalidValueError unless all elements of all parameters are finite."""
    for name, value in parameters.items():
        finite = np.isfinite(value)
        if not finite.all():
            position = tuple(int(i) for i in np.argwhere(~finite)[0])
            raise InvalidValueError.of(
                f"parameters[{name!r}]{list(position)}", expected="a finite number", got=value[position]
            )


def _without_parameters(spec: PolicySpec, parameters: Mapping[str, np.ndarray]) -> InvalidValueError:
    expected = f"none: agents of kind {kind_of(spec)} have no parameters"
    return InvalidValueError.of("parameters", expected=expected, got=listed(parameters))
