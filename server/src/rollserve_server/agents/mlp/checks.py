"""The head of an MLP, and the checks before the MLP is built."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rollserve_server.agents.agent import FLOAT32, FLOAT64, ActionMask
from rollserve_server.agents.exploration import DEFAULT_EXPLORATION, Exploration
from rollserve_server.agents.heads import build_head, build_hybrid
from rollserve_server.agents.mlp.agent import NetworkInput, check_variance
from rollserve_server.agents.mlp.network import core_shapes
from rollserve_server.agents.parameters import check_parameters
from rollserve_server.errors import InvalidValueError
from rollserve_wire.moments import MEAN, VARIANCE

if TYPE_CHECKING:
    from gymnasium import Space

    from rollserve_server.agents.distributions import Head
    from rollserve_server.agents.specs import ArrayType, HeadKind, HeadSettings, MlpSpec

__all__ = ["check_mlp", "mlp_head"]

_GAUSSIANS = ("diagonal_gaussian", "squashed_gaussian")
_MAX_LAYERS = 1000
_MIN_TEMPERATURE, _MAX_TEMPERATURE = 1e-6, 1e6
_MIN_EPSILON = 1e-12
_MAX_CORE_SIZE = 4096


def mlp_head(
    spec: MlpSpec,
    action_space: Space[Any],
    exploration: Exploration = DEFAULT_EXPLORATION,
    mask: ActionMask | None = None,
    *,
    is_stacked: bool = False,
) -> Head:
    """Build the head of an MLP.

    Args:
        spec: MLP, whose parameters need not have been checked.
        action_space: action space of one row.
        exploration: how freely the head acts.
        mask: action mask; None without one.
        is_stacked: whether rows differ in log_std, which the head then gets as an output.

    Raises:
        InvalidValueError: the head does not fit the action space.
    """
    if spec.head == "hybrid":
        log_stds = {leaf: spec.parameters.get(name) for leaf, name in _log_std_names(spec).items()}
        return build_hybrid(spec.leaf_heads, action_space, log_stds, exploration, mask)
    log_std = None if is_stacked else spec.parameters.get("log_std")
    return build_head(spec.head, action_space, log_std, spec.settings, exploration, mask)


def _heads_of(spec: MlpSpec) -> Iterator[tuple[str, str, HeadKind, HeadSettings]]:
    """Yield each head: the leaf that it is for, its field in errors, its kind and its settings."""
    if spec.head != "hybrid":
        yield "", spec.head, spec.head, spec.settings
    for leaf, (kind, settings) in spec.leaf_heads.items():
        yield leaf, f"hybrid.leaves[{leaf!r}].{kind}", kind, settings


def _log_std_names(spec: MlpSpec) -> dict[str, str]:
    """Return the names of the parameters that have a constant log_std, by the leaf of the action space."""
    return {
        leaf: f"log_std/{leaf}" if leaf else "log_std"
        for leaf, _, kind, settings in _heads_of(spec)
        if kind in _GAUSSIANS and not settings.predicted_log_std
    }


def check_mlp(spec: MlpSpec, network_input: NetworkInput, action_space: Space[Any]) -> None:
    """Raise InvalidValueError unless the spec is complete and fits the spaces; the error names the field.

    Args:
        spec: MLP.
        network_input: what the input of the network has to be.
        action_space: action space of one row.
    """
    for _, field, _, settings in _heads_of(spec):
        _check_settings(field, settings)
    _check_norm(spec)
    # Without parameters, heads have log_std among their inputs.
    inputs = mlp_head(dataclasses.replace(spec, parameters={}), action_space).inputs
    names = set(_log_std_names(spec).values())  # of parameters that have a constant log_std
    log_stds = {column.name: column.shape[0] for column in inputs if column.name in names}
    num_outputs = sum(column.shape[0] for column in inputs if column.name not in log_stds)
    _check_sizes(spec, network_input, num_outputs)
    check_parameters(spec.parameters, _parameter_shapes(spec, network_input.num_observed, log_stds))
    check_variance(spec.parameters)


def _check_settings(field: str, settings: HeadSettings) -> None:
    low, high = settings.min_log_std, settings.max_log_std
    if math.isnan(low):
        raise InvalidValueError.of(f"{field}.min_log_std", expected="a number", got=low)
    if not low <= high:
        raise InvalidValueError.of(f"{field}.max_log_std", expected=f"at least min_log_std, {low}", got=high)
    if not 0 <= settings.epsilon <= 1:
        raise InvalidValueError.of(f"{field}.epsilon", expected="a number from 0 to 1", got=settings.epsilon)
    if not _MIN_TEMPERATURE <= settings.temperature <= _MAX_TEMPERATURE:
        expected = f"a number from {_MIN_TEMPERATURE:g} to {_MAX_TEMPERATURE:g}"
        raise InvalidValueError.of(f"{field}.temperature", expected=expected, got=settings.temperature)


def _check_norm(spec: MlpSpec) -> None:
    if spec.norm_epsilon is not None and not _MIN_EPSILON <= spec.norm_epsilon <= 1:
        expected = f"a number from {_MIN_EPSILON:g} to 1"
        raise InvalidValueError.of("layer_norm.epsilon", expected=expected, got=spec.norm_epsilon)
    if spec.normalization is not None:
        epsilon, clip = spec.normalization
        if not _MIN_EPSILON <= epsilon <= 1:
            expected = f"a number from {_MIN_EPSILON:g} to 1"
            raise InvalidValueError.of("normalization.epsilon", expected=expected, got=epsilon)
        if not 0 < clip < math.inf:
            raise InvalidValueError.of("normalization.clip", expected="a positive, finite number", got=clip)


def _check_sizes(spec: MlpSpec, network_input: NetworkInput, output_size: int) -> None:
    sizes = spec.layer_sizes
    if not 2 <= len(sizes) <= _MAX_LAYERS + 1:
        expected = f"from 2 to {_MAX_LAYERS + 1} sizes, of the input and of each layer"
        raise InvalidValueError.of("layer_sizes", expected=expected, got=f"{len(sizes)} sizes")
    _check_positive("layer_sizes", sizes)
    if sizes[0] != network_input.size:
        expected = f"{network_input.size}, the flat size of {network_input.content}"
        raise InvalidValueError.of("layer_sizes[0]", expected=expected, got=sizes[0])
    if sizes[-1] != output_size:
        is_predicted = any(settings.predicted_log_std for *_, settings in _heads_of(spec))
        purpose = "means and log_std of the action space" if is_predicted else "the action space"
        expected = f"{output_size}, for {purpose}"
        raise InvalidValueError.of(f"layer_sizes[{len(sizes) - 1}]", expected=expected, got=sizes[-1])
    hidden_sizes = spec.value if isinstance(spec.value, tuple) else ()
    if len(hidden_sizes) >= _MAX_LAYERS:
        expected = f"at most {_MAX_LAYERS - 1} sizes"
        raise InvalidValueError.of("separate_value.hidden_sizes", expected=expected, got=f"{len(hidden_sizes)} sizes")
    _check_positive("separate_value.hidden_sizes", hidden_sizes)
    if spec.core is not None and not 1 <= spec.core.size <= _MAX_CORE_SIZE:
        expected = f"a number from 1 to {_MAX_CORE_SIZE}"
        raise InvalidValueError.of(f"{spec.core.kind}.size", expected=expected, got=spec.core.size)
    if (len(sizes) > 2 or hidden_sizes) and spec.activation is None:
        raise InvalidValueError.of("activation", expected="an activation for the hidden layers", got="none")


def _check_positive(field: str, sizes: Sequence[int]) -> None:
    for position, size in enumerate(sizes):
        if size < 1:
            raise InvalidValueError.of(f"{field}[{position}]", expected="a positive size", got=size)


def _parameter_shapes(spec: MlpSpec, num_observed: int, log_stds: Mapping[str, int]) -> dict[str, ArrayType]:
    sizes = spec.layer_sizes
    has_norm = spec.norm_epsilon is not None
    shapes = _layer_shapes("", sizes, has_norm=has_norm)
    num_features = sizes[-2]
    if spec.core is not None:
        shapes |= core_shapes(spec.core, num_features)
        num_features = spec.core.size
        shapes[f"{len(sizes) - 2}/weight"] = FLOAT32, (sizes[-1], num_features)
    if spec.normalization is not None:
        shapes |= dict.fromkeys((MEAN, VARIANCE), (FLOAT64, (num_observed,)))
    shapes |= {name: (FLOAT32, (size,)) for name, size in log_stds.items()}
    if spec.value == "shared":
        shapes["value/weight"], shapes["value/bias"] = (FLOAT32, (1, num_features)), (FLOAT32, (1,))
    elif spec.value is not None:
        shapes |= _layer_shapes("value/", (sizes[0], *spec.value, 1), has_norm=has_norm)
    return shapes


def _layer_shapes(prefix: str, sizes: Sequence[int], *, has_norm: bool) -> dict[str, ArrayType]:
    shapes: dict[str, ArrayType] = {}
    for layer, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        name = f"{prefix}{layer}"
        shapes[f"{name}/weight"], shapes[f"{name}/bias"] = (FLOAT32, (outputs, inputs)), (FLOAT32, (outputs,))
        if has_norm and layer < len(sizes) - 2:
            shapes[f"{name}/norm/weight"] = shapes[f"{name}/norm/bias"] = FLOAT32, (outputs,)
    return shapes
