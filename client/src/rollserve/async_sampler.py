"""The client for asyncio: the same methods as `rollserve.sampler`, awaited."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

import grpc
import grpc.aio

from rollserve._calls import requests
from rollserve._calls.channel import channel_options
from rollserve._calls.evaluations import EvaluationReader, PopulationReader, Reader, receive_async
from rollserve._calls.joining import Joining
from rollserve._calls.requests import Reception
from rollserve._calls.resumption import Backoff, is_passing
from rollserve._calls.stream_reader import StreamReader
from rollserve._calls.stub import RawStreamsStub
from rollserve._calls.time_limits import DEFAULT_TIMEOUT, TimeLimits, answer_error, countable
from rollserve._checks import check_connection, check_seconds
from rollserve.agent_versions import agent_versions_from_proto, aread_parameters, parameters_request
from rollserve.errors import closed_error
from rollserve.status import SamplerStatus, status_from_proto
from rollserve.v1 import sampler_service_pb2 as pb
from rollserve.v1.agent_versions_pb2 import ListAgentVersionsRequest

if TYPE_CHECKING:
    import numpy as np

    from rollserve._calls.evaluations import EvaluationOptions
    from rollserve._calls.requests import AgentUpdate, EnvUpdate, RowEnvUpdates, SamplingOptions
    from rollserve._calls.resumption import Request
    from rollserve._codec.compression import Compression
    from rollserve.account import Account
    from rollserve.agent_versions import AgentVersion
    from rollserve.environments import EnvChange, EnvSpec, Wrapper
    from rollserve.episode_batch import EpisodeBatch
    from rollserve.episode_buffer import EpisodeBuffer
    from rollserve.evaluation import Evaluation, PopulationEvaluation

__all__ = ["AsyncSampleStream", "AsyncSampler", "aconnect"]

_Result = TypeVar("_Result")


def aconnect(
    target: str,
    *,
    sampler: str = "",
    timeout: float = DEFAULT_TIMEOUT,
    max_message_bytes: int | None = requests.DEFAULT_MESSAGE_BYTES,
    compression: Compression | Sequence[Compression] | None = None,
    shared_memory: bool = False,
) -> AsyncSampler:
    """As `rollserve.connect`, for `async with`. To be called in a running event loop."""
    check_connection(target, sampler, timeout, max_message_bytes)
    reception = Reception.of(max_message_bytes, compression, shared_memory)
    channel = grpc.aio.insecure_channel(target, options=channel_options(max_message_bytes))
    return AsyncSampler(channel, sampler=sampler, timeout=timeout, reception=reception)


class AsyncSampler:
    """As `rollserve.Sampler`, awaited. Cancelling a task that awaits a call cancels the call."""

    def __init__(self, channel: grpc.aio.Channel, *, sampler: str, timeout: float, reception: Reception) -> None:
        self._channel = channel
        self._stub: Any = RawStreamsStub(channel)
        self._name = sampler
        self._timeout = timeout
        self._reception = reception
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connection and ends calls that are running: they raise a CancelledError, as do later ones."""
        self._closed = True
        await self._channel.close()

    async def update_agent(
        self,
        agent: AgentUpdate | None = None,
        *,
        per_worker: Sequence[AgentUpdate] | None = None,
        skip_if_identical: bool = False,
        timeout: float | None = None,
    ) -> int:
        """As `rollserve.Sampler.update_agent`."""
        request = requests.update_agent_request(self._name, agent, per_worker, skip_if_identical)
        response: pb.UpdateAgentResponse = await self._call(self._stub.UpdateAgent, request, timeout)
        return response.policy_version

    async def update_env(
        self,
        env: str | EnvSpec | EnvChange | RowEnvUpdates | None = None,
        *,
        kwargs: Mapping[str, object] | None = None,
        wrappers: Sequence[Wrapper] = (),
        per_worker: Sequence[EnvSpec | EnvChange | RowEnvUpdates] | None = None,
        timeout: float | None = None,
    ) -> EnvUpdate:
        """As `rollserve.Sampler.update_env`."""
        request = requests.update_env_request(self._name, env, kwargs, wrappers, per_worker)
        return requests.env_update_from_proto(await self._call(self._stub.UpdateEnv, request, timeout))

    async def resize(self, num_workers: int, *, timeout: float | None = None) -> int:
        """As `rollserve.Sampler.resize`."""
        request = requests.resize_request(self._name, num_workers)
        response: pb.ResizePoolResponse = await self._call(self._stub.ResizePool, request, timeout)
        return response.previous_worker_count

    async def obtain_samples(
        self, num_steps: int, *, out: EpisodeBuffer | None = None, **options: Unpack[SamplingOptions]
    ) -> EpisodeBatch:
        """As `rollserve.Sampler.obtain_samples`."""
        requests.check_joinable(options.get("blackhole"))
        async with self.stream_samples(num_steps, **options) as stream:
            return await stream.join(out=out)

    async def obtain_exact_episodes(
        self,
        num_episodes_per_worker: int,
        *,
        out: EpisodeBuffer | None = None,
        **options: Unpack[SamplingOptions],
    ) -> EpisodeBatch:
        """As `rollserve.Sampler.obtain_exact_episodes`."""
        requests.check_joinable(options.get("blackhole"))
        async with self.stream_exact_episodes(num_episodes_per_worker, **options) as stream:
            return await stream.join(out=out)

    async def obtain_fragments(
        self,
        num_steps: int,
        *,
        soft_horizon: bool = False,
        row_step_count: int | None = None,
        fraction_of_workers: float | None = None,
        out: EpisodeBuffer | None = None,
        **options: Unpack[SamplingOptions],
    ) -> EpisodeBatch:
        """As `rollserve.Sampler.obtain_fragments`."""
        requests.check_joinable(options.get("blackhole"))
        async with self.stream_fragments(
            num_steps,
            soft_horizon=soft_horizon,
            row_step_count=row_step_count,
            fraction_of_workers=fraction_of_workers,
            **options,
        ) as stream:
            return await stream.join(out=out)

    def stream_samples(self, num_steps: int, **options: Unpack[SamplingOptions]) -> AsyncSampleStream:
        """As `rollserve.Sampler.stream_samples`, for `async for`."""
        request = requests.samples_request(self._name, num_steps, self._reception, options)
        return AsyncSampleStream(self._opened(self._stub.ObtainSamples), request, self._time_limits(options))

    def stream_fragments(
        self,
        num_steps: int,
        *,
        soft_horizon: bool = False,
        row_step_count: int | None = None,
        fraction_of_workers: float | None = None,
        **options: Unpack[SamplingOptions],
    ) -> AsyncSampleStream:
        """As `rollserve.Sampler.stream_fragments`, for `async for`."""
        request = requests.fragments_request(
            self._name, num_steps, soft_horizon, row_step_count, fraction_of_workers, self._reception, options
        )
        return AsyncSampleStream(self._opened(self._stub.ObtainSamples), request, self._time_limits(options))

    def stream_exact_episodes(
        self, num_episodes_per_worker: int, **options: Unpack[SamplingOptions]
    ) -> AsyncSampleStream:
        """As `rollserve.Sampler.stream_exact_episodes`, for `async for`."""
        request = requests.exact_episodes_request(self._name, num_episodes_per_worker, self._reception, options)
        return AsyncSampleStream(self._opened(self._stub.ObtainExactEpisodes), request, self._time_limits(options))

    async def evaluate(
        self, num_episodes: int, *, return_episodes: bool = False, **options: Unpack[EvaluationOptions]
    ) -> Evaluation:
        """As `rollserve.Sampler.evaluate`."""
        reader = EvaluationReader(self._name, num_episodes, return_episodes, self._reception, options)
        return await self._received(self._stub.Evaluate, reader, options)

    async def evaluate_population(
        self,
        parameters: Mapping[str, np.ndarray],
        num_episodes: int,
        *,
        same_episodes: bool = True,
        **options: Unpack[EvaluationOptions],
    ) -> PopulationEvaluation:
        """As `rollserve.Sampler.evaluate_population`."""
        reader = PopulationReader(self._name, parameters, num_episodes, same_episodes, options)
        return await self._received(self._stub.EvaluatePopulation, reader, options)

    async def status(self, *, timeout: float | None = None) -> SamplerStatus:
        """As `rollserve.Sampler.status`."""
        request = pb.GetSamplerRequest(sampler=self._name)
        return status_from_proto(await self._call(self._stub.GetSampler, request, timeout))

    async def agent_versions(self, *, timeout: float | None = None) -> Sequence[AgentVersion]:
        """As `rollserve.Sampler.agent_versions`."""
        request = ListAgentVersionsRequest(sampler=self._name)
        return agent_versions_from_proto(await self._call(self._stub.ListAgentVersions, request, timeout))

    async def agent_parameters(
        self,
        version: int | None = None,
        *,
        worker: int | None = None,
        names: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> dict[str, np.ndarray]:
        """As `rollserve.Sampler.agent_parameters`."""
        limit = self._reception.max_message_bytes
        request = parameters_request(self._name, version, worker, names, limit)
        return await self._call(aread_parameters(self._stub.GetAgentParameters), request, timeout)

    async def _received(
        self, method: Callable[..., Any], reader: Reader[_Result], options: EvaluationOptions
    ) -> _Result:
        try:
            return await receive_async(self._opened(method), reader, self._time_limits(options))
        except asyncio.CancelledError:
            if _task_is_cancelled():
                raise
            raise closed_error("sampler") from None

    def _time_limits(self, options: SamplingOptions | EvaluationOptions) -> TimeLimits:
        timeout = options.get("timeout")
        return TimeLimits(self._timeout if timeout is None else timeout, options.get("deadline"))

    async def _call(self, method: Callable[..., Awaitable[_Result]], request: object, timeout: float | None) -> _Result:
        seconds = self._timeout if timeout is None else timeout
        check_seconds("timeout", seconds, positive=True)
        try:
            return await self._opened(method)(request, timeout=countable(seconds))
        except grpc.RpcError as error:
            raise answer_error(error, seconds) from error
        except asyncio.CancelledError:
            if _task_is_cancelled():
                raise
            raise closed_error("sampler") from None

    def _opened(self, method: Callable[..., _Result]) -> Callable[..., _Result]:
        """The method, which raises an error of this package when the sampler is closed."""

        def call(*arguments: Any, **options: Any) -> _Result:
            if self._closed:
                raise closed_error("sampler")
            return method(*arguments, **options)

        return call


class AsyncSampleStream(AsyncIterator["EpisodeBatch"]):
    """As `rollserve.SampleStream`, for `async for`."""

    def __init__(self, method: Callable[..., Any], request: Request, limits: TimeLimits) -> None:
        self._method = method
        self._limits = limits
        self._reader = StreamReader(request)
        self._blackhole = request.options.blackhole
        self._backoff = Backoff(limits.timeout)
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._call = method(request, timeout=limits.remaining())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_call") and not self._call.done():  # else no call was begun, or it is over
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._call.cancel)  # this may be any thread

    async def __anext__(self) -> EpisodeBatch:
        while True:
            try:
                response = await asyncio.wait_for(self._call.read(), countable(self._limits.timeout))
            except TimeoutError:
                self.close()
                raise self._limits.silence_error() from None
            except asyncio.CancelledError:
                if _task_is_cancelled():
                    raise
                raise closed_error("stream") from None
            except grpc.RpcError as error:
                await self._resume(error)
                continue
            if response is grpc.aio.EOF:
                self._reader.end()
                raise StopAsyncIteration
            batch = self._reader.read(response)
            if self._reader.has_advanced:
                self._backoff.succeed()
            if batch is not None:
                return batch

    async def _resume(self, error: grpc.RpcError) -> None:
        """As of SampleStream."""
        resumption = self._reader.resumption
        pause = self._backoff.next_seconds() if is_passing(error) and resumption.possible else None
        if pause is None:
            raise self._limits.error_from_rpc(error) from error
        await asyncio.sleep(pause)
        if self._closed:
            raise closed_error("stream")
        self._call = self._method(resumption.rest(), timeout=self._limits.remaining())

    @property
    def num_simulated_steps(self) -> int:
        """How many steps the call is known to have simulated so far."""
        return self._reader.num_simulated_steps

    def end(self) -> Account:
        """As `SampleStream.end`."""
        return self._reader.end()

    async def join(self, *, out: EpisodeBuffer | None = None) -> EpisodeBatch:
        """As `SampleStream.join`."""
        requests.check_joinable(self._blackhole)
        self._reader.in_place = True
        with Joining(self._reader.num_expected_steps, out) as joining:
            async for batch in self:
                joining.add(batch)
                del batch  # before the next one comes
            return joining.join(self.end())

    def close(self) -> None:
        """Cancels the call unless it is over."""
        self._closed = True
        self._call.cancel()


def _task_is_cancelled() -> bool:
    """Whether a CancelledError of asyncio means this task; gRPC raises one too where a call was cancelled."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
