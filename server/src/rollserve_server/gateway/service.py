"""The sampler service: each method reads a request, has a pool do it, and returns what the pool gives."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import weakref
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

import grpc

from rollserve_server.admission import Admission, ConnectionAdmission
from rollserve_server.envs import check_not_free, requested, specs_of_rows
from rollserve_server.errors import DomainError, NotAllowedError, OverLimitError, within
from rollserve_server.futures import in_background, in_request_thread
from rollserve_server.gateway.audit import digest_of
from rollserve_server.gateway.following import RecordStreams, episode_records_to_proto
from rollserve_server.gateway.messages.agents import (
    agent_to_proto,
    agent_versions_to_proto,
    parameter_messages,
    select_parameters,
)
from rollserve_server.gateway.messages.environments import env_updated_to_proto
from rollserve_server.gateway.messages.saved_samplers import saved_sampler_parts
from rollserve_server.gateway.messages.status import created_to_proto, status_to_proto, summary_to_proto
from rollserve_server.gateway.reading import DatasetReads
from rollserve_server.gateway.recording import Recordings
from rollserve_server.gateway.rendering import rendered
from rollserve_server.gateway.responses import (
    delivered_messages,
    evaluation_response,
    population_response,
    read_response,
    recording_response,
    round_response,
    sample_response,
    shared_or_sent,
)
from rollserve_server.gateway.rpcs.handlers import stream_handler, unary_handler
from rollserve_server.gateway.rpcs.places import Places
from rollserve_server.identity import ANONYMOUS, Scope
from rollserve_server.pool import (
    MAX_STREAMS,
    Account,
    AgentUpdated,
    Delivery,
    Evaluation,
    SamplingOptions,
    StreamClient,
    StreamRound,
)
from rollserve_wire.reasons import Reason
from rollserve_wire.v1 import agent_versions_pb2, samplers_pb2
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    from rollserve_server.datasets import DataFolder
    from rollserve_server.gateway.messages.environments import PrivateArguments
    from rollserve_server.gateway.requests.intake import Intake
    from rollserve_server.gateway.requests.reader import RequestReader
    from rollserve_server.gateway.rpcs.open_rpc import OpenRpc
    from rollserve_server.gateway.rpcs.open_rpcs import OpenRpcs
    from rollserve_server.gateway.shared_memory import SamplerRings
    from rollserve_server.metrics import Metrics
    from rollserve_server.pool import EnvUpdated, Pool, PoolStatus, SavedSampler
    from rollserve_server.samplers import Sampler, Samplers
    from rollserve_wire.environments import EnvSpec

__all__ = ["SAMPLER_SERVICE", "SamplerService"]

SAMPLER_SERVICE: str = pb.DESCRIPTOR.services_by_name["SamplerService"].full_name

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

_MAX_PARAMETER_STREAMS, _MAX_STATUSES, _MAX_CONNECTION_STATUSES = 4, 8, 2
"""Streams of parameters, and states of samplers that clients have not read, at a time."""
_MAX_SMALL_STATUS = 64 << 10
"""Size of a state up to which clients that do not read it hold no place."""
_STATUS_PATIENCE_SECONDS = 5.0
"""How long others wait for a state that its client does not read."""
_MAX_WAITING = 64
"""Length of the queues for parameters and for states."""
_MAX_WAITING_UPDATES = 256
"""Length of each queue for updates of the agent, for updates of environments, and for calls of their methods."""
_MAX_PART_BYTES = 2 << 20
"""Largest part of an agent or a saved sampler in a message."""
_MAKING_ENVS = ("UpdateEnv", "CallEnvironments", "CreateSampler", "RestoreSampler", "ResizePool")
_WHY_LATE = dict.fromkeys(
    _MAKING_ENVS, "making, resetting or closing an environment may take --reset-seconds each time"
)
"""What may take longer than a client waits for an answer, by RPC."""


class SamplerService:
    """`rollserve.v1.SamplerService`; see `protos/rollserve/v1/sampler_service.proto`."""

    def __init__(
        self,
        rpcs: OpenRpcs,
        intake: Intake,
        reader: RequestReader,
        samplers: Samplers,
        rings: SamplerRings,
        private: PrivateArguments,
        metrics: Metrics,
        data_folder: DataFolder,
        *,
        allow_free_env: bool = True,
        audits: bool = False,
        max_renders: int = 2,
    ) -> None:
        """Prepare to answer RPCs.

        Args:
            rpcs: registry of open RPCs.
            intake: receives requests.
            reader: reads requests.
            samplers: the samplers.
            rings: memory for clients that read results from there.
            private: arguments of environments that clients do not get to see.
            metrics: counts the calls.
            data_folder: the folder with datasets.
            allow_free_env: whether requests may name environments of no profile.
            audits: whether digests of what updates change are needed.
            max_renders: number of videos that are made at a time; 0 for none at all.
        """
        self._audits = audits
        self._rpcs = rpcs
        self._intake = intake
        self._reader = reader
        self._samplers = samplers
        self._rings = rings
        self._private = private
        self._metrics = metrics
        self._allow_free_env = allow_free_env
        self._record_streams = RecordStreams()
        self._stream_places: weakref.WeakKeyDictionary[Sampler, Places] = weakref.WeakKeyDictionary()
        self._queues: weakref.WeakKeyDictionary[Sampler, dict[str, Admission]] = weakref.WeakKeyDictionary()
        self._recordings = Recordings(data_folder, private)
        self._reads = DatasetReads(data_folder)
        # A stream keeps its version's parameters in memory, also after the pool has evicted the version.
        self._parameter_admission = Admission(
            _MAX_PARAMETER_STREAMS,
            1.0,
            max_stalled=_MAX_PARAMETER_STREAMS,
            max_waiting=_MAX_WAITING,
            max_of_client=_MAX_PARAMETER_STREAMS // 2,
        )
        self._max_renders = max_renders
        self._render_admission = Admission(
            max(max_renders, 1),
            1.0,
            max_stalled=max_renders,
            max_waiting=_MAX_WAITING,
            max_of_client=max(max_renders - 1, 1),
        )
        self._status_admission = ConnectionAdmission(
            _MAX_STATUSES, _MAX_CONNECTION_STATUSES, _STATUS_PATIENCE_SECONDS, max_waiting=_MAX_WAITING
        )

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler that routes RPCs to the methods."""
        unary = {
            "UpdateAgent": self.update_agent,
            "UpdateEnv": self.update_env,
            "CallEnvironments": self.call_environments,
            "ResizePool": self.resize_pool,
            "ListAgentVersions": self.list_agent_versions,
            "CreateSampler": self.create_sampler,
            "DeleteSampler": self.delete_sampler,
            "ListSamplers": self.list_samplers,
            "RestoreSampler": self.restore_sampler,
        }
        streams: dict[str, Callable[[OpenRpc], AsyncGenerator[bytes, None]]] = {
            "ObtainSamples": functools.partial(self.obtain, pb.ObtainSamplesRequest),
            "ObtainExactEpisodes": functools.partial(self.obtain, pb.ObtainExactEpisodesRequest),
            "StreamSamples": self.stream_samples,
            "GetSampler": self.get_sampler,
            "GetAgentParameters": self.get_agent_parameters,
            "GetAgent": self.get_agent,
            "SaveSampler": self.save_sampler,
            "RecordDataset": self.record_dataset,
            "ReadDataset": self.read_dataset,
            "RenderEpisode": self.render_episode,
            "Evaluate": self.evaluate,
            "EvaluatePopulation": self.evaluate_population,
        }
        handlers = {
            name: unary_handler(self._rpcs, name, method, why_late=_WHY_LATE.get(name, ""))
            for name, method in unary.items()
        }
        # A server that stops ends streams of records with their log.
        handlers["GetMetrics"] = stream_handler(self._rpcs, "GetMetrics", self.get_metrics, is_awaited=False)
        handlers |= {name: stream_handler(self._rpcs, name, method) for name, method in streams.items()}
        return grpc.method_handlers_generic_handler(SAMPLER_SERVICE, handlers)

    async def update_agent(self, rpc: OpenRpc) -> pb.UpdateAgentResponse:
        """Answer `UpdateAgent`."""
        async with self._intake.update_request(rpc) as data:
            request = await self._reader.read(self._reader.agent_update, rpc, data)
            sampler, updates, expected, per_worker, skip_if_identical = request
            pool = await self._use_in_turn(sampler, rpc)
            if skip_if_identical:
                same = await pool.current_if_same(updates, expected, per_worker=per_worker)
                if same is not None:
                    return pb.UpdateAgentResponse(
                        policy_version=same.version, environment_version=same.env_version, unchanged=True
                    )
            updated = await pool.update_agent(updates, expected, per_worker=per_worker)
            await self._note_agent_change(rpc, updated)
        return pb.UpdateAgentResponse(policy_version=updated.version, environment_version=updated.env_version)

    async def update_env(self, rpc: OpenRpc) -> pb.UpdateEnvResponse:
        """Answer `UpdateEnv`."""
        async with self._intake.update_request(rpc) as data:
            sampler, updates, expected, per_worker = await self._reader.read(self._reader.env_update, rpc, data)
            pool, may_be_free = await self._use_in_turn(sampler, rpc), self._may_be_free(rpc)
            with self._naming_scope(rpc):
                updated = await pool.update_env(updates, expected, per_worker=per_worker, may_be_free=may_be_free)
            if self._audits:
                rpc.changes["environment"] = await in_request_thread(_env_change, updated)
        env = ",".join(dict.fromkeys(requested(spec).id for spec in updated.specs))
        _log.info("environment updated", extra={"env": env, "env_version": updated.version})
        return env_updated_to_proto(updated)

    async def call_environments(self, rpc: OpenRpc) -> pb.CallEnvironmentsResponse:
        """Answer `CallEnvironments`."""
        sampler, call, env_version, expected = await self._small(self._reader.env_call, rpc)
        pool = await self._use_in_turn(sampler, rpc)
        values = await pool.call_environments(call, env_version, expected)
        return pb.CallEnvironmentsResponse(environment_version=values.version, values_json=values.values)

    async def resize_pool(self, rpc: OpenRpc) -> pb.ResizePoolResponse:
        """Answer `ResizePool`."""
        sampler, num_workers = await self._small(self._reader.resize, rpc)
        _use(sampler, rpc)
        previous = await self._samplers.resize(sampler, num_workers)
        rpc.changes["workers"] = _change(previous, num_workers)
        return pb.ResizePoolResponse(worker_count=num_workers, previous_worker_count=previous)

    async def list_agent_versions(self, rpc: OpenRpc) -> agent_versions_pb2.ListAgentVersionsResponse:
        """Answer `ListAgentVersions`."""
        pool = _use(await self._small(self._reader.agent_versions, rpc), rpc)
        return agent_versions_to_proto(await pool.agents.listed())

    async def create_sampler(self, rpc: OpenRpc) -> samplers_pb2.CreateSamplerResponse:
        """Answer `CreateSampler`."""
        request, exist_ok = await self._small(self._reader.new_sampler, rpc)
        self._check_env(request.env, rpc, "environment")
        owner = (rpc.principal or ANONYMOUS).name
        sampler, existed = await self._samplers.create(request, owner, exist_ok=exist_ok)
        _use(sampler, rpc)
        return created_to_proto(sampler, existed=existed)

    async def delete_sampler(self, rpc: OpenRpc) -> samplers_pb2.DeleteSamplerResponse:
        """Answer `DeleteSampler`."""
        await self._samplers.delete(await self._small(self._reader.deleted_sampler, rpc))
        return samplers_pb2.DeleteSamplerResponse()

    async def save_sampler(self, rpc: OpenRpc) -> AsyncGenerator[bytes, None]:
        """Answer `SaveSampler`."""
        sampler = await self._small(self._reader.saved_sampler, rpc)
        async with contextlib.AsyncExitStack() as stack:
            await self._parameter_admission.admit(stack, rpc)
            parts = saved_sampler_parts(await _use(sampler, rpc).save())
            while (part := await in_request_thread(next, parts, None)) is not None:
                for data in _parts(part):
                    yield samplers_pb2.SaveSamplerResponse(data=data).SerializeToString()

    async def restore_sampler(self, rpc: OpenRpc) -> samplers_pb2.RestoreSamplerResponse:
        """Answer `RestoreSampler`."""
        async with self._intake.update_request(rpc) as data:
            sampler, saved, client_id = await self._reader.read(self._reader.restoration, rpc, data)
            await in_request_thread(self._check_envs, saved, rpc)
            pool = _use(sampler, rpc)
            await self._samplers.restore(sampler, saved, client_id)
        status = pool.status()
        return samplers_pb2.RestoreSamplerResponse(
            policy_version=status.policy_version, environment_version=status.env_version
        )

    async def list_samplers(self, rpc: OpenRpc) -> samplers_pb2.ListSamplersResponse:
        """Answer `ListSamplers`."""
        await self._small(self._reader.sampler_list, rpc)
        principal = rpc.principal or ANONYMOUS
        seen = (each for each in self._samplers if principal.has(Scope.STATUS, each.name))
        return samplers_pb2.ListSamplersResponse(samplers=map(summary_to_proto, seen))

    async def get_sampler(self, rpc: OpenRpc) -> AsyncGenerator[bytes, None]:
        """Answer `GetSampler`, as a stream of one message: only of streams gRPC says when the client has read it."""
        sampler = await self._small(self._reader.sampler, rpc)
        pool = _use(sampler, rpc)
        async with contextlib.AsyncExitStack() as stack:
            await self._status_admission.admit(stack, rpc)
            # A thread, because each of many rows may have an environment of its own.
            status = await asyncio.to_thread(self._serialized_status, sampler, pool.status(), rpc)
            if len(status) <= _MAX_SMALL_STATUS:
                await stack.aclose()
            yield status

    async def get_metrics(self, rpc: OpenRpc) -> AsyncGenerator[bytes, None]:
        """Answer `GetMetrics`."""
        request = await self._small(self._reader.records, rpc)
        log, since = _use(request.sampler, rpc).episode_log, request.since
        streams = self._record_streams.records(log, since, request.log_id, follow=request.follow, rpc=rpc)
        async with contextlib.aclosing(streams) as records:
            async for some in records:
                yield episode_records_to_proto(some).SerializeToString()

    async def get_agent_parameters(self, rpc: OpenRpc) -> AsyncGenerator[bytes, None]:
        """Answer `GetAgentParameters`."""
        request = await self._small(self._reader.agent_parameters, rpc)
        async with contextlib.AsyncExitStack() as stack:
            await self._parameter_admission.admit(stack, rpc)
            pool = _use(request.sampler, rpc)
            version, parameters = pool.agents.parameters(request.policy_version, request.worker_index)
            selected = select_parameters(parameters, request.names)
            for message in parameter_messages(version, selected, request.max_message_bytes):
                yield message.SerializeToString()

    async def get_agent(self, rpc: OpenRpc) -> AsyncGenerator[bytes, None]:
        """Answer `GetAgent`."""
        sampler, version, worker_index, policy = await self._small(self._reader.agent_query, rpc)
        async with contextlib.AsyncExitStack() as stack:
            await self._parameter_admission.admit(stack, rpc)
            version, agent = _use(sampler, rpc).agents.agent(version, worker_index, policy)
            serialized = await in_request_thread(lambda: agent_to_proto(agent).SerializeToString())
            for data in _parts(serialized):
                yield agent_versions_pb2.GetAgentResponse(policy_version=version, data=data).SerializeToString()

    async def render_episode(self, rpc: OpenRpc) -> AsyncGenerator[bytes, None]:
        """Answer `RenderEpisode`."""
        sampler, request = await self._small(self._reader.rendering, rpc)
        pool = _use(sampler, rpc)
        if not self._max_renders:
            expected = "no video, because the server's operator allows none (--max-renders)"
            raise OverLimitError.of("", expected=expected, got="a call for one", reason=Reason.TOO_MANY_CALLS)
        is_sampled = isinstance(request.episode, SamplingOptions)
        env = pool.rendered_env(request.env_version, request.expected, sampled=is_sampled)
        count = functools.partial(self._metrics.count_call, sampler.name, rpc.name)
        async with contextlib.AsyncExitStack() as stack:
            await self._render_admission.admit(stack, rpc)
            async with contextlib.aclosing(rendered(pool, env, request, rpc, count)) as responses:
                async for response in responses:
                    yield response.SerializeToString()

    async def evaluate(self, rpc: OpenRpc) -> AsyncGenerator[bytes, None]:
        """Answer `Evaluate`."""
        async with self._intake.evaluation_request(rpc) as data:
            sampler, request = await self._reader.read(self._reader.evaluation, rpc, data)
            self._check_env(request.env, rpc, "options.environment")
            async with contextlib.aclosing(_use(sampler, rpc).evaluate(request, rpc)) as items:
                async for item in items:
                    if isinstance(item, Delivery):
                        for message in delivered_messages(item):
                            yield message.tobytes()
                    elif isinstance(item, Evaluation):
                        self._metrics.count_call(sampler.name, rpc.name, item.account)
                        yield await in_request_thread(evaluation_response, item)
                    else:
                        yield evaluation_response(item)

    async def evaluate_population(self, rpc: OpenRpc) -> AsyncGenerator[bytes, None]:
        """Answer `EvaluatePopulation`."""
        async with self._intake.evaluation_request(rpc) as data:
            sampler, request = await self._reader.read(self._reader.population_evaluation, rpc, data)
            self._check_env(request.env, rpc, "options.environment")
            async with contextlib.aclosing(_use(sampler, rpc).evaluate_population(request, rpc)) as items:
                async for item in items:
                    if isinstance(item, Evaluation):
                        self._metrics.count_call(sampler.name, rpc.name, item.account)
                        yield await in_request_thread(population_response, item)
                    elif not isinstance(item, Delivery):
                        yield population_response(item)

    async def obtain(
        self, kind: type[pb.ObtainSamplesRequest | pb.ObtainExactEpisodesRequest], rpc: OpenRpc
    ) -> AsyncGenerator[bytes, None]:
        """Answer `ObtainSamples` or `ObtainExactEpisodes`, which the class of the request tells apart."""
        read = functools.partial(self._reader.samples, kind)
        sampler, request, accepts_shared_memory, rpc.max_joined_bytes = await self._small(read, rpc)
        pool = _use(sampler, rpc)
        # A later connection may have the same name; the client's id tells it apart.
        reader = (rpc.connection, request.options.expected.client_id) if accepts_shared_memory else None
        with self._rings.of(sampler.name).lend(reader) as ring:
            async with contextlib.aclosing(pool.sample(request, rpc)) as items:
                async for item in items:
                    if isinstance(item, Delivery):
                        for message in delivered_messages(item):
                            yield await shared_or_sent(message, ring, rpc)
                    elif isinstance(item, AgentUpdated):
                        await self._note_agent_change(rpc, item)
                    else:
                        if isinstance(item, Account):
                            self._metrics.count_call(sampler.name, rpc.name, item)
                            _log_sampled(item)
                        yield sample_response(item, ring)

    async def stream_samples(self, rpc: OpenRpc) -> AsyncGenerator[bytes, None]:
        """Answer `StreamSamples`."""
        sampler, request, accepts_shared_memory, rpc.max_joined_bytes = await self._small(self._reader.stream, rpc)
        pool, client = _use(sampler, rpc), StreamClient()
        places = self._stream_places.setdefault(sampler, _new_stream_places())
        rpc.held.enter_context(places.held_by(rpc))
        listening = in_background(self._listen(rpc, client))
        reader = (rpc.connection, request.options.expected.client_id) if accepts_shared_memory else None
        try:
            with self._rings.of(sampler.name).lend(reader) as ring:
                async with contextlib.aclosing(pool.stream(request, client, rpc)) as items:
                    async for item in items:
                        if isinstance(item, Delivery):
                            for message in delivered_messages(item):
                                yield await shared_or_sent(message, ring, rpc)
                        elif isinstance(item, StreamRound):
                            self._metrics.count_call(sampler.name, rpc.name, item.account)
                            yield round_response(item)
                        elif isinstance(item, AgentUpdated):
                            await self._note_agent_change(rpc, item)
                        else:
                            yield sample_response(item, ring)
        finally:
            listening.cancel()

    async def record_dataset(self, rpc: OpenRpc) -> AsyncGenerator[bytes, None]:
        """Answer `RecordDataset`."""
        sampler, request = await self._small(self._reader.recording, rpc)
        async with contextlib.aclosing(self._recordings.record(request, _use(sampler, rpc), rpc)) as items:
            async for item in items:
                if isinstance(item, Account):
                    self._metrics.count_call(sampler.name, rpc.name, item)
                else:
                    yield recording_response(item)

    async def read_dataset(self, rpc: OpenRpc) -> AsyncGenerator[bytes, None]:
        """Answer `ReadDataset`."""
        sampler, request = await self._small(self._reader.dataset_read, rpc)
        async with contextlib.aclosing(self._reads.read(request, _use(sampler, rpc), rpc)) as items:
            async for item in items:
                if isinstance(item, Delivery):
                    for message in delivered_messages(item):
                        yield message.tobytes()
                elif isinstance(item, Account):
                    self._metrics.count_call(sampler.name, rpc.name, item)
                else:
                    yield item if isinstance(item, bytes) else read_response(item)

    async def _small(self, read: Callable[[OpenRpc, bytes], _T], rpc: OpenRpc) -> _T:
        """Receive a request without agents, parameters and environments, and read it by a method of the reader."""
        return await self._reader.read(read, rpc, await self._intake.small_request(rpc))

    async def _listen(self, rpc: OpenRpc, client: StreamClient) -> None:
        """Tell a stream what its client sends, until the client ends the stream or sends something else."""
        try:
            while (data := await self._intake.later_request(rpc)) is not None:
                client.take(self._reader.receipt(data))
        except DomainError as error:
            rpc.end(error)
        else:
            client.end()

    async def _note_agent_change(self, rpc: OpenRpc, updated: AgentUpdated) -> None:
        """Note an update of the agent in the log, and its digests for the audit log."""
        if self._audits:
            rpc.changes["agent"] = await in_request_thread(_agent_change, updated)
        _log.debug("agent updated", extra={"policy_version": updated.version})

    async def _use_in_turn(self, sampler: Sampler, rpc: OpenRpc) -> Pool:
        """Return the sampler's pool, as `_use`, once it is the client's turn: pools do one at a time, in order."""
        queues = self._queues.setdefault(sampler, {})
        new = Admission(2, 1.0, max_stalled=0, max_waiting=_MAX_WAITING_UPDATES, max_of_client=1)
        pool = _use(sampler, rpc)
        await queues.setdefault(rpc.name, new).admit(rpc.held, rpc)
        return pool

    def _may_be_free(self, rpc: OpenRpc) -> bool:
        """Whether an RPC may name environments of no profile."""
        return self._allow_free_env and rpc.has(Scope.ENV_FREE)

    @contextlib.contextmanager
    def _naming_scope(self, rpc: OpenRpc) -> Iterator[None]:
        """Have an error that asks for a profile name the scope instead, where others may do without one."""
        try:
            yield
        except NotAllowedError as error:
            if error.reason is Reason.PROFILE_REQUIRED and self._allow_free_env:
                rpc.require(Scope.ENV_FREE, "an environment of no profile")
            raise

    def _check_env(self, env: EnvSpec | None, rpc: OpenRpc, field: str) -> None:
        """Raise NotAllowedError if a field names an environment that has to be of a profile and is of none."""
        if env is not None and not self._may_be_free(rpc):
            with self._naming_scope(rpc), within(field):
                check_not_free(env)

    def _check_envs(self, saved: SavedSampler, rpc: OpenRpc) -> None:
        """Raise NotAllowedError as `_check_env` does, for the environments of all rows of a saved sampler."""
        for number, envs in saved.envs.items():
            for specs in envs.specs:
                for spec in specs_of_rows(specs, num_rows=1):
                    self._check_env(spec, rpc, f"environments[{number}]")

    def _serialized_status(self, sampler: Sampler, status: PoolStatus, rpc: OpenRpc) -> bytes:
        shown = {"with_processes": rpc.sees_processes, "with_all": rpc.sees_all}
        message = status_to_proto(sampler, status, self._private, **shown)
        return message.SerializeToString()


def _new_stream_places() -> Places:
    return Places("streams of a sampler", MAX_STREAMS, max_of_client=MAX_STREAMS // 2)


def _parts(data: bytes) -> Iterator[bytes]:
    """Yield bytes in parts for messages; there is at least one."""
    yield data[:_MAX_PART_BYTES]
    for start in range(_MAX_PART_BYTES, len(data), _MAX_PART_BYTES):
        yield data[start : start + _MAX_PART_BYTES]


def _agent_change(updated: AgentUpdated) -> dict[str, object]:
    """Return what an update of the agent changed, for the audit log."""
    before, after = updated.replaced, updated.agents
    return _change(
        None if before is None else {"version": updated.version - 1, "digest": digest_of(before)},
        {"version": updated.version, "digest": digest_of(after)},
    )


def _env_change(updated: EnvUpdated) -> dict[str, object]:
    """Return what an update of the environment changed, for the audit log."""
    return _change(
        {"version": updated.version - 1, "digest": digest_of(updated.replaced_specs)},
        {"version": updated.version, "digest": digest_of(updated.specs)},
    )


def _change(before: object, after: object) -> dict[str, object]:
    return {"before": before, "after": after}


def _use(sampler: Sampler, rpc: OpenRpc) -> Pool:
    """Return the sampler's pool, which the RPC uses until it ends; that keeps the sampler's lease."""
    rpc.held.enter_context(sampler.in_use(rpc))
    return sampler.pool


def _log_sampled(account: Account) -> None:
    seconds = round(account.elapsed_seconds, 3)
    _log.debug("sampled", extra={"steps": account.num_steps, "episodes": account.num_episodes, "seconds": seconds})
