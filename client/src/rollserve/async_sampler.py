"""Client of a sampler on a server, for asyncio: the methods of `rollserve.sampler`, awaited."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

import grpc

from rollserve._calls import requests
from rollserve._calls.answers import DataCollector, collected_async, receive_answer_async
from rollserve._calls.cancellation import closed_unless_task_cancelled
from rollserve._calls.connection import Connection
from rollserve._calls.requests import restore_request
from rollserve._calls.time_limits import DEFAULT_RENDER_SECONDS, DEFAULT_TIMEOUT
from rollserve.async_sample_stream import AsyncSampleStream
from rollserve.base_sampler import BaseSampler
from rollserve.options import list_options
from rollserve.status import SamplerStatus, samplers_from_proto, status_from_proto
from rollserve_wire.environments import env_update_from_proto, env_values_from_proto
from rollserve_wire.errors import PreconditionError
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1 import samplers_pb2
from rollserve_wire.v1.agent_versions_pb2 import ListAgentVersionsRequest

if TYPE_CHECKING:
    import os

    import grpc.aio
    import numpy as np

    from rollserve._calls.base_round_stream import StreamParts
    from rollserve._calls.evaluation_readers import Reader
    from rollserve._calls.resumption import Request
    from rollserve._calls.time_limits import TimeLimits
    from rollserve.agent_versions import AgentVersion
    from rollserve.agents import Agent, AgentUpdate, MemberParameters
    from rollserve.async_round_stream import AsyncRoundStream
    from rollserve.cross_play import CrossPlay, Player, Seat
    from rollserve.dataset_streams import AsyncDatasetStream
    from rollserve.episode_batch import EpisodeBatch
    from rollserve.episode_buffer import EpisodeBuffer
    from rollserve.episode_records import AsyncRecordStream, EpisodeRecords, RecordPosition
    from rollserve.evaluation import Evaluation, PopulationEvaluation
    from rollserve.options import Compression, EvaluationOptions, SamplingOptions
    from rollserve.recordings import Recording
    from rollserve.status import Quota, SamplerSummary
    from rollserve.video import Overlay, Video, VideoFormat
    from rollserve_wire.environments import EnvChange, EnvSpec, EnvUpdate, RowEnvUpdates, Wrapper
    from rollserve_wire.moments import RunningMoments

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
    shared: bool = False,
    credentials: grpc.ChannelCredentials | None = None,
    ca: str | os.PathLike[str] | None = None,
    cert: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
    token: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
) -> AsyncSampler:
    """Return a sampler for asyncio on the server at `target`.

    The first call opens the connection, which belongs to the event loop of that call. For arguments and errors, see
    `rollserve.connect`.

    >>> async with rollserve.aconnect("127.0.0.1:50051") as sampler:  # doctest: +SKIP
    ...     await sampler.update_agent(rollserve.RandomAgent())
    ...     batch = await sampler.obtain_samples(10_000)
    """
    connection = Connection.of(
        target,
        sampler,
        timeout,
        max_message_bytes,
        compression,
        shared_memory,
        shared,
        credentials,
        ca,
        cert,
        key,
        token,
        token_file,
    )
    return AsyncSampler(connection)


@list_options
class AsyncSampler(BaseSampler[AsyncSampleStream, "AsyncRoundStream", "AsyncDatasetStream"]):
    """Client of a sampler for asyncio: sends agents and environments, and receives episodes.

    `rollserve.aconnect` returns one. In an `async with` block, the connection is closed at the end. A pickle
    carries the arguments of `aconnect`, and the unpickled sampler connects with its first call.

    It has the methods of `rollserve.Sampler`, with the same arguments, results and errors. All except the `stream_*`
    methods are awaited. Cancelling a task that awaits a call cancels the call.
    """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection. Calls that are running, and later ones, raise a `rollserve.CancelledError`."""
        self._closed = True
        await self._channel.close()

    async def update_agent(
        self,
        agent: AgentUpdate | None = None,
        *,
        per_worker: Sequence[AgentUpdate | None] | None = None,
        skip_if_identical: bool = False,
        observation_moments: RunningMoments | Mapping[str, RunningMoments] | None = None,
        timeout: float | None = None,
    ) -> int:
        """Give the workers a new agent, or new parameters for the present one; return the policy version.

        For arguments and errors, see `rollserve.Sampler.update_agent`.
        """
        request = requests.update_agent_request(
            self._name, self._own_versions, agent, per_worker, skip_if_identical, observation_moments
        )
        return self._own_versions.set_agent(await self._call(self._stub.UpdateAgent, request, timeout))

    async def update_env(
        self,
        env: str | EnvSpec | EnvChange | RowEnvUpdates | None = None,
        *,
        kwargs: Mapping[str, object] | None = None,
        wrappers: Sequence[Wrapper] = (),
        per_worker: Sequence[EnvSpec | EnvChange | RowEnvUpdates | None] | None = None,
        timeout: float | None = None,
    ) -> EnvUpdate:
        """Replace or change the workers' environments; return the new version and spaces.

        For arguments and errors, see `rollserve.Sampler.update_env`.
        """
        request = requests.update_env_request(self._name, self._own_versions, env, kwargs, wrappers, per_worker)
        updated = env_update_from_proto(await self._call(self._stub.UpdateEnv, request, timeout), request)
        self._own_versions.env_version = updated.env_version
        return updated

    async def call_environments(
        self, method: str, *arguments: object, env_version: int | None = None, timeout: float | None = None
    ) -> list[Any]:
        """Call a method of the workers' environments, and return its values.

        For arguments and errors, see `rollserve.Sampler.call_environments`.
        """
        request = requests.call_environments_request(self._name, self._own_versions, method, arguments, env_version)
        return env_values_from_proto(await self._call(self._stub.CallEnvironments, request, timeout))

    async def resize(self, num_workers: int, *, timeout: float | None = None) -> int:
        """Add or remove workers while the sampler runs; return the previous number of workers.

        For arguments and errors, see `rollserve.Sampler.resize`.
        """
        request = requests.resize_request(self._name, num_workers)
        return (await self._call(self._stub.ResizePool, request, timeout)).previous_worker_count

    async def obtain_samples(
        self, num_steps: int, *, out: EpisodeBuffer | None = None, **options: Unpack[SamplingOptions]
    ) -> EpisodeBatch:
        """Sample whole episodes with at least `num_steps` steps in all.

        For arguments and errors, see `rollserve.Sampler.obtain_samples`.
        """
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
        """Sample an exact number of episodes on each worker: first all of worker 0, then all of worker 1, and so on.

        For arguments and errors, see `rollserve.Sampler.obtain_exact_episodes`.
        """
        requests.check_joinable(options.get("blackhole"))
        async with self.stream_exact_episodes(num_episodes_per_worker, **options) as stream:
            return await stream.join(out=out)

    async def obtain_fragments(
        self,
        num_steps: int | None = None,
        *,
        steps_per_row: int | None = None,
        soft_horizon: bool = False,
        row_step_count: int | None = None,
        fraction_of_workers: float | None = None,
        fraction_of_samples: float | None = None,
        out: EpisodeBuffer | None = None,
        **options: Unpack[SamplingOptions],
    ) -> EpisodeBatch:
        """Sample exactly a number of steps, the same number of each row; episodes continue from call to call.

        For arguments and errors, see `rollserve.Sampler.obtain_fragments`.
        """
        requests.check_joinable(options.get("blackhole"))
        if num_steps is None or steps_per_row is not None:
            num_steps = requests.checked_steps_per_row(num_steps, steps_per_row) * (await self.status()).num_rows
        async with self.stream_fragments(
            num_steps,
            soft_horizon=soft_horizon,
            row_step_count=row_step_count,
            fraction_of_workers=fraction_of_workers,
            fraction_of_samples=fraction_of_samples,
            **options,
        ) as stream:
            return await stream.join(out=out)

    async def evaluate(
        self, num_episodes: int, *, return_episodes: bool = False, **options: Unpack[EvaluationOptions]
    ) -> Evaluation:
        """Evaluate the agent on a number of episodes, in environments that only evaluations use.

        For arguments and errors, see `rollserve.Sampler.evaluate`.
        """
        reader = self._evaluation_reader(num_episodes, return_episodes, options)
        return await self._receive(self._stub.Evaluate, reader, options)

    async def cross_play(
        self,
        players: Sequence[Player],
        num_episodes: int,
        *,
        opponents: Sequence[Player] | None = None,
        seats: tuple[Seat, Seat] = (0, 1),
        **options: Unpack[EvaluationOptions],
    ) -> CrossPlay:
        """Let policies play against each other in an environment with many agents, and rate them.

        For arguments and errors, see `rollserve.Sampler.cross_play`.
        """
        from rollserve.cross_play import Pairings

        pairings = Pairings.of(players, opponents, seats)
        with pairings.evaluated():
            evaluation = await self.evaluate(pairings.num_episodes(num_episodes), **pairings.options(options))
        return pairings.results(evaluation)

    async def evaluate_population(
        self,
        parameters: MemberParameters,
        num_episodes: int,
        *,
        same_episodes: bool = True,
        **options: Unpack[EvaluationOptions],
    ) -> PopulationEvaluation:
        """Evaluate K parameter sets of the agent, or of some policies by name, on a number of episodes each.

        For arguments and errors, see `rollserve.Sampler.evaluate_population`.
        """
        reader = self._population_reader(parameters, num_episodes, same_episodes, options)
        return await self._receive(self._stub.EvaluatePopulation, reader, options)

    async def record(
        self,
        dataset_id: str,
        *,
        num_episodes: int | None = None,
        num_steps: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        **options: Unpack[SamplingOptions],
    ) -> Recording:
        """Record whole episodes on the server, into a Minari dataset in the folder that its operator allows.

        For arguments and errors, see `rollserve.Sampler.record`.
        """
        reader = self._recording_reader(dataset_id, num_episodes, num_steps, metadata, options)
        return await self._receive(self._stub.RecordDataset, reader, options)

    async def with_receipt(
        self, batch: EpisodeBatch, agent: Agent | None = None, *, timeout: float | None = None
    ) -> EpisodeBatch:
        """Return the whole result of a call with what verifies it in plain gymnasium: a receipt, which files keep.

        The receipt has the environment's specification, the account, and digests of all columns and of the agent.
        `rollserve verify` replays files with receipts.

        >>> (await sampler.with_receipt(batch, agent)).save("batch.npz")  # doctest: +SKIP

        Args:
            batch: batch of this sampler, of the present version of its environment.
            agent: the agent that acted, for its digest; None leaves it out. It is compared with the version that acted,
                which the server sends if it still keeps it: the kind, and the parameters of MLPs.
            timeout: seconds to wait for the answer, instead of the timeout given to `connect`.

        Raises:
            ValueError: a batch without an account, another version of the environment, environments that differ between
                rows, arguments of the environment that clients do not see, or an agent that is not the one that acted.
        """
        from rollserve._calls.receipts import acting_version, with_receipt

        held = None
        if agent is not None:
            with contextlib.suppress(PreconditionError):  # it is not kept any more, or a pickle
                held = await self.agent(acting_version(batch), timeout=timeout)
        return with_receipt(batch, await self.status(timeout=timeout), agent, held)

    async def status(self, *, timeout: float | None = None) -> SamplerStatus:
        """Return the state of the sampler and of its workers, and its counters."""
        request = pb.GetSamplerRequest(sampler=self._name)
        return status_from_proto(await self._call(self._stub.GetSampler, request, timeout))

    async def metrics(self, since: RecordPosition | None = None, *, timeout: float | None = None) -> EpisodeRecords:
        """Return the records of episodes that have ended, such as their returns: also of other clients' calls.

        For arguments and errors, see `rollserve.Sampler.metrics`.
        """
        from rollserve.episode_records import AsyncRecordStream, EpisodeRecords, records_request

        request, seconds = records_request(self._name, since, follow=False), self._answer_seconds(timeout)
        async with AsyncRecordStream(self._opened(self._stub.GetMetrics), request, seconds) as stream:
            return EpisodeRecords.concatenate([records async for records in stream])

    def stream_metrics(self, since: RecordPosition | None = None) -> AsyncRecordStream:
        """Stream the records of ended episodes, and go on with each that ends until the stream is closed.

        For arguments and errors, see `rollserve.Sampler.stream_metrics`.
        """
        from rollserve.episode_records import AsyncRecordStream, records_request

        request = records_request(self._name, since, follow=True)
        return AsyncRecordStream(self._opened(self._stub.GetMetrics), request, None)

    async def create_sampler(
        self,
        env: str | EnvSpec,
        *,
        kwargs: Mapping[str, object] | None = None,
        wrappers: Sequence[Wrapper] = (),
        num_workers: int = 1,
        seed: int | None = None,
        lease_seconds: float | None = None,
        quota: Quota | None = None,
        exist_ok: bool = False,
        timeout: float | None = None,
    ) -> EnvUpdate:
        """Create the sampler that this client is connected to; return the version and spaces of its environments.

        For arguments and errors, see `rollserve.Sampler.create_sampler`.
        """
        request = requests.create_sampler_request(
            self._name, env, kwargs, wrappers, num_workers, seed, lease_seconds, quota, exist_ok
        )
        return env_update_from_proto(await self._call(self._stub.CreateSampler, request, timeout), request)

    async def delete_sampler(self, *, timeout: float | None = None) -> None:
        """Delete the sampler that this client is connected to; see `rollserve.Sampler.delete_sampler`."""
        request = samplers_pb2.DeleteSamplerRequest(sampler=self._name)
        await self._call(self._stub.DeleteSampler, request, timeout)

    async def save(self, *, timeout: float | None = None) -> bytes:
        """Return all that another server needs to go on as the sampler would; see `rollserve.Sampler.save`."""
        request = samplers_pb2.SaveSamplerRequest(sampler=self._name)
        return await self._call(collected_async(self._stub.SaveSampler, DataCollector), request, timeout)

    async def restore(self, saved: bytes | str | os.PathLike[str], *, timeout: float | None = None) -> None:
        """Replace the sampler by a saved one; for arguments and errors, see `rollserve.Sampler.restore`."""
        request = restore_request(self._name, self._own_versions, saved)
        self._own_versions.restore(await self._call(self._stub.RestoreSampler, request, timeout))

    async def list_samplers(self, *, timeout: float | None = None) -> Sequence[SamplerSummary]:
        """Return the samplers of the server, the default one first."""
        request = samplers_pb2.ListSamplersRequest()
        return samplers_from_proto(await self._call(self._stub.ListSamplers, request, timeout))

    async def agent_versions(self, *, timeout: float | None = None) -> Sequence[AgentVersion]:
        """Return the versions of the agent that the sampler holds, in rising order."""
        from rollserve.agent_versions import agent_versions_from_proto

        request = ListAgentVersionsRequest(sampler=self._name)
        return agent_versions_from_proto(await self._call(self._stub.ListAgentVersions, request, timeout))

    async def render(
        self,
        batch: EpisodeBatch | None = None,
        segment: int = 0,
        *,
        seed: int | None = None,
        index: int | None = None,
        version: int | None = None,
        env_version: int | None = None,
        max_episode_length: int | None = None,
        deterministic: bool = False,
        format: VideoFormat = "mp4",  # noqa: A002  # what it is called everywhere
        fps: float | None = None,
        overlays: Sequence[Overlay] = (),
        timeout: float | None = DEFAULT_RENDER_SECONDS,
    ) -> Video:
        """Return a video of an episode; for arguments and errors, see `rollserve.Sampler.render`."""
        from rollserve.video import VideoCollector, render_request

        request = render_request(
            self._name,
            self._own_versions,
            batch,
            segment,
            seed=seed,
            index=index,
            version=version,
            env_version=env_version,
            max_episode_length=max_episode_length,
            deterministic=deterministic,
            video_format=format,
            fps=fps,
            overlays=overlays,
        )
        return await self._call(collected_async(self._stub.RenderEpisode, VideoCollector), request, timeout)

    async def agent(
        self,
        version: int | None = None,
        *,
        worker: int | None = None,
        policy: str | None = None,
        timeout: float | None = None,
    ) -> Agent:
        """Return an agent that the sampler holds; for arguments and errors, see `rollserve.Sampler.agent`."""
        from rollserve.agent_versions import agent_from_bytes, agent_request

        request = agent_request(self._name, version, worker, policy)
        return agent_from_bytes(await self._call(collected_async(self._stub.GetAgent, DataCollector), request, timeout))

    async def agent_parameters(
        self,
        version: int | None = None,
        *,
        worker: int | None = None,
        names: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> dict[str, np.ndarray]:
        """Return the parameters of an agent that the sampler holds, as new arrays by name.

        For arguments and errors, see `rollserve.Sampler.agent_parameters`.
        """
        from rollserve.agent_versions import ParametersCollector, parameters_request

        request = parameters_request(self._name, version, worker, names, self._reception.max_message_bytes)
        return await self._call(collected_async(self._stub.GetAgentParameters, ParametersCollector), request, timeout)

    @functools.cached_property
    def _channel(self) -> grpc.aio.Channel:
        channel: grpc.aio.Channel = self._connection.async_channel(self._contact.gateways)
        return channel

    def _read_stream(self, request: pb.ReadDatasetRequest, limits: TimeLimits) -> AsyncDatasetStream:
        from rollserve.dataset_streams import AsyncDatasetStream

        return AsyncDatasetStream(self._opened(self._stub.ReadDataset), request, limits, self._contact)

    def _round_stream(self, parts: StreamParts) -> AsyncRoundStream:
        from rollserve.async_round_stream import AsyncRoundStream

        return AsyncRoundStream(parts)

    def _stream(self, method: Callable[..., Any], request: Request, options: SamplingOptions) -> AsyncSampleStream:
        limits = self._time_limits(options)
        return AsyncSampleStream(
            self._opened(method), request, limits, self._contact, self._own_versions, options.get("progress")
        )

    async def _receive(
        self, method: Callable[..., Any], reader: Reader[_Result], options: EvaluationOptions | SamplingOptions
    ) -> _Result:
        from rollserve._calls.evaluation_readers import receive_async

        with closed_unless_task_cancelled("sampler"):
            return await receive_async(self._opened(method), reader, self._time_limits(options), self._contact)

    async def _call(self, method: Callable[..., _Result], request: object, timeout: float | None) -> _Result:
        """Await the answer of a method. The stub's types are those for a synchronous channel."""
        seconds, work_seconds = self._answer_seconds(timeout), self._work_seconds(request, timeout)
        with closed_unless_task_cancelled("sampler"):
            answer: _Result = await receive_answer_async(
                self._opened(method), request, self._contact, seconds, work_seconds
            )
            return answer
