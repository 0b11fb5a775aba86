"""Messages of a sampling call's stream as episode batches, and all of a stream as one."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np

from rollserve.account import Account, account_from_proto
from rollserve.columns import Columns, columns_of, is_mask, mask_name
from rollserve.episode_batch import EpisodeBatch
from rollserve.errors import ServerError
from rollserve.frame_stacks import unstack_frames
from rollserve.resumption import Resumption
from rollserve.tensors import named_tensors_from_proto, tensor_from_proto
from rollserve.v1 import sampler_service_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rollserve.resumption import Request
    from rollserve.v1 import episode_batch_pb2, tensor_pb2

__all__ = ["Response", "StreamReader", "batch_from_proto", "join_batches"]

Response = sampler_service_pb2.ObtainSamplesResponse | sampler_service_pb2.ObtainExactEpisodesResponse
"""What the streams of both sampling calls consist of."""


class StreamReader:
    """Reads the responses of one stream, in their order, whatever calls bring them.

    Attributes:
        resumption: how to go on after an interruption.
        num_simulated_steps: how many steps are known to have been simulated so far: as many as the server has told of,
            and at least as many as came.
    """

    def __init__(self, request: Request) -> None:
        """Begins with the first call's request."""
        self.resumption = Resumption(request)
        self.num_simulated_steps = 0
        self._num_received_steps = 0
        self._account: Account | None = None

    def read(self, response: Response) -> EpisodeBatch | None:
        """The batch in the response, if there is one.

        Raises:
            ServerError: the response is malformed.
        """
        match response.WhichOneof("content"):
            case "beginning":
                self.resumption.begin(response.beginning)
            case "batch":
                try:
                    batch = batch_from_proto(response.batch)
                except ValueError as error:
                    raise _malformed(str(error)) from error
                new = self.resumption.take(batch)
                self._num_received_steps += 0 if new is None else new.num_steps
                self.num_simulated_steps = max(self.num_simulated_steps, self._num_received_steps)
                return new
            case "progress":
                self.num_simulated_steps = max(self.num_simulated_steps, response.progress.simulated_step_count)
            case "account":
                self._account = account_from_proto(response.account)
                self.num_simulated_steps = self._account.num_simulated_steps
            case _:
                raise _malformed("a response without content came")
        return None

    def end(self) -> Account:
        """The account, after the stream's end.

        Raises:
            ServerError: there is none.
        """
        if self._account is None:
            raise _malformed("the stream ended without its account")
        return self.resumption.whole(self._account)


def batch_from_proto(message: episode_batch_pb2.EpisodeBatch) -> EpisodeBatch:
    """The segments of one message. The arrays cannot be written to: most are views of its bytes.

    Raises:
        ValueError: the message is malformed.
    """
    workers = message.worker_indices
    lengths = _integers(message.lengths)
    observations, last_observations = _observations(message, lengths)
    return EpisodeBatch(
        observations=observations,
        last_observations=last_observations,
        actions=columns_of(_columns(message.actions)),
        rewards=tensor_from_proto(message.rewards, is_column=True),
        lengths=lengths,
        terminated=np.array(message.terminated, np.bool_),
        truncated=np.array(message.truncated, np.bool_),
        agent_infos=_columns(message.agent_infos),
        env_infos=_columns(message.environment_infos),
        episode_infos=_columns(message.episode_infos),
        policy_versions=_integers(message.policy_versions),
        episode_indices=_integers(message.episode_indices),
        first_steps=_integers(message.first_steps),
        env_seeds=_integers(message.environment_seeds),
        worker_indices=_integers(workers) if workers else None,
    )


def join_batches(batches: Sequence[EpisodeBatch], account: Account) -> EpisodeBatch:
    """All batches of a stream as one of whole episodes or fragments, in arrays of its own, with the account.

    Where an environment's info of one name has several shapes, it is kept of those batches that have the first one, and
    the other values are added to the account's dropped infos.

    Raises:
        ServerError: the batches do not fit together, or the account tells of more or less than came.
    """
    dropped_infos = Counter(account.dropped_infos)
    try:
        batch = EpisodeBatch.concatenate(*_with_one_shape(batches, dropped_infos)).joined()
    except ValueError as error:
        raise _malformed(str(error)) from error
    num_episodes = int((batch.terminated | batch.truncated).sum())
    if (num_episodes, batch.num_steps) != (account.num_episodes, account.num_steps):
        came = f"{num_episodes} episodes ended in {batch.num_steps} steps that came"
        raise _malformed(f"{came}, the account tells of {account.num_episodes} in {account.num_steps}")
    account = dataclasses.replace(account, dropped_infos=dict(dropped_infos))
    return dataclasses.replace(batch, account=account)


def _with_one_shape(batches: Sequence[EpisodeBatch], dropped_infos: Counter[str]) -> Iterator[EpisodeBatch]:
    """The batches without the infos of environments whose shape is another than that of the first of their name.

    A server does not mix shapes within a message, so that which values are kept does not depend on how the episodes are
    spread over messages.
    """
    shapes: dict[tuple[str, str], tuple[int, ...]] = {}
    for batch in batches:
        kept: dict[str, Any] = {"env_infos": {}, "episode_infos": {}}
        for group, infos in kept.items():
            given = getattr(batch, group)
            for name, column in given.items():
                mask = given.get(mask_name(name))
                owner = name[1:] if is_mask(name, given) else name
                shape = given[owner].shape[1:]
                if shapes.setdefault((group, owner), shape) == shape:
                    infos[name] = column
                elif owner == name:
                    dropped_infos[name] += len(column) if mask is None else int(mask.sum())
        yield dataclasses.replace(batch, **kept)


def _observations(message: episode_batch_pb2.EpisodeBatch, lengths: np.ndarray) -> tuple[Columns, Columns]:
    """The observations and the last ones, those that come as stacks of frames included."""
    observations, last_observations = _columns(message.observations), _columns(message.last_observations)
    for stack in message.frame_stacks:
        if stack.name in observations or stack.name in last_observations:
            raise ValueError(f"{stack.name!r}: the name came twice")
        try:
            frames = tensor_from_proto(stack.frames, is_column=True)
            columns = unstack_frames(frames, stack.frame_count, lengths)
        except ValueError as error:
            raise ValueError(f"{stack.name!r}: {error}") from None
        observations[stack.name], last_observations[stack.name] = columns
    return columns_of(observations), columns_of(last_observations)


def _columns(tensors: Iterable[tensor_pb2.NamedTensor]) -> dict[str, np.ndarray]:
    return named_tensors_from_proto(tensors, are_columns=True)


def _integers(values: Iterable[int]) -> np.ndarray:
    return np.fromiter(values, np.int64)


def _malformed(message: str) -> ServerError:
    return ServerError(f"malformed stream: {message}", code=grpc.StatusCode.DATA_LOSS)
