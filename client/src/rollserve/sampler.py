# Generated from async_sampler.py by `make blocking`.
"""Client of a sampler on a server."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack, overload

from rollserve._calls import requests
from rollserve._calls.answers import DataCollector
from rollserve._calls.connection import Connection
from rollserve._calls.receiving import collected, receive, receive_answer
from rollserve._calls.requests import restore_request
from rollserve._calls.time_limits import DEFAULT_RENDER_SECONDS, DEFAULT_TIMEOUT
from rollserve.base_sampler import BaseSampler
from rollserve.episode_batch import EpisodeBatch
from rollserve.multi_agent_batch import Batch, MultiAgentBatch
from rollserve.options import list_options
from rollserve.sample_stream import SampleStream
from rollserve.status import SamplerStatus, samplers_from_proto, status_from_proto
from rollserve_wire.environments import env_update_from_proto, env_values_from_proto
from rollserve_wire.errors import InvalidArgumentError, PreconditionError, mismatch
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1 import samplers_pb2, settings_pb2
from rollserve_wire.v1.agent_versions_pb2 import ListAgentVersionsRequest

if TYPE_CHECKING:
    import os

    import grpc
    import numpy as np

    from rollserve._calls.base_round_stream import StreamParts
    from rollserve._calls.evaluation_readers import Reader
    from rollserve._calls.resumption import Request
    from rollserve._calls.time_limits import TimeLimits
    from rollserve.agent_versions import AgentVersion
    from rollserve.agents import Agent, AgentUpdate, MemberParameters
    from rollserve.cross_play import CrossPlay, Player, Seat
    from rollserve.dataset_stream import DatasetStream
    from rollserve.episode_buffer import EpisodeBuffer
    from rollserve.episode_records import EpisodeRecords, RecordPosition
    from rollserve.evaluation import Evaluation, PopulationEvaluation
    from rollserve.iterations import Iterations
    from rollserve.multi_agent_step import MultiAgentStep
    from rollserve.options import Compression, DriveOptions, EvaluationOptions, SamplingOptions
    from rollserve.record_stream import RecordStream
    from rollserve.recordings import Recording
    from rollserve.round_stream import RoundStream
    from rollserve.session import Session
    from rollserve.session_rounds import SessionRounds
    from rollserve.status import Quota, SamplerSummary, SettingsReload
    from rollserve.video import Overlay, Video, VideoFormat
    from rollserve_wire.environments import EnvChange, EnvSpec, EnvUpdate, RowEnvUpdates, Wrapper
    from rollserve_wire.moments import RunningMoments

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
    shared: bool = False,
    credentials: grpc.ChannelCredentials | None = None,
    ca: str | os.PathLike[str] | None = None,
    cert: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
    token: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
) -> Sampler:
    """Return a sampler on the server at `target`. The first call opens the connection.

    >>> with rollserve.connect("127.0.0.1:50051") as sampler:  # doctest: +SKIP
    ...     sampler.update_agent(rollserve.RandomAgent())
    ...     batch = sampler.obtain_samples(10_000)

    Args:
        target: address of the server: "host:port", or a name with one of gRPC's schemes, such as "unix:/a/path"; or the
            name of a context, a table of the file `~/.config/rollserve/contexts.toml` with the keys `address`, `ca`,
            `cert`, `key` and `token_file`. Several addresses with commas between them, or "dns:///host:port" for all
            addresses of a name, stand for several gateways; one of them has the sampler.
        sampler: name of the sampler; empty for the default one.
        timeout: seconds that an update may take, and that a sampling call may go without any progress. A long call does
            not reach the timeout as long as it makes steps. A call that begins while the server is away waits for it as
            long, if the server has answered before; otherwise it fails at once. `float("inf")` for no limit.
        max_message_bytes: size of the largest message to receive, 8 MiB by default; None for gRPC's own limit.
        compression: "lz4", "zstd" or a sequence of them, best first: codecs that the server may use for columns that
            they make smaller. Needs the extra `rollserve[compression]`. None for no compression.
        shared_memory: whether large messages may be received through memory shared with the server, which takes less
            time. That works if the server runs on the same machine for the same user and was started with
            `--shared-memory-bytes`; otherwise messages are sent as usual. `account.shared_message_bytes` says how much
            was received that way.
        shared: whether the client uses agents and environments that other clients of the same sampler set. By default,
            calls fail with a PreconditionError (`Reason.UNEXPECTED_VERSION`) once another client has replaced or
            changed what this client set. A client that has set nothing uses the present agent and environment.
        credentials: credentials of gRPC, which encrypt the connection, instead of files.
        ca: PEM file with certificates of authorities, to encrypt the connection if one of them signed the server's.
            Without it, and with `cert` or `credentials`, gRPC's own list of authorities counts. By default the
            environment variable ROLLSERVE_CA names the file, or the context if `target` is one; without any file the
            connection is not encrypted.
        cert: PEM file with a certificate of the client, for servers that ask for one; by default ROLLSERVE_CERT.
        key: PEM file with its private key; by default ROLLSERVE_KEY.
        token: bearer token, for servers that ask who their clients are; by default ROLLSERVE_TOKEN. Connections that
            leave this machine have to be encrypted.
        token_file: file with the token instead, which is read for each call; by default ROLLSERVE_TOKEN_FILE.

    Raises:
        TypeError: an argument of the wrong type.
        InvalidArgumentError: an argument with an invalid value.
        ModuleNotFoundError: a codec whose package is not installed.
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
    return Sampler(connection, EpisodeBatch)


@list_options
class Sampler(BaseSampler[SampleStream[Batch], "RoundStream[Batch]", "DatasetStream", Batch], Generic[Batch]):
    """Client of a sampler: sends agents and environments, and receives episodes. Thread-safe.

    `rollserve.connect` returns one. A `with` block closes the connection at its end. A pickle carries the
    arguments of `connect`, and the unpickled sampler connects with its first call.

    All methods raise a `RollserveError` if the call fails; its subclasses say what the caller can do. An argument of
    the wrong type raises a TypeError. The keyword argument `timeout` of a method replaces the one of `connect` for a
    call.

    Calls sample with the agent and the environment that this client set, or fail with a PreconditionError
    (`Reason.UNEXPECTED_VERSION`) if another client has updated them since, unless `connect` was given `shared=True`.
    What this client has not set, or what a call names by `policy_version` or `env_version`, may be anybody's.

    An update that fails changes nothing on the server. A sampling call that fails or is cancelled uses up the indices
    of the episodes that it may have delivered, if it continued the sampler's own sequence. A fragment call that fails
    or is cancelled leaves the rows where they were.
    """

    def __init__(self, connection: Connection, batch_kind: type[Batch], channel: grpc.Channel | None = None) -> None:
        super().__init__(connection, batch_kind)
        self._channel = connection.channel(self._contact.gateways) if channel is None else channel

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. Calls that are running, and later ones, raise a `rollserve.CancelledError`."""
        self._contact.is_closed = True
        self._channel.close()

    @functools.cached_property
    def multi_agent(self) -> Sampler[MultiAgentBatch]:
        """A sampler for an environment with many agents, over this connection: its calls return a `MultiAgentBatch`.

        Both share the connection, and the versions that this client has set.

        >>> batch = sampler.multi_agent.obtain_samples(10_000)  # doctest: +SKIP
        >>> batch.by_policy()["predator"].rewards.mean()  # doctest: +SKIP
        """
        sampler = Sampler(self._connection, MultiAgentBatch, self._channel)
        sampler._own_versions, sampler._contact = self._own_versions, self._contact
        return sampler

    def update_agent(
        self,
        agent: AgentUpdate | None = None,
        *,
        per_worker: Sequence[AgentUpdate | None] | None = None,
        skip_if_identical: bool = False,
        observation_moments: RunningMoments | Mapping[str, RunningMoments] | None = None,
        timeout: float | None = None,
    ) -> int:
        """Give the workers a new agent, or new parameters for the present one.

        >>> sampler.update_agent(rollserve.MlpAgent(parameters, "categorical"))  # doctest: +SKIP

        Args:
            agent: update for all workers: a whole agent, or a mapping from names to arrays with parameters for the
                present agent. For an MLP the mapping has all parameters; for an ONNX or Python agent it has any, and
                the others stay as they are. Or an `AgentChange` of the settings of the present Python agent. For an
                environment with many agents, `Policies`, or a mapping from names of policies to such updates.
            per_worker: instead of `agent`, one update for each worker, or None to leave the worker's agent as it is.
            skip_if_identical: whether to do nothing if the update would leave each worker's agent the same, bit for
                bit.
            observation_moments: moments whose mean and variance become the parameters `observation/mean` and
                `observation/variance` of the update, so that the agent normalizes by them; of no step, they leave the
                update as it is. For policies by name, a mapping from names among theirs to moments.
            timeout: seconds to wait for the answer, instead of the timeout given to `connect`.

        Returns:
            The new policy version, once every worker has it; or the current version, if nothing was done.

        Raises:
            RollserveError: the call failed.
            TypeError: an argument of the wrong type.
            ValueError: an array of a dtype that cannot be sent.
        """
        request = requests.update_agent_request(
            self._name, self._own_versions, agent, per_worker, skip_if_identical, observation_moments
        )
        return self._own_versions.set_agent(self._call(self._stub.UpdateAgent, request, timeout))

    def update_env(
        self,
        env: str | EnvSpec | EnvChange | RowEnvUpdates | None = None,
        *,
        kwargs: Mapping[str, object] | None = None,
        wrappers: Sequence[Wrapper] = (),
        per_worker: Sequence[EnvSpec | EnvChange | RowEnvUpdates | None] | None = None,
        timeout: float | None = None,
    ) -> EnvUpdate:
        """Replace or change the workers' environments.

        >>> env = sampler.update_env("CartPole-v1", kwargs={"max_episode_steps": 200})  # doctest: +SKIP

        Args:
            env: update for all workers: an id, a specification, or a change of the present environment. A list has a
                specification or a change for each row of a worker, or None to leave the row's environment as it is;
                the episode of index i then runs in row i modulo the number of all rows.
            kwargs: keyword arguments of the environment, if `env` is an id. JSON has to be able to hold them.
            wrappers: wrappers around the environment, innermost first, if `env` is an id.
            per_worker: instead of `env`, a specification, a change or such a list for each worker, or None to leave the
                worker's environments as they are; they are only reset, like all others. The spaces of all workers must
                be equal.
            timeout: seconds to wait for the answer, instead of the timeout given to `connect`.

        Returns:
            The new version and spaces, once every worker has its environments.

        Raises:
            RollserveError: the call failed.
            TypeError: an argument of the wrong type.
            ValueError: an argument that JSON cannot hold.
        """
        request = requests.update_env_request(self._name, self._own_versions, env, kwargs, wrappers, per_worker)
        updated = env_update_from_proto(self._call(self._stub.UpdateEnv, request, timeout), request)
        self._own_versions.env_version = updated.env_version
        return updated

    def call_environments(
        self, method: str, *arguments: object, env_version: int | None = None, timeout: float | None = None
    ) -> list[Any]:
        """Call a method of the workers' environments, and return its values.

        Each environment is made for the call, with its arguments, wrappers and task, and thrown away afterwards. So the
        method has no effect on episodes: a curriculum asks here, and sets tasks by `update_env(EnvChange(task=…))`.

        >>> sampler.call_environments("describe_task", {"level": 3})  # doctest: +SKIP

        Args:
            method: name of a method of the environment or of a wrapper; servers allow the methods of `--allow-method`.
            arguments: the method's arguments; JSON has to be able to hold them.
            env_version: version of the environments; None for the current one.
            timeout: seconds to wait for the answer, instead of the timeout given to `connect`.

        Returns:
            The values, from JSON: one for each element of `status().envs`. That is one if all workers have the same
            environment, else one for each worker, or one for each row of each worker.

        Raises:
            RollserveError: the call failed.
            TypeError: an argument of the wrong type.
            ValueError: an argument that JSON cannot hold.
        """
        request = requests.call_environments_request(self._name, self._own_versions, method, arguments, env_version)
        return env_values_from_proto(self._call(self._stub.CallEnvironments, request, timeout))

    def resize(self, num_workers: int, *, timeout: float | None = None) -> int:
        """Add workers after the last one, or remove those with the highest indices, while the sampler runs.

        Calls that are running keep the workers they began with; later calls have the new ones. Whole episodes of
        `obtain_samples` and evaluations stay the same. Exact episodes and fragments depend on the number of workers:
        fragments continue in a new sequence.

        Args:
            num_workers: new number of workers, from 1 to 10,000, which from then on does not follow the load; 0 to have
                it follow the load again, if the server's operator has allowed that.
            timeout: seconds to wait for the answer. The server gives up if workers have not started within its own
                limit, 120 seconds by default; nothing has changed then.

        Returns:
            The previous number of workers.
        """
        request = requests.resize_request(self._name, num_workers)
        return self._call(self._stub.ResizePool, request, timeout).previous_worker_count

    def iterations(
        self: Sampler[EpisodeBatch],
        trained_agent: Agent | Callable[[], AgentUpdate],
        num_iterations: int,
        *,
        steps_per_row: int,
        max_policy_lag: int = 0,
        state: Mapping[str, np.ndarray] | None = None,
        **options: Unpack[SamplingOptions],
    ) -> Iterations:
        """Return an iterator over the batches of an on-policy trainer, such as PPO, which sends and normalizes.

        Before each batch, and after the last one, it sends the agent's parameters as they are then. If the agent
        normalizes observations, the iterator keeps their moments, writes their mean and variance into the agent's
        `parameters`, as far as these are arrays of numpy that can be written, and sends them. Observations of the
        batches are normalized as the agent did. With `return_discount`, their rewards are scaled by the moments of the
        discounted returns; `raw_rewards` has the environment's own.

        >>> iterations = sampler.iterations(agent, 100, steps_per_row=256, return_last_values=True)  # doctest: +SKIP
        >>> for batch in iterations:  # doctest: +SKIP
        ...     advantages, value_targets = batch.advantages(0.99, 0.95)
        ...     ...  # steps of the optimizer
        ...     print(iterations)  # progress

        Args:
            trained_agent: an agent with parameters: it is sent whole at first, and later what its `parameters` are
                then, such as those of `MlpAgent.from_torch`, which are the modules' own memory. Or a function that
                returns an update for each iteration.
            num_iterations: number of iterations, and of batches; positive.
            steps_per_row: number of steps of each row in an iteration, as of `obtain_fragments`.
            max_policy_lag: number of updates that the trainer may be ahead of the policy that acts. With 0, workers
                wait while the trainer learns. With 1, they sample the next batch meanwhile, by the version before.
            state: `state()` of earlier iterations, to go on with their moments.
            options: as of `stream`.

        Raises:
            TypeError: an argument of the wrong type, such as an agent without parameters.
            InvalidArgumentError: a number out of range.
            ValueError: a state of something else.
        """
        from rollserve._calls.base_iterations import IterationParts
        from rollserve.iterations import Iterations

        if self._batch_kind is not EpisodeBatch:
            raise TypeError(f"sampler: {mismatch('a sampler for one agent', 'one for many')}")
        return Iterations(
            IterationParts(
                trained_agent,
                num_iterations,
                steps_per_row,
                max_policy_lag,
                state,
                options,
                self.status,
                self.update_agent,
                self.stream,
            )
        )

    def obtain_samples(
        self, num_steps: int, *, out: EpisodeBuffer | None = None, **options: Unpack[SamplingOptions]
    ) -> Batch:
        """Sample whole episodes with at least `num_steps` steps in all.

        In an environment with many agents, `sampler.multi_agent` has this method, which returns a MultiAgentBatch.

        >>> batch = sampler.obtain_samples(10_000, seed=7)  # doctest: +SKIP

        Args:
            num_steps: minimum number of steps; positive.
            out: buffer to read the batch into, instead of new arrays; see `rollserve.EpisodeBuffer`.
            options: `seed`, `max_episode_length`, `policy_version`, `deterministic`, `timeout`, `deadline`, `prefetch`,
                `progress` and others; `rollserve.SamplingOptions` describes them all.

        Raises:
            RollserveError: the call failed.
            TypeError: an argument of the wrong type, or an unknown option.
            ValueError: another call uses the buffer.
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
    ) -> Batch:
        """Sample an exact number of episodes on each worker: first all of worker 0, then all of worker 1, and so on.

        In an environment with many agents, `sampler.multi_agent` has this method, which returns a MultiAgentBatch.

        Args:
            num_episodes_per_worker: number of episodes of each worker; positive.
            out: buffer to read the batch into, instead of new arrays; see `rollserve.EpisodeBuffer`.
            options: see `rollserve.SamplingOptions`.

        Raises:
            RollserveError: the call failed.
            TypeError: an argument of the wrong type, or an unknown option.
            ValueError: another call uses the buffer.
        """
        requests.check_joinable(options.get("blackhole"))
        with self.stream_exact_episodes(num_episodes_per_worker, **options) as stream:
            return stream.join(out=out)

    def obtain_fragments(
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
    ) -> Batch:
        """Sample exactly a number of steps, the same number of each row; episodes continue from call to call.

        Each segment is a fragment: the part of an episode that this call delivers. Fragments are ordered by worker. Of
        each worker, the fragments of episodes that ended are first, in the order of their ends, followed by the
        fragments of episodes that go on, by row. A fragment of an episode that goes on has neither flag set.
        `first_steps` is the number of steps of the episode that earlier calls delivered. The `episode_indices` of a row
        rise by the number of rows from episode to episode.

        In an environment with many agents, `sampler.multi_agent` has this method, which returns a MultiAgentBatch.

        An update of the agent leaves the rows as they are; an update of the environments starts them over. A call that
        fails leaves the rows where they were, and the next call continues from there.

        >>> batch = sampler.obtain_fragments(steps_per_row=100)  # doctest: +SKIP
        >>> batch = sampler.obtain_fragments(800)  # of 8 rows, 100 steps each  # doctest: +SKIP

        Args:
            num_steps: number of steps; a multiple of the number of rows of all workers.
            steps_per_row: number of steps of each row, instead of `num_steps`. The client asks the server first how
                many rows there are.
            soft_horizon: whether an episode that reaches `max_episode_length` ends without a reset, so that the row's
                next episode begins where this one ends.
            row_step_count: with `seed`, position of the rows at the beginning, in steps that each row has made, as in
                `account.row_step_count`: their present position, or the one before the last call, to repeat that call.
                By default, a seed begins at its first step.
            fraction_of_workers: fraction of the workers that have to make all their steps, above 0 and up to 1. As soon
                as that many have, the others stop, and the batch has fewer steps than requested, by
                `account.num_missing_steps`. Their rows continue from there with the next call. Such a call is not
                resumed if its connection breaks: it fails, and leaves the rows where they were. By default, all
                workers make all their steps.
            fraction_of_samples: beside `fraction_of_workers`, fraction of its steps that each of the other workers has
                to make before it stops, from 0, the default, to 1.
            out: buffer to read the batch into, instead of new arrays; see `rollserve.EpisodeBuffer`.
            options: see `rollserve.SamplingOptions`; not `first_episode_index`, `prefetch` or `skip_failed_episodes`.

        Raises:
            RollserveError: the call failed.
            TypeError: an argument of the wrong type, or an unknown option.
            ValueError: another call uses the buffer.
        """
        requests.check_joinable(options.get("blackhole"))
        if num_steps is None or steps_per_row is not None:
            num_steps = requests.checked_steps_per_row(num_steps, steps_per_row) * self.status().num_rows
        with self.stream_fragments(
            num_steps,
            soft_horizon=soft_horizon,
            row_step_count=row_step_count,
            fraction_of_workers=fraction_of_workers,
            fraction_of_samples=fraction_of_samples,
            **options,
        ) as stream:
            return stream.join(out=out)

    def evaluate(
        self, num_episodes: int, *, return_episodes: bool = False, **options: Unpack[EvaluationOptions]
    ) -> Evaluation[Batch]:
        """Evaluate the agent on a number of episodes, in environments that only evaluations use.

        An evaluation uses and changes nothing of the sampler's own, such as its sequence or its environments.

        >>> print(sampler.evaluate(100, deterministic=True))  # doctest: +SKIP
        return 487.2 ± 4.1, length 487.2 ± 4.1 (100 episodes of policy version 12)

        Args:
            num_episodes: number of episodes, from 1 to 131,072.
            return_episodes: whether the result includes the episodes themselves.
            options: `deterministic`, `env`, `seed`, `progress` and others; `rollserve.EvaluationOptions` describes them
                all.

        Raises:
            RollserveError: the call failed.
            TypeError: an argument of the wrong type, or an unknown option.
        """
        reader = self._evaluation_reader(num_episodes, return_episodes, options)
        return self._receive(self._stub.Evaluate, reader, options)

    def cross_play(
        self,
        players: Sequence[Player],
        num_episodes: int,
        *,
        opponents: Sequence[Player] | None = None,
        seats: tuple[Seat, Seat] = (0, 1),
        **options: Unpack[EvaluationOptions],
    ) -> CrossPlay:
        """Let policies play against each other in an environment with many agents, and rate them.

        All pairings are one evaluation, which uses and changes nothing of the sampler's own.

        >>> print(sampler.cross_play(["main", ("main", -1), "random"], 100))  # doctest: +SKIP

        Args:
            players: policies that the sampler holds, or pairs (policy, version) as in a policy map.
            num_episodes: number of episodes of each pairing. Each two players are two pairings, one for each order of
                the seats.
            opponents: policies for the second seat, against which the players are paired in the first one; None for
                each player against each other, in both orders.
            seats: the agents that the two of a pairing act for: each a key of a policy map, such as `0` or
                `"adversary_*"`, or a tuple of them.
            options: see `rollserve.EvaluationOptions`; not `policy_map`.

        Raises:
            RollserveError: the call failed.
            TypeError: an argument of the wrong type, or an unknown option.
            InvalidArgumentError: too few players, one twice, seats that no agent has or that leave out one, or a return
                that is NaN.
        """
        from rollserve.cross_play import Pairings

        pairings = Pairings.of(players, opponents, seats)
        with pairings.evaluated():
            evaluation = self.evaluate(pairings.num_episodes(num_episodes), **pairings.options(options))
        return pairings.results(evaluation)

    def evaluate_population(
        self,
        parameters: MemberParameters,
        num_episodes: int,
        *,
        same_episodes: bool = True,
        **options: Unpack[EvaluationOptions],
    ) -> PopulationEvaluation:
        """Evaluate K parameter sets of the agent, or of some policies by name, on a number of episodes each.

        A member's results equal what `evaluate` returns after an update with its parameters, where rows are stepped one
        by one. An evaluation uses and changes nothing of the sampler's own.

        >>> members = {name: np.stack([...]) for name in agent.parameters}  # (K, …) each  # doctest: +SKIP
        >>> result = sampler.evaluate_population(members, 4)  # doctest: +SKIP

        In an environment with many agents, members have the parameters of one or several policies, and all other
        policies are as they are.

        >>> result = sampler.evaluate_population({"red": members}, 4)  # doctest: +SKIP
        >>> result.by_policy()[("red", 0)].mean(axis=1)  # (K,)  # doctest: +SKIP

        Args:
            parameters: arrays of shape (K, …) by name, with parameters of the present agent for each of the K members.
                The members share the agent's own values of parameters that are left out. In an environment with many
                agents, such mappings by the name of the policy.
            num_episodes: number of episodes of each member; at most 131,072 for all members together.
            same_episodes: whether all members have the same seeds.
            options: see `rollserve.EvaluationOptions`; not `skip_failed_episodes`.

        Raises:
            RollserveError: the call failed.
            TypeError: an argument of the wrong type, or an unknown option.
            ValueError: an array of a dtype that cannot be sent.
        """
        reader = self._population_reader(parameters, num_episodes, same_episodes, options)
        return self._receive(self._stub.EvaluatePopulation, reader, options)

    def render(
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
        """Return a video of an episode, which the server replays in an environment of its own.

        The episode comes from a batch, or the server samples it for the video: the episode of this index in the
        sequence of the seed, as `obtain_samples` would deliver it. The server compares the replay with the episode bit
        by bit, so that the video shows what was sampled. Workers go on sampling meanwhile. Where rows are stepped at
        once (class BLOCK), the server samples the episode in the same environment stepped one by one.

        >>> sampler.render(batch, 3).save("episode.mp4")  # doctest: +SKIP
        >>> sampler.render(seed=1, index=17, overlays=["step", "reward"]).save("episode.mp4")  # doctest: +SKIP

        Args:
            batch: has the episode, from its beginning and with its seed; fragments of a session, too.
            segment: position of the episode in the batch, or of one of its fragments.
            seed: root seed of an episode to sample; None for the seed of the sampler's own sequence.
            index: index of the episode to sample.
            version: version of the agent that acts; None for the current one.
            env_version: version of the environment; None for the one of the batch's account, or the current one.
            max_episode_length: maximum number of steps of the episode to sample; None for the environment's limit.
            deterministic: whether the agent acts without randomness.
            format: `mp4`, or `raw` for the pictures as they were rendered.
            fps: pictures per second; None for what the environment says, or 30.
            overlays: lines of text in the pictures: `step`, `reward` with the sum so far, `action`, and `value` if the
                agent has one.
            timeout: seconds for the whole call.

        Raises:
            InvalidArgumentError: an environment that cannot be rendered (`ENV_NOT_RENDERABLE`), or actions that do not
                fit it.
            PreconditionError: a version that is not kept, or a replay that differs from the episode (`REPLAY_DIFFERS`).
            LimitError: a video that is too large for the server (`VIDEO_TOO_LARGE`).
            ServerError: an environment that fails, or a package that the server lacks (`PACKAGE_NOT_FOUND`).
            ValueError: a batch beside what says which episode to sample, or neither; a segment that is no whole
                episode.
            RollserveError: the call failed for another reason.
        """
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
        video: Video = self._call(collected(self._stub.RenderEpisode, VideoCollector), request, timeout)
        return video

    def record(
        self,
        dataset_id: str,
        *,
        num_episodes: int | None = None,
        num_steps: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        **options: Unpack[SamplingOptions],
    ) -> Recording:
        """Record whole episodes on the server, into a Minari dataset in the folder that its operator allows.

        Nothing of the episodes passes through the client. The dataset is whole at any time. A recording that is
        interrupted or cancelled goes on where it stopped if it is asked for again, and gives the dataset of one that
        was never interrupted; asked for more, it extends the dataset. If connection or server are lost, it goes on once
        both are back.

        >>> sampler.record("cartpole/expert-v0", num_episodes=1000, seed=7)  # doctest: +SKIP

        Args:
            dataset_id: Minari's id, such as `cartpole/expert-v0`: the folder within the server's `--data-dir`.
            num_episodes: number of episodes that the dataset has at the end.
            num_steps: instead, the least number of steps.
            metadata: Minari's `author`, `author_email`, `algorithm_name`, `description` and `code_permalink` of a new
                dataset.
            options: `seed`, `policy_version`, `deterministic`, `progress` and others; see `rollserve.SamplingOptions`.
                Without a seed, a dataset goes on with its own, and a new one has a random one. Not `agent`, `prefetch`,
                `blackhole` and moments.

        Raises:
            PreconditionError: the dataset has another origin (`Reason.DATASET_DIFFERS`), or is being recorded
                (`Reason.DATASET_IN_USE`).
            LimitError: the server's disk is full (`Reason.DISK_FULL`); what was recorded stays.
            AccessError: the operator does not allow the path (`Reason.PATH_NOT_ALLOWED`).
            RollserveError: the call failed.
            TypeError: an argument of the wrong type, or an unknown option.
        """
        reader = self._recording_reader(dataset_id, num_episodes, num_steps, metadata, options)
        return self._receive(self._stub.RecordDataset, reader, options)

    def with_receipt(
        self, batch: EpisodeBatch, agent: Agent | None = None, *, timeout: float | None = None
    ) -> EpisodeBatch:
        """Return the whole result of a call with what verifies it in plain gymnasium: a receipt, which files keep.

        The receipt has the environment's specification, the account, and digests of all columns and of the agent.
        `rollserve verify` replays files with receipts. Rounds of a stream and batches of a session have no account.

        >>> sampler.with_receipt(batch, agent).save("batch.npz")  # doctest: +SKIP

        Args:
            batch: batch of this sampler, of the present version of its environment.
            agent: the agent that acted, for its digest; None leaves it out. It is compared with the version that acted,
                which the server sends if it still keeps it: the kind, and the parameters of MLPs. The server knows none
                of a session's.
            timeout: seconds to wait for the answer, instead of the timeout given to `connect`.

        Raises:
            TypeError: the batch of an environment with many agents.
            ValueError: only a part of a result, another version of the environment, environments that differ between
                rows, arguments of the environment that clients do not see, or an agent that is not the one that acted.
        """
        from rollserve._calls.receipts import acting_version, with_receipt

        held, version = None, acting_version(batch)
        if agent is not None and version:
            with contextlib.suppress(PreconditionError):  # it is not kept any more, or a pickle
                held = self.agent(version, timeout=timeout)
        return with_receipt(batch, self.status(timeout=timeout), agent, held)

    def status(self, *, timeout: float | None = None) -> SamplerStatus:
        """Return the state of the sampler and of its workers, and its counters."""
        request = pb.GetSamplerRequest(sampler=self._name)
        return status_from_proto(self._call(self._stub.GetSampler, request, timeout))

    def metrics(self, since: RecordPosition | None = None, *, timeout: float | None = None) -> EpisodeRecords:
        """Return the records of episodes that have ended, such as their returns: also of other clients' calls.

        Episodes in fragments count with all their steps, once they have ended. The server keeps the last records
        (`--episode-records`, 10,000 by default); `num_missed` says how many of the requested ones it has not.

        >>> records = sampler.metrics()  # doctest: +SKIP
        >>> records.returns[records.policy_versions == 3].mean()  # doctest: +SKIP
        >>> later = sampler.metrics(since=records.end)  # doctest: +SKIP

        Args:
            since: position of the first record: `end` of earlier records. By default, the first one ever.
            timeout: seconds to wait for all records, instead of the timeout given to `connect`.

        Raises:
            PreconditionError: the server or its sampler has started again since, so that positions begin again; the
                reason is SAMPLER_RUN.
            RollserveError: the call failed.
            TypeError: an argument of the wrong type.
        """
        from rollserve.episode_records import EpisodeRecords, records_request
        from rollserve.record_stream import RecordStream

        request, seconds = records_request(self._name, since, follow=False), self._answer_seconds(timeout)
        with RecordStream(self._opened(self._stub.GetMetrics), request, seconds) as stream:
            return EpisodeRecords.concatenate(list(stream))

    @overload
    def drive(self: Sampler[EpisodeBatch], **options: Unpack[DriveOptions]) -> Session: ...

    @overload
    def drive(
        self: Sampler[MultiAgentBatch], **options: Unpack[DriveOptions]
    ) -> Session[MultiAgentBatch, MultiAgentStep]: ...

    def drive(
        self,
        *,
        seed: int | None = None,
        env_seeds: Sequence[int] | None = None,
        fragment_length: int = 128,
        max_episode_length: int | None = None,
        agent_infos: Mapping[str, Any] | None = None,
        infos: bool = False,
        record: bool = True,
        min_ready: int | None = None,
        lease_seconds: float = 0.0,
        dataset: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        to_reader: bool = False,
        agents: Sequence[str] = (),
        deliver: Sequence[str] = (),
        env_version: int | None = None,
        policy_version: int | None = None,
        timeout: float | None = None,
    ) -> Session[Any, Any]:
        """Act in all rows of the sampler's environments from here, step by step, in place of its agent.

        >>> with sampler.drive(seed=7) as session:  # doctest: +SKIP
        ...     step = session.observe()
        ...     step = session.step(policy(step.observations))

        Rows are reset in the step that ends an episode. The same seed and the same actions give the same episodes, with
        any number of workers and after any crash. The token needs the scope `drive`.

        Args:
            seed: root seed of the episodes; by default, they are new ones.
            env_seeds: (N,) seeds of the environments in the first episode of each row; those of later episodes derive
                from `seed`, as by default all do. Not where rows are stepped at once.
            fragment_length: number of steps of each row in a recorded fragment. After a loss, a worker makes at most so
                many steps again.
            max_episode_length: number of steps after which an episode is truncated.
            agent_infos: an example of each info that comes with a row's actions, by name, such as `np.float32(0)` for
                `log_prob`: it says dtype and shape (*I).
            infos: whether each step has the environments' infos.
            record: whether the steps are recorded, for `session.batch`.
            min_ready: number of rows that are enough for a step, which `session.recv` returns; by default, all rows
                step together. Rows that are stepped at once, by one worker, are ready together.
            lease_seconds: how long the session outlives its connection: it goes on by itself when the server is in
                reach again, and `resume_session` takes it up in another process; at most 3600.
            dataset: id of a dataset that the server records whole episodes into, as `record` does, in place of
                `session.batch`; sessions in the same environment extend it. Not with many agents. The token needs the
                scope `data:write`, too.
            metadata: as of `record`.
            to_reader: whether another client gets the rounds, by `session_rounds`, in place of `session.batch`; with
                `lease_seconds`, for which the server keeps what that has not got. The session waits for its reader
                behind two rounds.
            agents: with many agents, names of the agents that act from here; all of them by default. The sampler's
                policies act for the others, in each fragment by the current version.
            deliver: with many agents, names of the policies whose steps are recorded, such as `external`, which is the
                client's own; all of them by default.
            env_version: version of the environment; the current one by default.
            policy_version: version of these policies, in place of the current one.
            timeout: seconds to wait for a step, instead of the timeout given to `connect`.

        Raises:
            TypeError: an argument of the wrong type.
            InvalidArgumentError: an argument out of range.
        """
        options: SamplingOptions = {
            "seed": seed,
            "max_episode_length": max_episode_length,
            "env_version": env_version,
            "policy_version": policy_version,
            "deliver": deliver,
        }
        spec = requests.drive_spec(
            self._name,
            self._reception,
            env_seeds=env_seeds,
            fragment_length=fragment_length,
            agent_infos=agent_infos or {},
            infos=infos,
            record=record,
            min_ready=min_ready,
            lease_seconds=lease_seconds,
            agents=agents,
            dataset=dataset,
            to_reader=to_reader,
            options=options,
        )
        if metadata and dataset is None:
            raise InvalidArgumentError.of("metadata", expected="none without a dataset", got="some")
        if metadata:
            from rollserve.recordings import description_to_proto

            spec.description.CopyFrom(description_to_proto(metadata))
        self._own_versions.expect_in_call(spec.options)
        if not agents:
            spec.options.ClearField("expected_policy_version")  # no agent of the sampler acts
        first = pb.DriveEnvironmentsRequest(spec=spec)
        record = record and dataset is None and not to_reader
        return self._session(first, agent_infos or {}, timeout, record=record, min_ready=spec.min_ready_row_count)

    def resume_session(
        self,
        token: str,
        *,
        agent_infos: Mapping[str, Any] | None = None,
        record: bool = True,
        min_ready: int | None = None,
        timeout: float | None = None,
    ) -> Session[Any, Any]:
        """Go on with a session that another client has begun with a lease, at the same step.

        The other client's stream ends. Rounds that it may not have got, and steps that wait for actions, come again.

        Args:
            token: the session's `token`.
            agent_infos: as the session was begun.
            record: as the session was begun; False with a dataset or reader.
            min_ready: as the session was begun.
            timeout: as of `drive`.

        Raises:
            InvalidArgumentError: from the session's methods: it has ended, or belongs to another client.
        """
        first = pb.DriveEnvironmentsRequest(resumption=pb.DriveResumption(sampler=self._name, token=token))
        return self._session(first, agent_infos or {}, timeout, record=record, min_ready=min_ready or 0)

    def session_rounds(self, token: str, *, timeout: float | None = None) -> SessionRounds[Batch]:
        """Read the rounds of a session that another client acts in, which has begun it with `to_reader`.

        >>> for batch in sampler.session_rounds(token):  # doctest: +SKIP
        ...     learn(batch)

        Args:
            token: the session's `token`.
            timeout: seconds to wait for a message, instead of the timeout given to `connect`.

        Raises:
            InvalidArgumentError: from iteration: the session has ended, belongs to another client, or has no reader.
        """
        from rollserve._calls.base_session_rounds import ReadingParts
        from rollserve.session_rounds import SessionRounds

        limits = self._time_limits({} if timeout is None else {"timeout": timeout})
        method = self._opened(self._stub.DriveEnvironments)
        return SessionRounds(ReadingParts(method, self._name, token, self._batch_kind, limits, self._contact))

    def _session(
        self,
        first: pb.DriveEnvironmentsRequest,
        agent_infos: Mapping[str, Any],
        timeout: float | None,
        *,
        record: bool,
        min_ready: int,
    ) -> Session[Any, Any]:
        from rollserve._calls.base_session import SessionParts
        from rollserve.session import Session

        limits = self._time_limits({} if timeout is None else {"timeout": timeout})
        forms = requests.info_forms(agent_infos)
        method = self._opened(self._stub.DriveEnvironments)
        parts = SessionParts(method, first, forms, record, min_ready, limits, self._contact, self._batch_kind)
        return Session(parts)

    def stream_metrics(self, since: RecordPosition | None = None) -> RecordStream:
        """Stream the records of ended episodes, and go on with each that ends until the stream is closed.

        A reader who is too late for some records loses them, and learns how many; nothing waits for readers.

        >>> with sampler.stream_metrics() as stream:  # doctest: +SKIP
        ...     for records in stream:
        ...         print(records.returns.mean())

        Args:
            since: as of `metrics`.
        """
        from rollserve.episode_records import records_request
        from rollserve.record_stream import RecordStream

        request = records_request(self._name, since, follow=True)
        return RecordStream(self._opened(self._stub.GetMetrics), request, None)

    def create_sampler(
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
        """Create the sampler that this client is connected to, by the name given to `connect`.

        >>> with rollserve.connect("127.0.0.1:50051", sampler="run-7") as sampler:  # doctest: +SKIP
        ...     sampler.create_sampler("CartPole-v1", num_workers=2, exist_ok=True)

        Args:
            env: environment to start with: an id or a specification.
            kwargs: keyword arguments of the environment, if `env` is an id.
            wrappers: wrappers around the environment, innermost first, if `env` is an id.
            num_workers: number of workers.
            seed: root seed of the episodes of calls that name none; by default a random one.
            lease_seconds: time without a call after which the server deletes the sampler; 0 for never, None for the
                server's default, an hour unless its operator has set another.
            quota: limits below the operator's.
            exist_ok: whether a sampler of this name that the same user created by an equal request is used as it is. So
                a trainer that starts again finds its sampler.
            timeout: seconds to wait for the answer; workers may take 120 seconds to start.

        Returns:
            The version and the spaces of the environments, once the workers are ready.

        Raises:
            InvalidArgumentError: there is another sampler of this name (`Reason.SAMPLER_EXISTS`), or an argument is
                wrong.
            LimitError: the operator allows no further sampler, or none as large.
            RollserveError: the call failed in another way; nothing is left of the sampler then.
        """
        request = requests.create_sampler_request(
            self._name, env, kwargs, wrappers, num_workers, seed, lease_seconds, quota, exist_ok
        )
        return env_update_from_proto(self._call(self._stub.CreateSampler, request, timeout), request)

    def delete_sampler(self, *, timeout: float | None = None) -> None:
        """Delete the sampler that this client is connected to: its calls end, and then its workers.

        Calls of this or other clients that are running fail with an InvalidArgumentError (`Reason.SAMPLER_DELETED`),
        and so do later ones. The default sampler cannot be deleted.
        """
        request = samplers_pb2.DeleteSamplerRequest(sampler=self._name)
        self._call(self._stub.DeleteSampler, request, timeout)

    def save(self, *, timeout: float | None = None) -> bytes:
        """Return all that another server needs to go on as the sampler would; `restore` takes it.

        These are the versions of agents and environments that the server keeps, where its sequences stand, with the
        actions that lead there, and its counters. Calls that run count as not begun, and are not disturbed. The bytes
        are a file that nothing is executed to read, and that later releases read.

        >>> Path("sampler.saved").write_bytes(sampler.save())  # doctest: +SKIP

        Args:
            timeout: seconds to wait for the answer, instead of the timeout given to `connect`.

        Raises:
            PreconditionError: an agent is a pickle, which cannot be saved.
            RollserveError: the call failed.
        """
        request = samplers_pb2.SaveSamplerRequest(sampler=self._name)
        saved: bytes = self._call(collected(self._stub.SaveSampler, DataCollector), request, timeout)
        return saved

    def restore(self, saved: bytes | str | os.PathLike[str], *, timeout: float | None = None) -> None:
        """Replace the sampler by a saved one, which may be another server's.

        Its next calls deliver what the saved sampler's next calls would have, to the last bit, as far as its
        environments are reproducible. It has the saved number of workers. Other clients' calls fail, because it is a
        new run (`Reason.SAMPLER_RUN`). A restore that fails changes nothing.

        >>> sampler.restore("sampler.saved")  # doctest: +SKIP

        Args:
            saved: what `save` returned, or the path of a file that holds it.
            timeout: seconds to wait for the answer, instead of the timeout given to `connect`.

        Raises:
            InvalidArgumentError: the bytes are incomplete, changed or of a newer format; or the server refuses an
                environment or an agent.
            PreconditionError: the server's settings would make other episodes (`Reason.SAVED_SAMPLER`).
            RollserveError: the call failed.
            TypeError: neither bytes nor a path.
            OSError: the file cannot be read.
        """
        request = restore_request(self._name, self._own_versions, saved)
        self._own_versions.restore(self._call(self._stub.RestoreSampler, request, timeout))

    def list_samplers(self, *, timeout: float | None = None) -> Sequence[SamplerSummary]:
        """Return the samplers of the server, the default one first."""
        request = samplers_pb2.ListSamplersRequest()
        return samplers_from_proto(self._call(self._stub.ListSamplers, request, timeout))

    def reload_settings(self, *, timeout: float | None = None) -> SettingsReload:
        """Have the server read its configuration file again; return the settings that have changed.

        Calls that run keep what they began with. A file with an error changes nothing.

        >>> sampler.reload_settings()  # doctest: +SKIP

        Args:
            timeout: seconds to wait for the answer, instead of the timeout given to `connect`.

        Raises:
            InvalidArgumentError: the file cannot be read, or has an invalid value.
            AccessError: the client lacks the scope `server:admin`.
            RollserveError: the call failed.
        """
        from rollserve.status import reload_from_proto

        request = settings_pb2.ReloadSettingsRequest()
        return reload_from_proto(self._call(self._stub.ReloadSettings, request, timeout))

    def agent_versions(self, *, timeout: float | None = None) -> Sequence[AgentVersion]:
        """Return the versions of the agent that the sampler holds, in rising order."""
        from rollserve.agent_versions import agent_versions_from_proto

        request = ListAgentVersionsRequest(sampler=self._name)
        return agent_versions_from_proto(self._call(self._stub.ListAgentVersions, request, timeout))

    def agent(
        self,
        version: int | None = None,
        *,
        worker: int | None = None,
        policy: str | None = None,
        timeout: float | None = None,
    ) -> Agent:
        """Return an agent that the sampler holds, whole, for `update_agent` of this or another sampler.

        >>> agent = sampler.agent()  # doctest: +SKIP

        Args:
            version: version of the agent; the current one by default.
            worker: index of the worker whose agent it is, if workers have agents of their own; 0 by default.
            policy: name of the policy, in an environment with many agents.
            timeout: seconds to wait for the answer, instead of the timeout given to `connect`.

        Returns:
            An agent of the kind that was sent. An OnnxAgent's model has the present parameters.

        Raises:
            PreconditionError: there is no agent, the version is not kept, or the agent is a pickle.
            RollserveError: the call failed.
            TypeError: an argument of the wrong type.
            ValueError: version 0.
        """
        from rollserve.agent_versions import agent_from_bytes, agent_request

        request = agent_request(self._name, version, worker, policy)
        return agent_from_bytes(self._call(collected(self._stub.GetAgent, DataCollector), request, timeout))

    def agent_parameters(
        self,
        version: int | None = None,
        *,
        worker: int | None = None,
        names: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> dict[str, np.ndarray]:
        """Return the parameters of an agent that the sampler holds; none for a kind of agent without parameters.

        Args:
            version: version of the agent; the current one by default.
            worker: index of the worker whose agent it is, if workers have agents of their own; 0 by default.
            names: names of the parameters; all by default.
            timeout: seconds to wait for the answer, instead of the timeout given to `connect`.

        Returns:
            New arrays by name.

        Raises:
            RollserveError: the call failed.
            TypeError: an argument of the wrong type.
            ValueError: version 0, or empty `names`.
        """
        from rollserve.agent_versions import ParametersCollector, parameters_request

        request = parameters_request(self._name, version, worker, names, self._reception.max_message_bytes)
        return self._call(collected(self._stub.GetAgentParameters, ParametersCollector), request, timeout)

    def _read_stream(self, request: pb.ReadDatasetRequest, limits: TimeLimits) -> DatasetStream:
        from rollserve.dataset_stream import DatasetStream

        return DatasetStream(self._opened(self._stub.ReadDataset), request, limits, self._contact)

    def _round_stream(self, parts: StreamParts[Batch]) -> RoundStream[Batch]:
        from rollserve.round_stream import RoundStream

        return RoundStream(parts)

    def _stream(self, method: Callable[..., Any], request: Request, options: SamplingOptions) -> SampleStream[Batch]:
        return SampleStream(
            self._opened(method),
            request,
            self._batch_kind,
            self._time_limits(options),
            self._contact,
            self._own_versions,
            options.get("progress"),
        )

    def _receive(
        self, method: Callable[..., Any], reader: Reader[_Result], options: EvaluationOptions | SamplingOptions
    ) -> _Result:
        return receive(self._opened(method), reader, self._time_limits(options), self._contact)

    def _call(self, method: Callable[..., _Result], request: object, timeout: float | None) -> _Result:
        seconds, work_seconds = self._answer_seconds(timeout), self._work_seconds(request, timeout)
        return receive_answer(self._opened(method), request, self._contact, seconds, work_seconds)
