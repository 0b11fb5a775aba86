"""Resumption of streams after interruptions: what has been received, and which call delivers the rest."""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rollserve.multi_agent_batch import MultiAgentBatch
from rollserve_wire.errors import malformed_error, mismatch
from rollserve_wire.v1 import episode_batch_pb2
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    from rollserve.account import Account
    from rollserve.multi_agent_batch import AnyBatch

__all__ = ["REPEATABLE", "Request", "Resumption"]

Request = pb.ObtainSamplesRequest | pb.ObtainExactEpisodesRequest
"""Request for a stream of batches."""

REPEATABLE = (episode_batch_pb2.REPRODUCIBILITY_EPISODE, episode_batch_pb2.REPRODUCIBILITY_BLOCK)
"""Reproducibility classes whose episodes are the same when they are requested again."""


class Resumption:
    """Position of a stream, over all calls that deliver it, so that no step is delivered twice or left out.

    Attributes:
        num_resumptions: number of calls that continued the stream after an interruption.
    """

    def __init__(self, request: Request) -> None:
        """Start with the first call's request."""
        self.num_resumptions = 0
        self._request = request
        self._beginning: episode_batch_pb2.Beginning | None = None
        # Whole episodes: their number, their steps, and the index and steps of the last one.
        self._num_episodes = 0
        self._num_steps = 0
        self._last_index = -1
        self._num_last_steps = 0
        # The episode that was received in part: its index and steps. For fragments, the steps of all episodes that
        # were received after the last whole one.
        self._partial_index = -1
        self._num_partial_steps = 0
        # The present call: the steps to skip, the episode they belong to, and the whole episodes before the call's
        # first one.
        self._num_steps_to_skip = 0
        self._index_to_skip = -1
        self._before = _Whole(0, 0, 0)
        # Steps of all agents: in whole episodes, in the last one, and in the one that was received in part; and those
        # that arrived once more in the present call.
        self._num_agent_steps = self._num_last_agent_steps = self._num_partial_agent_steps = 0
        self._num_agent_steps_again = 0

    @property
    def possible(self) -> bool:
        """Whether the stream's beginning is known and its episodes can be requested again."""
        beginning = self._beginning
        return beginning is not None and beginning.reproducibility in REPEATABLE

    @property
    def has_begun(self) -> bool:
        """Whether the stream's beginning is known."""
        return self._beginning is not None

    @property
    def received(self) -> tuple[int, int]:
        """Number of episodes whose end was received, and number of all steps that were."""
        return self._num_episodes, self._num_steps + self._num_partial_steps

    def begin(self, beginning: episode_batch_pb2.Beginning) -> None:
        """Record the first message of a call."""
        if self._beginning is None:
            self._beginning = beginning

    def take(self, batch: AnyBatch) -> AnyBatch | None:
        """Record a batch, and return the part of it that was not received before.

        Raises:
            ServerError: a call that leaves out the rest of an episode after its first part.
        """
        if self._num_steps_to_skip and self._index_to_skip not in (-1, int(batch.episode_indices[0])):
            expected = f"the rest of episode {self._index_to_skip}, whose first part was received before"
            raise malformed_error(mismatch(expected, f"episode {batch.episode_indices[0]}"))
        num_skipped = min(self._num_steps_to_skip, batch.num_steps)
        self._num_steps_to_skip -= num_skipped
        if num_skipped == batch.num_steps:
            self._num_agent_steps_again += int(_agent_step_counts(batch).sum())
            return None
        if num_skipped:
            batch = self._without_received(batch, num_skipped)
        num_agent_steps = np.cumsum(_agent_step_counts(batch))
        ends = np.flatnonzero(batch.terminated | batch.truncated)
        if len(ends):
            num_steps = np.cumsum(batch.lengths)
            num_whole = int(num_steps[ends[-1]])
            num_before_last = int(num_steps[ends[-2]]) if len(ends) > 1 else -self._num_partial_steps
            self._num_last_steps = num_whole - num_before_last
            self._last_index = int(batch.episode_indices[ends[-1]])
            self._num_episodes += len(ends)
            self._num_steps += num_whole + self._num_partial_steps
            self._num_partial_steps = batch.num_steps - num_whole
            before_last = int(num_agent_steps[ends[-2]]) if len(ends) > 1 else -self._num_partial_agent_steps
            num_whole = int(num_agent_steps[ends[-1]])
            self._num_last_agent_steps = num_whole - before_last
            self._num_agent_steps += num_whole + self._num_partial_agent_steps
            self._num_partial_agent_steps = int(num_agent_steps[-1]) - num_whole
        else:
            self._num_partial_steps += batch.num_steps
            self._num_partial_agent_steps += int(num_agent_steps[-1])
        self._partial_index = int(batch.episode_indices[-1])
        return batch

    def rest(self) -> Request:
        """Return the request for what has not been received: all of it, if the stream has not begun.

        `possible` has to be true if it has.
        """
        beginning = self._beginning
        if beginning is None:
            return self._request
        self.num_resumptions += 1
        if isinstance(self._request, pb.ObtainSamplesRequest) and self._request.HasField("fragments"):
            return self._rest_of_fragments(self._request, beginning)
        num_episodes, num_steps, num_skipped = self._num_episodes, self._num_steps, self._num_partial_steps
        self._num_agent_steps_again = 0
        counts_agent_steps = self._request.options.count_agent_steps
        num_counted = self._num_agent_steps if counts_agent_steps else num_steps
        # The index of the last episode counts, not the number of episodes: some may have been skipped.
        next_index = self._last_index + 1 if num_episodes else beginning.first_episode_index
        if num_skipped:
            next_index = self._partial_index
        elif isinstance(self._request, pb.ObtainSamplesRequest) and num_counted >= self._request.step_count:
            # Only the account is missing, and a call needs at least one step: request the last episode once more.
            num_counted -= self._num_last_agent_steps if counts_agent_steps else self._num_last_steps
            num_episodes, num_steps = num_episodes - 1, num_steps - self._num_last_steps
            num_skipped, next_index = self._num_last_steps, self._last_index
        num_passed = next_index - beginning.first_episode_index
        self._before = _Whole(num_episodes, num_steps, num_passed - num_episodes)
        self._num_steps_to_skip, self._index_to_skip = num_skipped, next_index
        rest = copy.deepcopy(self._request)
        options = rest.options
        _continue_from(options, beginning)
        options.first_episode_index = beginning.first_episode_index
        if isinstance(rest, pb.ObtainSamplesRequest):
            options.first_episode_index += num_passed
            rest.step_count -= num_counted
        else:
            options.first_episode_index -= rest.skip_episode_count
            rest.skip_episode_count += num_passed
            _expect_workers(options, beginning)
        return rest

    def whole(self, account: Account) -> Account:
        """Return the account of the whole stream, for the account of its last call."""
        num_episodes, num_steps, num_failed_episodes = self._before
        if not self.num_resumptions or self._beginning is None:
            return account
        return dataclasses.replace(
            account,
            num_episodes=account.num_episodes + num_episodes,
            num_steps=account.num_steps + num_steps,
            num_carried_steps=account.num_carried_steps + num_steps,
            first_episode_index=self._beginning.first_episode_index,
            num_resumptions=self.num_resumptions,
            num_failed_episodes=account.num_failed_episodes + num_failed_episodes,
        )

    def _without_received(self, batch: AnyBatch, num_steps: int) -> AnyBatch:
        """Return a batch without first steps that were received before."""
        counts, batch = _agent_step_counts(batch), batch.without_first_steps(num_steps)
        if isinstance(batch, MultiAgentBatch) and len(batch) == len(counts):
            # Exact also where policies are not delivered, of whose steps the batch knows only the number.
            exact = counts.copy()
            exact[0] += self._num_agent_steps_again - self._num_partial_agent_steps
            batch = dataclasses.replace(batch, agent_step_counts=exact)
        return batch

    def _rest_of_fragments(
        self, request: pb.ObtainSamplesRequest, beginning: episode_batch_pb2.Beginning
    ) -> pb.ObtainSamplesRequest:
        """Return the same request, from the same position of the rows, without the steps that were received."""
        num_episodes, num_steps = self.received
        self._before = _Whole(num_episodes, num_steps, 0)
        rest = copy.deepcopy(request)
        _continue_from(rest.options, beginning)
        _expect_workers(rest.options, beginning)
        rest.fragments.row_step_count = beginning.row_step_count
        rest.fragments.skip_step_count += num_steps
        return rest


class _Whole(NamedTuple):
    """Whole episodes received before an interruption, their steps, and the failed episodes skipped between them."""

    num_episodes: int
    num_steps: int
    num_failed_episodes: int


def _continue_from(options: pb.SamplingOptions, beginning: episode_batch_pb2.Beginning) -> None:
    """Make a call sample with the seed, the versions and the run that an earlier call began with."""
    options.ClearField("expected_policy_version")  # it was checked when the stream began
    options.ClearField("expected_environment_version")  # so was this
    options.ClearField("worker_count")  # and this
    options.ClearField("prefetch")  # not allowed with a seed
    options.ClearField("agent_update")  # it was made when the stream began
    options.seed = beginning.seed
    options.policy_version = beginning.policy_version
    options.environment_version = beginning.environment_version
    options.sampler_run = beginning.sampler_run


def _expect_workers(options: pb.SamplingOptions, beginning: episode_batch_pb2.Beginning) -> None:
    """Make a call fail unless it has as many workers as an earlier call, because its episodes depend on them."""
    if beginning.worker_count:  # older servers do not report the number, and cannot change it
        options.worker_count = beginning.worker_count


def _agent_step_counts(batch: AnyBatch) -> np.ndarray:
    """Return the number of steps of all agents in each segment, or in each part of an episode."""
    return batch.agent_step_counts if isinstance(batch, MultiAgentBatch) else batch.lengths
