"""Methods of the service on a channel."""

from __future__ import annotations

from typing import Any

from rollserve.v1 import sampler_service_pb2 as pb
from rollserve.v1.sampler_service_pb2_grpc import SamplerServiceStub

__all__ = ["RawStreamsStub"]


class RawStreamsStub(SamplerServiceStub):
    """The generated stub, except that responses of streams are the serialized bytes.

    The request of UpdateAgent may be serialized, too.
    """

    def __init__(self, channel: Any) -> None:
        super().__init__(channel)
        service = pb.DESCRIPTOR.services_by_name["SamplerService"].full_name
        for name, request in (
            ("ObtainSamples", pb.ObtainSamplesRequest),
            ("ObtainExactEpisodes", pb.ObtainExactEpisodesRequest),
            ("Evaluate", pb.EvaluateRequest),
            ("EvaluatePopulation", pb.EvaluatePopulationRequest),
        ):
            method = channel.unary_stream(f"/{service}/{name}", request.SerializeToString, None)
            setattr(self, name, method)
        response = pb.UpdateAgentResponse.FromString
        self.UpdateAgent = channel.unary_unary(f"/{service}/UpdateAgent", _serialize, response)


def _serialize(request: bytes | pb.UpdateAgentRequest) -> bytes:
    return request if isinstance(request, bytes) else request.SerializeToString()
