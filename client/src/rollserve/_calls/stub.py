"""The service's methods on a channel."""

from __future__ import annotations

from typing import Any

from rollserve.v1 import sampler_service_pb2 as pb
from rollserve.v1.sampler_service_pb2_grpc import SamplerServiceStub

__all__ = ["RawStreamsStub"]


class RawStreamsStub(SamplerServiceStub):
    """The generated stub, but that responses of streams come as the bytes that they are on the wire.

    Updates of agents may be sent as such.
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
        self.UpdateAgent = channel.unary_unary(f"/{service}/UpdateAgent", _serialized, response)


def _serialized(request: bytes | pb.UpdateAgentRequest) -> bytes:
    return request if isinstance(request, bytes) else request.SerializeToString()
