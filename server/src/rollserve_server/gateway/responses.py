"""Responses of streams: what a pool yields, as serialized messages. Sampled messages pass through as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rollserve_server.envs import describe_space
from rollserve_server.gateway.messages.accounts import account_to_proto, moments_to_proto
from rollserve_server.gateway.messages.evaluations import evaluation_to_proto, population_evaluation_to_proto
from rollserve_server.pool import Account, Evaluation, Progress
from rollserve_wire.environments import reproducibility_to_proto
from rollserve_wire.records import message_from_record
from rollserve_wire.spaces import space_to_proto
from rollserve_wire.v1 import datasets_pb2, episode_batch_pb2
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rollserve_server.gateway.rpcs.open_rpc import OpenRpc
    from rollserve_server.gateway.shared_memory import Ring
    from rollserve_server.pool import Beginning, Delivery, StreamRound
    from rollserve_wire.v1 import space_pb2

__all__ = [
    "delivered_messages",
    "evaluation_response",
    "population_response",
    "read_response",
    "recording_response",
    "round_response",
    "sample_response",
    "shared_or_sent",
]


def delivered_messages(delivery: Delivery) -> Iterator[NDArray[np.uint8]]:
    """Yield the serialized messages of a delivery, as views of its buffer."""
    for message in delivery.messages:
        yield delivery.buffer[message.offset : message.offset + message.size]


async def shared_or_sent(message: NDArray[np.uint8], ring: Ring | None, rpc: OpenRpc) -> bytes:
    """Return the response for a sampled message: its place in shared memory if it goes there, else the message itself.

    Args:
        message: the serialized message.
        ring: memory that the RPC shares with its client; None if all messages are sent.
        rpc: the RPC, which waits for its client while the memory is full.
    """
    if ring is not None:
        with rpc.waiting_for_client():
            shared = await ring.write(message)
        if shared is not None:
            return pb.ObtainSamplesResponse(shared=shared).SerializeToString()
    return message.tobytes()


def sample_response(item: Beginning | Progress | Account, ring: Ring | None) -> bytes:
    """Return a response of `ObtainSamples`, `ObtainExactEpisodes` or `StreamSamples`, which have the same fields."""
    if isinstance(item, Account):
        account = account_to_proto(item, shared_message_bytes=ring.num_message_bytes if ring else 0)
        return pb.ObtainSamplesResponse(account=account).SerializeToString()
    return _response_before_result(pb.ObtainSamplesResponse, item, ring)


def round_response(item: StreamRound) -> bytes:
    """Return the response of `StreamSamples` that ends a round."""
    ended = message_from_record(pb.StreamRound, item, **moments_to_proto(item.account.moments))
    return pb.StreamSamplesResponse(round=ended).SerializeToString()


def evaluation_response(item: Beginning | Progress | Evaluation) -> bytes:
    """Return a response of `Evaluate`."""
    if isinstance(item, Evaluation):
        return pb.EvaluateResponse(evaluation=evaluation_to_proto(item)).SerializeToString()
    return _response_before_result(pb.EvaluateResponse, item)


def population_response(item: Beginning | Progress | Evaluation) -> bytes:
    """Return a response of `EvaluatePopulation`."""
    if isinstance(item, Evaluation):
        return pb.EvaluatePopulationResponse(evaluation=population_evaluation_to_proto(item)).SerializeToString()
    return _response_before_result(pb.EvaluatePopulationResponse, item)


def recording_response(item: datasets_pb2.RecordingProgress | datasets_pb2.Recording) -> bytes:
    """Return a response of `RecordDataset`."""
    if isinstance(item, datasets_pb2.Recording):
        return pb.RecordDatasetResponse(recording=item).SerializeToString()
    return pb.RecordDatasetResponse(progress=item).SerializeToString()


def read_response(item: datasets_pb2.DatasetBeginning | Progress | datasets_pb2.DatasetBatchEnd) -> bytes:
    """Return a response of `ReadDataset` that holds no segments."""
    match item:
        case Progress():
            progress = message_from_record(episode_batch_pb2.Progress, item)
            return pb.ReadDatasetResponse(progress=progress).SerializeToString()
        case datasets_pb2.DatasetBeginning():
            return pb.ReadDatasetResponse(beginning=item).SerializeToString()
    return pb.ReadDatasetResponse(end=item).SerializeToString()


def _response_before_result(
    kind: type[pb.ObtainSamplesResponse | pb.EvaluateResponse | pb.EvaluatePopulationResponse],
    item: Beginning | Progress,
    ring: Ring | None = None,
) -> bytes:
    """Return a response that comes before the result: the beginning of a call, or its progress."""
    if isinstance(item, Progress):
        return kind(progress=message_from_record(episode_batch_pb2.Progress, item)).SerializeToString()
    beginning = message_from_record(
        episode_batch_pb2.Beginning,
        item,
        reproducibility=reproducibility_to_proto(item.reproducibility),
        sampler_run=item.run,
        shared_memory=ring.offer() if ring else None,
        **_spaces(item),
    )
    return kind(beginning=beginning).SerializeToString()


def _spaces(item: Beginning) -> dict[str, space_pb2.Space | None]:
    """Return the fields of a beginning that hold its spaces."""
    names = "observation_space", "action_space"
    if item.spaces is None:
        return dict.fromkeys(names)
    return {name: space_to_proto(describe_space(space)) for name, space in zip(names, item.spaces, strict=True)}
