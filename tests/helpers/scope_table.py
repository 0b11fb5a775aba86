"""Write the table of docs/access.md: the scopes that each RPC needs, as a server's answers show them.

`python -m scope_table` writes the table into the page.
"""

from __future__ import annotations

import contextlib
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import grpc
from certificates import serving
from google.protobuf.message import Message
from principals import Tokens
from saved_files import saved_file

import rollserve
from rollserve import Reason
from rollserve._calls.rpc_errors import error_from_rpc
from rollserve.agents import agent_to_proto
from rollserve_server.identity import Scope
from rollserve_wire.environments import env_spec_to_proto
from rollserve_wire.rows.v1 import row_service_pb2
from rollserve_wire.v1 import (
    agent_versions_pb2,
    datasets_pb2,
    environment_pb2,
    episode_records_pb2,
    samplers_pb2,
    settings_pb2,
)
from rollserve_wire.v1 import sampler_service_pb2 as pb

__all__ = ["EVERYTHING", "METHODS", "PAGE", "REQUESTS", "SERVICE", "Asker", "asking", "table_of"]

SERVICE = pb.DESCRIPTOR.services_by_name["SamplerService"]
METHODS = {
    method.name: method
    for service in (SERVICE, row_service_pb2.DESCRIPTOR.services_by_name["RowService"])
    for method in service.methods
}
"""The RPCs of the server's own services by name."""
PAGE = Path(__file__).parents[2] / "docs" / "access.md"
EVERYTHING = "everything"
"""Name of the token with all scopes."""
_REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
_TABLE = re.compile(r"(?<=^\| scopes \| RPCs \|\n\|---\|---\|\n)(?:\|.*\n)+", re.MULTILINE)


def update(agent: rollserve.Agent) -> pb.UpdateAgentRequest:
    return pb.UpdateAgentRequest(all_workers=pb.AgentUpdate(agent=agent_to_proto(agent)))


def stream(options: pb.SamplingOptions) -> pb.StreamSamplesRequest:
    spec = pb.StreamSpec(episodes=pb.StreamedEpisodes(step_count=1), options=options)
    return pb.StreamSamplesRequest(spec=spec)


PICKLE = rollserve.PickledAgent(b"\x80\x04N.")
CARTPOLE, POLE = (env_spec_to_proto(rollserve.EnvSpec(name)) for name in ("CartPole-v1", "profile:pole"))
PROFILES = '{"pole": {"env": "CartPole-v1"}}'
REQUESTS: Mapping[str, tuple[str, Message]] = {
    "GetSampler": ("GetSampler", pb.GetSamplerRequest()),
    "GetMetrics": ("GetMetrics", episode_records_pb2.GetMetricsRequest()),
    "ListAgentVersions": ("ListAgentVersions", agent_versions_pb2.ListAgentVersionsRequest()),
    "ServerReflectionInfo": ("", pb.GetSamplerRequest()),
    "ObtainSamples": ("ObtainSamples", pb.ObtainSamplesRequest(step_count=1)),
    "ObtainSamples, with an agent": (
        "ObtainSamples",
        pb.ObtainSamplesRequest(
            step_count=1, options=pb.SamplingOptions(agent_update=update(rollserve.RandomAgent()).all_workers)
        ),
    ),
    "ObtainSamples, with a pickled agent": (
        "ObtainSamples",
        pb.ObtainSamplesRequest(step_count=1, options=pb.SamplingOptions(agent_update=update(PICKLE).all_workers)),
    ),
    "ObtainExactEpisodes": ("ObtainExactEpisodes", pb.ObtainExactEpisodesRequest(episode_count_per_worker=1)),
    "ObtainExactEpisodes, with an agent": (
        "ObtainExactEpisodes",
        pb.ObtainExactEpisodesRequest(
            episode_count_per_worker=1,
            options=pb.SamplingOptions(agent_update=update(rollserve.RandomAgent()).all_workers),
        ),
    ),
    "ObtainExactEpisodes, with a pickled agent": (
        "ObtainExactEpisodes",
        pb.ObtainExactEpisodesRequest(
            episode_count_per_worker=1, options=pb.SamplingOptions(agent_update=update(PICKLE).all_workers)
        ),
    ),
    "StreamSamples": ("StreamSamples", stream(pb.SamplingOptions())),
    "StreamSamples, with an agent": (
        "StreamSamples",
        stream(pb.SamplingOptions(agent_update=update(rollserve.RandomAgent()).all_workers)),
    ),
    "StreamSamples, with a pickled agent": (
        "StreamSamples",
        stream(pb.SamplingOptions(agent_update=update(PICKLE).all_workers)),
    ),
    "DriveEnvironments": ("DriveEnvironments", pb.DriveEnvironmentsRequest(spec=pb.DriveSpec(fragment_length=1))),
    "DriveEnvironments, into a dataset": (
        "DriveEnvironments",
        pb.DriveEnvironmentsRequest(spec=pb.DriveSpec(dataset="a-v0", fragment_length=1)),
    ),
    "RenderEpisode": ("RenderEpisode", pb.RenderEpisodeRequest()),
    "Evaluate": ("Evaluate", pb.EvaluateRequest(episode_count=1)),
    "Evaluate, in another environment": (
        "Evaluate",
        pb.EvaluateRequest(episode_count=1, options=pb.EvaluationOptions(environment=POLE)),
    ),
    "Evaluate, in one of no profile": (
        "Evaluate",
        pb.EvaluateRequest(episode_count=1, options=pb.EvaluationOptions(environment=CARTPOLE)),
    ),
    "EvaluatePopulation": ("EvaluatePopulation", pb.EvaluatePopulationRequest(episode_count=1)),
    "EvaluatePopulation, in another environment": (
        "EvaluatePopulation",
        pb.EvaluatePopulationRequest(episode_count=1, options=pb.EvaluationOptions(environment=POLE)),
    ),
    "EvaluatePopulation, in one of no profile": (
        "EvaluatePopulation",
        pb.EvaluatePopulationRequest(episode_count=1, options=pb.EvaluationOptions(environment=CARTPOLE)),
    ),
    "RecordDataset": ("RecordDataset", pb.RecordDatasetRequest(dataset="a-v0", episode_count=1)),
    "ReadDataset": ("ReadDataset", pb.ReadDatasetRequest(sources=[datasets_pb2.DatasetSource()])),
    "ReadDataset, with live episodes": (
        "ReadDataset",
        # Without a number of steps, which is an error once the scopes suffice: each read would start a process.
        pb.ReadDatasetRequest(sources=[datasets_pb2.DatasetSource(live=datasets_pb2.LiveEpisodes())]),
    ),
    "GetAgentParameters": ("GetAgentParameters", agent_versions_pb2.GetAgentParametersRequest()),
    "GetAgent": ("GetAgent", agent_versions_pb2.GetAgentRequest()),
    "UpdateAgent": ("UpdateAgent", update(rollserve.RandomAgent())),
    "UpdateAgent, with a pickle": ("UpdateAgent", update(PICKLE)),
    "UpdateEnv": (
        "UpdateEnv",
        pb.UpdateEnvRequest(all_workers=environment_pb2.EnvironmentUpdate(environment=POLE)),
    ),
    "UpdateEnv, in an environment of no profile": (
        "UpdateEnv",
        pb.UpdateEnvRequest(all_workers=environment_pb2.EnvironmentUpdate(environment=CARTPOLE)),
    ),
    "CallEnvironments": ("CallEnvironments", pb.CallEnvironmentsRequest(method="set_task")),
    "ListSamplers": ("ListSamplers", samplers_pb2.ListSamplersRequest()),
    "CreateSampler": (
        "CreateSampler",
        samplers_pb2.CreateSamplerRequest(sampler="new", environment=POLE, worker_count=1),
    ),
    "CreateSampler, with an environment of no profile": (
        "CreateSampler",
        samplers_pb2.CreateSamplerRequest(sampler="new", environment=CARTPOLE, worker_count=1),
    ),
    "DeleteSampler": ("DeleteSampler", samplers_pb2.DeleteSamplerRequest(sampler="none")),
    "SaveSampler": ("SaveSampler", samplers_pb2.SaveSamplerRequest()),
    "RestoreSampler": ("RestoreSampler", samplers_pb2.RestoreSamplerRequest()),
    "RestoreSampler, with an environment of no profile": (
        "RestoreSampler",
        samplers_pb2.RestoreSamplerRequest(data=saved_file(rollserve.EnvSpec("CartPole-v1"), num_rows=4096)),
    ),
    "ReloadSettings": ("ReloadSettings", settings_pb2.ReloadSettingsRequest()),
    "ServeRows": ("ServeRows", row_service_pb2.ServeRowsRequest(name="none", message=b"\x08\x01")),
    "ResizePool": ("ResizePool", pb.ResizePoolRequest(worker_count=1)),
}
"""A request for each row of the table: its RPC, and the request."""


class Asker:
    """A client that makes the requests with any of the tokens.

    Attributes:
        channel: its connection.
        tokens: the server's file of tokens.
    """

    def __init__(self, channel: grpc.Channel, tokens: Tokens) -> None:
        """Create a token for all scopes but each, for all, and for `*`."""
        self.channel = channel
        self.tokens = tokens
        self._texts = {_without(scope): tokens.create(f"not-{scope}", *(set(Scope) - {scope})) for scope in Scope}
        self._texts |= {"*": tokens.create("all", "*"), EVERYTHING: tokens.create(EVERYTHING, *Scope)}

    def text(self, name: str) -> str:
        """Return the token of one of these names."""
        return self._texts[name]

    def refusal(self, row: str, token: str | None) -> str:
        """Return the reason why a row's request is refused for want of rights; empty if it is not."""
        name, request = REQUESTS[row]
        metadata = () if token is None else (("authorization", f"Bearer {token}"),)
        path, data = _REFLECTION, request.SerializeToString()
        if name:
            path = f"/{METHODS[name].containing_service.full_name}/{name}"
        try:
            if name and not METHODS[name].server_streaming:
                self.channel.unary_unary(path)(data, metadata=metadata)
            elif name:
                list(self.channel.unary_stream(path)(data, metadata=metadata))
            else:
                list(self.channel.stream_stream(path)(iter([data]), metadata=metadata))
        except grpc.RpcError as error:
            found = error_from_rpc(error)
            statuses = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}
            return found.reason if found.code in statuses else ""
        return ""

    def scopes(self, row: str) -> Sequence[str]:
        """Return the scopes that a row's request needs, in their order, once they have turned out to be enough."""
        needed = [str(scope) for scope in Scope if self._lacks(row, self.text(_without(scope)))]
        assert not self._lacks(row, self.tokens.create("enough", *needed)), f"{row} needs more than {needed}"
        return needed

    def _lacks(self, row: str, token: str) -> bool:
        return self.refusal(row, token) == Reason.SCOPE_MISSING


@contextlib.contextmanager
def asking(folder: Path) -> Iterator[Asker]:
    """Yield a client of a server that asks for tokens, and has an agent and a profile."""
    tokens = Tokens(folder / "tokens.json")
    options = (*tokens.options, "--rows", "2", "--max-workers", "1", "--profiles", PROFILES)
    with serving(folder, *options) as server, grpc.insecure_channel(server.address) as channel:
        asker = Asker(channel, tokens)
        with rollserve.connect(server.address, token=asker.text("*")) as sampler:
            sampler.update_agent(rollserve.RandomAgent())
        yield asker


def table_of(page: str) -> Mapping[str, Sequence[str]]:
    """Return the scopes of each row of the requests, as the table in the text of the page has them."""
    found = _TABLE.search(page)
    assert found is not None
    lines = [line.strip("| ").split(" | ") for line in found[0].splitlines()]
    return {
        row: re.findall(r"`([^`]+)`", scopes) for scopes, rows in lines for row in rows.replace("`", "").split("; ")
    }


def _table(asker: Asker) -> str:
    rows: dict[str, list[str]] = {}
    for row in REQUESTS:
        scopes = ", ".join(f"`{scope}`" for scope in asker.scopes(row))
        rows.setdefault(scopes, []).append(re.sub(r"^\w+", r"`\g<0>`", row))
    return "".join(f"| {scopes} | {'; '.join(of_scopes)} |\n" for scopes, of_scopes in rows.items())


def _without(scope: Scope) -> str:
    return f"all but {scope}"


def main() -> int:
    """Write the table into the page."""
    with tempfile.TemporaryDirectory() as folder, asking(Path(folder)) as asker:
        table = _table(asker)
    PAGE.write_text(_TABLE.sub(lambda _: table, PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
