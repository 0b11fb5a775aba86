"""Calls that evaluate: their requests, and how their answers are waited for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from rollserve._calls.joining import join_batches
from rollserve._calls.requests import exploration_of
from rollserve._calls.responses import read_response
from rollserve._calls.resumption import REPEATABLE, Backoff, is_passing
from rollserve._calls.time_limits import countable
from rollserve._calls.watchdog import Watchdog
from rollserve._checks import check_flag, check_integer, check_type
from rollserve.account import account_from_proto
from rollserve.agents import parameters_to_proto
from rollserve.environments import EnvSpec, env_spec_to_proto
from rollserve.episode_batch import EpisodeBatch
from rollserve.errors import malformed_error
from rollserve.evaluation import (
    Evaluation,
    PopulationEvaluation,
    evaluation_from_proto,
    population_evaluation_from_proto,
)
from rollserve.v1 import episode_batch_pb2, evaluation_pb2
from rollserve.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    import numpy as np

    from rollserve._calls.requests import Reception
    from rollserve._calls.time_limits import TimeLimits

__all__ = ["EvaluationOptions", "EvaluationReader", "PopulationReader", "Reader", "receive", "receive_async"]

_Result = TypeVar("_Result")


class EvaluationOptions(TypedDict, total=False):
    """Options of calls that evaluate, for their keyword arguments.

    Keys:
        policy_version: the version to evaluate, one of the last few, instead of the current one.
        expected_policy_version: fail if the current version is another.
        min_policy_version: fail if the version that would act is older.
        env: another environment to act in, an id or a spec, such as the sampler's own without wrappers that change
            rewards. The sampler's own stays as it is.
        env_version: the version of the sampler's environment to act in, instead of the current one; not beside `env`.
        seed: the root seed of the episodes, from 0 to 2**64 - 1. Without it, one that is the same for every evaluation,
            so that all versions are measured by the same episodes.
        first_episode_index: the index of the first episode in the sequence of the seed; 0 if not given.
        max_episode_length: how many steps an episode may have; as the server is set to unless given.
        timeout: seconds without progress after which the call ends with a DeadlineError; as given to `connect` unless
            given here.
        deadline: seconds that the whole call may take before it ends with a DeadlineError; no limit unless given.
        deterministic: whether the agent acts without any chance: the best action, or the mean.
        temperature: as of `rollserve.SamplingOptions`, like the next two.
        noise_scale: see there.
        epsilon: see there.
        skip_failed_episodes: see there; not for populations.
    """

    policy_version: int | None
    expected_policy_version: int | None
    min_policy_version: int | None
    env: str | EnvSpec | None
    env_version: int | None
    seed: int | None
    first_episode_index: int | None
    max_episode_length: int | None
    timeout: float | None
    deadline: float | None
    deterministic: bool | None
    temperature: float | Sequence[float] | None
    noise_scale: float | Sequence[float] | None
    epsilon: float | Sequence[float] | None
    skip_failed_episodes: bool | None


_UNSIGNED_OPTIONS = ("seed", "first_episode_index")
_SIGNED_OPTIONS = (
    "policy_version",
    "expected_policy_version",
    "min_policy_version",
    "env_version",
    "max_episode_length",
)


class Reader(Generic[_Result]):
    """Reads the responses of an evaluation.

    Attributes:
        request: what to ask for, at first and again if the stream breaks.
        can_repeat: whether the same would come again.
    """

    def __init__(self, request: pb.EvaluateRequest | pb.EvaluatePopulationRequest) -> None:
        self.request = request
        self.can_repeat = False
        self._result: _Result | None = None

    def begin(self) -> None:
        """Forgets what came of a stream that broke."""

    def read(self, response: bytes) -> bool:
        """Takes a serialized response in; returns whether it was more than the beginning of a call.

        Raises:
            ServerError: the response is malformed.
        """
        try:
            return self._read(response) != "beginning"
        except (ValueError, DecodeError) as error:
            raise malformed_error(str(error)) from error

    def _read(self, response: bytes) -> str | None:
        """Takes a response in, and returns the name of its content."""
        raise NotImplementedError

    def result(self) -> _Result:
        """What the stream ended with.

        Raises:
            ServerError: nothing.
        """
        if self._result is None:
            raise malformed_error("the stream ended without its evaluation")
        return self._result

    def _take_beginning(self, beginning: episode_batch_pb2.Beginning) -> None:
        """Has the request, if it is to be repeated, ask for the same."""
        self.can_repeat = beginning.reproducibility in REPEATABLE
        options = self.request.options
        options.seed = beginning.seed
        options.policy_version = beginning.policy_version
        options.ClearField("expected_policy_version")  # it was, and may be another by then
        options.sampler_run = beginning.sampler_run
        if not options.HasField("environment"):
            options.environment_version = beginning.environment_version


class EvaluationReader(Reader[Evaluation]):
    """Of Evaluate."""

    def __init__(
        self,
        sampler: str,
        num_episodes: int,
        return_episodes: bool,
        reception: Reception,
        options: EvaluationOptions,
    ) -> None:
        """Makes the request.

        Raises:
            TypeError: an option is unknown, or of another type.
            InvalidArgumentError: an integer is out of the range of those that can be sent.
        """
        check_integer("num_episodes", num_episodes, 32, signed=False)
        check_flag("return_episodes", return_episodes)
        delivery = evaluation_pb2.EpisodeDelivery(
            max_message_bytes=reception.max_message_bytes,
            accept_compression=reception.compressions,
            accept_frame_stacks=True,
        )
        request = pb.EvaluateRequest(
            sampler=sampler,
            episode_count=num_episodes,
            options=_options(options),
            episodes=delivery if return_episodes else None,
        )
        super().__init__(request)
        self._returns_episodes = return_episodes
        self._parts: list[EpisodeBatch] = []

    def begin(self) -> None:
        """Forgets the episodes: all of them come again."""
        self._parts.clear()

    def _read(self, response: bytes) -> str | None:
        content = pb.EvaluateResponse.FromString(response)
        match name := content.WhichOneof("content"):
            case "beginning":
                self._take_beginning(content.beginning)
            case "batch":
                batch = read_response(response)
                assert isinstance(batch, EpisodeBatch)  # noqa: S101  # both responses have it in the same field
                self._parts.append(batch)
            case "evaluation":
                account = account_from_proto(content.evaluation.account)
                episodes = join_batches(self._parts, account) if self._returns_episodes else None
                self._result = evaluation_from_proto(content.evaluation, episodes)
        return name


class PopulationReader(Reader[PopulationEvaluation]):
    """Of EvaluatePopulation."""

    def __init__(
        self,
        sampler: str,
        parameters: Mapping[str, np.ndarray],
        num_episodes: int,
        same_episodes: bool,
        options: EvaluationOptions,
    ) -> None:
        """Makes the request.

        Raises:
            TypeError: an option is unknown, or something is of another type.
            InvalidArgumentError: an integer is out of the range of those that can be sent.
            ValueError: an array's dtype has no place on the wire.
        """
        check_type("parameters", parameters, Mapping, "a mapping with arrays of shape (K, …)")
        check_integer("num_episodes", num_episodes, 32, signed=False)
        check_flag("same_episodes", same_episodes)
        request = pb.EvaluatePopulationRequest(
            sampler=sampler,
            parameters=parameters_to_proto(parameters),
            episode_count=num_episodes,
            options=_options(options),
            different_episodes=not same_episodes,
        )
        super().__init__(request)

    def _read(self, response: bytes) -> str | None:
        content = pb.EvaluatePopulationResponse.FromString(response)
        match name := content.WhichOneof("content"):
            case "beginning":
                self._take_beginning(content.beginning)
            case "evaluation":
                self._result = population_evaluation_from_proto(content.evaluation)
        return name


def receive(method: Callable[..., Any], reader: Reader[_Result], limits: TimeLimits) -> _Result:
    """What an evaluation answers; asked for again if the connection or the server is lost on the way."""
    backoff = Backoff(limits.timeout)
    while True:
        reader.begin()
        watchdog = Watchdog(limits.timeout)
        call = method(reader.request, timeout=limits.remaining())
        try:
            while True:
                with watchdog.over(call):
                    response = next(call, None)
                if response is None:
                    return reader.result()
                if reader.read(response):
                    backoff.succeed()
        except grpc.RpcError as error:
            if watchdog.expired:
                raise limits.silence_error() from error
            pause = backoff.next_seconds() if _may_pass(error, reader) else None
            if pause is None:
                raise limits.error_from_rpc(error) from error
            time.sleep(pause)
        finally:
            call.cancel()


async def receive_async(method: Callable[..., Any], reader: Reader[_Result], limits: TimeLimits) -> _Result:
    """As `receive`, awaited."""
    backoff = Backoff(limits.timeout)
    while True:
        reader.begin()
        call = method(reader.request, timeout=limits.remaining())
        try:
            while True:
                response = await asyncio.wait_for(call.read(), countable(limits.timeout))
                if response is grpc.aio.EOF:
                    return reader.result()
                if reader.read(response):
                    backoff.succeed()
        except TimeoutError:
            raise limits.silence_error() from None
        except grpc.RpcError as error:
            pause = backoff.next_seconds() if _may_pass(error, reader) else None
            if pause is None:
                raise limits.error_from_rpc(error) from error
            await asyncio.sleep(pause)
        finally:
            call.cancel()


def _may_pass(error: grpc.RpcError, reader: Reader[Any]) -> bool:
    """Whether the same call may succeed later, with the same result."""
    return is_passing(error) and reader.can_repeat


def _options(options: EvaluationOptions) -> pb.EvaluationOptions:
    unknown = options.keys() - EvaluationOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"unexpected options: {', '.join(sorted(unknown))}")
    for name, value in options.items():
        if value is not None and name in (*_UNSIGNED_OPTIONS, *_SIGNED_OPTIONS):
            check_integer(name, value, 64, signed=name in _SIGNED_OPTIONS)
    for name in ("deterministic", "skip_failed_episodes"):
        if options.get(name) is not None:
            check_flag(name, options.get(name))
    env = options.get("env")
    if isinstance(env, str):
        env = EnvSpec(env)
    elif env is not None:
        check_type("env", env, EnvSpec, "an id or an EnvSpec")
    return pb.EvaluationOptions(
        policy_version=options.get("policy_version"),
        expected_policy_version=options.get("expected_policy_version"),
        min_policy_version=options.get("min_policy_version"),
        environment_version=options.get("env_version"),
        environment=None if env is None else env_spec_to_proto(env),
        seed=options.get("seed"),
        first_episode_index=options.get("first_episode_index") or 0,
        max_episode_length=options.get("max_episode_length"),
        exploration=exploration_of(options),
        skip_failed_episodes=options.get("skip_failed_episodes") or False,
    )
