"""ONNX models as messages: read, checked, and split into graph and parameters, without running them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.message import DecodeError, Message

from rollserve_server.errors import InvalidValueError, OverLimitError, listed
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    import onnx

__all__ = ["Declared", "ModelParts", "join_model", "read_model"]

Declared = tuple[np.dtype, tuple[int | str, ...] | None]
"""Dtype and axes that a model declares for an input; None for undeclared axes.

An axis of any size has a name, or is negative.
"""

_SIZING_OPERATORS = frozenset({"Range", "Resize", "Upsample"})
"""Operators whose float inputs determine shapes, and so must be constants."""


@dataclass(frozen=True, eq=False)
class ModelParts:
    """A model, split into graph and parameters.

    Attributes:
        graph: serialized model with references in place of the parameters.
        inputs: declared inputs by name.
        outputs: names of the outputs.
        parameters: parameters by name; read-only.
    """

    graph: bytes
    inputs: Mapping[str, Declared]
    outputs: tuple[str, ...]
    parameters: Mapping[str, np.ndarray]


def read_model(data: bytes, max_bytes: int) -> ModelParts:
    """Read a serialized model, and split it.

    Raises:
        OverLimitError: the model is too large; the field is `model`.
        InvalidValueError: the bytes are no model, or the model is not self-contained or has a parameter with NaN; the
            field is `model`, or within it.
    """
    import onnx  # imported late: it takes a while, and only these agents need it

    if len(data) > max_bytes:
        expected = f"at most {max_bytes} bytes (--max-model-bytes)"
        raise OverLimitError.of("model", expected=expected, got=len(data), reason=Reason.MODEL_TOO_LARGE)
    try:
        model = onnx.ModelProto.FromString(data)
    except DecodeError:
        raise InvalidValueError.of("model", expected="a ModelProto of ONNX", got="other bytes") from None
    _check(model)
    graph = model.graph
    constants = {tensor.name for tensor in graph.initializer}
    inputs = {port.name: _declared(port) for port in graph.input if port.name not in constants}
    parameters = dict(_take_parameters(graph))
    outputs = tuple(port.name for port in graph.output)
    return ModelParts(model.SerializeToString(), inputs, outputs, parameters)


def join_model(graph: bytes, parameters: Mapping[str, np.ndarray]) -> bytes:
    """Return a serialized model that has its parameters within; the inverse of `read_model`."""
    import onnx
    from onnx import numpy_helper

    model = onnx.ModelProto.FromString(graph)
    for tensor in model.graph.initializer:
        if tensor.data_location == tensor.EXTERNAL:
            tensor.CopyFrom(numpy_helper.from_array(parameters[tensor.name], tensor.name))
    data: bytes = model.SerializeToString()
    return data


def _check(model: onnx.ModelProto) -> None:
    from onnx import defs

    graph = model.graph
    if not graph.node or not model.opset_import:
        raise InvalidValueError.of("model", expected="a model with a graph and an opset", got="a model without one")
    newest = defs.onnx_opset_version()
    for opset in model.opset_import:
        if opset.domain in ("", "ai.onnx") and opset.version > newest:
            raise InvalidValueError.of("model.opset_import", expected=f"at most opset {newest}", got=opset.version)
    for tensor in _tensors(model):
        if tensor.external_data or tensor.data_location == tensor.EXTERNAL:
            field = f"model.initializer[{tensor.name!r}]"
            raise InvalidValueError.of(field, expected="a model that holds all its data", got="data in another file")
    names = [port.name for port in graph.output]
    if len(set(names)) < len(names) or not names:
        expected = "at least one output, with different names"
        raise InvalidValueError.of("model.output", expected=expected, got=f"outputs {listed(names)}")


def _tensors(message: Any) -> Iterator[onnx.TensorProto]:
    """Yield all tensors in a message, at any depth."""
    from onnx import TensorProto

    if isinstance(message, TensorProto):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in [value] if isinstance(value, Message) else value:
                yield from _tensors(part)


def _declared(port: onnx.ValueInfoProto) -> Declared:
    from onnx import helper

    field = f"model.input[{port.name!r}]"
    if not port.type.HasField("tensor_type"):
        raise InvalidValueError.of(field, expected="a tensor", got=port.type.WhichOneof("value") or "no type")
    tensor = port.type.tensor_type
    try:
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    except (KeyError, TypeError, ValueError):
        raise InvalidValueError.of(
            field, expected="elements of a type that numpy has", got=f"elements of type {tensor.elem_type}"
        ) from None
    if not tensor.HasField("shape"):
        return dtype, None
    sizes = (axis.dim_value if axis.HasField("dim_value") else axis.dim_param for axis in tensor.shape.dim)
    return dtype, tuple(sizes)


def _take_parameters(graph: onnx.GraphProto) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the parameters, and replace each by a reference to its name."""
    from onnx import TensorProto, numpy_helper

    used, fixed = _uses(graph)
    unused = []
    for tensor in graph.initializer:
        if tensor.name not in used:
            unused.append(tensor)
        elif tensor.data_type in (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16):
            field = f"model.initializer[{tensor.name!r}]"
            try:
                value = np.asarray(numpy_helper.to_array(tensor))
            except ValueError:
                raise InvalidValueError.of(
                    field, expected=f"data for shape {tuple(tensor.dims)}", got="data of another size"
                ) from None
            if np.isnan(value).any():
                raise InvalidValueError.of(field, expected="a number", got="NaN")
            if tensor.name not in fixed and value.size and np.isfinite(value).all():
                _make_reference(tensor, value.nbytes)
                yield tensor.name, value
    for tensor in unused:
        graph.initializer.remove(tensor)


def _uses(graph: Any) -> tuple[set[str], set[str]]:
    """Return the names that nodes use, also in nested graphs, and the names among them that determine sizes."""
    used, fixed = {output.name for output in graph.output}, set[str]()
    for node in graph.node:
        used.update(node.input)
        if node.op_type in _SIZING_OPERATORS:
            fixed.update(node.input)
        for attribute in node.attribute:
            for inner in [attribute.g, *attribute.graphs] if attribute.HasField("g") else attribute.graphs:
                inner_used, inner_fixed = _uses(inner)
                used |= inner_used
                fixed |= inner_fixed
    return used, fixed


def _make_reference(tensor: onnx.TensorProto, num_bytes: int) -> None:
    """Replace a tensor's data by a reference: ONNX Runtime gets the value by its name."""
    name, data_type, shape = tensor.name, tensor.data_type, list(tensor.dims)
    tensor.Clear()
    tensor.name, tensor.data_type, tensor.data_location = name, data_type, tensor.EXTERNAL
    tensor.dims.extend(shape)
    for key, value in (("location", "given"), ("offset", "0"), ("length", str(num_bytes))):
        tensor.external_data.add(key=key, value=value)
