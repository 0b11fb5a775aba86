"""Responses of streams: what a pool yields, as serialized messages. Sampled messages pass through as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rollserve.v1 import sampler_service_pb2 as pb
from rollserve_server.gateway.messages.accounts import account_to_proto
from rollserve_server.gateway.messages.evaluations import evaluation_to_proto, population_evaluation_to_proto
from rollserve_server.gateway.messages.streams import beginning_to_proto, progress_to_proto
from rollserve_server.pool import Account, Beginning, Evaluation, Progress

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rollserve_server.gateway.rpcs.open_rpc import OpenRpc
    from rollserve_server.gateway.shared_memory import Ring
    from rollserve_server.pool import Delivery

__all__ = [
    "delivered_messages",
    "evaluation_response",
    "population_response",
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
    """Return a response of `ObtainSamples` or `ObtainExactEpisodes`, which have the same fields."""
    match item:
        case Beginning():
            shared_memory = ring.offer() if ring else None
            response = pb.ObtainSamplesResponse(beginning=beginning_to_proto(item, shared_memory))
        case Progress():
            response = pb.ObtainSamplesResponse(progress=progress_to_proto(item))
        case Account():
            shared_message_bytes = ring.num_message_bytes if ring else 0
            account = account_to_proto(item, shared_message_bytes=shared_message_bytes)
            response = pb.ObtainSamplesResponse(account=account)
    return response.SerializeToString()


def evaluation_response(item: Beginning | Progress | Evaluation) -> bytes:
    """Return a response of `Evaluate`."""
    match item:
        case Beginning():
            response = pb.EvaluateResponse(beginning=beginning_to_proto(item))
        case Progress():
            response = pb.EvaluateResponse(progress=progress_to_proto(item))
        case Evaluation():
            response = pb.EvaluateResponse(evaluation=evaluation_to_proto(item))
    return response.SerializeToString()


def population_response(item: Beginning | Progress | Evaluation) -> bytes:
    """Return a response of `EvaluatePopulation`."""
    match item:
        case Beginning():
            response = pb.EvaluatePopulationResponse(beginning=beginning_to_proto(item))
        case Progress():
            response = pb.EvaluatePopulationResponse(progress=progress_to_proto(item))
        case Evaluation():
            response = pb.EvaluatePopulationResponse(evaluation=population_evaluation_to_proto(item))
    return response.SerializeToString()
