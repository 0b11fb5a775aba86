"""Common part of both samplers: everything except the waiting."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Unpack

from rollserve._calls import requests
from rollserve._calls.answers import WORK_SECONDS
from rollserve._calls.interruptions import Contact
from rollserve._calls.own_versions import OwnVersions
from rollserve._calls.requests import stream_spec
from rollserve._calls.time_limits import TimeLimits
from rollserve.multi_agent_batch import Batch
from rollserve_wire.checks import check_choice, check_seconds
from rollserve_wire.errors import closed_error, mismatch
from rollserve_wire.extras import load
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1 import samplers_pb2
from rollserve_wire.v1.sampler_service_pb2_grpc import SamplerServiceStub

if TYPE_CHECKING:
    import os

    from rollserve._calls.base_round_stream import StreamParts
    from rollserve._calls.connection import Connection
    from rollserve._calls.evaluation_readers import EvaluationReader, PopulationReader
    from rollserve._calls.requests import ApplyUpdate, WhenFull
    from rollserve._calls.resumption import Request
    from rollserve.agents import MemberParameters
    from rollserve.data.opening import Format
    from rollserve.data.reader import Position
    from rollserve.data.sources import Files, Live, MixPosition
    from rollserve.options import EvaluationOptions, SamplingOptions
    from rollserve.pettingzoo_envs import AecEnv, ParallelEnv
    from rollserve.recordings import RecordingReader
    from rollserve.sb3_vec_env import Sb3VecEnv
    from rollserve.vector_env import VectorEnv

__all__ = ["BaseSampler"]


_Stream = TypeVar("_Stream")
_Rounds = TypeVar("_Rounds")
_Reads = TypeVar("_Reads")
_Result = TypeVar("_Result")

_LONG_WORK = (
    pb.UpdateAgentRequest,
    pb.UpdateEnvRequest,
    pb.CallEnvironmentsRequest,
    pb.ResizePoolRequest,
    samplers_pb2.CreateSamplerRequest,
    samplers_pb2.RestoreSamplerRequest,
)
"""Requests that make a server make environments, or try an agent; parameters alone are sent as bytes."""


class BaseSampler(Generic[_Stream, _Rounds, _Reads, Batch]):
    """A sampler on a server, whose streams are of one class each for calls, for rounds, and for reads of datasets."""

    _channel: Any
    update_agent: Callable[..., Any]
    close: Callable[[], Any]
    drive: Callable[..., Any]
    multi_agent: Any

    def __init__(self, connection: Connection, batch_kind: type[Batch]) -> None:
        self._connection = connection
        self._name = connection.sampler
        self._reception = connection.reception
        self._batch_kind = batch_kind
        self._own_versions = OwnVersions(connection.shared)
        self._contact = Contact(connection)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._connection}{', closed' if self._contact.is_closed else ''}>"

    def __reduce__(self) -> tuple[object, ...]:
        # Without the channel: a copy has a connection of its own, and counts as the same client.
        return type(self), (self._connection, self._batch_kind), {"_own_versions": self._own_versions}

    @functools.cached_property
    def _stub(self) -> RawStreamsStub:
        return RawStreamsStub(self._channel, self._connection.metadata)

    def stream_samples(self, num_steps: int, **options: Unpack[SamplingOptions]) -> _Stream:
        """Stream what `obtain_samples` returns, batch by batch as it arrives.

        An episode may continue in the next batch.

        >>> with sampler.stream_samples(10_000) as stream:  # doctest: +SKIP
        ...     for batch in stream:
        ...         print(batch.num_steps)

        Args:
            num_steps: minimum number of steps; positive.
            options: see `rollserve.SamplingOptions`. With `blackhole`, the stream delivers no batch, and its `end`
                returns the account.
        """
        request = requests.samples_request(self._name, num_steps, self._reception, options)
        self._own_versions.expect_in_call(request.options)
        return self._stream(self._stub.ObtainSamples, request, options)

    def stream_fragments(
        self,
        num_steps: int,
        *,
        soft_horizon: bool = False,
        row_step_count: int | None = None,
        fraction_of_workers: float | None = None,
        fraction_of_samples: float | None = None,
        **options: Unpack[SamplingOptions],
    ) -> _Stream:
        """Stream what `obtain_fragments` returns, batch by batch as it arrives.

        A fragment may continue in the next batch. For the arguments, see `obtain_fragments`; for `blackhole`, see
        `stream_samples`.
        """
        request = requests.fragments_request(
            self._name,
            num_steps,
            soft_horizon,
            row_step_count,
            fraction_of_workers,
            fraction_of_samples,
            self._reception,
            options,
        )
        self._own_versions.expect_in_call(request.options)
        return self._stream(self._stub.ObtainSamples, request, options)

    def stream_exact_episodes(self, num_episodes_per_worker: int, **options: Unpack[SamplingOptions]) -> _Stream:
        """Stream what `obtain_exact_episodes` returns, batch by batch as it arrives.

        An episode may continue in the next batch.

        Args:
            num_episodes_per_worker: number of episodes of each worker; positive.
            options: see `stream_samples`.
        """
        request = requests.exact_episodes_request(self._name, num_episodes_per_worker, self._reception, options)
        self._own_versions.expect_in_call(request.options)
        return self._stream(self._stub.ObtainExactEpisodes, request, options)

    def stream(
        self,
        *,
        num_steps: int | None = None,
        fragment_length: int | None = None,
        soft_horizon: bool = False,
        row_step_count: int | None = None,
        total_num_steps: int | None = None,
        apply_update: ApplyUpdate = "next_fragment",
        max_policy_lag: int | None = None,
        max_ahead_steps: int | None = None,
        max_ahead_bytes: int | None = None,
        max_steps_per_version: int | None = None,
        when_full: WhenFull = "wait",
        buffer_rounds: int | None = None,
        **options: Unpack[SamplingOptions],
    ) -> _Rounds:
        """Sample on and on, round after round, while the trainer learns.

        Each round is what one `obtain_fragments` or `obtain_samples` would return, with the version of the agent that
        is current when the round begins. Updates of the agent do not stop the stream.

        >>> with sampler.stream(fragment_length=128, max_policy_lag=1) as stream:  # doctest: +SKIP
        ...     for batch in stream:
        ...         stream.update_agent(learn(batch))

        Args:
            num_steps: for rounds of whole episodes, the least number of steps in a round.
            fragment_length: for rounds of fragments, the number of steps of each row in a round.
            soft_horizon: as of `obtain_fragments`.
            row_step_count: for fragments, number of steps that each row has made in the sequence of `seed`, such as a
                round's `next_row_step_count`.
            total_num_steps: number of steps after which the stream ends with the round that reaches it; by default
                the caller ends the stream.
            apply_update: when an update of the agent takes effect: with the "next_fragment" (or round of whole
                episodes); for fragments at the "next_step", where the round ends for all rows, and the next one has the
                rest of the fragment; for whole episodes, "next_episode" is the default's other name.
            max_policy_lag: largest number of updates of the agent between a round's version and the current one.
                Rounds that are older when the server would send them, or when this client would hand them out, are
                discarded; the account counts them. By default any.
            max_ahead_steps: number of steps that the server may have sampled and not sent; by default one round.
            max_ahead_bytes: number of bytes that the server may have sampled and not sent; by default 64 MiB.
            max_steps_per_version: number of steps that are sampled with each version; then sampling waits for an
                update. As many as a round has is on-policy. By default any.
            when_full: whether sampling shall "wait" when as much is sampled and not sent as may be, or
                "drop_oldest", which the account counts.
            buffer_rounds: number of rounds to receive before the trainer asks for them; by default 0 with
                `max_policy_lag`, so that the lag is decided when the trainer asks, and 1 otherwise.
            options: see `rollserve.SamplingOptions`; not `policy_version`, `prefetch`, `blackhole` and `progress`. Each
                round has its own moments, in `batch.round`.

        Raises:
            TypeError: an argument of the wrong type, or both or neither of `num_steps` and `fragment_length`.
            InvalidArgumentError: an argument out of range.
        """
        from rollserve._calls.base_round_stream import StreamParts

        if buffer_rounds is None:
            buffer_rounds = 1 if max_policy_lag is None else 0
        spec = stream_spec(
            self._name,
            self._reception,
            num_steps=num_steps,
            fragment_length=fragment_length,
            soft_horizon=soft_horizon,
            row_step_count=row_step_count,
            total_num_steps=total_num_steps,
            apply_update=apply_update,
            max_policy_lag=max_policy_lag,
            max_ahead_steps=max_ahead_steps,
            max_ahead_bytes=max_ahead_bytes,
            max_steps_per_version=max_steps_per_version,
            when_full=when_full,
            buffer_rounds=buffer_rounds,
            options=options,
        )
        self._own_versions.expect_in_call(spec.options)
        method, limits = self._opened(self._stub.StreamSamples), self._time_limits(options)
        return self._round_stream(
            StreamParts(
                method,
                spec,
                self._batch_kind,
                buffer_rounds,
                limits,
                self._contact,
                self._own_versions,
                self.update_agent,
            )
        )

    def _round_stream(self, parts: StreamParts[Batch]) -> _Rounds:
        """Start a stream of rounds."""
        raise NotImplementedError

    def _stream(self, method: Callable[..., Any], request: Request, options: SamplingOptions) -> _Stream:
        """Start a stream."""
        raise NotImplementedError

    def read(
        self,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        format: Format | None = None,  # noqa: A002  # what it is called everywhere
        length: int | None = None,
        batch_size: int = 256,
        num_epochs: int | None = 1,
        shuffle_seed: int | None = None,
        shuffle_steps: int | None = None,
        shard: tuple[int, int] = (0, 1),
        position: Position | Sequence[int] | None = None,
        infos: bool = True,
        dones: str | None = None,
        timeout: float | None = None,
    ) -> _Reads:
        """Return an iterator over the batches of files on the server, the same as `rollserve.data.read` has of them.

        >>> with sampler.read("hopper/expert-v0", length=1, shuffle_seed=1) as stream:  # doctest: +SKIP
        ...     for batch in stream:
        ...         update(batch)

        Args:
            path: a path within the server's `--data-dir`, or several of them; as in `rollserve.data.read`, which
                describes all other arguments.
            format: format of the files.
            length: number of steps of fragments; 1 for transitions.
            batch_size: number of segments of each batch.
            num_epochs: number of times that all segments are read; None for ever.
            shuffle_seed: seed of a random order.
            shuffle_steps: number of steps in the buffer that shuffles segments, by default 131,072 and at most 2**24;
                only with a seed.
            shard: (i, n) for the i-th of n parts of the data.
            position: position of an equal stream, to go on behind its last batch.
            infos: whether to read the infos of environments.
            dones: what the column `dones` of RLlib's old files stands for.
            timeout: seconds without any answer, instead of the timeout given to `connect`.

        Raises:
            TypeError: an argument of the wrong type.
            InvalidArgumentError: an argument out of range.
        """
        from rollserve.data.reader import Position
        from rollserve.data.sources import Files, MixPosition

        files = Files(path, format, length, num_epochs, shuffle_seed, shuffle_steps, shard, infos, dones)
        mix_position = None if position is None else MixPosition((Position(*position),), 0)
        return self.read_mix([(files, 1.0)], batch_size=batch_size, position=mix_position, timeout=timeout)

    def read_mix(
        self,
        sources: Sequence[tuple[Files | Live, float]],
        *,
        batch_size: int = 256,
        mix_seed: int = 0,
        until: str = "first",
        position: MixPosition | None = None,
        **options: Unpack[SamplingOptions],
    ) -> _Reads:
        """Return an iterator over batches of several sources, which the server draws by their weights.

        >>> sources = [(data.Files("hopper/expert-v0", num_epochs=None), 0.5), (data.Live(4000), 0.5)]  # doctest: +SKIP
        >>> with sampler.read_mix(sources, mix_seed=1) as stream:  # doctest: +SKIP
        ...     for batch in stream:
        ...         update(batch)

        Args:
            sources: pairs of `rollserve.data.Files` or `Live`, and a positive weight.
            batch_size: number of segments of each batch of files.
            mix_seed: seed of the draws.
            until: `first` ends with the first source that has ended; `last` goes on with the others.
            position: `mix_position` of an equal stream, to go on behind its last batch. Live episodes go on in the
                sampler's own sequence.
            options: options of live episodes, and `timeout` and `deadline`; see `rollserve.SamplingOptions`.

        Raises:
            TypeError: an argument of the wrong type, or an unknown option.
            InvalidArgumentError: an argument out of range.
        """
        from rollserve._calls.base_dataset_stream import mix_request
        from rollserve.data.sources import Live

        request = mix_request(
            self._name,
            sources,
            batch_size=batch_size,
            seed=mix_seed,
            until=until,
            position=position,
            reception=self._reception,
            options=options,
        )
        if any(isinstance(source, Live) for source, _ in sources):
            self._own_versions.expect_in_call(request.live_options)
        return self._read_stream(request, self._time_limits(options))

    def vector_env(
        self,
        *,
        autoreset: Literal["next_step", "same_step"] = "next_step",
        seed: int | None = None,
        max_episode_length: int | None = None,
        infos: bool = True,
        fragment_length: int = 128,
        record: bool = False,
        timeout: float | None = None,
    ) -> VectorEnv:
        """Return the rows of the sampler's environments as a `gymnasium.vector.VectorEnv`, which runs on the server.

        Any trainer that steps such environments works with it. Only for samplers that block, from `rollserve.connect`.

        >>> envs = sampler.vector_env(autoreset="same_step")  # doctest: +SKIP
        >>> observations, infos = envs.reset(seed=7)  # doctest: +SKIP

        Args:
            autoreset: when a row is reset whose episode has ended, as gymnasium's `AutoresetMode`: in the step after
                (not where rows are stepped at once), or in the same step.
            seed: seed of the first `reset`, if that brings none; by default, a new one.
            max_episode_length: number of steps after which an episode is truncated.
            infos: whether there are infos of the environments.
            fragment_length: as of `drive`.
            record: whether the steps are recorded, for `VectorEnv.batch`.
            timeout: seconds to wait for a step, instead of the timeout given to `connect`.

        Raises:
            TypeError: a sampler for asyncio, or an argument of the wrong type.
            InvalidArgumentError: an argument out of range.
            ImportError: gymnasium is not installed.
            RollserveError: the session failed.
        """
        self._check_blocks("vector_env")
        check_choice("autoreset", autoreset, ("next_step", "same_step"))
        mode = load("gymnasium.vector", "gymnasium").AutoresetMode[autoreset.upper()]
        from rollserve.vector_env import VectorEnv

        options = {
            "max_episode_length": max_episode_length,
            "infos": infos,
            "fragment_length": fragment_length,
            "record": record,
            "timeout": timeout,
        }
        return VectorEnv(self.drive, mode, seed, options)

    def sb3_vec_env(
        self,
        *,
        seed: int | None = None,
        max_episode_length: int | None = None,
        fragment_length: int = 128,
        record: bool = False,
        timeout: float | None = None,
    ) -> Sb3VecEnv:
        """Return the rows of the sampler's environments as a VecEnv of Stable-Baselines3, which runs on the server.

        Only for samplers that block, from `rollserve.connect`.

        >>> PPO("MlpPolicy", sampler.sb3_vec_env(seed=1)).learn(100_000)  # doctest: +SKIP

        Args:
            seed: as of `vector_env`, and so all others.
            max_episode_length: number of steps after which an episode is truncated.
            fragment_length: as of `drive`.
            record: whether the steps are recorded, for `Sb3VecEnv.batch`.
            timeout: seconds to wait for a step, instead of the timeout given to `connect`.

        Raises:
            TypeError: a sampler for asyncio, or an argument of the wrong type.
            InvalidArgumentError: an argument out of range.
            ImportError: Stable-Baselines3 is not installed.
            RollserveError: the session failed.
        """
        self._check_blocks("sb3_vec_env")
        load("stable_baselines3", "sb3")
        from rollserve.sb3_vec_env import Sb3VecEnv

        options = {
            "max_episode_length": max_episode_length,
            "fragment_length": fragment_length,
            "record": record,
            "timeout": timeout,
        }
        return Sb3VecEnv(self.drive, seed, options)

    def parallel_env(
        self,
        *,
        seed: int | None = None,
        agents: Sequence[str] = (),
        max_episode_length: int | None = None,
        infos: bool = True,
        fragment_length: int = 128,
        record: bool = False,
        timeout: float | None = None,
    ) -> ParallelEnv:
        """Return the sampler's environment with many agents as a `pettingzoo.ParallelEnv`, which runs on the server.

        The sampler has a single row: one worker, and `EnvSpec(num_rows=1)`. Only for samplers that block, from
        `rollserve.connect`.

        >>> observations, infos = sampler.parallel_env().reset(seed=7)  # doctest: +SKIP

        Args:
            seed: root seed of the episodes until `reset` gives another one; by default, they are new ones.
            agents: names of the agents of the environment that is returned; all of them by default. The sampler's
                policies act for the others.
            max_episode_length: number of steps after which an episode is truncated.
            infos: whether there are infos of the environment.
            fragment_length: as of `drive`.
            record: whether the steps are recorded, for `ParallelEnv.batch`.
            timeout: seconds to wait for a step, instead of the timeout given to `connect`.

        Raises:
            TypeError: a sampler for asyncio, or an argument of the wrong type.
            InvalidArgumentError: an argument out of range, several rows, or an environment of another interface.
            ImportError: PettingZoo is not installed.
            RollserveError: the session failed.
        """
        self._check_blocks("parallel_env")
        load("pettingzoo", "pettingzoo")
        from rollserve.pettingzoo_envs import ParallelEnv

        options = {
            "seed": seed,
            "agents": agents,
            "max_episode_length": max_episode_length,
            "infos": infos,
            "fragment_length": fragment_length,
            "record": record,
            "timeout": timeout,
        }
        return ParallelEnv(self.multi_agent.drive, options)

    def aec_env(
        self,
        *,
        seed: int | None = None,
        agents: Sequence[str] = (),
        max_episode_length: int | None = None,
        infos: bool = True,
        fragment_length: int = 128,
        record: bool = False,
        timeout: float | None = None,
    ) -> AecEnv:
        """Return the sampler's environment with many agents as a `pettingzoo.AECEnv`, which runs on the server.

        >>> sampler.aec_env(agents=["player_0"]).reset(seed=7)  # doctest: +SKIP

        Args:
            seed: as of `parallel_env`, and so all others.
            agents: as of `parallel_env`.
            max_episode_length: as of `parallel_env`.
            infos: as of `parallel_env`.
            fragment_length: as of `drive`.
            record: as of `parallel_env`.
            timeout: as of `parallel_env`.

        Raises:
            TypeError, InvalidArgumentError, ImportError, RollserveError: as of `parallel_env`.
        """
        self._check_blocks("aec_env")
        load("pettingzoo", "pettingzoo")
        from rollserve.pettingzoo_envs import AecEnv

        options = {
            "seed": seed,
            "agents": agents,
            "max_episode_length": max_episode_length,
            "infos": infos,
            "fragment_length": fragment_length,
            "record": record,
            "timeout": timeout,
        }
        return AecEnv(self.multi_agent.drive, options)

    def _check_blocks(self, method: str) -> None:
        """Raise TypeError for a sampler for asyncio."""
        if inspect.iscoroutinefunction(self.close):
            expected = "a sampler that blocks, of rollserve.connect"
            raise TypeError(f"{method}: {mismatch(expected, type(self).__name__)}")

    def _read_stream(self, request: pb.ReadDatasetRequest, limits: TimeLimits) -> _Reads:
        raise NotImplementedError

    def _evaluation_reader(
        self, num_episodes: int, return_episodes: bool, options: EvaluationOptions
    ) -> EvaluationReader[Batch]:
        from rollserve._calls.evaluation_readers import EvaluationReader

        reader = EvaluationReader(self._name, num_episodes, return_episodes, self._batch_kind, self._reception, options)
        self._own_versions.expect_in_call(reader.request.options)
        return reader

    def _recording_reader(
        self,
        dataset_id: str,
        num_episodes: int | None,
        num_steps: int | None,
        metadata: Mapping[str, Any] | None,
        options: SamplingOptions,
    ) -> RecordingReader:
        from rollserve.recordings import RecordingReader

        reader = RecordingReader(self._name, dataset_id, num_episodes, num_steps, metadata, self._reception, options)
        self._own_versions.expect_in_call(reader.request.options)
        return reader

    def _population_reader(
        self,
        parameters: MemberParameters,
        num_episodes: int,
        same_episodes: bool,
        options: EvaluationOptions,
    ) -> PopulationReader:
        from rollserve._calls.evaluation_readers import PopulationReader

        reader = PopulationReader(self._name, parameters, num_episodes, same_episodes, options)
        self._own_versions.expect_in_call(reader.request.options)
        return reader

    def _time_limits(self, options: SamplingOptions | EvaluationOptions) -> TimeLimits:
        timeout = options.get("timeout")
        return TimeLimits(self._connection.timeout if timeout is None else timeout, options.get("deadline"))

    def _answer_seconds(self, timeout: float | None) -> float:
        """Return the seconds that a call with a single answer may take; raises as `check_seconds`."""
        seconds = self._connection.timeout if timeout is None else timeout
        check_seconds("timeout", seconds, positive=True)
        return seconds

    def _work_seconds(self, request: object, timeout: float | None) -> float:
        """Return the further seconds that a call may take while its server makes environments or tries agents."""
        return WORK_SECONDS if timeout is None and isinstance(request, _LONG_WORK) else 0.0

    def _opened(self, method: Callable[..., _Result]) -> Callable[..., _Result]:
        """Wrap a method so that it raises the client's own error once the sampler is closed."""

        def call(*arguments: Any, **options: Any) -> _Result:
            if self._contact.is_closed:
                raise closed_error("sampler")
            try:
                return method(*arguments, **options)
            except ValueError:  # gRPC's error for a channel that was closed meanwhile
                if not self._contact.is_closed:
                    raise
                raise closed_error("sampler") from None

        return call


class RawStreamsStub(SamplerServiceStub):
    """The generated stub, except that responses of streams are the serialized bytes.

    The request of UpdateAgent may be serialized, too.
    """

    def __init__(self, channel: Any, metadata: Callable[[], Sequence[tuple[str, str]]] | None = None) -> None:
        """Take the methods of a channel.

        Args:
            channel: the channel.
            metadata: returns the metadata of each call; None for no metadata.
        """
        super().__init__(channel)
        service, *_ = pb.DESCRIPTOR.services_by_name.values()
        for name, request in (
            ("ObtainSamples", pb.ObtainSamplesRequest),
            ("ObtainExactEpisodes", pb.ObtainExactEpisodesRequest),
            ("Evaluate", pb.EvaluateRequest),
            ("EvaluatePopulation", pb.EvaluatePopulationRequest),
            ("RecordDataset", pb.RecordDatasetRequest),
            ("ReadDataset", pb.ReadDatasetRequest),
        ):
            method = channel.unary_stream(f"/{service.full_name}/{name}", request.SerializeToString, None)
            setattr(self, name, method)
        serialize = pb.StreamSamplesRequest.SerializeToString
        self.StreamSamples = channel.stream_stream(f"/{service.full_name}/StreamSamples", serialize, None)
        serialize = pb.DriveEnvironmentsRequest.SerializeToString
        self.DriveEnvironments = channel.stream_stream(f"/{service.full_name}/DriveEnvironments", serialize, None)
        response = pb.UpdateAgentResponse.FromString
        self.UpdateAgent = channel.unary_unary(f"/{service.full_name}/UpdateAgent", _serialize, response)
        if metadata is not None:
            for each in service.methods:
                setattr(self, each.name, _with_metadata(getattr(self, each.name), metadata))


def _with_metadata(method: Callable[..., Any], metadata: Callable[[], Sequence[tuple[str, str]]]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(request: object, **options: Any) -> Any:
        return method(request, metadata=metadata(), **options)

    return call


def _serialize(request: bytes | pb.UpdateAgentRequest) -> bytes:
    return request if isinstance(request, bytes) else request.SerializeToString()
