"""Equality of agents to the last bit, and digests of their content."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Iterator, Mapping

import numpy as np

from rollserve_server.agents.specs import (
    AgentSource,
    AgentSpec,
    OnnxModel,
    OnnxSpec,
    PolicySet,
    PolicySource,
    PolicySpec,
    PythonSource,
    PythonSpec,
)

__all__ = ["content_digest", "content_hash", "is_same"]

_Part = bytes | np.ndarray


def is_same(spec: AgentSpec, source: AgentSource) -> bool:
    """Whether an accepted agent equals a source to the last bit; an ONNX model is compared by its serialized bytes."""
    match source:
        case PolicySet():
            return isinstance(spec, PolicySet) and _are_same_policies(spec, source)
        case OnnxModel():
            return isinstance(spec, OnnxSpec) and spec.source == content_digest(source)
        case PythonSource():
            return isinstance(spec, PythonSpec) and _are_same(
                (spec.factory, spec.parameters, spec.inputs), (source.factory, source.parameters, source.inputs)
            )
    return _are_same(spec, source)


def _are_same_policies(spec: PolicySet[PolicySpec], source: PolicySet[PolicySource]) -> bool:
    """Whether the map and the current versions of all policies are the same, whatever the numbers of the versions."""
    if spec.policy_map != source.policy_map or spec.policies.keys() != source.policies.keys():
        return False
    return all(is_same(held[0].spec, source.policies[name][0].spec) for name, held in spec.policies.items())


def content_hash(value: object) -> str:
    """Return the SHA-256 digest of the content of an agent, or of another plain value, in hex.

    Takes seconds per gigabyte.
    """
    return content_digest(value).hex()


def content_digest(value: object) -> bytes:
    """Return the SHA-256 digest of the content of a value, such as a model as it was sent."""
    digest = hashlib.sha256()
    for part in _parts(value):
        data = part if isinstance(part, bytes) else _bits(part).reshape(-1).view(np.uint8).data
        # With the length in front, no two values have the same bytes.
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.digest()


def _are_same(one: object, other: object) -> bool:
    return all(_are_equal(*parts) for parts in itertools.zip_longest(_parts(one), _parts(other)))


def _are_equal(one: _Part | None, other: _Part | None) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        # Versions may share arrays, so compare identities first.
        return one is other or np.array_equal(_bits(one), _bits(other))
    return type(one) is type(other) and one == other


def _bits(array: np.ndarray) -> np.ndarray:
    """Return the elements as unsigned integers: equal floats may differ in their bits, as the two zeros do."""
    return np.ascontiguousarray(array).view(f"u{array.itemsize}")


def _parts(value: object) -> Iterator[_Part]:
    """Yield the parts of a value: each array after its dtype and shape, mappings sorted by name."""
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
