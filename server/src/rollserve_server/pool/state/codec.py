"""The state of a sampler as bytes that can be read without executing anything.

The bytes are MessagePack. None, numbers, truth values, texts and bytes are themselves; every other value is a list with
a tag first, such as the name of its class. Only the classes named here are written and read.
"""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, get_args

import msgpack
import numpy as np
from gymnasium import spaces

from rollserve_server.agents import SPEC_CLASSES
from rollserve_server.envs import ProfileEnv, RowSpecs, box_of
from rollserve_server.pool.accounts import Counters, WorkerTotals
from rollserve_server.pool.state.agent_version import AgentVersion
from rollserve_server.pool.state.checkpoints import ActionLog, Checkpoint, RowPoint
from rollserve_server.pool.state.env_version import EnvVersion
from rollserve_server.pool.state.ownership import LeaseAnswer, Owner
from rollserve_server.pool.state.row_sequence import RowSequenceKind, RowSequenceState, RowsMoved
from rollserve_server.pool.state.sampler_state import Entry, SamplerState, Snapshot
from rollserve_server.sampling import EnvDescription, RowProgress, RowsProgress
from rollserve_server.settings import WorkerSettings
from rollserve_wire.environments import EnvSpec, Reproducibility, Task, Wrapper
from rollserve_wire.transforms import Transform

__all__ = ["decode", "encode"]

_RECORDS: tuple[type[Any], ...] = (
    *SPEC_CLASSES,
    Checkpoint,
    Counters,
    Entry,
    EnvDescription,
    EnvSpec,
    EnvVersion,
    LeaseAnswer,
    Owner,
    ProfileEnv,
    RowPoint,
    RowProgress,
    RowSequenceKind,
    RowSequenceState,
    RowSpecs,
    RowsMoved,
    RowsProgress,
    SamplerState,
    Snapshot,
    Task,
    WorkerTotals,
    Wrapper,
    *get_args(Transform),
)
"""Dataclasses and named tuples. A record is written as the values of its fields, in their order."""
_ATOMS = (type(None), bool, float, str, bytes)
_MIN_INTEGER, _MAX_INTEGER = -(1 << 63), (1 << 64) - 1
_ARRAY_KINDS = "biuf"


def encode(value: Any) -> bytes:
    """Return a value as bytes.

    Raises:
        TypeError: the value, or one within it, is of a class that is not kept.
    """
    data: bytes = msgpack.packb(_to_plain(value), unicode_errors="surrogatepass")
    return data


def decode(data: bytes | memoryview) -> Any:
    """Return the value that `encode` has written. Its arrays are read-only views of parts of it.

    Raises:
        ValueError: the bytes are not of this form.
    """
    try:
        plain = msgpack.unpackb(data, unicode_errors="surrogatepass", strict_map_key=True)
        return _from_plain(plain)
    except (TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise ValueError(f"expected a sampler's state, got {error!r}") from error


def _to_plain(value: Any) -> Any:
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is int:
        return value if _MIN_INTEGER <= value <= _MAX_INTEGER else ["int", str(value)]
    names = _FIELDS.get(kind)
    if names is not None:
        return [kind.__name__, *(_to_plain(getattr(value, name)) for name in names)]
    for tag, (base, parts_of, _) in _FORMS.items():
        if isinstance(value, base):
            return [tag, *map(_to_plain, parts_of(value))]
    raise TypeError(f"expected a value that a sampler's state may hold, got {kind.__name__}")


def _from_plain(plain: Any) -> Any:
    if not isinstance(plain, list):
        return plain
    tag, *parts = plain
    if tag == "int":
        return int(parts[0])
    values = list(map(_from_plain, parts))
    if tag in _FORMS:
        return _FORMS[tag][2](values)
    kind = _KINDS[tag]
    if len(values) != len(_FIELDS[kind]):
        raise ValueError(f"{tag}: expected {len(_FIELDS[kind])} values, got {len(values)}")
    return kind(*values)


def _fields(kind: type[Any]) -> tuple[str, ...]:
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    names: tuple[str, ...] = kind._fields  # of a named tuple
    return names


def _array(values: list[Any]) -> np.ndarray:
    """Return an array from its dtype, shape and bytes; raise ValueError unless they go together."""
    dtype, shape, data = values
    size = math.prod(shape) * dtype.itemsize
    if dtype.kind not in _ARRAY_KINDS or len(data) != size:
        raise ValueError(f"expected {size} bytes of numbers of shape {shape}, got {len(data)} of {dtype}")
    return np.frombuffer(data, dtype).reshape(shape)


def _box(values: list[Any]) -> spaces.Box:
    low, high, bounded_below, bounded_above = values
    bounds = {"low": low, "high": high, "bounded_below": bounded_below, "bounded_above": bounded_above}
    return box_of({"_shape": low.shape, "dtype": low.dtype, "_np_random": None, **bounds})


def _discrete(values: list[Any]) -> spaces.Discrete[Any]:
    n, start, dtype = values
    # Gymnasium's older versions have this dtype only.
    options = {} if dtype == np.int64 else {"dtype": dtype.type}
    return spaces.Discrete(n, start=start, **options)


def _agent_version(values: list[Any]) -> AgentVersion:
    agents, clients, updated_seconds = values
    return AgentVersion.restored(agents, clients, updated_seconds)


_Form = tuple[type[Any], Callable[[Any], Any], Callable[[list[Any]], Any]]

_FORMS: dict[str, _Form] = {
    "array": (np.ndarray, lambda array: (array.dtype, array.shape, array.tobytes()), _array),
    "scalar": (np.generic, lambda scalar: (np.asarray(scalar),), lambda values: values[0][()]),
    "dtype": (np.dtype, lambda dtype: (dtype.str,), lambda values: np.dtype(values[0])),
    "list": (list, lambda items: items, lambda values: values),
    "frozenset": (frozenset, lambda items: sorted(items), frozenset),
    "ActionLog": (ActionLog, lambda log: log.columns, ActionLog),
    "AgentVersion": (
        AgentVersion,
        lambda version: (list(version), list(version.clients), version.updated_seconds),
        _agent_version,
    ),
    "Reproducibility": (Reproducibility, lambda one: (one.value,), lambda values: Reproducibility(values[0])),
    "WorkerSettings": (
        WorkerSettings,
        lambda settings: (settings.model_dump(),),
        lambda values: WorkerSettings.model_validate(values[0]),
    ),
    "Box": (spaces.Box, lambda box: (box.low, box.high, box.bounded_below, box.bounded_above), _box),
    "Discrete": (spaces.Discrete, lambda space: (int(space.n), int(space.start), np.dtype(space.dtype)), _discrete),
    "MultiDiscrete": (
        spaces.MultiDiscrete,
        lambda space: (space.nvec, space.start, np.dtype(space.dtype)),
        lambda values: spaces.MultiDiscrete(values[0], values[2].type, start=values[1]),
    ),
    "MultiBinary": (spaces.MultiBinary, lambda space: (space.n,), lambda values: spaces.MultiBinary(values[0])),
    "Text": (
        spaces.Text,
        lambda space: (space.max_length, space.min_length, space.characters),
        lambda values: spaces.Text(values[0], min_length=values[1], charset=values[2]),
    ),
    # An OrderedDict keeps its order; any other mapping would be sorted.
    "Dict": (spaces.Dict, lambda space: (dict(space.spaces),), lambda values: spaces.Dict(OrderedDict(values[0]))),
    "Tuple": (spaces.Tuple, lambda space: space.spaces, spaces.Tuple),
    "dict": (
        Mapping,
        lambda mapping: (list(mapping.keys()), list(mapping.values())),
        lambda values: dict(zip(*values, strict=True)),
    ),
    "tuple": (tuple, lambda items: items, tuple),
}
"""Forms of values that are no records, by tag: the class, a function that returns the parts of a value, and one that
makes a value from them. A space comes before the mapping that it also is."""
_FIELDS = {kind: _fields(kind) for kind in _RECORDS}
_KINDS = {kind.__name__: kind for kind in _RECORDS}
