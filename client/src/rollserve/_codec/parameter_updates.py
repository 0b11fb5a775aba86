"""Requests that bring parameters, which may be large: read where their bytes stand, and written with one copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from rollserve._codec.protobuf import VARINT, UnusualError, fields, key_of, varint
from rollserve._codec.tensor_fields import Part, add_named_tensor, field_of, keys_of, named_tensor_parts
from rollserve.v1.agent_pb2 import Parameters
from rollserve.v1.sampler_service_pb2 import AgentUpdate, UpdateAgentRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ParametersUpdate", "read_parameters_update", "write_parameters_update"]

_SAMPLER, _ALL_WORKERS = (keys_of(UpdateAgentRequest.DESCRIPTOR)[name] for name in ("sampler", "all_workers"))
_PARAMETERS = keys_of(AgentUpdate.DESCRIPTOR)["parameters"]
_TENSORS = keys_of(Parameters.DESCRIPTOR)["tensors"]
_SKIP = key_of(UpdateAgentRequest.SKIP_IF_IDENTICAL_FIELD_NUMBER, VARINT)
_FLAGS = {b"\0": False, b"\1": True}

_ALIGNED_BELOW = 1 << 20
"""Arrays of fewer bytes are copied, so that their elements begin where a processor likes it best."""


class ParametersUpdate(NamedTuple):
    """An UpdateAgentRequest that has parameters for all workers."""

    sampler: str
    parameters: dict[str, np.ndarray]
    skip_if_identical: bool


def write_parameters_update(
    sampler: str, parameters: Mapping[str, np.ndarray], *, skip_if_identical: bool = False
) -> bytes:
    """An UpdateAgentRequest for all workers.

    Raises:
        ValueError: an array's dtype has no place on the wire; the message names it.
    """
    tensors: list[Part] = []
    for name, array in parameters.items():
        tensors += field_of(_TENSORS, named_tensor_parts(name, np.asarray(array)))
    update = field_of(_ALL_WORKERS, field_of(_PARAMETERS, tensors))
    flag = varint(_SKIP) + b"\1" if skip_if_identical else b""
    return b"".join([*field_of(_SAMPLER, [sampler.encode()]), *update, flag])


def read_parameters_update(data: bytes) -> ParametersUpdate | None:
    """An UpdateAgentRequest that has parameters for all workers.

    The arrays cannot be written to: large ones are views of the bytes.

    Returns:
        None if it is another request, or one that the generated classes have to judge.
    """
    view = memoryview(data)
    try:
        sampler, update, skip_if_identical = b"", None, False
        for key, _, begin, end in fields(view, 0, len(view)):
            if key == _SAMPLER:
                sampler = view[begin:end].tobytes()
            elif key == _ALL_WORKERS and update is None:
                update = begin, end
            elif key == _SKIP and (flag := view[begin:end].tobytes()) in _FLAGS:
                skip_if_identical = _FLAGS[flag]
            else:
                return None
        if update is None:
            return None
        parameters: dict[str, np.ndarray] = {}
        for start, stop in _tensors(view, *update):
            add_named_tensor(parameters, view, start, stop, is_column=False)
        parameters = {name: _aligned(array) for name, array in parameters.items()}
        return ParametersUpdate(sampler.decode(), parameters, skip_if_identical)
    except (UnusualError, IndexError, DecodeError, ValueError):
        return None


def _tensors(view: memoryview, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Where the tensors of an AgentUpdate stand, if it has parameters."""
    kinds = list(fields(view, start, stop))
    if [key for key, *_ in kinds] != [_PARAMETERS]:
        raise UnusualError
    _, _, first, last = kinds[0]
    for key, _, begin, end in fields(view, first, last):
        if key != _TENSORS:
            raise UnusualError
        yield begin, end


def _aligned(array: np.ndarray) -> np.ndarray:
    if array.flags.aligned or array.nbytes >= _ALIGNED_BELOW:
        return array
    copied = array.copy()
    copied.flags.writeable = False
    return copied
