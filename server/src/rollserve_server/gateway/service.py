"""The sampler service: a method for each RPC, and the table that says what each RPC needs."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import grpc

from rollserve_server.admission import Admission, ConnectionAdmission
from rollserve_server.agents import agent_parts, check_unpickled
from rollserve_server.datasets import max_read_bytes
from rollserve_server.envs import check_not_free, requested, specs_of_rows
from rollserve_server.errors import DomainError, InvalidValueError, NotAllowedError, OverLimitError, within
from rollserve_server.fields import MAX_WORKERS, in_range, set_fields
from rollserve_server.futures import in_background, in_request_thread
from rollserve_server.gateway.audit import change, note_agent_update, note_env_update, settings_changes
from rollserve_server.gateway.messages.agents import (
    agent_updates_from_proto,
    agent_versions_to_proto,
    parameter_messages,
    select_parameters,
)
from rollserve_server.gateway.messages.dataset_requests import read_request_from_proto, recording_request_from_proto
from rollserve_server.gateway.messages.driving import (
    drive_request_from_proto,
    driven_step_to_bytes,
    step_actions_from_proto,
)
from rollserve_server.gateway.messages.environments import (
    env_call_from_proto,
    env_updated_to_proto,
    env_updates_from_proto,
)
from rollserve_server.gateway.messages.evaluations import evaluation_request_from_proto, population_request_from_proto
from rollserve_server.gateway.messages.sample_requests import (
    message_limit_of,
    sample_request_from_proto,
    stream_request_from_proto,
)
from rollserve_server.gateway.messages.status import (
    created_to_proto,
    creation_request_from_proto,
    status_to_proto,
    summary_to_proto,
)
from rollserve_server.gateway.messages.videos import render_request_from_proto
from rollserve_server.gateway.reading import read
from rollserve_server.gateway.recording import Recordings
from rollserve_server.gateway.rendering import rendered
from rollserve_server.gateway.requests.parsing import (
    parse,
    parse_agent_update,
    parse_drive_spec,
    parse_receipt,
    parse_stream_spec,
)
from rollserve_server.gateway.requests.reader import (
    agent_update_scopes,
    driving_scopes,
    evaluation_scopes,
    reading_scopes,
    recording_scopes,
    restoration_from_proto,
    sampling_scopes,
)
from rollserve_server.gateway.responses import ResponseWriter
from rollserve_server.gateway.rpcs.places import Places
from rollserve_server.gateway.rpcs.rpc import SERVICE, Bound, Bounds, Rpc
from rollserve_server.identity import ANONYMOUS, Scope
from rollserve_server.machine import memory_bytes
from rollserve_server.metrics import figures_of
from rollserve_server.pool import (
    DISCARD,
    MAX_STREAMS,
    DrivenStep,
    DriveRequest,
    DriveResumption,
    SessionReading,
    StreamClient,
    saved_sampler_parts,
)
from rollserve_wire.reasons import Reason
from rollserve_wire.v1 import agent_versions_pb2, samplers_pb2, settings_pb2
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from rollserve_server.datasets import DataFolder
    from rollserve_server.gateway.messages.dataset_requests import ReadRequest, RecordingRequest
    from rollserve_server.gateway.messages.environments import EnvCallRequest, PrivateArguments
    from rollserve_server.gateway.messages.fields import Updates
    from rollserve_server.gateway.messages.status import CreationRequest
    from rollserve_server.gateway.messages.videos import RenderRequest
    from rollserve_server.gateway.reading import ReadItem
    from rollserve_server.gateway.requests.intake import Intake
    from rollserve_server.gateway.requests.reader import RequestReader, Restoration
    from rollserve_server.gateway.responses import PoolItem
    from rollserve_server.gateway.rpcs.open_rpc import OpenRpc
    from rollserve_server.gateway.rpcs.open_rpcs import OpenRpcs
    from rollserve_server.gateway.shared_memory import SamplerRings
    from rollserve_server.metrics import Metrics
    from rollserve_server.pool import (
        Account,
        AgentUpdate,
        Drive,
        EnvUpdate,
        EpisodeRecords,
        EvaluationRequest,
        PoolStatus,
        PopulationRequest,
        Progress,
        SampleRequest,
        SavedSampler,
        StreamRequest,
    )
    from rollserve_server.samplers import Sampler, Samplers
    from rollserve_server.settings import Change, Reload
    from rollserve_wire.environments import EnvSpec
    from rollserve_wire.v1 import episode_records_pb2

__all__ = ["RPCS", "SAMPLER_SERVICE", "SamplerService"]

SAMPLER_SERVICE: str = SERVICE.full_name

_log = logging.getLogger(__name__)

_MAX_SMALL_STATUS = 64 << 10
"""Size of a state up to which clients that do not read it hold no place."""
_MAX_RECEIPT_BYTES = 4 << 10
"""Largest message of a stream's client behind the first."""
_MAX_ACTIONS_BYTES = 4 << 20
"""Largest message of a session's client behind the first."""
_MAX_RECORDS = 1000
"""Records of episodes in a response: about 60 kB, and 1 ms of the event loop."""
_MAX_PART_BYTES = 2 << 20
"""Largest part of an agent or a saved sampler in a message."""


class SamplerService:
    """`rollserve.v1.SamplerService`; see `protos/rollserve/v1/sampler_service.proto`.

    The methods behind `handler` each answer the RPC of their name; the table `RPCS` has what they are called with.

    Attributes:
        allow_free_env: whether requests may name environments of no profile.
        reload: reads the settings again, and uses them.
    """

    reload: Callable[[], Awaitable[Reload]]

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
            max_renders: number of videos that are made at a time; 0 for none at all.
        """
        self._rpcs = rpcs
        self._intake = intake
        self._reader = reader
        self._samplers = samplers
        self._rings = rings
        self._private = private
        self._metrics = metrics
        self._data_folder = data_folder
        self.allow_free_env = allow_free_env
        self._max_renders = max_renders
        self._recordings = Recordings(data_folder, private)
        self._bounds = Bounds({_VIDEOS: _videos(max_renders)})

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler that routes RPCs to the methods."""
        return grpc.method_handlers_generic_handler(SAMPLER_SERVICE, {rpc.name: self._handler(rpc) for rpc in RPCS})

    def _handler(self, entry: Rpc) -> grpc.RpcMethodHandler[Any, Any]:
        if inspect.iscoroutinefunction(entry.answer):
            respond = functools.partial(self._respond, entry)
            return self._rpcs.unary_handler(entry.name, respond, why_late=entry.why_late)
        write = functools.partial(self._write, entry)
        return self._rpcs.stream_handler(entry.name, write, is_awaited=entry.is_awaited)

    async def _respond(self, entry: Rpc, rpc: OpenRpc) -> Message:
        """Return the response of an RPC."""
        response: Message = await entry.answer(self, rpc, *await self._request(entry, rpc))
        return response

    async def _write(self, entry: Rpc, rpc: OpenRpc) -> None:
        """Write the responses of an RPC."""
        sampler, request = await self._request(entry, rpc)
        form, ring = getattr(request, "messages", DISCARD), None
        if form.accepts_shared_memory:
            # A later connection may have the same name; the client's id tells it apart.
            borrower = rpc.connection, request.options.expected.client_id
            ring = rpc.held.enter_context(self._rings.of(sampler.name).lend(borrower))
        count = functools.partial(self._count, sampler.name, rpc)
        items = entry.answer(self, rpc, sampler, request)
        async with contextlib.aclosing(items), ResponseWriter(rpc, entry.response, form, ring, count) as writer:
            async for item in items:
                await writer.write(item)

    def _count(self, sampler: str, rpc: OpenRpc, account: Account) -> None:
        """Count a call, or a round of a stream, in the metrics and for the log."""
        self._metrics.count_call(sampler, rpc.name, account)
        if rpc.is_logged:
            rpc.figures.update(figures_of(account))

    async def _request(self, entry: Rpc, rpc: OpenRpc) -> tuple[Any, Any]:
        """Return the sampler and the request of an RPC, once the RPC may be answered."""
        match entry.size:
            case "small":
                data = await self._intake.small_request(rpc)
            case "update":
                data = await self._intake.update_request(rpc)
            case "evaluation":
                data = await self._intake.evaluation_request(rpc)
        sampler, request = await self._reader.read(entry, rpc, data)
        if sampler is not None:
            rpc.held.enter_context(sampler.in_use(rpc))
        if entry.bound is not None:
            await self._bounds.admit(entry.bound, sampler, rpc)
        return sampler, request

    async def update_agent(
        self, rpc: OpenRpc, sampler: Sampler, request: Updates[AgentUpdate]
    ) -> pb.UpdateAgentResponse:
        """Answer `UpdateAgent`."""
        pool, arguments = sampler.pool, (request.updates, request.expected)
        if request.skip_if_identical:
            same = await pool.current_if_same(*arguments, per_worker=request.per_worker)
            if same is not None:
                return pb.UpdateAgentResponse(
                    policy_version=same.version, environment_version=same.env_version, unchanged=True
                )
        updated = await pool.update_agent(*arguments, per_worker=request.per_worker)
        await note_agent_update(rpc, updated)
        return pb.UpdateAgentResponse(policy_version=updated.version, environment_version=updated.env_version)

    async def update_env(self, rpc: OpenRpc, sampler: Sampler, request: Updates[EnvUpdate]) -> pb.UpdateEnvResponse:
        """Answer `UpdateEnv`."""
        may_be_free = self._may_be_free(rpc)
        with self._naming_scope(rpc):
            updated = await sampler.pool.update_env(
                request.updates, request.expected, per_worker=request.per_worker, may_be_free=may_be_free
            )
        await note_env_update(rpc, updated)
        env = ",".join(dict.fromkeys(requested(spec).id for spec in updated.specs))
        _log.info("environment updated", extra={"env": env, "env_version": updated.version})
        return env_updated_to_proto(updated)

    async def call_environments(
        self, _: OpenRpc, sampler: Sampler, request: EnvCallRequest
    ) -> pb.CallEnvironmentsResponse:
        """Answer `CallEnvironments`."""
        values = await sampler.pool.call_environments(*request)
        return pb.CallEnvironmentsResponse(environment_version=values.version, values_json=values.values)

    async def resize_pool(self, rpc: OpenRpc, sampler: Sampler, request: pb.ResizePoolRequest) -> pb.ResizePoolResponse:
        """Answer `ResizePool`."""
        num_workers = in_range("worker_count", request.worker_count, 0, MAX_WORKERS)
        previous = await self._samplers.resize(sampler, num_workers)
        rpc.changes["workers"] = change(previous, num_workers or "by load")
        return pb.ResizePoolResponse(worker_count=num_workers or previous, previous_worker_count=previous)

    async def list_agent_versions(
        self, _: OpenRpc, sampler: Sampler, __: agent_versions_pb2.ListAgentVersionsRequest
    ) -> agent_versions_pb2.ListAgentVersionsResponse:
        """Answer `ListAgentVersions`."""
        return agent_versions_to_proto(await sampler.pool.agents.listed())

    async def create_sampler(
        self, rpc: OpenRpc, _: None, request: CreationRequest
    ) -> samplers_pb2.CreateSamplerResponse:
        """Answer `CreateSampler`."""
        self._check_env(request.sampler.env, rpc, "environment")
        owner = (rpc.principal or ANONYMOUS).name
        sampler, existed = await self._samplers.create(request.sampler, owner, exist_ok=request.exist_ok)
        rpc.held.enter_context(sampler.in_use(rpc))
        return created_to_proto(sampler, existed=existed)

    async def delete_sampler(
        self, rpc: OpenRpc, _: None, __: samplers_pb2.DeleteSamplerRequest
    ) -> samplers_pb2.DeleteSamplerResponse:
        """Answer `DeleteSampler`."""
        await self._samplers.delete(self._samplers.find(rpc.sampler).name)
        return samplers_pb2.DeleteSamplerResponse()

    async def reload_settings(
        self, rpc: OpenRpc, _: None, __: settings_pb2.ReloadSettingsRequest
    ) -> settings_pb2.ReloadSettingsResponse:
        """Answer `ReloadSettings`."""
        reload = await self.reload()
        rpc.changes.update(settings_changes(reload))
        return settings_pb2.ReloadSettingsResponse(
            changed=_changes_to_proto(reload.changed, rpc), needs_restart=_changes_to_proto(reload.needs_restart, rpc)
        )

    async def list_samplers(
        self, rpc: OpenRpc, _: None, __: samplers_pb2.ListSamplersRequest
    ) -> samplers_pb2.ListSamplersResponse:
        """Answer `ListSamplers`."""
        principal = rpc.principal or ANONYMOUS
        seen = (each for each in self._samplers if principal.has(Scope.STATUS, each.name))
        return samplers_pb2.ListSamplersResponse(samplers=map(summary_to_proto, seen))

    async def restore_sampler(
        self, rpc: OpenRpc, sampler: Sampler, request: Restoration
    ) -> samplers_pb2.RestoreSamplerResponse:
        """Answer `RestoreSampler`."""
        await in_request_thread(self._check_envs, request.saved, rpc)
        await self._samplers.restore(sampler, request.saved, request.client_id)
        status = sampler.pool.status()
        return samplers_pb2.RestoreSamplerResponse(
            policy_version=status.policy_version, environment_version=status.env_version
        )

    async def save_sampler(
        self, _: OpenRpc, sampler: Sampler, __: samplers_pb2.SaveSamplerRequest
    ) -> AsyncGenerator[samplers_pb2.SaveSamplerResponse, None]:
        """Answer `SaveSampler`."""
        parts = saved_sampler_parts(await sampler.pool.save())
        while (part := await in_request_thread(next, parts, None)) is not None:
            for data in _parts(part):
                yield samplers_pb2.SaveSamplerResponse(data=data)

    async def get_sampler(self, rpc: OpenRpc, sampler: Sampler, _: pb.GetSamplerRequest) -> AsyncGenerator[bytes, None]:
        """Answer `GetSampler`, as a stream of one message: only of streams gRPC says when the client has read it."""
        # A thread, because each of many rows may have an environment of its own.
        status = await asyncio.to_thread(self._serialized_status, sampler, sampler.pool.status(), rpc)
        if len(status) <= _MAX_SMALL_STATUS:
            rpc.held.close()
        yield status

    def get_metrics(
        self, _: OpenRpc, sampler: Sampler, request: episode_records_pb2.GetMetricsRequest
    ) -> AsyncGenerator[EpisodeRecords, None]:
        """Answer `GetMetrics`."""
        log = sampler.pool.episode_log
        return log.stream(request.since, request.log_id, _MAX_RECORDS, follow=request.follow)

    async def get_agent_parameters(
        self, _: OpenRpc, sampler: Sampler, request: agent_versions_pb2.GetAgentParametersRequest
    ) -> AsyncGenerator[agent_versions_pb2.GetAgentParametersResponse, None]:
        """Answer `GetAgentParameters`."""
        limit = message_limit_of(set_fields(request))
        version, parameters = sampler.pool.agents.parameters(request.policy_version or None, request.worker_index)
        for message in parameter_messages(version, select_parameters(parameters, request.names), limit):
            yield message

    async def get_agent(
        self, _: OpenRpc, sampler: Sampler, request: agent_versions_pb2.GetAgentRequest
    ) -> AsyncGenerator[agent_versions_pb2.GetAgentResponse, None]:
        """Answer `GetAgent`."""
        wanted = request.policy_version or None, request.worker_index, request.policy
        version, agent = sampler.pool.agents.agent(*wanted)
        check_unpickled(agent)
        serialized = await in_request_thread(lambda: b"".join(agent_parts(agent)))
        for data in _parts(serialized):
            yield agent_versions_pb2.GetAgentResponse(policy_version=version, data=data)

    def obtain(self, rpc: OpenRpc, sampler: Sampler, request: SampleRequest) -> AsyncGenerator[PoolItem, None]:
        """Answer `ObtainSamples` or `ObtainExactEpisodes`."""
        return sampler.pool.sample(request, rpc)

    async def stream_samples(
        self, rpc: OpenRpc, sampler: Sampler, request: StreamRequest
    ) -> AsyncGenerator[PoolItem, None]:
        """Answer `StreamSamples`."""
        client = StreamClient()
        listening = in_background(
            self._listen(rpc, lambda data: client.take(parse_receipt(data)), client.end, _MAX_RECEIPT_BYTES)
        )
        try:
            async with contextlib.aclosing(sampler.pool.stream(request, client, rpc)) as items:
                async for item in items:
                    yield item
        finally:
            listening.cancel()

    async def drive_environments(
        self, rpc: OpenRpc, sampler: Sampler, request: DriveRequest | DriveResumption | SessionReading
    ) -> AsyncGenerator[PoolItem | bytes, None]:
        """Answer `DriveEnvironments`."""
        drive = await self._drive(rpc, sampler, request)
        if isinstance(request, SessionReading):
            async with contextlib.aclosing(self._session_rounds(rpc, drive, request)) as rounds:
                async for each in rounds:
                    yield each
            return
        num_rounds = request.num_rounds if isinstance(request, DriveResumption) else 0
        listening = in_background(
            self._listen(rpc, lambda data: _take_later(drive, data), drive.end_with_stream, _MAX_ACTIONS_BYTES)
        )
        try:
            async with contextlib.aclosing(drive.items(rpc, num_rounds)) as items:
                async for item in items:
                    yield driven_step_to_bytes(item) if isinstance(item, DrivenStep) else item
        finally:
            listening.cancel()

    async def _session_rounds(
        self, rpc: OpenRpc, drive: Drive, request: SessionReading
    ) -> AsyncGenerator[PoolItem, None]:
        """Yield the rounds of a session to a client that reads them."""
        take = functools.partial(_take_from_reader, drive)
        listening = in_background(self._listen(rpc, take, lambda: None, _MAX_RECEIPT_BYTES))
        try:
            async with contextlib.aclosing(drive.read_items(request.num_rounds)) as items:
                async for item in items:
                    yield item
        finally:
            listening.cancel()

    async def _drive(
        self, rpc: OpenRpc, sampler: Sampler, request: DriveRequest | DriveResumption | SessionReading
    ) -> Drive:
        """Return the session of a request, with a place for its recording if it has one."""
        arguments, recorder = (self._rpcs.stall_seconds, rpc.charged_to[1:]), None
        if not isinstance(request, DriveRequest) or request.dataset is None:
            drive = sampler.pool.drive(request, *arguments)
            if drive.recorder is not None:  # which goes on in this stream
                await self._bounds.admit(_RECORDINGS, sampler, rpc)
            return drive
        await self._bounds.admit(_RECORDINGS, sampler, rpc)
        with within("spec"):
            request, recorder = await self._recordings.begin_session(request, request.dataset, sampler.pool)
        try:
            return sampler.pool.drive(request, *arguments, recorder)
        except DomainError as error:
            await recorder.end(error)
            raise

    def evaluate(self, rpc: OpenRpc, sampler: Sampler, request: EvaluationRequest) -> AsyncGenerator[PoolItem, None]:
        """Answer `Evaluate`."""
        self._check_env(request.env, rpc, "options.environment")
        return sampler.pool.evaluate(request, rpc)

    def evaluate_population(
        self, rpc: OpenRpc, sampler: Sampler, request: PopulationRequest
    ) -> AsyncGenerator[PoolItem, None]:
        """Answer `EvaluatePopulation`."""
        self._check_env(request.env, rpc, "options.environment")
        return sampler.pool.evaluate_population(request, rpc)

    def render_episode(
        self, rpc: OpenRpc, sampler: Sampler, request: RenderRequest
    ) -> AsyncGenerator[pb.RenderEpisodeResponse | Progress | Account, None]:
        """Answer `RenderEpisode`."""
        if not self._max_renders:
            expected = "no video, because the server's operator allows none (--max-renders)"
            raise OverLimitError.of("", expected=expected, got="a call for one", reason=Reason.TOO_MANY_CALLS)
        return rendered(sampler.pool, request, rpc)

    def record_dataset(
        self, rpc: OpenRpc, sampler: Sampler, request: RecordingRequest
    ) -> AsyncGenerator[pb.RecordDatasetResponse | Account, None]:
        """Answer `RecordDataset`."""
        return self._recordings.record(request, sampler.pool, rpc)

    def read_dataset(self, rpc: OpenRpc, sampler: Sampler, request: ReadRequest) -> AsyncGenerator[ReadItem, None]:
        """Answer `ReadDataset`."""
        return read(request, self._data_folder, sampler.pool, rpc)

    async def _listen(
        self, rpc: OpenRpc, take: Callable[[bytes], None], end: Callable[[], None], max_bytes: int
    ) -> None:
        """Take what a client sends behind its first message, until it ends its stream or sends something else.

        Args:
            rpc: the RPC of a stream or session.
            take: takes a message.
            end: is called when the client has ended its stream.
            max_bytes: largest size of a message.
        """
        try:
            while (data := await self._intake.later_request(rpc, max_bytes)) is not None:
                take(data)
        except DomainError as error:
            rpc.end(error)
        else:
            end()

    def _may_be_free(self, rpc: OpenRpc) -> bool:
        """Whether an RPC may name environments of no profile."""
        return self.allow_free_env and rpc.has(Scope.ENV_FREE)

    @contextlib.contextmanager
    def _naming_scope(self, rpc: OpenRpc) -> Iterator[None]:
        """Have an error that asks for a profile name the scope instead, where others may do without one."""
        try:
            yield
        except NotAllowedError as error:
            if error.reason is Reason.PROFILE_REQUIRED and self.allow_free_env:
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
        return status_to_proto(sampler, status, self._private, **shown).SerializeToString()


def _take_later(drive: Drive, data: bytes) -> None:
    """Have a session do what a message of its client says, which is not the first; raise InvalidValueError."""
    message = parse(pb.DriveEnvironmentsRequest, data)
    match message.WhichOneof("content"):
        case "actions":
            drive.act(step_actions_from_proto(message.actions))
        case "fragment_end":
            drive.end_fragment()
        case "session_end":
            drive.end(has_account=message.session_end.has_account)
        case got:
            expected = "actions, or the end of fragments or of the session, in each later message"
            raise InvalidValueError.of("content", expected=expected, got=got or "none")


def _take_from_reader(drive: Drive, data: bytes) -> None:
    """Have a session heed a message of its reader, which is not the first; raise InvalidValueError."""
    message = parse(pb.DriveEnvironmentsRequest, data)
    assert drive.rounds is not None  # noqa: S101  # it has a reader
    match message.WhichOneof("content"):
        case "receipt":
            with within("receipt"):
                drive.rounds.take(message.receipt.round_count)
        case "session_end" if message.session_end.has_account:
            drive.rounds.has_all.set()
        case got:
            expected = "a receipt, or a session_end with has_account, in each later message of a reader"
            raise InvalidValueError.of("content", expected=expected, got=got or "none")


def _changes_to_proto(changes: Mapping[str, Change], rpc: OpenRpc) -> Iterator[settings_pb2.SettingChange]:
    """Yield changes of settings; only a client that has proved who it is learns the values."""
    is_known = rpc.principal is not None and rpc.principal.is_known
    for name, each in changes.items():
        yield settings_pb2.SettingChange(name=name, **(each._asdict() if is_known else {}))


def _parts(data: bytes) -> Iterator[bytes]:
    """Yield bytes in parts for messages; there is at least one."""
    yield data[:_MAX_PART_BYTES]
    for start in range(_MAX_PART_BYTES, len(data), _MAX_PART_BYTES):
        yield data[start : start + _MAX_PART_BYTES]


def _processes(max_at_a_time: int, num_bytes: int) -> int:
    """Return how many processes there may be at a time, which take half of the machine's memory together at most."""
    return max(min(memory_bytes() // 2 // num_bytes, max_at_a_time), 1)


def _videos(max_renders: int) -> Admission:
    """Return a bound for videos, which leaves one to other clients."""
    limits = {"max_stalled": max_renders, "max_of_client": max(max_renders - 1, 1)}
    return Admission(max(max_renders, 1), 1.0, max_waiting=_MAX_WAITING, **limits)


def _in_turn() -> Bound:
    """Return a bound for what pools do one at a time, in order: one more is ready, of another client."""
    return Bound(lambda: Admission(2, 1.0, max_stalled=0, max_waiting=256, max_of_client=1), per_sampler=True)


_MAX_WAITING = 64
"""Length of the queues for agents, states and videos."""
_AGENTS = Bound(lambda: Admission(4, 1.0, max_stalled=4, max_waiting=_MAX_WAITING, max_of_client=2))
"""A stream keeps its version's parameters in memory, also after the pool has evicted the version."""
_STATES = Bound(lambda: ConnectionAdmission(8, 2, 5.0, max_waiting=_MAX_WAITING))
"""States that clients have not read: others wait 5 s for one."""
_VIDEOS = Bound(lambda: _videos(2))
"""A server has as many as its settings say."""
_STREAMS = Bound(lambda: Places("streams of a sampler", MAX_STREAMS, max_of_client=MAX_STREAMS // 2), per_sampler=True)
_RECORDS = Bound(lambda: Places("streams of records", 64, max_of_client=16))
_RECORDINGS = Bound(lambda: Places("recordings", _processes(16, 512 << 20), max_of_client=8))
_READS = Bound(lambda: Places("reads of datasets", _processes(16, max_read_bytes()), max_of_client=4))

_ENVS_ARE_LATE = "making, resetting or closing an environment may take --reset-seconds each time"
_AGENTS_ARE_LATE = "trying a model or a Python agent may take minutes of processor time"

_S = SamplerService
RPCS = (
    Rpc("GetSampler", Scope.STATUS, _S.get_sampler, bound=_STATES),
    # A server that stops ends streams of records with their log.
    Rpc("GetMetrics", Scope.STATUS, _S.get_metrics, bound=_RECORDS, is_awaited=False),
    Rpc("ListAgentVersions", Scope.STATUS, _S.list_agent_versions),
    Rpc("ObtainSamples", Scope.SAMPLE, _S.obtain, sample_request_from_proto, further=sampling_scopes),
    Rpc("ObtainExactEpisodes", Scope.SAMPLE, _S.obtain, sample_request_from_proto, further=sampling_scopes),
    Rpc(
        "StreamSamples",
        Scope.SAMPLE,
        _S.stream_samples,
        stream_request_from_proto,
        parse=parse_stream_spec,
        field="spec",
        further=sampling_scopes,
        bound=_STREAMS,
    ),
    Rpc(
        "DriveEnvironments",
        Scope.DRIVE,
        _S.drive_environments,
        drive_request_from_proto,
        parse=parse_drive_spec,
        field="spec",
        further=driving_scopes,
    ),
    Rpc("RenderEpisode", Scope.SAMPLE, _S.render_episode, render_request_from_proto, bound=_VIDEOS),
    Rpc(
        "Evaluate",
        Scope.SAMPLE,
        _S.evaluate,
        evaluation_request_from_proto,
        further=evaluation_scopes,
        size="evaluation",
    ),
    Rpc(
        "EvaluatePopulation",
        Scope.SAMPLE,
        _S.evaluate_population,
        population_request_from_proto,
        further=evaluation_scopes,
        size="evaluation",
    ),
    Rpc(
        "RecordDataset",
        Scope.DATA_WRITE,
        _S.record_dataset,
        recording_request_from_proto,
        further=recording_scopes,
        bound=_RECORDINGS,
    ),
    Rpc(
        "ReadDataset",
        Scope.DATA_READ,
        _S.read_dataset,
        read_request_from_proto,
        further=reading_scopes,
        bound=_READS,
    ),
    Rpc("GetAgentParameters", Scope.AGENT_READ, _S.get_agent_parameters, bound=_AGENTS),
    Rpc("GetAgent", Scope.AGENT_READ, _S.get_agent, bound=_AGENTS),
    Rpc(
        "UpdateAgent",
        Scope.AGENT_WRITE,
        _S.update_agent,
        agent_updates_from_proto,
        parse=parse_agent_update,
        further=agent_update_scopes,
        size="update",
        bound=_in_turn(),
        why_late=_AGENTS_ARE_LATE,
    ),
    Rpc(
        "UpdateEnv",
        Scope.ENV_WRITE,
        _S.update_env,
        env_updates_from_proto,
        size="update",
        bound=_in_turn(),
        why_late=_ENVS_ARE_LATE,
    ),
    Rpc(
        "CallEnvironments",
        Scope.ENV_WRITE,
        _S.call_environments,
        env_call_from_proto,
        bound=_in_turn(),
        why_late=_ENVS_ARE_LATE,
    ),
    Rpc("ListSamplers", Scope.STATUS, _S.list_samplers, is_of_server=True, uses_sampler=False),
    Rpc(
        "CreateSampler",
        Scope.SAMPLER_ADMIN,
        _S.create_sampler,
        creation_request_from_proto,
        uses_sampler=False,
        why_late=_ENVS_ARE_LATE,
    ),
    Rpc("DeleteSampler", Scope.SAMPLER_ADMIN, _S.delete_sampler, uses_sampler=False),
    Rpc("SaveSampler", Scope.SAMPLER_ADMIN, _S.save_sampler, bound=_AGENTS),
    Rpc(
        "RestoreSampler",
        Scope.SAMPLER_ADMIN,
        _S.restore_sampler,
        restoration_from_proto,
        size="update",
        why_late=_ENVS_ARE_LATE,
    ),
    Rpc("ReloadSettings", Scope.SERVER_ADMIN, _S.reload_settings, is_of_server=True, uses_sampler=False),
    Rpc("ResizePool", Scope.POOL_RESIZE, _S.resize_pool, why_late=_ENVS_ARE_LATE),
)
"""The RPCs. An RPC of the service that has no entry is not answered."""
