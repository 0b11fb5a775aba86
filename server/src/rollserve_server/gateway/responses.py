"""Responses of streams: what a pool yields, as serialized messages. Sampled messages pass through as they are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Self

from google.protobuf.message import Message

from rollserve_server.envs import space_to_proto
from rollserve_server.errors import DomainError
from rollserve_server.futures import in_background, in_request_thread
from rollserve_server.gateway.audit import note_agent_update
from rollserve_server.gateway.messages.accounts import account_to_proto, moments_to_proto, recording_to_proto
from rollserve_server.gateway.messages.evaluations import evaluation_to_proto, population_evaluation_to_proto
from rollserve_server.pool import (
    Account,
    AgentUpdated,
    Beginning,
    Delivery,
    EpisodeRecords,
    Evaluation,
    MessageFormat,
    Progress,
    Recorded,
    StreamRound,
)
from rollserve_wire.environments import reproducibility_to_proto
from rollserve_wire.protobuf import keys_of, length_delimited
from rollserve_wire.records import message_from_record
from rollserve_wire.v1 import episode_batch_pb2
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rollserve_server.gateway.rpcs.open_rpc import OpenRpc
    from rollserve_server.gateway.shared_memory import Ring
    from rollserve_wire.v1 import space_pb2

__all__ = ["ResponseWriter", "delivered_messages", "response_of"]


_MAX_PART_BYTES, _MAX_JOINED_BYTES = 64 << 10, 256 << 10
_MAX_KEY_BYTES = 6  # key and size of a part, and of all of them
_MAX_SECONDS = 0.01
"""How long a response waits for others. In a call that takes longer, this does not count."""

_JOINED = keys_of(pb.ObtainSamplesResponse.DESCRIPTOR)["joined"]
_RESPONSES = keys_of(pb.JoinedResponses.DESCRIPTOR)["responses"]

_OF_ROUNDS = (pb.StreamSamplesResponse, pb.DriveEnvironmentsResponse)

_RECORD_FIELDS = {
    "episode_indices": "episode_index",
    "returns": "total_reward",
    "lengths": "length",
    "terminated": "terminated",
    "truncated": "truncated",
    "policy_versions": "policy_version",
    "environment_versions": "env_version",
    "seconds": "seconds",
    "worker_indices": "worker",
    "rows": "row",
    "call_kinds": "call_kind",
    "delivered": "delivered",
    "unix_seconds": "unix_seconds",
}
"""Lists of `GetMetricsResponse`, and the field of a record that each has."""

PoolItem = (
    AgentUpdated | Beginning | Delivery | Progress | Account | Evaluation | StreamRound | EpisodeRecords | Recorded
)
"""Anything that a pool yields for a client."""


def delivered_messages(delivery: Delivery) -> Iterator[NDArray[np.uint8]]:
    """Yield the serialized messages of a delivery, as views of its buffer."""
    for message in delivery.messages:
        yield delivery.buffer[message.offset : message.offset + message.size]


def response_of(kind: type[Message], item: object, ring: Ring | None = None) -> bytes:
    """Return what a pool yields, deliveries and updates aside, as a serialized response.

    Args:
        kind: class of the response.
        item: what the pool yields.
        ring: memory that the RPC shares with its client; None if all messages are sent.
    """
    match item:
        case Beginning():
            content: dict[str, Any] = {"beginning": _beginning_to_proto(item, ring)}
        case Progress():
            content = {"progress": message_from_record(episode_batch_pb2.Progress, item)}
        case Account():
            shared_message_bytes = ring.num_message_bytes if ring else 0
            content = {"account": account_to_proto(item, shared_message_bytes=shared_message_bytes)}
        case StreamRound():
            moments = moments_to_proto(item.account.moments)
            content = {"round": message_from_record(pb.StreamRound, item, **moments)}
        case Recorded():
            content = {"recording": recording_to_proto(item)}
        case Evaluation() if kind is pb.EvaluateResponse:
            content = {"evaluation": evaluation_to_proto(item)}
        case Evaluation():
            content = {"evaluation": population_evaluation_to_proto(item)}
        case EpisodeRecords():
            content = {name: item.records[field].tolist() for name, field in _RECORD_FIELDS.items()}
            content |= {"log_id": item.log_id, "position": item.position, "missed_count": item.num_missed}
        case _:
            raise TypeError(f"{kind.DESCRIPTOR.name} has no field for {item!r}")
    return kind(**content).SerializeToString()


class ResponseWriter:
    """Writes the responses of one RPC in their order, from what a pool yields. Counts the calls that it made."""

    def __init__(
        self,
        rpc: OpenRpc,
        kind: type[Message],
        form: MessageFormat,
        ring: Ring | None,
        count: Callable[[Account], None],
    ) -> None:
        """Write to the client of an RPC.

        Args:
            rpc: the RPC.
            kind: class of its responses.
            form: how its client takes messages.
            ring: memory that the RPC shares with its client; None if all messages are sent.
            count: called with the account of each call that has ended.
        """
        self._rpc, self._kind, self._ring, self._count = rpc, kind, ring, count
        self._has_account = "account" in kind.DESCRIPTOR.fields_by_name
        self._max_bytes = min(form.max_message_bytes, _MAX_JOINED_BYTES) - _MAX_KEY_BYTES if form.accepts_joined else 0
        self._waiting: list[bytes] = []
        self._num_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._writing = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        """Send what is ready, such as where a client may resume the stream, unless the client is gone."""
        try:
            if error is None or isinstance(error, DomainError):
                await self._flush()
        finally:
            if self._timer is not None:
                self._timer.cancel()

    async def write(self, item: PoolItem | Message | bytes) -> None:
        """Send a response, or what a pool yields as one: what is serialized and what is delivered, as it is."""
        match item:
            case Delivery():
                for message in delivered_messages(item):
                    shared = None if self._ring is None else await self._in_ring(message, self._ring)
                    await self._send(message.tobytes() if shared is None else shared)
            case bytes():
                await self._send(item)
            case Message():
                await self._send(item.SerializeToString())
            case AgentUpdated():
                await note_agent_update(self._rpc, item)
            case Evaluation():
                self._count(item.account)
                await self._send(await in_request_thread(response_of, self._kind, item))
            case Account() if not self._has_account:
                self._count(item)
            case _:
                if isinstance(item, StreamRound):
                    self._count(item.account)
                elif isinstance(item, Account) and self._kind not in _OF_ROUNDS:  # which count themselves
                    self._count(item)
                await self._send(response_of(self._kind, item, self._ring))

    async def _in_ring(self, message: NDArray[np.uint8], ring: Ring) -> bytes | None:
        """Write a sampled message to the shared memory; return the response for its place, or None to send it."""
        with self._rpc.waiting_for_client():  # while the memory is full
            shared = await ring.write(message)
        return None if shared is None else pb.ObtainSamplesResponse(shared=shared).SerializeToString()

    async def _send(self, response: bytes) -> None:
        """Send a response; a small one within 10 ms, if the RPC's client accepts joined ones."""
        num_bytes = len(response) + _MAX_KEY_BYTES
        is_large = num_bytes > min(self._max_bytes, _MAX_PART_BYTES)
        if self._max_bytes and (is_large or self._num_bytes + num_bytes > self._max_bytes):
            await self._flush()
        if is_large:
            await self._rpc.write(response)
            return
        self._rpc.begin_response()  # meanwhile, so that the joined responses do not wait for it
        self._waiting.append(response)
        self._num_bytes += num_bytes
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_MAX_SECONDS, self._flush_soon)

    async def _flush(self) -> None:
        """Send all responses that wait."""
        async with self._writing:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            waiting, self._waiting, self._num_bytes = self._waiting, [], 0
            if waiting:
                await self._rpc.write(waiting[0] if len(waiting) == 1 else _joined(waiting))

    def _flush_soon(self) -> None:
        in_background(self._flush())  # an error comes again with the next response, or with the end of the RPC


def _joined(responses: list[bytes]) -> bytes:
    parts = [part for response in responses for part in length_delimited(_RESPONSES, [response])]
    return b"".join(length_delimited(_JOINED, parts))


def _beginning_to_proto(item: Beginning, ring: Ring | None) -> episode_batch_pb2.Beginning:
    return message_from_record(
        episode_batch_pb2.Beginning,
        item,
        reproducibility=reproducibility_to_proto(item.reproducibility),
        sampler_run=item.run,
        shared_memory=ring.offer() if ring else None,
        joint_rows=item.has_joint_rows,
        **_spaces(item),
    )


def _spaces(item: Beginning) -> dict[str, space_pb2.Space | None]:
    """Return the fields of a beginning that hold its spaces."""
    names = "observation_space", "action_space"
    if item.spaces is None:
        return dict.fromkeys(names)
    return {name: space_to_proto(space) for name, space in zip(names, item.spaces, strict=True)}
