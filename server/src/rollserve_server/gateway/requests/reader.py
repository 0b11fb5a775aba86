"""Reads requests: finds the sampler that a request is for, and what its pool has to do."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from rollserve_server.admission import Admission
from rollserve_server.errors import InvalidValueError
from rollserve_server.futures import REQUEST_THREADS, in_request_thread
from rollserve_server.gateway.messages.agents import agent_updates_from_proto, has_pickle, is_pickle
from rollserve_server.gateway.messages.dataset_requests import (
    ReadRequest,
    RecordingRequest,
    read_request_from_proto,
    recording_request_from_proto,
)
from rollserve_server.gateway.messages.environments import env_updates_from_proto, method_call_from_proto
from rollserve_server.gateway.messages.evaluations import evaluation_request_from_proto, population_request_from_proto
from rollserve_server.gateway.messages.fields import (
    MAX_WORKERS,
    client_id_from_proto,
    expectation_from_proto,
    in_field,
    in_range,
    optional,
)
from rollserve_server.gateway.messages.sample_requests import (
    message_limit_from_proto,
    sample_request_from_proto,
    stream_request_from_proto,
)
from rollserve_server.gateway.messages.saved_samplers import read_saved_sampler
from rollserve_server.gateway.messages.status import sampler_request_from_proto
from rollserve_server.gateway.messages.videos import render_request_from_proto
from rollserve_server.gateway.requests.parsing import check_fields, parse, parse_unchecked
from rollserve_server.identity import Scope
from rollserve_wire.parameter_updates import read_parameters_update
from rollserve_wire.v1 import agent_versions_pb2, episode_records_pb2, samplers_pb2, saved_sampler_pb2
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    from rollserve_server.envs import MethodCall
    from rollserve_server.gateway.messages.videos import RenderRequest
    from rollserve_server.gateway.rpcs.open_rpc import OpenRpc
    from rollserve_server.pool import (
        AgentUpdate,
        EnvUpdate,
        EvaluationRequest,
        Expectation,
        PopulationRequest,
        SampleRequest,
        SavedSampler,
        StreamRequest,
    )
    from rollserve_server.samplers import Sampler, SamplerRequest, Samplers

__all__ = [
    "AgentUpdateRequest",
    "EnvCallRequest",
    "EnvUpdateRequest",
    "ParametersRequest",
    "RecordsRequest",
    "RequestReader",
    "SamplingRequest",
    "StreamSamplingRequest",
    "read_saved_file",
]

_MAX_INLINE_BYTES = 1 << 14
"""Largest size of a request that is read in the event loop: that takes some milliseconds at most."""
_LOOK_SECONDS, _MAX_WAITING = 1.0, 1 << 20
"""How often waiting requests look whether a thread is free; length of the queue, which no number of RPCs reaches."""

_T = TypeVar("_T")


class AgentUpdateRequest(NamedTuple):
    """A request for an update of agents: one update for all workers, or one for each."""

    sampler: Sampler
    updates: Sequence[AgentUpdate | None]
    expected: Expectation
    per_worker: bool
    skip_if_identical: bool


class EnvUpdateRequest(NamedTuple):
    """A request for an update of environments: one update for all workers, or one for each."""

    sampler: Sampler
    updates: Sequence[EnvUpdate | None]
    expected: Expectation
    per_worker: bool


class EnvCallRequest(NamedTuple):
    """A request for the values of a method of environments, of the current version if it names none."""

    sampler: Sampler
    call: MethodCall
    env_version: int | None
    expected: Expectation


class SamplingRequest(NamedTuple):
    """A request for episodes or fragments, which may be delivered through shared memory, or joined to such a size."""

    sampler: Sampler
    request: SampleRequest
    accepts_shared_memory: bool
    max_joined_bytes: int


class StreamSamplingRequest(NamedTuple):
    """A request for a stream, which may be delivered through shared memory, or joined to such a size."""

    sampler: Sampler
    request: StreamRequest
    accepts_shared_memory: bool
    max_joined_bytes: int


class ParametersRequest(NamedTuple):
    """A request for the parameters of an agent, with the fields of `GetAgentParametersRequest`."""

    sampler: Sampler
    policy_version: int | None
    worker_index: int
    names: Sequence[str]
    max_message_bytes: int


class RecordsRequest(NamedTuple):
    """A request for records of ended episodes, with the fields of `GetMetricsRequest`."""

    sampler: Sampler
    since: int
    log_id: str
    follow: bool


class RequestReader:
    """Reads requests: finds the sampler that a request is for, and what its pool has to do.

    Methods are called by `read`. Every one raises NotFoundError for an unknown sampler, InvalidValueError for a
    missing, malformed or invalid field, and OverLimitError for too many fields or too long a text. NotAllowedError: the
    RPC's client has not the scope that the request needs; requests with environments or Python agents can raise it for
    other reasons, too.
    """

    def __init__(self, samplers: Samplers, allowed_paths: Collection[Path]) -> None:
        """Read requests for these samplers.

        Args:
            samplers: the samplers.
            allowed_paths: files and folders that arguments of environments and agents may name.
        """
        self._samplers = samplers
        self._allowed_paths = allowed_paths
        self._admission = Admission(REQUEST_THREADS, _LOOK_SECONDS, max_stalled=0, max_waiting=_MAX_WAITING)

    async def read(self, method: Callable[[OpenRpc, bytes], _T], rpc: OpenRpc, data: bytes) -> _T:
        """Return what a method of the reader returns for a request.

        Larger ones are read in threads, which clients share: of those that wait, one of the client with the fewest that
        are being read is next.
        """
        if len(data) <= _MAX_INLINE_BYTES:
            return method(rpc, data)
        async with contextlib.AsyncExitStack() as stack:
            await self._admission.admit(stack, rpc)
            return await in_request_thread(method, rpc, data)

    def samples(
        self, kind: type[pb.ObtainSamplesRequest | pb.ObtainExactEpisodesRequest], rpc: OpenRpc, data: bytes
    ) -> SamplingRequest:
        """Read the request of `ObtainSamples` or `ObtainExactEpisodes`, which the class tells apart."""
        request = parse(kind, data)
        sampler, options = self._sampler(rpc, request.sampler), request.options
        self._check_agent_update(rpc, options)
        sample_request = sample_request_from_proto(request, self._allowed_paths)
        max_joined_bytes = sample_request.messages.max_message_bytes if options.accept_joined else 0
        return SamplingRequest(sampler, sample_request, options.accept_shared_memory, max_joined_bytes)

    def stream(self, rpc: OpenRpc, data: bytes) -> StreamSamplingRequest:
        """Read the first message of `StreamSamples`."""
        message = parse(pb.StreamSamplesRequest, data)
        if message.WhichOneof("content") != "spec":
            got = message.WhichOneof("content") or "none"
            raise InvalidValueError.of("content", expected="a spec in the first message", got=got)
        with in_field("spec"):
            spec = message.spec
            sampler, options = self._sampler(rpc, spec.sampler), spec.options
            self._check_agent_update(rpc, options)
            request = stream_request_from_proto(spec, self._allowed_paths)
        max_joined_bytes = request.messages.max_message_bytes if options.accept_joined else 0
        return StreamSamplingRequest(sampler, request, options.accept_shared_memory, max_joined_bytes)

    def receipt(self, data: bytes) -> int:
        """Read a later message of `StreamSamples`: the number of rounds that the client has taken."""
        message = parse(pb.StreamSamplesRequest, data)
        if message.WhichOneof("content") != "receipt":
            got = message.WhichOneof("content") or "none"
            raise InvalidValueError.of("content", expected="a receipt in each later message", got=got)
        return message.receipt.round_count

    def resize(self, rpc: OpenRpc, data: bytes) -> tuple[Sampler, int]:
        """Read the request of `ResizePool`: the sampler, and its new number of workers."""
        request = parse(pb.ResizePoolRequest, data)
        sampler = self._sampler(rpc, request.sampler)
        return sampler, in_range("worker_count", request.worker_count, 1, MAX_WORKERS)

    def sampler(self, rpc: OpenRpc, data: bytes) -> Sampler:
        """Read the request of `GetSampler`."""
        return self._sampler(rpc, parse(pb.GetSamplerRequest, data).sampler)

    def new_sampler(self, rpc: OpenRpc, data: bytes) -> tuple[SamplerRequest, bool]:
        """Read the request of `CreateSampler`: the new sampler, and whether an equal one may exist."""
        request = parse(samplers_pb2.CreateSamplerRequest, data)
        rpc.use_sampler(request.sampler)
        return sampler_request_from_proto(request, self._allowed_paths), request.exist_ok

    def deleted_sampler(self, rpc: OpenRpc, data: bytes) -> str:
        """Read the request of `DeleteSampler`: the sampler's name."""
        return self._sampler(rpc, parse(samplers_pb2.DeleteSamplerRequest, data).sampler).name

    def saved_sampler(self, rpc: OpenRpc, data: bytes) -> Sampler:
        """Read the request of `SaveSampler`."""
        return self._sampler(rpc, parse(samplers_pb2.SaveSamplerRequest, data).sampler)

    def recording(self, rpc: OpenRpc, data: bytes) -> tuple[Sampler, RecordingRequest]:
        """Read the request of `RecordDataset`."""
        request = parse(pb.RecordDatasetRequest, data)
        sampler = self._sampler(rpc, request.sampler)
        rpc.require(Scope.SAMPLE, "a recording")
        return sampler, recording_request_from_proto(request)

    def dataset_read(self, rpc: OpenRpc, data: bytes) -> tuple[Sampler, ReadRequest]:
        """Read the request of `ReadDataset`."""
        request = parse(pb.ReadDatasetRequest, data)
        sampler = self._sampler(rpc, request.sampler)
        if any(source.WhichOneof("content") == "live" for source in request.sources):
            rpc.require(Scope.SAMPLE, "live episodes")
        return sampler, read_request_from_proto(request)

    def restoration(self, rpc: OpenRpc, data: bytes) -> tuple[Sampler, SavedSampler, str]:
        """Read the request of `RestoreSampler`: the sampler, the saved one, and the client's id."""
        request = parse(samplers_pb2.RestoreSamplerRequest, data)
        sampler = self._sampler(rpc, request.sampler)
        parse_record = functools.partial(parse, saved_sampler_pb2.SavedRecord)
        with in_field("data"):
            saved = read_saved_sampler(request.data, parse_record, self._allowed_paths)
        return sampler, saved, client_id_from_proto(request)

    def sampler_list(self, _: OpenRpc, data: bytes) -> None:
        """Read the request of `ListSamplers`, which has no fields."""
        parse(samplers_pb2.ListSamplersRequest, data)

    def records(self, rpc: OpenRpc, data: bytes) -> RecordsRequest:
        """Read the request of `GetMetrics`."""
        request = parse(episode_records_pb2.GetMetricsRequest, data)
        return RecordsRequest(self._sampler(rpc, request.sampler), request.since, request.log_id, request.follow)

    def agent_versions(self, rpc: OpenRpc, data: bytes) -> Sampler:
        """Read the request of `ListAgentVersions`."""
        return self._sampler(rpc, parse(agent_versions_pb2.ListAgentVersionsRequest, data).sampler)

    def agent_parameters(self, rpc: OpenRpc, data: bytes) -> ParametersRequest:
        """Read the request of `GetAgentParameters`."""
        request = parse(agent_versions_pb2.GetAgentParametersRequest, data)
        return ParametersRequest(
            self._sampler(rpc, request.sampler),
            request.policy_version or None,
            request.worker_index,
            request.names,
            message_limit_from_proto(request),
        )

    def agent_query(self, rpc: OpenRpc, data: bytes) -> tuple[Sampler, int | None, int, str]:
        """Read the request of `GetAgent`: the sampler, the version, None for the current one, worker and policy."""
        request = parse(agent_versions_pb2.GetAgentRequest, data)
        sampler = self._sampler(rpc, request.sampler)
        return sampler, request.policy_version or None, request.worker_index, request.policy

    def agent_update(self, rpc: OpenRpc, data: bytes) -> AgentUpdateRequest:
        """Read the request of `UpdateAgent`."""
        check_fields(pb.UpdateAgentRequest, data)
        parameters_update = read_parameters_update(data)
        if parameters_update is not None:
            request = parameters_update.request
            updates: Sequence[AgentUpdate | None] = [parameters_update.parameters]
            sampler, per_worker = self._sampler(rpc, request.sampler), False
        else:
            request = parse_unchecked(pb.UpdateAgentRequest, data)
            sampler = self._sampler(rpc, request.sampler)
            if has_pickle(request):
                rpc.require(Scope.PICKLE, "a pickled agent")
            updates, per_worker = agent_updates_from_proto(request, self._allowed_paths)
        return AgentUpdateRequest(
            sampler, updates, expectation_from_proto(request), per_worker, request.skip_if_identical
        )

    def env_update(self, rpc: OpenRpc, data: bytes) -> EnvUpdateRequest:
        """Read the request of `UpdateEnv`."""
        request = parse(pb.UpdateEnvRequest, data)
        sampler = self._sampler(rpc, request.sampler)
        updates, per_worker = env_updates_from_proto(request, self._allowed_paths)
        return EnvUpdateRequest(sampler, updates, expectation_from_proto(request), per_worker)

    def env_call(self, rpc: OpenRpc, data: bytes) -> EnvCallRequest:
        """Read the request of `CallEnvironments`."""
        request = parse(pb.CallEnvironmentsRequest, data)
        sampler = self._sampler(rpc, request.sampler)
        call = method_call_from_proto(request, self._allowed_paths)
        return EnvCallRequest(sampler, call, optional(request, "environment_version"), expectation_from_proto(request))

    def rendering(self, rpc: OpenRpc, data: bytes) -> tuple[Sampler, RenderRequest]:
        """Read the request of `RenderEpisode`."""
        request = parse(pb.RenderEpisodeRequest, data)
        return self._sampler(rpc, request.sampler), render_request_from_proto(request)

    def evaluation(self, rpc: OpenRpc, data: bytes) -> tuple[Sampler, EvaluationRequest]:
        """Read the request of `Evaluate`."""
        request = parse(pb.EvaluateRequest, data)
        sampler = self._sampler(rpc, request.sampler)
        _check_environment(rpc, request.options)
        return sampler, evaluation_request_from_proto(request, self._allowed_paths)

    def population_evaluation(self, rpc: OpenRpc, data: bytes) -> tuple[Sampler, PopulationRequest]:
        """Read the request of `EvaluatePopulation`."""
        request = parse(pb.EvaluatePopulationRequest, data)
        sampler = self._sampler(rpc, request.sampler)
        _check_environment(rpc, request.options)
        return sampler, population_request_from_proto(request, self._allowed_paths)

    def _check_agent_update(self, rpc: OpenRpc, options: pb.SamplingOptions) -> None:
        """Raise NotAllowedError if a call updates the agent, and its client may not."""
        if options.HasField("agent_update"):
            rpc.require(Scope.AGENT_WRITE, "a call that updates the agent")
        if is_pickle(options.agent_update):
            rpc.require(Scope.PICKLE, "a pickled agent")

    def _sampler(self, rpc: OpenRpc, name: str) -> Sampler:
        return self._samplers.find(rpc.use_sampler(name))


def read_saved_file(data: bytes, allowed_paths: Collection[Path]) -> SavedSampler:
    """Return the saved sampler of a file of the operator's own, without bounds; raises as `read_saved_sampler`."""
    return read_saved_sampler(data, functools.partial(parse_unchecked, saved_sampler_pb2.SavedRecord), allowed_paths)


def _check_environment(rpc: OpenRpc, options: pb.EvaluationOptions) -> None:
    """Raise NotAllowedError if an evaluation needs environments of its own, and the client may not choose any."""
    if options.HasField("environment"):
        rpc.require(Scope.ENV_WRITE, "an evaluation in another environment")
