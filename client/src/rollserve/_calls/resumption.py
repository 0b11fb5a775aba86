"""Going on after an interruption: what of a stream has come, and which call brings the rest."""

from __future__ import annotations

import copy
import dataclasses
import random
import time
from typing import TYPE_CHECKING, NamedTuple

import grpc
import numpy as np

from rollserve.errors import malformed_error, reason_of
from rollserve.v1 import episode_batch_pb2
from rollserve.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    from rollserve.account import Account
    from rollserve.episode_batch import EpisodeBatch

__all__ = ["REPEATABLE", "Backoff", "Request", "Resumption", "is_passing"]

Request = pb.ObtainSamplesRequest | pb.ObtainExactEpisodesRequest
"""What asks for a stream."""

REPEATABLE = (episode_batch_pb2.REPRODUCIBILITY_EPISODE, episode_batch_pb2.REPRODUCIBILITY_BLOCK)
"""The classes of what comes again if it is asked for again."""


_TRIED_AGAIN = ("WORKER_LOST_AGAIN", "WORKER_HUNG")
"""Where the server itself has done the same again and again, at the cost of a worker each time."""


def is_passing(error: grpc.RpcError) -> bool:
    """Whether the same call may succeed later."""
    return error.code() is grpc.StatusCode.UNAVAILABLE and reason_of(error) not in _TRIED_AGAIN


class Resumption:
    """Where a stream is, whatever calls bring it: nothing comes twice, and nothing is left out.

    Attributes:
        num_resumptions: how often it was taken up again.
    """

    def __init__(self, request: Request) -> None:
        """Begins with the first call's request."""
        self.num_resumptions = 0
        self._request = request
        self._beginning: episode_batch_pb2.Beginning | None = None
        # Of the episodes that came whole: how many, their steps, and the index and steps of the last one.
        self._num_episodes = 0
        self._num_steps = 0
        self._last_index = -1
        self._num_last_steps = 0
        # Of the one that has come in part: its index and steps. Of fragments, the steps of all that came behind the
        # last whole one.
        self._partial_index = -1
        self._num_partial_steps = 0
        # Of the call that is running: the steps to leave out and the episode that they are of, and what was whole
        # before its first episode.
        self._num_steps_to_skip = 0
        self._index_to_skip = -1
        self._before = _Whole(0, 0, 0)

    @property
    def possible(self) -> bool:
        """Whether it is known how to go on, and the rest would be that of the same episodes."""
        beginning = self._beginning
        return beginning is not None and beginning.reproducibility in REPEATABLE

    def begin(self, beginning: episode_batch_pb2.Beginning) -> None:
        """Takes in a call's first message."""
        if self._beginning is None:
            self._beginning = beginning

    def take(self, batch: EpisodeBatch) -> EpisodeBatch | None:
        """What of a batch has not come before.

        Raises:
            ServerError: the episode does not come again of which a part has come.
        """
        if self._num_steps_to_skip and self._index_to_skip not in (-1, int(batch.episode_indices[0])):
            text = f"a part of episode {self._index_to_skip} came before an interruption, but now it is left out"
            raise malformed_error(text)
        num_skipped = min(self._num_steps_to_skip, batch.num_steps)
        self._num_steps_to_skip -= num_skipped
        if num_skipped == batch.num_steps:
            return None
        if num_skipped:
            batch = batch.without_first_steps(num_skipped)
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
        else:
            self._num_partial_steps += batch.num_steps
        self._partial_index = int(batch.episode_indices[-1])
        return batch

    def rest(self) -> Request:
        """The request that brings what has not come. `possible` has to be true."""
        beginning = self._beginning
        assert beginning is not None  # noqa: S101  # the caller has asked
        self.num_resumptions += 1
        if isinstance(self._request, pb.ObtainSamplesRequest) and self._request.HasField("fragments"):
            return self._rest_of_fragments(self._request)
        num_episodes, num_steps, skipped = self._num_episodes, self._num_steps, self._num_partial_steps
        # Episodes may have been left out: what counts is the last one's index.
        next_index = self._last_index + 1 if num_episodes else beginning.first_episode_index
        if skipped:
            next_index = self._partial_index
        elif isinstance(self._request, pb.ObtainSamplesRequest) and num_steps >= self._request.step_count:
            # Only the account is missing, and there is no asking for no steps: the last episode comes once more.
            num_episodes, num_steps, skipped = num_episodes - 1, num_steps - self._num_last_steps, self._num_last_steps
            next_index = self._last_index
        num_passed = next_index - beginning.first_episode_index
        self._before = _Whole(num_episodes, num_steps, num_passed - num_episodes)
        self._num_steps_to_skip, self._index_to_skip = skipped, next_index
        rest = copy.deepcopy(self._request)
        options = rest.options
        _name_what_began(options, beginning)
        options.first_episode_index = beginning.first_episode_index
        if isinstance(rest, pb.ObtainSamplesRequest):
            options.first_episode_index += num_passed
            rest.step_count -= num_steps
        else:
            options.first_episode_index -= rest.skip_episode_count
            rest.skip_episode_count += num_passed
            _name_workers(options, beginning)
        return rest

    def _rest_of_fragments(self, request: pb.ObtainSamplesRequest) -> pb.ObtainSamplesRequest:
        """The same call, from where the rows stood at its beginning on, without the steps that came."""
        assert self._beginning is not None  # noqa: S101  # as of `rest`
        num_steps = self._num_steps + self._num_partial_steps
        self._before = _Whole(self._num_episodes, num_steps, 0)
        rest = copy.deepcopy(request)
        _name_what_began(rest.options, self._beginning)
        _name_workers(rest.options, self._beginning)
        rest.fragments.row_step_count = self._beginning.row_step_count
        rest.fragments.skip_step_count += num_steps
        return rest

    def whole(self, account: Account) -> Account:
        """The account of the stream, given that of its last call."""
        num_episodes, num_steps, num_left_out = self._before
        if not self.num_resumptions or self._beginning is None:
            return account
        return dataclasses.replace(
            account,
            num_episodes=account.num_episodes + num_episodes,
            num_steps=account.num_steps + num_steps,
            num_carried_steps=account.num_carried_steps + num_steps,
            first_episode_index=self._beginning.first_episode_index,
            num_resumptions=self.num_resumptions,
            num_failed_episodes=account.num_failed_episodes + num_left_out,
        )


class _Whole(NamedTuple):
    """What came before an interruption: whole episodes, their steps, and how many were left out between them."""

    num_episodes: int
    num_steps: int
    num_left_out: int


def _name_what_began(options: pb.SamplingOptions, beginning: episode_batch_pb2.Beginning) -> None:
    """Has a call sample what an earlier one began with."""
    options.ClearField("expected_policy_version")  # it was the expected one when the stream began
    options.ClearField("worker_count")  # and so was this
    options.ClearField("prefetch")  # which goes with no seed
    options.seed = beginning.seed
    options.policy_version = beginning.policy_version
    options.environment_version = beginning.environment_version
    options.sampler_run = beginning.sampler_run


def _name_workers(options: pb.SamplingOptions, beginning: episode_batch_pb2.Beginning) -> None:
    """Has a call fail if what it brings is of another number of workers than what an earlier one began with."""
    if beginning.worker_count:  # else the server does not tell, nor change it
        options.worker_count = beginning.worker_count


class Backoff:
    """How long to wait before the next attempt: twice as long each time, up to a limit, and a little at random."""

    _FIRST_SECONDS, _MOST_SECONDS = 0.1, 5.0

    def __init__(self, patience_seconds: float) -> None:
        """Begins to count; attempts are to end after so many seconds of failures."""
        self._patience_seconds = patience_seconds
        self.succeed()

    def succeed(self) -> None:
        """Takes in that an attempt has brought something. How long the client then leaves it alone does not count."""
        self._since: float | None = None
        self._seconds = self._FIRST_SECONDS

    def next_seconds(self) -> float | None:
        """How long to wait, or None if there has been no success for too long."""
        seconds, now = self._seconds * random.uniform(0.5, 1.0), time.monotonic()
        self._since = now if self._since is None else self._since
        if now + seconds - self._since > self._patience_seconds:
            return None
        self._seconds = min(2 * self._seconds, self._MOST_SECONDS)
        return seconds
