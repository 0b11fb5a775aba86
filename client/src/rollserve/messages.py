"""Messages of a sampling call's stream as episode batches, and all of a stream as one."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Any

import grpc

from rollserve.account import Account, account_from_proto
from rollserve.columns import is_mask, mask_name
from rollserve.contents import read_response
from rollserve.episode_batch import EpisodeBatch
from rollserve.errors import ServerError
from rollserve.resumption import Resumption
from rollserve.v1.episode_batch_pb2 import Account as AccountProto
from rollserve.v1.episode_batch_pb2 import Beginning, Progress

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rollserve.contents import Bytes
    from rollserve.resumption import Request

__all__ = ["StreamReader", "join_batches"]


class StreamReader:
    """Reads the responses of one stream, in their order, whatever calls bring them.

    Attributes:
        resumption: how to go on after an interruption.
        num_simulated_steps: how many steps are known to have been simulated so far: as many as the server has told of,
            and at least as many as came.
        has_advanced: whether what was read last is more than the beginning of a call.
    """

    def __init__(self, request: Request) -> None:
        """Begins with the first call's request."""
        self.resumption = Resumption(request)
        self.num_simulated_steps = 0
        self.has_advanced = False
        self._num_received_steps = 0
        self._account: Account | None = None

    def read(self, response: Bytes) -> EpisodeBatch | None:
        """The batch in the serialized response, if there is one that has not come before.

        Raises:
            ServerError: the response is malformed.
        """
        try:
            content = read_response(response)
        except ValueError as error:
            raise _malformed(str(error)) from error
        self.has_advanced = not isinstance(content, Beginning)
        match content:
            case EpisodeBatch():
                new = self.resumption.take(content)
                self._num_received_steps += 0 if new is None else new.num_steps
                self.num_simulated_steps = max(self.num_simulated_steps, self._num_received_steps)
                return new
            case Beginning():
                self.resumption.begin(content)
            case Progress():
                self.num_simulated_steps = max(self.num_simulated_steps, content.simulated_step_count)
            case AccountProto():
                self._account = account_from_proto(content)
                self.num_simulated_steps = self._account.num_simulated_steps
            case None:
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


def _malformed(message: str) -> ServerError:
    return ServerError(f"malformed stream: {message}", code=grpc.StatusCode.DATA_LOSS)
