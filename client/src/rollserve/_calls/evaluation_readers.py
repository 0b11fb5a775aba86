"""Calls that evaluate: their requests, and the readers of their responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import numpy as np
from google.protobuf.message import DecodeError

from rollserve._calls.joining import Joining
from rollserve._calls.requests import check_options, exploration_of
from rollserve._calls.responses import holds_batch, read_response
from rollserve._calls.resumption import REPEATABLE
from rollserve._calls.stream_reader import warn_of
from rollserve.account import account_from_proto
from rollserve.agents import parameters_to_proto
from rollserve.episode_batch import EpisodeBatch
from rollserve.evaluation import (
    Evaluation,
    PopulationEvaluation,
    evaluation_from_proto,
    population_evaluation_from_proto,
)
from rollserve.multi_agent_batch import AnyBatch, Batch, MultiAgentBatch, checked_batch
from rollserve.options import EvaluationOptions, SamplingOptions
from rollserve.progress import CallProgress
from rollserve.progress_displays import Reporter
from rollserve_wire.checks import check_flag, check_integer, check_text, check_type
from rollserve_wire.environments import EnvSpec, env_spec_to_proto
from rollserve_wire.errors import InvalidArgumentError, malformed_error
from rollserve_wire.policy_map import PolicyMap, policy_map_to_proto
from rollserve_wire.v1 import episode_batch_pb2, evaluation_pb2
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    from rollserve._calls.requests import Reception
    from rollserve.account import Account
    from rollserve.agents import MemberParameters
    from rollserve.options import PolicyMapOption

__all__ = ["EvaluationReader", "PopulationReader", "Reader"]


_Result = TypeVar("_Result")


class Reader(Generic[_Result]):
    """Reader of the responses of an evaluation or a recording.

    Attributes:
        request: request of the call; after the beginning of a stream, the request that repeats it.
        has_begun: whether the beginning of a stream is known.
        can_repeat: whether repeating a call that has begun gives the same result.
        waiting_for: what the server last said that the call waits for; empty for nothing.
    """

    def __init__(
        self,
        request: pb.EvaluateRequest | pb.EvaluatePopulationRequest | pb.RecordDatasetRequest,
        num_requested_episodes: int | None,
        options: EvaluationOptions | SamplingOptions,
    ) -> None:
        """Start with a request.

        Args:
            request: the request.
            num_requested_episodes: number of all episodes; None if it is unknown.
            options: options of the call; the reader uses the options that the request does not carry.
        """
        self.request = request
        self._num_requested_episodes = num_requested_episodes
        self._num_simulated_steps = self._num_ended_episodes = 0
        self._reporter = Reporter.of(options.get("progress"))
        self.has_begun = self.can_repeat = False
        self.waiting_for = ""
        self._result: _Result | None = None

    def begin(self) -> None:
        """Drop what was received from an interrupted stream."""

    def read(self, response: bytes) -> None:
        """Read a serialized response.

        Raises:
            ServerError: a malformed response.
        """
        try:
            self._read(response)
        except (ValueError, DecodeError) as error:
            raise malformed_error(str(error)) from None

    def report(self) -> None:
        """Report the progress, if the caller wants to know; raises what the caller's function raises."""
        if self._reporter is not None:
            self._reporter.report(self._progress, is_over=self._result is not None)

    def close(self) -> None:
        """End the reports."""
        if self._reporter is not None:
            self._reporter.close()

    def result(self) -> _Result:
        """Return the result, after the end of the stream.

        Raises:
            ServerError: the stream ended without a result.
        """
        if self._result is None:
            raise malformed_error("the stream ended without its result")
        return self._result

    def _read(self, response: bytes) -> None:
        raise NotImplementedError

    def _num_received(self) -> tuple[int, int]:
        """Return the numbers of received steps and episodes."""
        raise NotImplementedError

    def _progress(self, seconds: float) -> CallProgress:
        num_steps, num_episodes = self._num_received()
        return CallProgress(
            num_steps=num_steps,
            num_episodes=num_episodes,
            num_ended_episodes=max(self._num_ended_episodes, num_episodes),
            num_requested_episodes=self._num_requested_episodes,
            num_simulated_steps=max(self._num_simulated_steps, num_steps),
            seconds=seconds,
            waiting_for=self.waiting_for,
        )

    def _take(self, progress: episode_batch_pb2.Progress) -> None:
        self._num_simulated_steps = max(self._num_simulated_steps, progress.simulated_step_count)
        self._num_ended_episodes = max(self._num_ended_episodes, progress.ended_episode_count)
        self.waiting_for = progress.waiting_for
        warn_of(progress)

    def _repeat_from(self, beginning: episode_batch_pb2.Beginning) -> None:
        """Make the request repeat the call that has begun."""
        self.has_begun = True
        self.can_repeat = beginning.reproducibility in REPEATABLE
        options = self.request.options
        assert isinstance(options, pb.EvaluationOptions)  # noqa: S101  # recordings have no beginning
        options.seed = beginning.seed
        options.policy_version = beginning.policy_version
        options.ClearField("expected_policy_version")  # checked already, and the current versions may change
        options.ClearField("expected_environment_version")
        options.sampler_run = beginning.sampler_run
        if not options.HasField("environment"):
            options.environment_version = beginning.environment_version


class EvaluationReader(Reader[Evaluation[Batch]]):
    """Reader of the responses of Evaluate."""

    def __init__(
        self,
        sampler: str,
        num_episodes: int,
        return_episodes: bool,
        batch_kind: type[Batch],
        reception: Reception,
        options: EvaluationOptions,
    ) -> None:
        """Build the request.

        Raises:
            TypeError: an unknown option, or an argument of the wrong type.
            InvalidArgumentError: an integer out of range.
        """
        check_integer("num_episodes", num_episodes, 32, signed=False)
        check_flag("return_episodes", return_episodes)
        delivery = evaluation_pb2.EpisodeDelivery(
            max_message_bytes=reception.max_message_bytes,
            accept_compression=reception.compressions,
            accept_frame_stacks=True,
            return_returns_before=True,
        )
        request = pb.EvaluateRequest(
            sampler=sampler,
            episode_count=num_episodes,
            options=_options(options),
            episodes=delivery if return_episodes else None,
        )
        super().__init__(request, num_episodes, options)
        self._returns_episodes = return_episodes
        self._batch_kind = batch_kind
        self._parts: list[AnyBatch] = []

    def begin(self) -> None:
        """Drop the episodes: a repeated call delivers all of them again."""
        self._parts.clear()

    def _num_received(self) -> tuple[int, int]:
        num_steps = sum(part.num_steps for part in self._parts)
        if self._result is not None:
            return num_steps, len(self._result)
        return num_steps, sum(int((part.terminated | part.truncated).sum()) for part in self._parts)

    def _read(self, response: bytes) -> None:
        if holds_batch(response):
            self._add(response)
            return
        content = pb.EvaluateResponse.FromString(response)
        match content.WhichOneof("content"):
            case "beginning":
                self._repeat_from(content.beginning)
            case "batch" | "multi_agent_batch":
                self._add(response)
            case "progress":
                self._take(content.progress)
            case "evaluation":
                account = account_from_proto(content.evaluation.account)
                episodes = self._joined(account) if self._returns_episodes else None
                self._result = evaluation_from_proto(content.evaluation, episodes)
                self._num_simulated_steps = account.num_simulated_steps

    def _add(self, response: bytes) -> None:
        batch = read_response(response)
        assert isinstance(batch, EpisodeBatch | MultiAgentBatch)  # noqa: S101  # no other kind is in the field
        self._parts.append(batch)
        self.waiting_for = ""

    def _joined(self, account: Account) -> Batch:
        """Return the episodes; raises as `Joining.join` and `checked_batch`."""
        with Joining() as joining:
            for part in self._parts:
                joining.add(part)
            return checked_batch(joining.join(account), self._batch_kind)


class PopulationReader(Reader[PopulationEvaluation]):
    """Reader of the responses of EvaluatePopulation."""

    def __init__(
        self,
        sampler: str,
        parameters: MemberParameters,
        num_episodes: int,
        same_episodes: bool,
        options: EvaluationOptions,
    ) -> None:
        """Build the request.

        Raises:
            TypeError: an unknown option, or an argument of the wrong type.
            InvalidArgumentError: an integer out of range.
            ValueError: a dtype that the wire does not have.
        """
        check_type("parameters", parameters, Mapping, "a mapping with arrays of shape (K, …), or of such by policy")
        policies = _members_by_policy(parameters)
        check_integer("num_episodes", num_episodes, 32, signed=False)
        check_flag("same_episodes", same_episodes)
        request = pb.EvaluatePopulationRequest(
            sampler=sampler,
            parameters=parameters_to_proto(policies[""]) if "" in policies else None,
            policies={name: parameters_to_proto(each) for name, each in policies.items() if name},
            episode_count=num_episodes,
            options=_options(options),
            different_episodes=not same_episodes,
        )
        num_members = {np.shape(values)[:1] for each in policies.values() for values in each.values()}
        num_all = num_episodes * sum(num_members.pop()) if len(num_members) == 1 else 0
        super().__init__(request, num_all or None, options)

    def _num_received(self) -> tuple[int, int]:
        return 0, 0 if self._result is None else self._result.returns.size

    def _read(self, response: bytes) -> None:
        content = pb.EvaluatePopulationResponse.FromString(response)
        match content.WhichOneof("content"):
            case "beginning":
                self._repeat_from(content.beginning)
            case "progress":
                self._take(content.progress)
            case "evaluation":
                self._result = population_evaluation_from_proto(content.evaluation)
                self._num_simulated_steps = self._result.account.num_simulated_steps


def _members_by_policy(parameters: MemberParameters) -> dict[str, Mapping[str, np.ndarray]]:
    """Return the parameters of members by policy, or by '' for one agent.

    Raises:
        TypeError: arrays beside mappings of arrays, or a name of a policy that is no text.
        InvalidArgumentError: an empty name of a policy.
    """
    if not any(isinstance(value, Mapping) for value in parameters.values()):
        return {"": cast("Mapping[str, np.ndarray]", parameters)}
    found: dict[str, Mapping[str, np.ndarray]] = {}
    for name, value in parameters.items():
        check_text("parameters", name)
        if not name:
            raise InvalidArgumentError.of("parameters", expected="names of policies as keys", got="an empty one")
        check_type(
            f"parameters[{name!r}]", value, Mapping, "a mapping with arrays of shape (K, …), as other policies have"
        )
        found[name] = cast("Mapping[str, np.ndarray]", value)
    return found


def _options(options: EvaluationOptions) -> pb.EvaluationOptions:
    check_options(options, EvaluationOptions)
    env = options.get("env")
    if isinstance(env, str):
        env = EnvSpec(env)
    elif env is not None:
        check_type("env", env, EnvSpec, "an id or an EnvSpec")
    return pb.EvaluationOptions(
        policy_version=options.get("policy_version"),
        expected_policy_version=options.get("expected_policy_version"),
        expected_environment_version=options.get("expected_env_version"),
        min_policy_version=options.get("min_policy_version"),
        environment_version=options.get("env_version"),
        environment=None if env is None else env_spec_to_proto(env),
        seed=options.get("seed"),
        first_episode_index=options.get("first_episode_index") or 0,
        max_episode_length=options.get("max_episode_length"),
        exploration=exploration_of(options),
        skip_failed_episodes=options.get("skip_failed_episodes") or False,
        policy_maps=map(policy_map_to_proto, _policy_maps(options.get("policy_map"))),
    )


def _policy_maps(option: PolicyMapOption | None) -> Sequence[PolicyMap]:
    """Return the maps that the episodes have by turns; none for the sampler's own."""
    if option is None:
        return ()
    if isinstance(option, PolicyMap | Mapping):
        return [_policy_map(option, "policy_map")]
    check_type("policy_map", option, Sequence, "a mapping, or a sequence of them")
    if not option:
        raise InvalidArgumentError.of("policy_map", expected="at least one map", got="none")
    return [_policy_map(each, f"policy_map[{position}]") for position, each in enumerate(option)]


def _policy_map(value: PolicyMap | Mapping[Any, Any], name: str) -> PolicyMap:
    return value if isinstance(value, PolicyMap) else PolicyMap.of(value, name)
