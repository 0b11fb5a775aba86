"""Modules of PyTorch as ONNX models for `OnnxAgent`, and multilayer perceptrons as parameters of `MlpAgent`."""

from __future__ import annotations

import copy
import functools
import io
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rollserve.learning.activations import ACTIVATIONS
from rollserve_wire.checks import type_error
from rollserve_wire.errors import mismatch
from rollserve_wire.extras import load
from rollserve_wire.representations import briefly
from rollserve_wire.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space, Text, named_leaves
from rollserve_wire.v1 import agent_pb2

__all__ = ["TorchMlp", "TorchModel", "export_module", "mlp_of_modules"]

_HEAD_OUTPUTS: dict[str, tuple[str, ...]] = {
    "categorical": ("logits",),
    "diagonal_gaussian": ("mean", "log_std"),
    "squashed_gaussian": ("mean", "log_std"),
    "actions": ("action",),
}
_Draw = Callable[[int, np.random.Generator], np.ndarray]
"""Returns random rows of an input, given their number."""
_OPSET = 18
_NUM_TRIED = 16
_RELATIVE, _ABSOLUTE = 1e-3, 1e-4
"""Differences between two ways to compute in float32; a wrong layer differs by far more."""


@briefly
class TorchModel(NamedTuple):
    """An exported model and the names in it, as `OnnxAgent` takes them.

    Attributes:
        model: the serialized ModelProto, whose initializers have the names of the module's `state_dict()`.
        inputs: names of inputs by role, where they differ.
        outputs: names of outputs by role, where they differ.
        infos: names of the outputs without a role.
    """

    model: bytes
    inputs: dict[str, str]
    outputs: dict[str, str]
    infos: tuple[str, ...]


def export_module(
    module: Any,
    observation_space: Space,
    head: str,
    *,
    outputs: Sequence[str] | None = None,
    states: Mapping[str, tuple[int, ...]] | None = None,
    noise_width: int = 0,
    without: str | None = None,
    previous_action: Space | None = None,
    previous_reward: bool = False,
) -> TorchModel:
    """Return a module as an ONNX model; see `OnnxAgent.from_torch`.

    Args:
        module: the module.
        observation_space: space of observations.
        head: meaning of the outputs.
        outputs: roles of the tensors of a tuple.
        states: shape of each recurrent state.
        noise_width: number of standard normal numbers for each row.
        without: name of the leaves that are the action mask, which the module does not get.
        previous_action: space of the actions, if the module gets the action before.
        previous_reward: whether the module gets the reward before.

    Raises:
        ImportError: PyTorch or ONNX Runtime is not installed.
        TypeError: a module of another type, or a module that returns something else than tensors.
        ValueError: outputs of other names or shapes, or a model that does not compute what the module computes.
    """
    torch, onnx, runtime = load("torch", "torch"), load("onnx", "torch"), load("onnxruntime", "torch")
    if not isinstance(module, torch.nn.Module):
        raise type_error("module", "a torch.nn.Module", module)
    # For each argument of the module: the leaves' roles, and how rows of each leaf are drawn.
    arguments = [_space_argument("observation", named_leaves(observation_space, without))]
    arguments += [{f"state/{name}": _normal(shape)} for name, shape in (states or {}).items()]
    arguments += [{"noise": _normal((noise_width,))}] if noise_width else []
    if previous_action is not None:
        arguments.append(_space_argument("previous_action", named_leaves(previous_action)))
    arguments += [{"previous_reward": _normal(())}] if previous_reward else []
    draws = {role: draw for argument in arguments for role, draw in argument.items()}
    roles = list(draws)

    def examples(num_rows: int, seed: int) -> list[np.ndarray]:
        generator = np.random.default_rng(seed)
        return [draw(num_rows, generator) for draw in draws.values()]

    # A copy on the CPU: the caller's module keeps its device and mode.
    groups = [list(argument) for argument in arguments]
    flat = _FlatModule(copy.deepcopy(module).cpu().eval(), groups, head, outputs, states or {})
    flat.install()
    tensors = [torch.from_numpy(array) for array in examples(3, 0)]
    with torch.no_grad():
        flat.module(*tensors)
    flat.check(3)
    taken = set(flat.module.state_dict())
    names = {"input_names": _free(roles, taken), "output_names": _free(flat.roles, taken | set(roles))}
    values = _make_distinct(torch, flat.module)
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter; the comparison below finds what it gets wrong
        torch.onnx.export(
            flat.module,
            tuple(tensors),
            file,
            dynamic_axes={name: {0: "rows"} for names_of_kind in names.values() for name in names_of_kind},
            dynamo=False,
            do_constant_folding=False,  # it would replace the parameters of recurrent layers
            opset_version=_OPSET,
            **names,
        )
    model = onnx.load_model_from_string(file.getvalue())
    for initializer in model.graph.initializer:
        if initializer.name in values:
            initializer.CopyFrom(onnx.numpy_helper.from_array(values[initializer.name].numpy(), initializer.name))
    for name, tensor in flat.module.state_dict().items():
        if name in values:
            tensor.copy_(values[name])
    serialized: bytes = model.SerializeToString()
    session = runtime.InferenceSession(serialized, providers=["CPUExecutionProvider"])
    for seed, num_rows in enumerate((5, 1), 1):
        _compare(torch, session, flat, dict(zip(names["input_names"], examples(num_rows, seed), strict=True)))
    by_role = [
        dict(zip(*each, strict=True)) for each in ((roles, names["input_names"]), (flat.roles, names["output_names"]))
    ]
    known = {role: name for role, name in by_role[1].items() if _is_role(role)}
    return TorchModel(
        serialized,
        {role: name for role, name in by_role[0].items() if role != name},
        {role: name for role, name in known.items() if role != name},
        tuple(name for role, name in by_role[1].items() if role not in known),
    )


class _FlatModule:
    """A module whose `forward` takes and returns tensors in a fixed order, with the names of its parameters kept.

    Attributes:
        module: the module.
        roles: roles of its outputs, and names of further outputs, in the order in which they are returned.
    """

    def __init__(
        self, module: Any, groups: list[list[str]], head: str, outputs: Sequence[str] | None, states: Mapping[str, Any]
    ) -> None:
        self.module = module
        self.roles: list[str] = []
        self.returned: tuple[Any, ...] = ()
        self._groups, self._head, self._outputs, self._states = groups, head, outputs, tuple(states)

    def install(self) -> None:
        """Replace the `forward` of the module."""
        original = self.module.forward

        def forward(*tensors: Any) -> tuple[Any, ...]:
            remaining = iter(tensors)
            by_role = self._by_role(original(*(_argument(roles, remaining) for roles in self._groups)))
            self.roles, self.returned = list(by_role), tuple(by_role.values())
            return self.returned

        self.module.forward = forward

    def check(self, num_rows: int) -> None:
        """Check what the module returned for some rows.

        Raises:
            ValueError: an output that is missing, or that does not have a row for each observation.
        """
        needed = [*_HEAD_OUTPUTS[self._head], *(f"next_state/{name}" for name in self._states)]
        present = {role.partition("/")[0] if role.startswith("action/") else role for role in self.roles}
        missing = [role for role in needed if role not in present]
        if missing:
            raise ValueError(f"outputs: {mismatch(f'outputs named {missing}', self.roles)}")
        for role, tensor in zip(self.roles, self.returned, strict=True):
            if tensor.shape[:1] != (num_rows,):
                hint = "use expand_as or expand for parameters such as log_std"
                text = mismatch(f"a row for each of {num_rows} observations", f"shape {tuple(tensor.shape)}", hint)
                raise ValueError(f"outputs[{role!r}]: {text}")

    def _by_role(self, returned: Any) -> dict[str, Any]:
        if isinstance(returned, Mapping):
            return dict(returned)
        values = tuple(returned) if isinstance(returned, tuple | list) else (returned,)
        names = self._outputs
        if names is None:
            after = [f"next_state/{name}" for name in self._states]
            names = [*_HEAD_OUTPUTS[self._head], *after]
            if len(values) == len(names) + 1:
                names = [*_HEAD_OUTPUTS[self._head], "value", *after]
        if len(names) != len(values):
            hint = "name them all with `outputs`"
            raise ValueError(f"outputs: {mismatch(f'{len(names)}: {list(names)}', f'{len(values)} tensors', hint)}")
        return dict(zip(names, values, strict=True))


def _make_distinct(torch: Any, module: Any) -> dict[str, Any]:
    """Replace parameters by random numbers, because the exporter merges equal ones; return their values by name."""
    generator, values = torch.Generator().manual_seed(0), {}
    for name, tensor in module.state_dict().items():
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            values[name] = tensor.clone()
            tensor.copy_(torch.rand(tensor.shape, generator=generator))
    return values


def _compare(torch: Any, session: Any, flat: _FlatModule, inputs: dict[str, np.ndarray]) -> None:
    """Raise ValueError unless model and module return the same."""
    known = {each.name for each in session.get_inputs()}
    got = session.run(None, {name: array for name, array in inputs.items() if name in known})
    with torch.no_grad():
        expected = [each.numpy() for each in flat.module(*(torch.from_numpy(array) for array in inputs.values()))]
    for role, first, second in zip(flat.roles, got, expected, strict=True):
        if first.shape != second.shape or not np.allclose(first, second, rtol=_RELATIVE, atol=_ABSOLUTE):
            same = first.shape == second.shape
            difference = f"{np.abs(first - second).max():g}" if same else f"{first.shape} and {second.shape}"
            hint = "the module may draw random numbers, or branch by the number or the values of its inputs"
            text = mismatch("a model that returns what the module returns", f"a difference of {difference}", hint)
            raise ValueError(f"outputs[{role!r}]: {text}")


def _is_role(name: str) -> bool:
    roles = {"logits", "mean", "log_std", "action", "log_prob", "value"}
    return name in roles or name.startswith(("action/", "next_state/"))


def _free(names: Sequence[str], taken: set[str]) -> list[str]:
    """Return the names, changed where a parameter or another port has the same one."""
    return [f"{name}/port" if name in taken else name for name in names]


def _space_argument(role: str, leaves: Mapping[str, Space]) -> dict[str, _Draw]:
    return {f"{role}/{name}" if name else role: functools.partial(_draw, leaf) for name, leaf in leaves.items()}


def _normal(shape: tuple[int, ...]) -> _Draw:
    return lambda num_rows, generator: generator.standard_normal((num_rows, *shape), np.float32)


def _argument(roles: Sequence[str], tensors: Iterator[Any]) -> Any:
    """Return the next tensors as an argument: one tensor, or a dict with each leaf of a nested space by its name."""
    if roles and not roles[0].startswith(("observation/", "previous_action/")):
        return next(tensors)
    return {role.partition("/")[2]: next(tensors) for role in roles}


def _draw(space: Space, num_rows: int, generator: np.random.Generator) -> np.ndarray:
    """Return random values of a leaf, (num_rows, *O), of the dtype that models get: float32 instead of float64."""
    match space:
        case Box(low, high, shape, dtype):
            if np.issubdtype(dtype, np.floating):
                values = np.clip(generator.standard_normal((num_rows, *shape)), low, high)
                return values.astype(np.float32 if dtype == np.float64 else dtype)
            return generator.integers(low, high, (num_rows, *shape), dtype, endpoint=True)
        case Discrete(n, start):
            return generator.integers(start, start + n, num_rows)
        case MultiDiscrete(nvec, start, dtype):
            return generator.integers(start, start + nvec, (num_rows, *nvec.shape), dtype)
        case MultiBinary(shape):
            return generator.integers(0, 2, (num_rows, *shape), np.int8)
        case Text(max_length, _, characters):
            codes = np.array([ord(character) for character in characters] or [0], np.uint32)
            return generator.choice(codes, (num_rows, max_length))
    raise type_error("observation_space", "a space of rollserve.spaces", space)


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
            x = ACTIVATIONS[agent_pb2.Activation.Value(f"ACTIVATION_{mlp.activation.upper()}")](x)
        layer += 1
    return x
