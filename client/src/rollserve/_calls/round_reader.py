"""Reader that turns the responses of a stream into rounds, each as one batch."""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING, cast

from rollserve._calls.base_reader import BaseReader
from rollserve._calls.joining import Joining
from rollserve._calls.responses import read_response
from rollserve._calls.server_warnings import warn_of
from rollserve.account import account_from_proto
from rollserve.episode_batch import EpisodeBatch
from rollserve.multi_agent_batch import MultiAgentBatch
from rollserve.rounds import StreamProgress, round_from_proto, stream_progress_from_proto
from rollserve_wire.errors import malformed_error
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1.episode_batch_pb2 import Account as AccountProto
from rollserve_wire.v1.episode_batch_pb2 import Beginning, Progress, SharedMessage

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollserve._calls.responses import Bytes
    from rollserve.account import Account
    from rollserve.rounds import Round

__all__ = ["RoundReader"]


class RoundReader(BaseReader):
    """Reader of one stream's responses. The batches of a round are joined as they arrive.

    Attributes:
        progress: what the server last said.
        num_rounds: number of rounds received.
    """

    def __init__(self, spec: pb.StreamSpec, on_beginning: Callable[[Beginning], object]) -> None:
        """Start with the first call's request.

        Args:
            spec: the request.
            on_beginning: takes the beginning of the stream, once it is known.
        """
        super().__init__(on_beginning)
        self.progress = StreamProgress()
        self.num_rounds = 0
        self._spec = spec
        self._beginning: Beginning | None = None
        self._last: Round | None = None
        self._num_steps = self._num_episodes = 0
        self._lag_step_counts: list[int] = []
        self._num_resumptions = 0
        self._before = (0, 0, 0)  # rounds, episodes and steps that earlier calls have delivered
        self._joining: Joining | None = None
        self._num_expected_steps = 0

    @property
    def has_begun(self) -> bool:
        """Whether the stream's beginning is known."""
        return self._beginning is not None

    @property
    def is_complete(self) -> bool:
        """Whether all steps have arrived that the stream is for."""
        return self._spec.HasField("step_count") and self._num_steps >= self._spec.step_count

    def read(self, response: Bytes) -> EpisodeBatch | None:
        """Read a serialized response; return the batch of a round if that is complete now.

        Raises:
            ServerError: a malformed response.
        """
        try:
            content = read_response(response)
            if isinstance(content, SharedMessage):
                self._read_shared(content)
                return None
        except ValueError as error:
            raise malformed_error(str(error)) from None
        match content:
            case EpisodeBatch() | MultiAgentBatch():
                self._add(content)
            case pb.StreamRound():
                return self._end_round(round_from_proto(content))
            case Beginning():
                self._take_beginning(content, is_first=self._beginning is None)
                if self._beginning is None:
                    self._beginning = content
            case Progress():
                self.progress = stream_progress_from_proto(content)
                warn_of(content)
            case AccountProto():
                self._account = account_from_proto(content)
            case _:
                pass  # content of a later version, which a client may leave out
        return None

    def account(self) -> Account:
        """Return the account of the stream, after its end.

        Raises:
            ServerError: the stream ended without an account.
        """
        account = self._received_account()
        if not self._num_resumptions:
            return account
        num_rounds, num_episodes, num_steps = self._before
        return dataclasses.replace(
            account,
            num_rounds=account.num_rounds + num_rounds,
            num_episodes=account.num_episodes + num_episodes,
            num_steps=account.num_steps + num_steps,
            num_carried_steps=account.num_carried_steps + num_steps,
            num_resumptions=self._num_resumptions,
            lag_step_counts=tuple(self._lag_step_counts),
        )

    def rest(self) -> pb.StreamSpec:
        """Return the request for what has not been received: all of it, if the stream has not begun."""
        self._drop_part()
        beginning, last = self._beginning, self._last
        if beginning is None:
            return self._spec
        self._num_resumptions += 1
        self._before = self.num_rounds, self._num_episodes, self._num_steps
        spec = copy.deepcopy(self._spec)
        options = spec.options
        for name in ("expected_environment_version", "worker_count", "agent_update"):
            options.ClearField(name)  # they were heeded when the stream began
        if not options.client_id:
            options.ClearField("expected_policy_version")
        options.seed = beginning.seed if last is None else last.seed
        options.environment_version = beginning.environment_version
        options.sampler_run = beginning.sampler_run
        if spec.HasField("fragments"):
            spec.fragments.row_step_count = beginning.row_step_count if last is None else last.next_row_step_count
        else:
            options.first_episode_index = beginning.first_episode_index if last is None else last.next_episode_index
        if last is not None:
            spec.first_round_number = last.number + 1
        if spec.HasField("step_count"):
            spec.step_count -= self._num_steps
        return spec

    def close(self) -> None:
        """Give back what a round holds that is not complete."""
        self._drop_part()

    def _read_shared(self, shared: SharedMessage) -> None:
        """Add a batch in shared memory, which is free again once it is joined."""
        ring, data = self._in_ring(shared)
        try:
            content = read_response(data)
            if isinstance(content, MultiAgentBatch):  # held until the round ends
                content = read_response(data.tobytes())
            if isinstance(content, EpisodeBatch | MultiAgentBatch):
                self._add(content)
            del content
        finally:
            del data
            ring.release()

    def _add(self, batch: EpisodeBatch | MultiAgentBatch) -> None:
        if self._joining is None:
            self._joining = Joining(self._num_expected_steps)
        self._joining.add(self._with_spaces(batch))

    def _end_round(self, ended: Round) -> EpisodeBatch:
        joining, self._joining = self._joining, None
        if joining is None:
            raise malformed_error(f"round {ended.number} has no batches")
        with joining:
            batch = cast("EpisodeBatch", joining.join_round(ended))  # of many agents in environments of such
        self._last = ended
        self._num_expected_steps = ended.num_steps + ended.num_steps // 8
        self.num_rounds += 1
        self._num_steps += ended.num_steps
        self._num_episodes += ended.num_episodes
        lag = min(ended.policy_lag, 15)
        self._lag_step_counts += [0] * (lag + 1 - len(self._lag_step_counts))
        self._lag_step_counts[lag] += ended.num_steps
        return batch

    def _drop_part(self) -> None:
        if self._joining is not None:
            with self._joining:
                self._joining = None
