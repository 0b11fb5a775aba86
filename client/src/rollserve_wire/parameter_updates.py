"""Update requests that carry parameters, which may be large: read as views of the bytes, and written with one copy.

The generated classes would hold a decoded copy of all arrays beside the bytes. What is read here is bounded as it is
read: everything but arrays is left to the generated classes if there is more of it than Rollserve's clients write.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from rollserve_wire.errors import in_named
from rollserve_wire.protobuf import (
    VARINT,
    UnusualError,
    fields,
    key_of,
    keys_of,
    length_delimited,
)
from rollserve_wire.tensors import add_named_tensor, named_tensor, plain_tensor
from rollserve_wire.v1.agent_pb2 import Parameters
from rollserve_wire.v1.sampler_service_pb2 import AgentUpdate, UpdateAgentRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ParametersUpdate", "read_parameters_update", "write_parameters_update"]

_KEYS = keys_of(UpdateAgentRequest.DESCRIPTOR)
_ALL_WORKERS = _KEYS["all_workers"]
_REST = {_KEYS["sampler"], _KEYS["client_id"]} | {
    key_of(UpdateAgentRequest.DESCRIPTOR.fields_by_name[name].number, VARINT)
    for name in ("skip_if_identical", "expected_policy_version", "expected_environment_version")
}
"""Keys of the fields beside the update."""
_PARAMETERS = keys_of(AgentUpdate.DESCRIPTOR)["parameters"]
_TENSORS = keys_of(Parameters.DESCRIPTOR)["tensors"]

_MIN_UNALIGNED_BYTES = 1 << 20  # smaller arrays are copied, so that their elements are aligned
_MAX_REST_FIELDS, _MAX_REST_BYTES, _MAX_TENSORS = 16, 4096, 4096
"""Fields beside the update, and their bytes together; arrays."""


class ParametersUpdate(NamedTuple):
    """UpdateAgentRequest with parameters for all workers.

    Attributes:
        request: the request without its update.
        parameters: the parameters by name.
    """

    request: UpdateAgentRequest
    parameters: dict[str, np.ndarray]

    @property
    def sampler(self) -> str:
        """Name of the sampler in the request."""
        return self.request.sampler


def write_parameters_update(request: UpdateAgentRequest, parameters: Mapping[str, np.ndarray]) -> bytes:
    """Return a serialized UpdateAgentRequest with parameters for all workers.

    Args:
        request: the request without its update.
        parameters: arrays by name.

    Raises:
        ValueError: a dtype that the wire does not have; the message begins with the parameter's name in brackets.
    """
    tensors: list[bytes | memoryview] = []
    for name, array in parameters.items():
        with in_named(name):
            content = plain_tensor(np.asarray(array))
        tensors += length_delimited(_TENSORS, named_tensor(name, content))
    update = length_delimited(_ALL_WORKERS, length_delimited(_PARAMETERS, tensors))
    return b"".join([request.SerializeToString(), *update])


def read_parameters_update(data: bytes) -> ParametersUpdate | None:
    """Read a serialized UpdateAgentRequest with parameters for all workers.

    The arrays are read-only. Arrays of at least 1 MiB are views of the bytes.

    Returns:
        None for any other request, and for bytes that the generated classes have to parse, within the reader's bounds.
    """
    view = memoryview(data)
    try:
        update, rest = None, []
        for key, before, begin, end in fields(view, 0, len(view)):
            if key == _ALL_WORKERS and update is None:
                update = begin, end
            elif key in _REST and len(rest) < _MAX_REST_FIELDS:
                rest.append(view[before:end])
            else:
                return None
        if update is None or sum(map(len, rest)) > _MAX_REST_BYTES:
            return None
        parameters: dict[str, np.ndarray] = {}
        for start, stop in _tensors(view, *update):
            if len(parameters) >= _MAX_TENSORS:
                return None
            add_named_tensor(parameters, view, start, stop, is_column=False)
        parameters = {name: _aligned(array) for name, array in parameters.items()}
        return ParametersUpdate(UpdateAgentRequest.FromString(b"".join(rest)), parameters)
    except (UnusualError, IndexError, DecodeError, ValueError):
        return None


def _tensors(view: memoryview, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each tensor in an AgentUpdate; raise UnusualError unless it has parameters."""
    key, _, first, last = next(fields(view, start, stop), (0, 0, 0, 0))
    if key != _PARAMETERS or last != stop:
        raise UnusualError
    for key, _, begin, end in fields(view, first, last):
        if key != _TENSORS:
            raise UnusualError
        yield begin, end


def _aligned(array: np.ndarray) -> np.ndarray:
    if array.flags.aligned or array.nbytes >= _MIN_UNALIGNED_BYTES:
        return array
    copied = array.copy()
    copied.flags.writeable = False
    return copied
