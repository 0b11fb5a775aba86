"""Scopes that requests need for what is in them, beside the scope of their RPC."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rollserve_server.gateway.messages.agents import has_pickle, is_pickle
from rollserve_server.identity import Scope
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    from rollserve_wire.parameter_updates import ParametersUpdate

__all__ = ["of_agent_update", "of_evaluation", "of_reading", "of_recording", "of_sampling"]

_Needed = Iterator[tuple[Scope, str]]
_PICKLE = Scope.PICKLE, "a pickled agent"


def of_sampling(request: pb.ObtainSamplesRequest | pb.ObtainExactEpisodesRequest | pb.StreamSpec) -> _Needed:
    """Yield what a call that updates the agent needs for that."""
    if request.options.HasField("agent_update"):
        yield Scope.AGENT_WRITE, "a call that updates the agent"
        if is_pickle(request.options.agent_update):
            yield _PICKLE


def of_agent_update(request: pb.UpdateAgentRequest | ParametersUpdate) -> _Needed:
    """Yield what an update needs for a pickle."""
    if isinstance(request, pb.UpdateAgentRequest) and has_pickle(request):
        yield _PICKLE


def of_evaluation(request: pb.EvaluateRequest | pb.EvaluatePopulationRequest) -> _Needed:
    """Yield what an evaluation needs for an environment of its own."""
    if request.options.HasField("environment"):
        yield Scope.ENV_WRITE, "an evaluation in another environment"


def of_recording(_: pb.RecordDatasetRequest) -> _Needed:
    """Yield what a recording needs to sample."""
    yield Scope.SAMPLE, "a recording"


def of_reading(request: pb.ReadDatasetRequest) -> _Needed:
    """Yield what a read needs for live episodes."""
    if any(source.WhichOneof("content") == "live" for source in request.sources):
        yield Scope.SAMPLE, "live episodes"
