"""Reads requests: finds the pool that a request is for, and what the pool has to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from rollserve import Reason
from rollserve._codec.parameter_updates import read_parameters_update
from rollserve.v1 import agent_versions_pb2, episode_records_pb2
from rollserve.v1 import sampler_service_pb2 as pb
from rollserve_server.errors import NotFoundError
from rollserve_server.gateway.messages.agents import agent_updates_from_proto, has_pickle
from rollserve_server.gateway.messages.environments import env_updates_from_proto
from rollserve_server.gateway.messages.evaluations import evaluation_request_from_proto, population_request_from_proto
from rollserve_server.gateway.messages.fields import MAX_WORKERS, expectation_from_proto, in_range
from rollserve_server.gateway.messages.formats import message_limit_from_proto
from rollserve_server.gateway.messages.sample_requests import sample_request_from_proto
from rollserve_server.gateway.requests.limits import check_fields
from rollserve_server.gateway.requests.parsing import parse, parse_unchecked
from rollserve_server.identity import Scope

if TYPE_CHECKING:
    from rollserve_server.gateway.rpcs.open_rpc import OpenRpc
    from rollserve_server.pool import (
        AgentUpdate,
        EnvUpdate,
        EvaluationRequest,
        Expectation,
        Pool,
        PopulationRequest,
        SampleRequest,
    )

__all__ = [
    "AgentUpdateRequest",
    "EnvUpdateRequest",
    "ParametersRequest",
    "RecordsRequest",
    "RequestReader",
    "SamplingRequest",
    "read_aside",
]

_MAX_INLINE_BYTES = 1 << 16
"""Largest size of a request that is read in the event loop: that takes a fifth of a second at most."""

_T = TypeVar("_T")


class AgentUpdateRequest(NamedTuple):
    """A request for an update of agents: one update for all workers, or one for each."""

    pool: Pool
    updates: Sequence[AgentUpdate]
    expected: Expectation
    per_worker: bool
    skip_if_identical: bool


class EnvUpdateRequest(NamedTuple):
    """A request for an update of environments: one update for all workers, or one for each."""

    pool: Pool
    updates: Sequence[EnvUpdate]
    expected: Expectation
    per_worker: bool


class SamplingRequest(NamedTuple):
    """A request for episodes or fragments, which may be delivered through shared memory, or joined to such a size."""

    pool: Pool
    request: SampleRequest
    accepts_shared_memory: bool
    max_joined_bytes: int


class ParametersRequest(NamedTuple):
    """A request for the parameters of an agent, with the fields of `GetAgentParametersRequest`."""

    pool: Pool
    policy_version: int | None
    worker_index: int
    names: Sequence[str]
    max_message_bytes: int


class RecordsRequest(NamedTuple):
    """A request for records of ended episodes, with the fields of `GetMetricsRequest`."""

    pool: Pool
    since: int
    log_id: str
    follow: bool


class RequestReader:
    """Reads requests: finds the pool that a request is for, and what the pool has to do.

    Updates and evaluations, which may be large, are read with `read_aside`. Every method raises NotFoundError for an
    unknown sampler, InvalidValueError for a missing, malformed or invalid field, and OverLimitError for too many fields
    or too long a text. NotAllowedError: the RPC's client has not the scope that the request needs; requests with
    environments or Python agents can raise it for other reasons, too.
    """

    def __init__(self, pools: Mapping[str, Pool], allowed_paths: Collection[Path]) -> None:
        """Read requests for these pools.

        Args:
            pools: the pools by the names of their samplers.
            allowed_paths: files and folders that arguments of environments and agents may name.
        """
        self._pools = pools
        self._allowed_paths = allowed_paths

    def samples(
        self, rpc: OpenRpc, kind: type[pb.ObtainSamplesRequest | pb.ObtainExactEpisodesRequest], data: bytes
    ) -> SamplingRequest:
        """Read the request of `ObtainSamples` or `ObtainExactEpisodes`, which the class tells apart."""
        request = parse(kind, data)
        pool = self._pool(rpc, request.sampler)
        options, sample_request = request.options, sample_request_from_proto(request)
        max_joined_bytes = sample_request.messages.max_message_bytes if options.accept_joined else 0
        return SamplingRequest(pool, sample_request, options.accept_shared_memory, max_joined_bytes)

    def resize(self, rpc: OpenRpc, data: bytes) -> tuple[Pool, int]:
        """Read the request of `ResizePool`: the pool, and its new number of workers."""
        request = parse(pb.ResizePoolRequest, data)
        pool = self._pool(rpc, request.sampler)
        return pool, in_range("worker_count", request.worker_count, 1, MAX_WORKERS)

    def sampler(self, rpc: OpenRpc, data: bytes) -> tuple[str, Pool]:
        """Read the request of `GetSampler`: the sampler's name, and its pool."""
        request = parse(pb.GetSamplerRequest, data)
        pool = self._pool(rpc, request.sampler)
        return rpc.sampler, pool

    def records(self, rpc: OpenRpc, data: bytes) -> RecordsRequest:
        """Read the request of `GetMetrics`."""
        request = parse(episode_records_pb2.GetMetricsRequest, data)
        return RecordsRequest(self._pool(rpc, request.sampler), request.since, request.log_id, request.follow)

    def agent_versions(self, rpc: OpenRpc, data: bytes) -> Pool:
        """Read the request of `ListAgentVersions`."""
        return self._pool(rpc, parse(agent_versions_pb2.ListAgentVersionsRequest, data).sampler)

    def agent_parameters(self, rpc: OpenRpc, data: bytes) -> ParametersRequest:
        """Read the request of `GetAgentParameters`."""
        request = parse(agent_versions_pb2.GetAgentParametersRequest, data)
        return ParametersRequest(
            self._pool(rpc, request.sampler),
            request.policy_version or None,
            request.worker_index,
            request.names,
            message_limit_from_proto(request),
        )

    def agent_update(self, rpc: OpenRpc, data: bytes) -> AgentUpdateRequest:
        """Read the request of `UpdateAgent`."""
        check_fields(pb.UpdateAgentRequest, data)
        parameters_update = read_parameters_update(data)
        if parameters_update is not None:
            request = parameters_update.request
            updates: Sequence[AgentUpdate] = [parameters_update.parameters]
            pool, per_worker = self._pool(rpc, request.sampler), False
        else:
            request = parse_unchecked(pb.UpdateAgentRequest, data)
            pool = self._pool(rpc, request.sampler)
            if has_pickle(request):
                rpc.require(Scope.PICKLE, "a pickled agent")
            updates, per_worker = agent_updates_from_proto(request, self._allowed_paths)
        return AgentUpdateRequest(pool, updates, expectation_from_proto(request), per_worker, request.skip_if_identical)

    def env_update(self, rpc: OpenRpc, data: bytes) -> EnvUpdateRequest:
        """Read the request of `UpdateEnv`."""
        request = parse(pb.UpdateEnvRequest, data)
        pool = self._pool(rpc, request.sampler)
        updates, per_worker = env_updates_from_proto(request, self._allowed_paths)
        return EnvUpdateRequest(pool, updates, expectation_from_proto(request), per_worker)

    def evaluation(self, rpc: OpenRpc, data: bytes) -> tuple[Pool, EvaluationRequest]:
        """Read the request of `Evaluate`."""
        request = parse(pb.EvaluateRequest, data)
        pool = self._pool(rpc, request.sampler)
        _check_environment(rpc, request.options)
        return pool, evaluation_request_from_proto(request, self._allowed_paths)

    def population_evaluation(self, rpc: OpenRpc, data: bytes) -> tuple[Pool, PopulationRequest]:
        """Read the request of `EvaluatePopulation`."""
        request = parse(pb.EvaluatePopulationRequest, data)
        pool = self._pool(rpc, request.sampler)
        _check_environment(rpc, request.options)
        return pool, population_request_from_proto(request, self._allowed_paths)

    def _pool(self, rpc: OpenRpc, name: str) -> Pool:
        sampler = rpc.use_sampler(name)
        pool = self._pools.get(sampler)
        if pool is None:
            expected = f"one of {', '.join(map(repr, self._pools))}"
            raise NotFoundError.of("sampler", expected=expected, got=repr(sampler), reason=Reason.SAMPLER_NOT_FOUND)
        return pool


async def read_aside(read: Callable[[OpenRpc, bytes], _T], rpc: OpenRpc, data: bytes) -> _T:
    """Return what a method of the reader returns; a large request is read in a thread, so that others are answered."""
    return read(rpc, data) if len(data) <= _MAX_INLINE_BYTES else await asyncio.to_thread(read, rpc, data)


def _check_environment(rpc: OpenRpc, options: pb.EvaluationOptions) -> None:
    """Raise NotAllowedError if an evaluation needs environments of its own, and the client may not choose any."""
    if options.HasField("environment"):
        rpc.require(Scope.ENV_WRITE, "an evaluation in another environment")
