"""The service: each method translates, delegates, and translates back."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import grpc

from rollserve import Reason
from rollserve._codec.parameter_updates import read_parameters_update
from rollserve.v1 import agent_versions_pb2
from rollserve.v1 import sampler_service_pb2 as pb
from rollserve_server.admission import Admission, ConnectionAdmission
from rollserve_server.errors import NotFoundError
from rollserve_server.gateway.messages import evaluations as evaluation_messages
from rollserve_server.gateway.messages import sampling as sampling_messages
from rollserve_server.gateway.messages.agents import agent_updates_from_proto
from rollserve_server.gateway.messages.environments import env_updated_to_proto, env_updates_from_proto
from rollserve_server.gateway.messages.fields import MOST_WORKERS, in_range
from rollserve_server.gateway.messages.versions import agent_versions_to_proto, chosen_parameters, parameter_messages
from rollserve_server.gateway.requests.limits import check_fields
from rollserve_server.gateway.requests.parsing import decoded, parsed
from rollserve_server.pool import Account, Beginning, Delivery, Evaluation, Pool, Progress

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from rollserve_server.gateway.requests.intake import Intake
    from rollserve_server.gateway.rpcs import OpenRpc, OpenRpcs
    from rollserve_server.gateway.shared_memory import Rings
    from rollserve_server.pool import AgentUpdate, EnvUpdate, EvaluationRequest, PoolStatus, PopulationRequest

__all__ = ["DEFAULT_SAMPLER", "SamplerService"]

DEFAULT_SAMPLER = "default"

_log = logging.getLogger(__name__)

_Context = Any  # grpc.aio's is generic in the stubs only
_T = TypeVar("_T")
_SampleRequest = pb.ObtainSamplesRequest | pb.ObtainExactEpisodesRequest
_Stream = Callable[[bytes, "OpenRpc"], AsyncGenerator[bytes, None]]

_KINDS = {
    "UpdateAgent": "update",
    "UpdateEnv": "update",
    "Evaluate": "evaluation",
    "EvaluatePopulation": "evaluation",
}
"""Of RPCs whose requests bring agents, parameters or environments; those of others are small."""
_QUICK_BYTES = 1 << 15
"""Requests that are no larger are read at once: that takes a tenth of a second at most."""
_MOST_PARAMETERS, _MOST_WAITING = 4, 64
"""How many streams of parameters run at the same time, and how many wait."""
_MOST_ANSWERS, _MOST_OF_CONNECTION, _ANSWER_PATIENCE_SECONDS = 8, 2, 5.0
"""How many states of samplers are there at a time, in all and of a connection, until their clients have taken them."""


class SamplerService:
    """`rollserve.v1.SamplerService`; see `protos/rollserve/v1/sampler_service.proto`."""

    def __init__(
        self,
        pools: Mapping[str, Pool],
        allowed_paths: Collection[Path],
        rings: Rings,
        rpcs: OpenRpcs,
        intake: Intake,
    ) -> None:
        """Serves the samplers of these names.

        Args:
            pools: the samplers.
            allowed_paths: see `check_paths`.
            rings: memory for streams that may come through some.
            rpcs: keeps the RPCs.
            intake: receives requests.
        """
        self._pools = pools
        self._allowed_paths = allowed_paths
        self._rings = rings
        self._rpcs = rpcs
        self._intake = intake
        # Each holds a version's parameters for as long as it runs, also when the pool has forgotten them.
        self._parameter_admission = Admission(
            _MOST_PARAMETERS, 1.0, max_stalled=_MOST_PARAMETERS, max_waiting=_MOST_WAITING
        )
        self._answer_admission = ConnectionAdmission(
            _MOST_ANSWERS, _MOST_OF_CONNECTION, _ANSWER_PATIENCE_SECONDS, max_waiting=_MOST_WAITING
        )

    def handler(self) -> grpc.GenericRpcHandler:
        """What a server needs to route calls here."""
        service = pb.DESCRIPTOR.services_by_name["SamplerService"]
        unary: dict[str, Callable[[bytes], Awaitable[Message]]] = {
            "UpdateAgent": self.update_agent,
            "UpdateEnv": self.update_env,
            "ResizePool": self.resize_pool,
            "ListAgentVersions": self.list_agent_versions,
        }
        streams: dict[str, _Stream] = {
            "ObtainSamples": functools.partial(self.obtain, pb.ObtainSamplesRequest),
            "ObtainExactEpisodes": functools.partial(self.obtain, pb.ObtainExactEpisodesRequest),
            "GetSampler": self.get_sampler,
            "GetAgentParameters": self.get_agent_parameters,
            "Evaluate": self.evaluate,
            "EvaluatePopulation": self.evaluate_population,
        }
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        # gRPC passes bytes on both ways: what cannot be parsed is an error like any other, and sampled messages come
        # from the workers as bytes. The one request of an RPC is taken as a stream: of those gRPC reads no more than it
        # is asked to. The one answer of an RPC may be sent as a stream, too: clients see no difference.
        for name, method in unary.items():
            answer = self._answer(method, _KINDS.get(name))
            handlers[name] = grpc.stream_unary_rpc_method_handler(answer, None, None)
        for name, stream in streams.items():
            write = self._write(stream, _KINDS.get(name))
            handlers[name] = grpc.stream_stream_rpc_method_handler(write, None, None)
        return grpc.method_handlers_generic_handler(service.full_name, handlers)

    async def update_agent(self, data: bytes) -> pb.UpdateAgentResponse:
        """UpdateAgent."""
        came = await _reading(self._read_agent_update, data)
        if came.skip_if_identical:
            current = await came.pool.current_if_same(came.updates, per_worker=came.per_worker)
            if current is not None:
                return pb.UpdateAgentResponse(policy_version=current, unchanged=True)
        version = await came.pool.update_agent(came.updates, per_worker=came.per_worker)
        _log.debug("agent updated", extra={"policy_version": version})
        return pb.UpdateAgentResponse(policy_version=version)

    async def update_env(self, data: bytes) -> pb.UpdateEnvResponse:
        """UpdateEnv."""
        pool, updates, per_worker = await _reading(self._read_env_update, data)
        updated = await pool.update_env(updates, per_worker=per_worker)
        env = ",".join(dict.fromkeys(spec.id for spec in updated.specs))
        _log.info("environment updated", extra={"env": env, "env_version": updated.version})
        return env_updated_to_proto(updated)

    async def resize_pool(self, data: bytes) -> pb.ResizePoolResponse:
        """ResizePool."""
        request = parsed(pb.ResizePoolRequest, data)
        pool = self._pool(request.sampler)
        num_workers = in_range("worker_count", request.worker_count, 1, MOST_WORKERS)
        previous = await pool.resize(num_workers)
        return pb.ResizePoolResponse(worker_count=num_workers, previous_worker_count=previous)

    async def get_sampler(self, data: bytes, rpc: OpenRpc) -> AsyncGenerator[bytes, None]:
        """GetSampler: its only message, which may be large. As of a stream, it is known when the client takes it."""
        request = parsed(pb.GetSamplerRequest, data)
        pool = self._pool(request.sampler)
        async with contextlib.AsyncExitStack() as stack:
            await self._answer_admission.admit(stack, rpc)
            status = pool.status()
            # There may be an environment for each of many rows.
            yield await asyncio.to_thread(_status_message, request.sampler or DEFAULT_SAMPLER, status)

    async def list_agent_versions(self, data: bytes) -> agent_versions_pb2.ListAgentVersionsResponse:
        """ListAgentVersions."""
        request = parsed(agent_versions_pb2.ListAgentVersionsRequest, data)
        return agent_versions_to_proto(await self._pool(request.sampler).agents.listed())

    async def get_agent_parameters(self, data: bytes, rpc: OpenRpc) -> AsyncGenerator[bytes, None]:
        """GetAgentParameters: serialized messages."""
        request = parsed(agent_versions_pb2.GetAgentParametersRequest, data)
        agents = self._pool(request.sampler).agents
        limit = sampling_messages.message_limit_from_proto(request)
        async with contextlib.AsyncExitStack() as stack:
            await self._parameter_admission.admit(stack, rpc)
            version, parameters = agents.parameters(request.policy_version or None, request.worker_index)
            for message in parameter_messages(version, chosen_parameters(parameters, request.names), limit):
                yield message.SerializeToString()

    async def obtain(self, kind: type[_SampleRequest], data: bytes, rpc: OpenRpc) -> AsyncGenerator[bytes, None]:
        """ObtainSamples and ObtainExactEpisodes, whose responses have the same fields: serialized messages."""
        request = parsed(kind, data)
        pool = self._pool(request.sampler)
        sample_request = sampling_messages.sample_request_from_proto(request)
        async with contextlib.AsyncExitStack() as stack:
            ring = stack.enter_context(self._rings.lent(wanted=request.options.accept_shared_memory))
            items = await stack.enter_async_context(contextlib.aclosing(pool.sample(sample_request, rpc)))
            async for item in items:
                match item:
                    case Beginning():
                        beginning = sampling_messages.beginning_to_proto(item, ring.offer() if ring else None)
                        yield pb.ObtainSamplesResponse(beginning=beginning).SerializeToString()
                    case Delivery():
                        for message in item.messages:
                            written = item.buffer[message.offset : message.offset + message.size]
                            shared = None
                            if ring:
                                with rpc.waiting():
                                    shared = await ring.write(written)
                            response = pb.ObtainSamplesResponse(shared=shared)
                            yield response.SerializeToString() if shared else written.tobytes()
                    case Progress():
                        yield pb.ObtainSamplesResponse(
                            progress=sampling_messages.progress_to_proto(item)
                        ).SerializeToString()
                    case Account():
                        fields = {"steps": item.num_steps, "episodes": item.num_episodes}
                        _log.debug("sampled", extra={**fields, "seconds": round(item.elapsed_seconds, 3)})
                        account = sampling_messages.account_to_proto(item)
                        account.shared_message_bytes = ring.num_message_bytes if ring else 0
                        yield pb.ObtainSamplesResponse(account=account).SerializeToString()

    async def evaluate(self, data: bytes, rpc: OpenRpc) -> AsyncGenerator[bytes, None]:
        """Evaluate: serialized messages."""
        pool, evaluation_request = await _reading(self._read_evaluation, data)
        async with contextlib.aclosing(pool.evaluate(evaluation_request, rpc)) as items:
            async for item in items:
                match item:
                    case Delivery():
                        for message in item.messages:
                            yield item.buffer[message.offset : message.offset + message.size].tobytes()
                    case Evaluation():
                        evaluation = evaluation_messages.evaluation_to_proto(item)
                        yield pb.EvaluateResponse(evaluation=evaluation).SerializeToString()
                    case _:
                        yield pb.EvaluateResponse(**_sign_to_proto(item)).SerializeToString()

    async def evaluate_population(self, data: bytes, rpc: OpenRpc) -> AsyncGenerator[bytes, None]:
        """EvaluatePopulation: serialized messages."""
        pool, population_request = await _reading(self._read_population, data)
        async with contextlib.aclosing(pool.evaluate_population(population_request, rpc)) as items:
            async for item in items:
                if isinstance(item, Evaluation):
                    evaluation = evaluation_messages.population_evaluation_to_proto(item)
                    yield pb.EvaluatePopulationResponse(evaluation=evaluation).SerializeToString()
                elif not isinstance(item, Delivery):
                    yield pb.EvaluatePopulationResponse(**_sign_to_proto(item)).SerializeToString()

    def _read_agent_update(self, data: bytes) -> _AgentUpdates:
        check_fields(pb.UpdateAgentRequest, data)
        read = read_parameters_update(data)
        if read is not None:
            return _AgentUpdates(self._pool(read.sampler), [read.parameters], False, read.skip_if_identical)
        request = decoded(pb.UpdateAgentRequest, data)
        pool = self._pool(request.sampler)
        updates, per_worker = agent_updates_from_proto(request, self._allowed_paths)
        return _AgentUpdates(pool, updates, per_worker, request.skip_if_identical)

    def _read_env_update(self, data: bytes) -> tuple[Pool, Sequence[EnvUpdate], bool]:
        request = parsed(pb.UpdateEnvRequest, data)
        return self._pool(request.sampler), *env_updates_from_proto(request, self._allowed_paths)

    def _read_evaluation(self, data: bytes) -> tuple[Pool, EvaluationRequest]:
        request = parsed(pb.EvaluateRequest, data)
        pool = self._pool(request.sampler)
        return pool, evaluation_messages.evaluation_request_from_proto(request, self._allowed_paths)

    def _read_population(self, data: bytes) -> tuple[Pool, PopulationRequest]:
        request = parsed(pb.EvaluatePopulationRequest, data)
        pool = self._pool(request.sampler)
        return pool, evaluation_messages.population_request_from_proto(request, self._allowed_paths)

    def _pool(self, sampler: str) -> Pool:
        pool = self._pools.get(sampler or DEFAULT_SAMPLER)
        if pool is None:
            known = ", ".join(map(repr, self._pools))
            text = f"{sampler!r} came, one of {known} was expected"
            raise NotFoundError(text, reason=Reason.SAMPLER_NOT_FOUND, field="sampler")
        return pool

    def _answer(
        self, method: Callable[[bytes], Awaitable[Message]], request_kind: str | None
    ) -> Callable[[object, _Context], Awaitable[bytes]]:
        """What has gRPC call the method."""

        async def answer(_: object, context: _Context) -> bytes:
            async with self._rpcs.open(context) as rpc:
                return await answer_to(rpc)

        async def answer_to(rpc: OpenRpc) -> bytes:
            async with self._request(rpc, request_kind) as data:
                return (await method(data)).SerializeToString()

        return answer

    def _write(self, method: _Stream, request_kind: str | None) -> Callable[[object, _Context], Awaitable[None]]:
        """What has gRPC call the method, and sends what it gives."""

        async def write(_: object, context: _Context) -> None:
            async with self._rpcs.open(context) as rpc:
                await write_to(rpc)

        async def write_to(rpc: OpenRpc) -> None:
            self._rpcs.check_stuck()
            async with (
                self._request(rpc, request_kind) as data,
                contextlib.aclosing(method(data, rpc)) as messages,
            ):
                async for message in messages:
                    await rpc.write(message)

        return write

    @contextlib.asynccontextmanager
    async def _request(self, rpc: OpenRpc, kind: str | None) -> AsyncGenerator[bytes, None]:
        """The request of an RPC; see Intake."""
        match kind:
            case "update":
                async with self._intake.update(rpc) as data:
                    yield data
            case "evaluation":
                async with self._intake.evaluation(rpc) as data:
                    yield data
            case _:
                yield await self._intake.small(rpc)


class _AgentUpdates(NamedTuple):
    """What UpdateAgent is to do."""

    pool: Pool
    updates: Sequence[AgentUpdate]
    per_worker: bool
    skip_if_identical: bool


def _status_message(sampler: str, status: PoolStatus) -> bytes:
    return sampling_messages.status_to_proto(sampler, status).SerializeToString()


def _sign_to_proto(item: Beginning | Progress) -> dict[str, Any]:
    """The fields of a response that say how far an evaluation is."""
    if isinstance(item, Beginning):
        return {"beginning": sampling_messages.beginning_to_proto(item)}
    return {"progress": sampling_messages.progress_to_proto(item)}


async def _reading(read: Callable[[bytes], _T], data: bytes) -> _T:
    """What is made of a request; of a large one in a thread, so that others are served meanwhile."""
    return read(data) if len(data) <= _QUICK_BYTES else await asyncio.to_thread(read, data)
