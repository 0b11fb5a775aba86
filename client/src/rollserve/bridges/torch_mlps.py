"""Multilayer perceptrons of PyTorch as parameters of `MlpAgent`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from rollserve_wire.checks import type_error
from rollserve_wire.errors import mismatch
from rollserve_wire.extras import load
from rollserve_wire.representations import briefly

__all__ = ["TorchMlp", "mlp_of_modules"]

_NUM_TRIED = 16
_RELATIVE, _ABSOLUTE = 1e-3, 1e-4
"""Differences between two ways to compute in float32; a wrong layer differs by far more."""
_erf = np.vectorize(math.erf, otypes=[np.float64])
_FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "gelu": lambda x: x * (1 + _erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "silu": lambda x: x / (1 + np.exp(-x)),
}


@briefly
class TorchMlp(NamedTuple):
    """Parameters and settings of an `MlpAgent`.

    Attributes:
        parameters: arrays by name, which share the memory of modules on the CPU in float32.
        activation: activation of the hidden layers.
        layer_norm_epsilon: constant that layer norm adds to the variance; None without layer norm.
    """

    parameters: dict[str, np.ndarray]
    activation: str | None
    layer_norm_epsilon: float | None


class _Layer(NamedTuple):
    """A linear map with what follows it: layer norm and activation, if any."""

    path: str
    linear: Any
    norm: Any
    activation: str | None


def mlp_of_modules(module: Any, value: Any = None, log_std: Any = None) -> TorchMlp:
    """Return the parameters of an MLP in PyTorch; see `MlpAgent.from_torch`.

    Raises:
        ImportError: PyTorch is not installed.
        TypeError: a module, or a layer in it, of another type.
        ValueError: layers that an MLP does not have in this order, or that compute something else.
    """
    torch = load("torch", "torch")
    layers = list(_layers(torch, "module", module))
    parameters = _parameters(layers, "")
    all_layers = list(layers)
    is_shared = isinstance(value, torch.nn.Linear)
    if is_shared:
        parameters |= _linear(value, "value/")
    elif value is not None:
        value_layers = list(_layers(torch, "value", value))
        parameters |= _parameters(value_layers, "value/")
        all_layers += value_layers
    if log_std is not None:
        parameters["log_std"] = _array(log_std)
    activation = _common("activation", [each.activation for each in all_layers if each.activation is not None])
    epsilon = _common("layer norm epsilon", [each.norm.eps for each in all_layers if each.norm is not None])
    _check_norms(all_layers)
    found = TorchMlp(parameters, activation, epsilon)
    _check(torch, found, "module", module, lambda x: _outputs(found, x))
    if is_shared:
        _check_size("value", value.in_features, layers[-1].linear.in_features)
        if value.out_features != 1:
            raise ValueError(f"value: {mismatch('one output', value.out_features)}")
    elif value is not None:
        _check(torch, found, "value", value, lambda x: _outputs(found, x, "value/"))
    return found


def _layers(torch: Any, name: str, module: Any) -> Iterator[_Layer]:
    """Yield the layers of a Sequential, from the first one.

    Raises:
        TypeError: a module of another type.
        ValueError: modules in an order that an MLP does not have.
    """
    nn = torch.nn
    if not isinstance(module, nn.Sequential | nn.Linear):
        raise type_error(name, "a torch.nn.Sequential", module)
    waiting = list(_flat(torch, name, module))
    if waiting and isinstance(waiting[0][1], nn.Flatten):
        del waiting[0]
    while waiting:
        path, linear = waiting.pop(0)
        if not isinstance(linear, nn.Linear):
            raise type_error(path, "a torch.nn.Linear", linear)
        norm = waiting.pop(0)[1] if waiting and isinstance(waiting[0][1], nn.LayerNorm) else None
        if norm is not None and tuple(norm.normalized_shape) != (linear.out_features,):
            raise ValueError(f"{path}: {mismatch('layer norm over all outputs', tuple(norm.normalized_shape))}")
        if not waiting:
            if norm is not None:
                raise ValueError(f"{path}: {mismatch('a last layer without layer norm', 'layer norm')}")
            yield _Layer(path, linear, None, None)
            return
        yield _Layer(path, linear, norm, _activation(torch, *waiting.pop(0)))
    raise ValueError(f"{name}: {mismatch('a torch.nn.Linear as the last layer', 'none')}")


def _flat(torch: Any, path: str, module: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(module, torch.nn.Sequential):
        for position, child in enumerate(module):
            yield from _flat(torch, f"{path}[{position}]", child)
    else:
        yield path, module


def _activation(torch: Any, path: str, module: Any) -> str:
    """Return the name of an activation; raise TypeError or ValueError for one that `MlpAgent` does not have."""
    nn = torch.nn
    names = {nn.Tanh: "tanh", nn.ReLU: "relu", nn.ELU: "elu", nn.SiLU: "silu", nn.GELU: "gelu"}
    for kind, name in names.items():
        if isinstance(module, kind):
            if name == "elu" and module.alpha != 1:
                raise ValueError(f"{path}: {mismatch('ELU with an alpha of 1', module.alpha)}")
            return "gelu_tanh" if name == "gelu" and module.approximate == "tanh" else name
    raise type_error(path, f"an activation of {', '.join(kind.__name__ for kind in names)}", module)


def _parameters(layers: list[_Layer], prefix: str) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for position, layer in enumerate(layers):
        found |= _linear(layer.linear, f"{prefix}{position}/")
        if layer.norm is not None:
            found |= _linear(layer.norm, f"{prefix}{position}/norm/")
    return found


def _linear(module: Any, prefix: str) -> dict[str, np.ndarray]:
    """Return weight and bias of a linear map or layer norm; one that has none has ones and zeros."""
    weight = np.ones(module.normalized_shape, np.float32) if module.weight is None else _array(module.weight)
    bias = np.zeros(len(weight), np.float32) if module.bias is None else _array(module.bias)
    return {f"{prefix}weight": weight, f"{prefix}bias": bias}


def _array(tensor: Any) -> np.ndarray:
    """Return a tensor in float32, with its memory if it is on the CPU and of that dtype."""
    array: np.ndarray = tensor.detach().cpu().float().numpy()
    return array


def _common(name: str, found: list[Any]) -> Any:
    """Return what all layers have, or None if there are none; raise ValueError if they differ."""
    if len(set(found)) > 1:
        raise ValueError(f"module: {mismatch(f'the same {name} in all hidden layers', sorted(set(found)))}")
    return found[0] if found else None


def _check_norms(layers: list[_Layer]) -> None:
    hidden = [each for each in layers if each.activation is not None]
    normed = [each.path for each in hidden if each.norm is not None]
    if normed and len(normed) < len(hidden):
        text = mismatch("layer norm in all hidden layers or in none", f"in {', '.join(normed)} alone")
        raise ValueError(f"module: {text}")


def _check_size(name: str, found: int, expected: int) -> None:
    if found != expected:
        raise ValueError(f"{name}: {mismatch(f'{expected} inputs, the size of the last hidden layer', found)}")


def _check(torch: Any, found: TorchMlp, name: str, module: Any, compute: Callable[[np.ndarray], np.ndarray]) -> None:
    """Raise ValueError unless a module computes what the parameters say, on random inputs."""
    inputs = np.random.default_rng(0).standard_normal((_NUM_TRIED, found.parameters["0/weight"].shape[1]))
    inputs = inputs.astype(np.float32)
    weight = next(module.parameters())
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            outputs = module(torch.from_numpy(inputs).to(weight.device, weight.dtype)).cpu().float().numpy()
    finally:
        module.train(was_training)
    computed = compute(inputs)
    if outputs.shape != computed.shape or not np.allclose(outputs, computed, rtol=_RELATIVE, atol=_ABSOLUTE):
        difference = np.abs(outputs - computed).max() if outputs.shape == computed.shape else outputs.shape
        text = mismatch("outputs that its layers alone account for", f"a difference of {difference}", "use OnnxAgent")
        raise ValueError(f"{name}: {text}")


def _outputs(mlp: TorchMlp, x: np.ndarray, prefix: str = "") -> np.ndarray:
    """Return the outputs (M, outputs) for inputs (M, inputs)."""
    layer = 0
    while f"{prefix}{layer}/weight" in mlp.parameters:
        x = x @ mlp.parameters[f"{prefix}{layer}/weight"].T + mlp.parameters[f"{prefix}{layer}/bias"]
        if f"{prefix}{layer + 1}/weight" in mlp.parameters and mlp.activation is not None:
            if f"{prefix}{layer}/norm/weight" in mlp.parameters:
                centered = x - x.mean(axis=1, keepdims=True)
                x = centered / np.sqrt(centered.var(axis=1, keepdims=True) + mlp.layer_norm_epsilon)
                x = x * mlp.parameters[f"{prefix}{layer}/norm/weight"] + mlp.parameters[f"{prefix}{layer}/norm/bias"]
            x = _FUNCTIONS[mlp.activation](x)
        layer += 1
    return x
