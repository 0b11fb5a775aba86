"""ONNX models as messages: read, looked at and taken apart, without running anything of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.message import DecodeError, Message

from rollserve import Reason
from rollserve_server.errors import InvalidValueError, OverLimitError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx

__all__ = ["Declared", "ModelParts", "read_model"]

Declared = tuple[np.dtype, tuple[int | str, ...] | None]
"""What a model says of an input: its type, and its axes, or None if it does not say. An axis of any size has a name, or
is negative.
"""

_SIZES_FROM = frozenset({"Range", "Resize", "Upsample"})
"""Operators whose inputs of floats decide on the shapes of others: these have to be known beforehand."""


@dataclass(frozen=True, eq=False)
class ModelParts:
    """A model, taken apart.

    Attributes:
        graph: the serialized model, in which the parameters stand as references.
        inputs: by name.
        outputs: the names.
        parameters: by name; read only.
    """

    graph: bytes
    inputs: Mapping[str, Declared]
    outputs: tuple[str, ...]
    parameters: Mapping[str, np.ndarray]


def read_model(data: bytes, max_bytes: int) -> ModelParts:
    """The parts of a serialized model.

    Raises:
        OverLimitError: it is too large.
        InvalidValueError: it is no model, is not self-contained, or has a NaN among its parameters. Of both, the field
            is `model`, or within it.
    """
    import onnx  # only those who use it need wait for it

    if len(data) > max_bytes:
        text = f"{len(data)} bytes came, at most {max_bytes} (--max-model-bytes) were expected"
        raise OverLimitError(text, reason=Reason.MODEL_TOO_LARGE, field="model")
    try:
        model = onnx.ModelProto.FromString(data)
    except DecodeError:
        raise InvalidValueError("what came is no ModelProto of ONNX", field="model") from None
    _check(model)
    graph = model.graph
    constants = {tensor.name for tensor in graph.initializer}
    inputs = {port.name: _declared(port) for port in graph.input if port.name not in constants}
    parameters = dict(_take_parameters(graph))
    outputs = tuple(port.name for port in graph.output)
    return ModelParts(model.SerializeToString(), inputs, outputs, parameters)


def _check(model: onnx.ModelProto) -> None:
    from onnx import defs

    graph = model.graph
    if not graph.node or not model.opset_import:
        raise InvalidValueError("what came has no graph, or no opset", field="model")
    newest = defs.onnx_opset_version()
    for opset in model.opset_import:
        if opset.domain in ("", "ai.onnx") and opset.version > newest:
            text = f"opset {opset.version} came, at most {newest} was expected"
            raise InvalidValueError(text, field="model.opset_import")
    for tensor in _tensors(model):
        if tensor.external_data or tensor.data_location == tensor.EXTERNAL:
            text = "data in another file came: a model that holds all its data was expected"
            raise InvalidValueError(text, field=f"model.initializer[{tensor.name!r}]")
    names = [port.name for port in graph.output]
    if len(set(names)) < len(names) or not names:
        raise InvalidValueError(f"outputs {names} came, some with different names were expected", field="model.output")


def _tensors(message: Any) -> Iterator[onnx.TensorProto]:
    """All tensors in a message, however deep."""
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
        raise InvalidValueError("something else than a tensor came, a tensor was expected", field=field)
    tensor = port.type.tensor_type
    try:
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    except (KeyError, TypeError, ValueError):
        raise InvalidValueError.of(
            field, expected="a type of ONNX", got=f"elements of type {tensor.elem_type}"
        ) from None
    if not tensor.HasField("shape"):
        return dtype, None
    sizes = (axis.dim_value if axis.HasField("dim_value") else axis.dim_param for axis in tensor.shape.dim)
    return dtype, tuple(sizes)


def _take_parameters(graph: onnx.GraphProto) -> Iterator[tuple[str, np.ndarray]]:
    """The parameters, each of which is made a reference to what has its name."""
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
                raise InvalidValueError("its data has not the size that its shape asks for", field=field) from None
            if np.isnan(value).any():
                raise InvalidValueError.of(field, expected="a number", got="NaN")
            if tensor.name not in fixed and value.size and np.isfinite(value).all():
                _make_reference(tensor, value.nbytes)
                yield tensor.name, value
    for tensor in unused:
        graph.initializer.remove(tensor)


def _uses(graph: Any) -> tuple[set[str], set[str]]:
    """The names that nodes take, also those of graphs within, and of these the ones that sizes depend on."""
    used, fixed = {output.name for output in graph.output}, set[str]()
    for node in graph.node:
        used.update(node.input)
        if node.op_type in _SIZES_FROM:
            fixed.update(node.input)
        for attribute in node.attribute:
            for inner in [attribute.g, *attribute.graphs] if attribute.HasField("g") else attribute.graphs:
                its_used, its_fixed = _uses(inner)
                used |= its_used
                fixed |= its_fixed
    return used, fixed


def _make_reference(tensor: onnx.TensorProto, num_bytes: int) -> None:
    """Takes the data out of a tensor: ONNX Runtime is given what has its name."""
    name, data_type, shape = tensor.name, tensor.data_type, list(tensor.dims)
    tensor.Clear()
    tensor.name, tensor.data_type, tensor.data_location = name, data_type, tensor.EXTERNAL
    tensor.dims.extend(shape)
    for key, value in (("location", "given"), ("offset", "0"), ("length", str(num_bytes))):
        tensor.external_data.add(key=key, value=value)
