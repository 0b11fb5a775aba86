"""Methods of the service on a channel."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1.sampler_service_pb2_grpc import SamplerServiceStub

__all__ = ["RawStreamsStub"]


class RawStreamsStub(SamplerServiceStub):
    """The generated stub, except that responses of streams are the serialized bytes.

    The request of UpdateAgent may be serialized, too.
    """

    def __init__(self, channel: Any, metadata: Callable[[], Sequence[tuple[str, str]]] | None = None) -> None:
        """Take the methods of a channel.

        Args:
            channel: the channel.
            metadata: returns the metadata of each call; None for no metadata.
        """
        super().__init__(channel)
        service, *_ = pb.DESCRIPTOR.services_by_name.values()
        for name, request in (
            ("ObtainSamples", pb.ObtainSamplesRequest),
            ("ObtainExactEpisodes", pb.ObtainExactEpisodesRequest),
            ("Evaluate", pb.EvaluateRequest),
            ("EvaluatePopulation", pb.EvaluatePopulationRequest),
            ("RecordDataset", pb.RecordDatasetRequest),
            ("ReadDataset", pb.ReadDatasetRequest),
        ):
            method = channel.unary_stream(f"/{service.full_name}/{name}", request.SerializeToString, None)
            setattr(self, name, method)
        serialize = pb.StreamSamplesRequest.SerializeToString
        self.StreamSamples = channel.stream_stream(f"/{service.full_name}/StreamSamples", serialize, None)
        response = pb.UpdateAgentResponse.FromString
        self.UpdateAgent = channel.unary_unary(f"/{service.full_name}/UpdateAgent", _serialize, response)
        if metadata is not None:
            for each in service.methods:
                setattr(self, each.name, _with_metadata(getattr(self, each.name), metadata))


def _with_metadata(method: Callable[..., Any], metadata: Callable[[], Sequence[tuple[str, str]]]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(request: object, **options: Any) -> Any:
        return method(request, metadata=metadata(), **options)

    return call


def _serialize(request: bytes | pb.UpdateAgentRequest) -> bytes:
    return request if isinstance(request, bytes) else request.SerializeToString()
