"""What agents consist of: whether two are the same, how much memory one takes, and a name for its content."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.agents.python.specs import PickledFactory, PythonSource, PythonSpec
from rollserve_server.agents.specs import OnnxModel, OnnxSpec

if TYPE_CHECKING:
    from rollserve_server.agents.specs import AgentSource, AgentSpec

__all__ = ["content_bytes", "content_hash", "is_same", "model_digest", "parameters_of"]

_Part = bytes | np.ndarray


def parameters_of(spec: AgentSpec) -> Mapping[str, np.ndarray]:
    """An agent's parameters by name; none if it is of a kind without any."""
    parameters: Mapping[str, np.ndarray] = getattr(spec, "parameters", {})
    return parameters


def is_same(held: AgentSpec, came: AgentSource) -> bool:
    """Whether an agent is what came, to the last bit; of a model as it came, if it is made of the same bytes."""
    match came:
        case OnnxModel():
            return isinstance(held, OnnxSpec) and held.source == model_digest(came)
        case PythonSource():
            return isinstance(held, PythonSpec) and _are_same(
                (held.factory, held.parameters), (came.factory, came.parameters)
            )
    return _are_same(held, came)


def content_hash(spec: AgentSpec) -> str:
    """A text that is the same for agents that are the same, and no others. Takes some seconds for each gigabyte."""
    return _digest(spec).hex()


def content_bytes(spec: AgentSpec) -> int:
    """How much memory an agent takes, but for little things."""
    code_bytes = 0
    if isinstance(spec, OnnxSpec):
        code_bytes = len(spec.graph)
    elif isinstance(spec, PythonSpec) and isinstance(spec.factory, PickledFactory):
        code_bytes = len(spec.factory.data)
    return code_bytes + sum(value.nbytes for value in parameters_of(spec).values())


def model_digest(model: OnnxModel) -> bytes:
    """What tells a model as it came from others."""
    return _digest(model)


def _digest(value: object) -> bytes:
    digest = hashlib.sha256()
    for part in _parts(value):
        data = part if isinstance(part, bytes) else _bits(part).reshape(-1).view(np.uint8).data
        # With the length before it, no two values have the same bytes.
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.digest()


def _are_same(one: object, other: object) -> bool:
    return all(_are_equal(*parts) for parts in itertools.zip_longest(_parts(one), _parts(other)))


def _are_equal(one: _Part | None, other: _Part | None) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        # VersionHistory may share arrays.
        return one is other or np.array_equal(_bits(one), _bits(other))
    return type(one) is type(other) and one == other


def _bits(array: np.ndarray) -> np.ndarray:
    """The elements as unsigned integers: of floats, equal bits are more than equal numbers, for there are two zeros."""
    return np.ascontiguousarray(array).view(f"u{array.itemsize}")


def _parts(value: object) -> Iterator[_Part]:
    """What a value consists of, each array behind its type and shape, and names in their order."""
    if isinstance(value, np.ndarray):
        yield f"array {value.dtype.str} {value.shape}".encode()
        yield value
    elif isinstance(value, Mapping):
        yield f"mapping {len(value)}".encode()
        for name in sorted(value):
            yield from _parts(name)
            yield from _parts(value[name])
    elif dataclasses.is_dataclass(value):
        yield type(value).__name__.encode()
        for field in dataclasses.fields(value):
            if field.compare:
                yield from _parts(getattr(value, field.name))
    elif isinstance(value, tuple | list):
        yield f"sequence {len(value)}".encode()
        for element in value:
            yield from _parts(element)
    elif isinstance(value, bytes):
        yield value
    else:
        yield f"{type(value).__name__} {value!r}".encode(errors="backslashreplace")
