"""The client: a sampler on a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

import grpc

from rollserve._calls import requests
from rollserve._calls.channel import channel_options
from rollserve._calls.evaluations import EvaluationReader, PopulationReader, receive
from rollserve._calls.requests import Reception
from rollserve._calls.stub import RawStreamsStub
from rollserve._calls.time_limits import DEFAULT_TIMEOUT, TimeLimits, answer_error, countable
from rollserve._checks import check_connection, check_seconds
from rollserve.agent_versions import agent_versions_from_proto, parameters_request, read_parameters
from rollserve.errors import closed_error
from rollserve.sample_stream import SampleStream
from rollserve.status import SamplerStatus, status_from_proto
from rollserve.v1 import sampler_service_pb2 as pb
from rollserve.v1.agent_versions_pb2 import ListAgentVersionsRequest

if TYPE_CHECKING:
    import numpy as np

    from rollserve._calls.evaluations import EvaluationOptions
    from rollserve._calls.requests import AgentUpdate, EnvUpdate, RowEnvUpdates, SamplingOptions
    from rollserve._codec.compression import Compression
    from rollserve.agent_versions import AgentVersion
    from rollserve.environments import EnvChange, EnvSpec, Wrapper
    from rollserve.episode_batch import EpisodeBatch
    from rollserve.episode_buffer import EpisodeBuffer
    from rollserve.evaluation import Evaluation, PopulationEvaluation

__all__ = ["Sampler", "connect"]

_Result = TypeVar("_Result")


def connect(
    target: str,
    *,
    sampler: str = "",
    timeout: float = DEFAULT_TIMEOUT,
    max_message_bytes: int | None = requests.DEFAULT_MESSAGE_BYTES,
    compression: Compression | Sequence[Compression] | None = None,
    shared_memory: bool = False,
) -> Sampler:
    """A sampler on the server at `target`. Connects with the first call.

    Args:
        target: where the server listens: "host:port", or anything with a scheme of gRPC's, such as "unix:/a/path".
        sampler: the sampler's name; empty for the default one.
        timeout: seconds that an update may take, and that a sampling call may go without any progress: a long call
            does not hit it while it makes steps. `float("inf")` for no limit.
        max_message_bytes: the largest message to be received; 8 MiB unless given, and with None what gRPC takes anyway.
        compression: "lz4", "zstd", or several, the best one first: how columns may come compressed, if that makes them
            smaller. Needs the extra `rollserve[compression]`. None for not at all.
        shared_memory: whether large messages may come through memory that is shared with the server, which takes less
            time: if that runs on the same machine and was started with some by the same user. Else they are sent as
            usual; `account.shared_message_bytes` tells.

    Raises:
        TypeError: an argument is of another type.
        InvalidArgumentError: an argument has a value that is of no use.
        ModuleNotFoundError: a package that the compression needs is not installed.
    """
    check_connection(target, sampler, timeout, max_message_bytes)
    reception = Reception.of(max_message_bytes, compression, shared_memory)
    channel = grpc.insecure_channel(target, options=channel_options(max_message_bytes))
    return Sampler(channel, sampler=sampler, timeout=timeout, reception=reception)


class Sampler:
    """Sends agents and environments to a sampler, and receives episodes from it. Safe to use from several threads.

    All methods raise a `RollserveError` if the call fails; its subclasses say what can be done (see
    `rollserve.errors`). An argument of a wrong type is a TypeError. An update that fails has changed nothing on the
    server. A sampling call that fails or is cancelled uses up the indices of the episodes that it may have delivered,
    if it went on in the sampler's own sequence; one for fragments has not happened. Keyword `timeout` replaces the one
    given to `connect` for one call.
    """

    def __init__(self, channel: grpc.Channel, *, sampler: str, timeout: float, reception: Reception) -> None:
        self._channel = channel
        self._stub = RawStreamsStub(channel)
        self._name = sampler
        self._timeout = timeout
        self._reception = reception
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection and ends calls that are running: they raise a CancelledError, as do later ones."""
        self._closed = True
        self._channel.close()

    def update_agent(
        self,
        agent: AgentUpdate | None = None,
        *,
        per_worker: Sequence[AgentUpdate] | None = None,
        skip_if_identical: bool = False,
        timeout: float | None = None,
    ) -> int:
        """Gives the workers a new agent, or new parameters for the one that they have.

        Args:
            agent: for all workers, a full agent, or a mapping with the parameters of the agent that is there: of an MLP
                all, of an ONNX model or an agent in Python any; the others stay as they are.
            per_worker: instead, one for each worker.
            skip_if_identical: whether to do nothing if each worker's agent is already what the update would make of it,
                to the last bit.
            timeout: see the class.

        Returns:
            The new policy version, once every worker holds it; or the one that is there, if there was nothing to do.
        """
        request = requests.update_agent_request(self._name, agent, per_worker, skip_if_identical)
        return self._call(self._stub.UpdateAgent, request, timeout).policy_version

    def update_env(
        self,
        env: str | EnvSpec | EnvChange | RowEnvUpdates | None = None,
        *,
        kwargs: Mapping[str, object] | None = None,
        wrappers: Sequence[Wrapper] = (),
        per_worker: Sequence[EnvSpec | EnvChange | RowEnvUpdates] | None = None,
        timeout: float | None = None,
    ) -> EnvUpdate:
        """Replaces or changes the workers' environments.

        Args:
            env: for all workers, a spec, a change of the one that is there, or an id to go with the next two arguments.
                A list has a spec or change for each row of a worker, or None to leave the row's environment as it is;
                the episode of index i then runs in row i modulo the number of all rows.
            kwargs: arguments of the environment, as JSON has them.
            wrappers: wrappers around the environment, innermost first.
            per_worker: instead, a spec, a change or such a list for each worker; the spaces of all must be equal.
            timeout: see the class.

        Returns:
            The new version and spaces, once every worker has its environments.
        """
        request = requests.update_env_request(self._name, env, kwargs, wrappers, per_worker)
        return requests.env_update_from_proto(self._call(self._stub.UpdateEnv, request, timeout))

    def resize(self, num_workers: int, *, timeout: float | None = None) -> int:
        """Adds workers behind the last one, or takes away those of the highest indices, while the sampler runs.

        Calls that are running keep the workers that they began with; calls that begin later have the new ones. Whole
        episodes of `obtain_samples` and evaluations stay the same. Another number of workers has other exact episodes
        and other fragments: those go on in a new sequence.

        Args:
            num_workers: how many there are to be, from 1 to 10,000.
            timeout: see the class. The server itself gives up when workers have not started in the time that it is set
                to, 120 seconds unless it is set otherwise. Nothing has changed then.

        Returns:
            How many there were.
        """
        request = requests.resize_request(self._name, num_workers)
        return self._call(self._stub.ResizePool, request, timeout).previous_worker_count

    def obtain_samples(
        self, num_steps: int, *, out: EpisodeBuffer | None = None, **options: Unpack[SamplingOptions]
    ) -> EpisodeBatch:
        """Whole episodes with at least `num_steps` steps in all.

        Args:
            num_steps: how many steps at least; positive.
            out: memory to read the batch into, instead of new arrays; see `rollserve.EpisodeBuffer`.
            options: `seed`, `first_episode_index`, `max_episode_length`, `expected_policy_version`,
                `min_policy_version`, `policy_version`, `env_version`, `timeout`, `deadline`, `compression`,
                `frames_once`, `prefetch` and `return_states`; `rollserve.SamplingOptions` says what they are, and which
                others there are.
        """
        requests.check_joinable(options.get("blackhole"))
        with self.stream_samples(num_steps, **options) as stream:
            return stream.join(out=out)

    def obtain_exact_episodes(
        self,
        num_episodes_per_worker: int,
        *,
        out: EpisodeBuffer | None = None,
        **options: Unpack[SamplingOptions],
    ) -> EpisodeBatch:
        """Exactly so many episodes of each worker: first all of worker 0, then all of worker 1, and so on.

        Args:
            num_episodes_per_worker: how many; positive.
            out: as of `obtain_samples`.
            options: as of `obtain_samples`.
        """
        requests.check_joinable(options.get("blackhole"))
        with self.stream_exact_episodes(num_episodes_per_worker, **options) as stream:
            return stream.join(out=out)

    def obtain_fragments(
        self,
        num_steps: int,
        *,
        soft_horizon: bool = False,
        row_step_count: int | None = None,
        fraction_of_workers: float | None = None,
        out: EpisodeBuffer | None = None,
        **options: Unpack[SamplingOptions],
    ) -> EpisodeBatch:
        """Exactly `num_steps` steps, as many of each row of environments; episodes go on from call to call.

        The segments are fragments: what the call brings of an episode. First come all of worker 0, then all of worker
        1, and so on; of each worker those of episodes that ended, in the order in which they did, then those of the
        episodes that go on, by row. One that goes on has neither flag set. `first_steps` says how many steps of its
        episode came with calls before; its `episode_indices` are those of the row's other episodes plus the number of
        rows.

        An agent update leaves the rows as they are, an update of the environments begins anew. A call that fails has
        not happened: the next one goes on where it did.

        Args:
            num_steps: how many steps; a multiple of the number of rows of all workers.
            soft_horizon: whether an episode that reaches `max_episode_length` ends without a reset: the row's next one
                begins where it stands.
            row_step_count: with `seed`, where its rows are to stand at the beginning, in steps that each has made, as
                `account.row_step_count` says: where they are now, or where they were before the last call, to repeat
                it. Unless given, a seed begins at its first step.
            fraction_of_workers: which part of the workers has to make all their steps, over 0 and up to 1. As soon as
                so many have, the others stop where they are, and the batch has what came: fewer steps than were asked
                for, by `account.num_missing_steps`. Their rows go on from there with the next call. Such a call is not
                taken up again if its connection breaks: it has not happened, as one that fails. Unless given, all.
            out: as of `obtain_samples`.
            options: as of `obtain_samples`, but for `first_episode_index` and `prefetch`.
        """
        requests.check_joinable(options.get("blackhole"))
        with self.stream_fragments(
            num_steps,
            soft_horizon=soft_horizon,
            row_step_count=row_step_count,
            fraction_of_workers=fraction_of_workers,
            **options,
        ) as stream:
            return stream.join(out=out)

    def stream_samples(self, num_steps: int, **options: Unpack[SamplingOptions]) -> SampleStream:
        """What `obtain_samples` returns, message by message as it comes. An episode may go on in the next one.

        Arguments as of `obtain_samples`, and `blackhole`: `list(stream)` is then empty, and `stream.end()` the account.
        """
        request = requests.samples_request(self._name, num_steps, self._reception, options)
        return SampleStream(self._opened(self._stub.ObtainSamples), request, self._time_limits(options))

    def stream_fragments(
        self,
        num_steps: int,
        *,
        soft_horizon: bool = False,
        row_step_count: int | None = None,
        fraction_of_workers: float | None = None,
        **options: Unpack[SamplingOptions],
    ) -> SampleStream:
        """What `obtain_fragments` returns, message by message as it comes. A fragment may go on in the next one.

        Arguments as of `obtain_fragments`, and `blackhole` as of `stream_samples`.
        """
        request = requests.fragments_request(
            self._name, num_steps, soft_horizon, row_step_count, fraction_of_workers, self._reception, options
        )
        return SampleStream(self._opened(self._stub.ObtainSamples), request, self._time_limits(options))

    def stream_exact_episodes(self, num_episodes_per_worker: int, **options: Unpack[SamplingOptions]) -> SampleStream:
        """What `obtain_exact_episodes` returns, message by message as it comes.

        Arguments as of `obtain_exact_episodes`, and `blackhole` as of `stream_samples`.
        """
        request = requests.exact_episodes_request(self._name, num_episodes_per_worker, self._reception, options)
        return SampleStream(self._opened(self._stub.ObtainExactEpisodes), request, self._time_limits(options))

    def evaluate(
        self, num_episodes: int, *, return_episodes: bool = False, **options: Unpack[EvaluationOptions]
    ) -> Evaluation:
        """What so many episodes of the agent come to, in environments that are there for evaluations alone.

        Nothing of the sampler's own is used or changed by it.

        Args:
            num_episodes: how many, from 1 to 131,072.
            return_episodes: whether the result has the episodes themselves, too.
            options: `deterministic`, `env`, `seed` and others; `rollserve.EvaluationOptions` says what they are.
        """
        reader = EvaluationReader(self._name, num_episodes, return_episodes, self._reception, options)
        return receive(self._opened(self._stub.Evaluate), reader, self._time_limits(options))

    def evaluate_population(
        self,
        parameters: Mapping[str, np.ndarray],
        num_episodes: int,
        *,
        same_episodes: bool = True,
        **options: Unpack[EvaluationOptions],
    ) -> PopulationEvaluation:
        """What so many episodes of each of K parameter sets of the agent come to.

        They are the same as those of `evaluate` after an update with the member's parameters, where environments are
        stepped row by row. Nothing of the sampler's own is used or changed by it.

        Args:
            parameters: by name (K, …), parameters of the agent that is there for K members; those that are left out are
                the agent's own.
            num_episodes: how many each member has; together at most 131,072.
            same_episodes: whether all members have the same seeds.
            options: as of `evaluate`.
        """
        reader = PopulationReader(self._name, parameters, num_episodes, same_episodes, options)
        return receive(self._opened(self._stub.EvaluatePopulation), reader, self._time_limits(options))

    def status(self, *, timeout: float | None = None) -> SamplerStatus:
        """What the sampler is and what it has done."""
        request = pb.GetSamplerRequest(sampler=self._name)
        return status_from_proto(self._call(self._stub.GetSampler, request, timeout))

    def agent_versions(self, *, timeout: float | None = None) -> Sequence[AgentVersion]:
        """The versions of the agent that the sampler holds, in rising order."""
        request = ListAgentVersionsRequest(sampler=self._name)
        return agent_versions_from_proto(self._call(self._stub.ListAgentVersions, request, timeout))

    def agent_parameters(
        self,
        version: int | None = None,
        *,
        worker: int | None = None,
        names: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> dict[str, np.ndarray]:
        """The parameters of an agent that the sampler holds; none of a kind that has none.

        Args:
            version: which version; the current one unless given.
            worker: whose agent, where workers have agents of their own; that of worker 0 unless given.
            names: which parameters; all unless given.
            timeout: see the class.

        Returns:
            By name, arrays that nobody else has.
        """
        limit = self._reception.max_message_bytes
        request = parameters_request(self._name, version, worker, names, limit)
        return self._call(read_parameters(self._stub.GetAgentParameters), request, timeout)

    def _time_limits(self, options: SamplingOptions | EvaluationOptions) -> TimeLimits:
        timeout = options.get("timeout")
        return TimeLimits(self._timeout if timeout is None else timeout, options.get("deadline"))

    def _call(self, method: Callable[..., _Result], request: object, timeout: float | None) -> _Result:
        seconds = self._timeout if timeout is None else timeout
        check_seconds("timeout", seconds, positive=True)
        try:
            return self._opened(method)(request, timeout=countable(seconds))
        except grpc.RpcError as error:
            raise answer_error(error, seconds) from error

    def _opened(self, method: Callable[..., _Result]) -> Callable[..., _Result]:
        """The method, which raises an error of this package when the sampler is closed."""

        def call(*arguments: Any, **options: Any) -> _Result:
            try:
                return method(*arguments, **options)
            except ValueError:  # what gRPC raises for a closed channel
                if not self._closed:
                    raise
                raise closed_error("sampler") from None

        return call
