"""Reads requests: finds the sampler that a request is for, what its pool has to do, and the scopes that this needs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rollserve_server.admission import Admission
from rollserve_server.errors import DomainError, joined
from rollserve_server.fields import in_field
from rollserve_server.futures import REQUEST_THREADS, in_request_thread
from rollserve_server.gateway.messages.agents import has_pickle, is_pickle
from rollserve_server.gateway.messages.fields import client_id_of
from rollserve_server.gateway.requests.parsing import parse, parse_unchecked
from rollserve_server.identity import Scope
from rollserve_server.pool import read_saved_sampler
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1 import saved_sampler_pb2

if TYPE_CHECKING:
    from rollserve_server.gateway.rpcs.open_rpc import OpenRpc
    from rollserve_server.gateway.rpcs.rpc import Rpc
    from rollserve_server.pool import SavedSampler
    from rollserve_server.samplers import Sampler, Samplers
    from rollserve_wire.parameter_updates import ParametersUpdate
    from rollserve_wire.v1 import samplers_pb2

__all__ = [
    "RequestReader",
    "Restoration",
    "agent_update_scopes",
    "driving_scopes",
    "evaluation_scopes",
    "read_saved_file",
    "reading_scopes",
    "recording_scopes",
    "restoration_from_proto",
    "sampling_scopes",
]

_MAX_INLINE_BYTES = 1 << 15
"""Largest size of a request that is read in the event loop: that takes some milliseconds at most."""
_LOOK_SECONDS, _MAX_WAITING = 1.0, 1 << 20
"""How often waiting requests look whether a thread is free; length of the queue, which no number of RPCs reaches."""

_Needed = Iterator[tuple[Scope, str]]
_PICKLE = Scope.PICKLE, "a pickled agent"


class RequestReader:
    """Reads requests as the table of RPCs says, each once.

    Attributes:
        allowed_paths: files and folders that arguments of environments and agents may name.
    """

    def __init__(self, samplers: Samplers, allowed_paths: Collection[Path]) -> None:
        """Read requests for these samplers.

        Args:
            samplers: the samplers.
            allowed_paths: files and folders that arguments of environments and agents may name.
        """
        self._samplers = samplers
        self.allowed_paths = allowed_paths
        self._admission = Admission(REQUEST_THREADS, _LOOK_SECONDS, max_stalled=0, max_waiting=_MAX_WAITING)

    async def read(self, entry: Rpc, rpc: OpenRpc, data: bytes) -> tuple[Sampler | None, Any]:
        """Return the sampler of a request, if its RPC uses one, and what the request asks for.

        Large requests are read in threads, which clients share: the next one is a waiting request of the client with
        the fewest requests that are being read.

        Raises:
            NotFoundError: an unknown sampler.
            InvalidValueError: a missing, malformed or invalid field.
            OverLimitError: too many fields, or too long a text.
            NotAllowedError: the RPC's client has not the scope that the request needs; requests with environments or
                Python agents raise it for other reasons, too.
        """
        if len(data) <= _MAX_INLINE_BYTES:
            return self._read(entry, rpc, data)
        async with contextlib.AsyncExitStack() as stack:
            await self._admission.admit(stack, rpc)
            return await in_request_thread(self._read, entry, rpc, data)

    def _read(self, entry: Rpc, rpc: OpenRpc, data: bytes) -> tuple[Sampler | None, Any]:
        message: Any = parse(entry.request, data) if entry.parse is None else entry.parse(data)
        try:
            name = rpc.use_sampler("" if entry.is_of_server else message.sampler)
            sampler = self._samplers.find(name) if entry.uses_sampler else None
            for scope, what in () if entry.further is None else entry.further(message):
                rpc.require(scope, what)
            return sampler, message if entry.read is None else entry.read(message, self.allowed_paths)
        except DomainError as error:
            error.field = joined(entry.field, error.field)
            raise


class Restoration(NamedTuple):
    """A request to restore a sampler, whose versions belong to a client."""

    saved: SavedSampler
    client_id: str


def restoration_from_proto(request: samplers_pb2.RestoreSamplerRequest, allowed_paths: Collection[Path]) -> Restoration:
    """Return the saved sampler of a request; raises as `read_saved_sampler`."""
    parse_record = functools.partial(parse, saved_sampler_pb2.SavedRecord)
    with in_field("data"):
        saved = read_saved_sampler(request.data, parse_record, allowed_paths)
    return Restoration(saved, client_id_of({"client_id": request.client_id}))  # without a copy of the data


def read_saved_file(data: bytes, allowed_paths: Collection[Path]) -> SavedSampler:
    """Return the saved sampler of a file of the operator's own, without bounds; raises as `read_saved_sampler`."""
    return read_saved_sampler(data, functools.partial(parse_unchecked, saved_sampler_pb2.SavedRecord), allowed_paths)


def sampling_scopes(request: pb.ObtainSamplesRequest | pb.ObtainExactEpisodesRequest | pb.StreamSpec) -> _Needed:
    """Yield what a call that updates the agent needs for that."""
    if request.options.HasField("agent_update"):
        yield Scope.AGENT_WRITE, "a call that updates the agent"
        if is_pickle(request.options.agent_update):
            yield _PICKLE


def agent_update_scopes(request: pb.UpdateAgentRequest | ParametersUpdate) -> _Needed:
    """Yield what an update needs for a pickle."""
    if isinstance(request, pb.UpdateAgentRequest) and has_pickle(request):
        yield _PICKLE


def driving_scopes(request: pb.DriveSpec | pb.DriveResumption | pb.SessionReading) -> _Needed:
    """Yield what a session needs for its dataset."""
    if isinstance(request, pb.DriveSpec) and request.dataset:
        yield Scope.DATA_WRITE, "a session that is recorded to a dataset"


def evaluation_scopes(request: pb.EvaluateRequest | pb.EvaluatePopulationRequest) -> _Needed:
    """Yield what an evaluation needs for an environment of its own."""
    if request.options.HasField("environment"):
        yield Scope.ENV_WRITE, "an evaluation in another environment"


def recording_scopes(_: pb.RecordDatasetRequest) -> _Needed:
    """Yield what a recording needs to sample."""
    yield Scope.SAMPLE, "a recording"


def reading_scopes(request: pb.ReadDatasetRequest) -> _Needed:
    """Yield what a read needs for live episodes."""
    if any(source.WhichOneof("content") == "live" for source in request.sources):
        yield Scope.SAMPLE, "live episodes"
