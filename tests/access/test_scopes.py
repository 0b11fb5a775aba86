"""Scopes: the table of docs/access.md, RPC by RPC and scope by scope."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from certificates import serving
from google.protobuf.message import Message
from principals import Tokens
from support import check_error

import rollserve
from rollserve import Reason
from rollserve._calls.rpc_errors import error_from_rpc
from rollserve.agents import agent_to_proto
from rollserve.environments import env_spec_to_proto
from rollserve.v1 import agent_versions_pb2, environment_pb2, episode_records_pb2, samplers_pb2
from rollserve.v1 import sampler_service_pb2 as pb
from rollserve_server.gateway.access import SCOPES
from rollserve_server.identity import Grant, Scope
from rollserve_server.local import LocalServer

SERVICE = pb.DESCRIPTOR.services_by_name["SamplerService"]
REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
PAGE = Path(__file__).parents[2] / "docs" / "access.md"


def update(agent: rollserve.Agent) -> pb.UpdateAgentRequest:
    return pb.UpdateAgentRequest(all_workers=pb.AgentUpdate(agent=agent_to_proto(agent)))


CARTPOLE, POLE = (env_spec_to_proto(rollserve.EnvSpec(name)) for name in ("CartPole-v1", "profile:pole"))
PROFILES = '{"pole": {"env": "CartPole-v1"}}'
REQUESTS: dict[str, tuple[str, Message]] = {
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
    "ObtainExactEpisodes": ("ObtainExactEpisodes", pb.ObtainExactEpisodesRequest(episode_count_per_worker=1)),
    "Evaluate": ("Evaluate", pb.EvaluateRequest(episode_count=1)),
    "EvaluatePopulation": ("EvaluatePopulation", pb.EvaluatePopulationRequest(episode_count=1)),
    "Evaluate, in another environment": (
        "Evaluate",
        pb.EvaluateRequest(episode_count=1, options=pb.EvaluationOptions(environment=POLE)),
    ),
    "Evaluate, in one of no profile": (
        "Evaluate",
        pb.EvaluateRequest(episode_count=1, options=pb.EvaluationOptions(environment=CARTPOLE)),
    ),
    "GetAgentParameters": ("GetAgentParameters", agent_versions_pb2.GetAgentParametersRequest()),
    "UpdateAgent": ("UpdateAgent", update(rollserve.RandomAgent())),
    "UpdateAgent, with a pickle": ("UpdateAgent", update(rollserve.PickledAgent(b"\x80\x04N."))),
    "UpdateEnv": (
        "UpdateEnv",
        pb.UpdateEnvRequest(all_workers=environment_pb2.EnvironmentUpdate(environment=POLE)),
    ),
    "UpdateEnv, in an environment of no profile": (
        "UpdateEnv",
        pb.UpdateEnvRequest(all_workers=environment_pb2.EnvironmentUpdate(environment=CARTPOLE)),
    ),
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
    "ResizePool": ("ResizePool", pb.ResizePoolRequest(worker_count=1)),
}
"""A request for each row of the table: its RPC, and the request."""


def table() -> dict[str, list[str]]:
    """Return the scopes that each row of the page's table needs."""
    section = PAGE.read_text().split("## Scopes")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)`((?:, [\w ]+)?) \| (.+?) \|", section, re.MULTILINE)
    return {f"{name}{what}": re.findall(r"`([\w:]+)`", scopes) for name, what, scopes in rows}


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    return Tokens(tmp_path_factory.mktemp("tokens") / "tokens.json")


@pytest.fixture(scope="module")
def texts(tokens: Tokens) -> dict[str, str]:
    """A token for each set of scopes that the tests use, by its name."""
    found = {str(scope): tokens.create(str(scope), scope) for scope in Scope}
    found["*"] = tokens.create("all", "*")
    found |= {f"all but {scope}": tokens.create(f"not-{scope}", *(set(Scope) - {scope})) for scope in Scope}
    found["everything"] = tokens.create("everything", *Scope)
    return found


@pytest.fixture(scope="module")
def asking(tokens: Tokens, texts: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A server that asks for tokens, with an agent."""
    options = (*tokens.options, "--rows", "2", "--max-workers", "1", "--profiles", PROFILES)
    with serving(tmp_path_factory.mktemp("asking"), *options) as running:
        with rollserve.connect(running.address, token=texts["*"]) as sampler:
            sampler.update_agent(rollserve.RandomAgent())
        yield running


@pytest.fixture(scope="module")
def channel(asking: LocalServer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(asking.address) as channel:
        yield channel


def refusal(channel: grpc.Channel, row: str, token: str | None) -> str:
    """Return the reason why a row's request is refused for want of rights; empty if it is not."""
    name, request = REQUESTS[row]
    metadata = () if token is None else (("authorization", f"Bearer {token}"),)
    path = f"/{SERVICE.full_name}/{name}" if name else REFLECTION
    try:
        if name and not SERVICE.methods_by_name[name].server_streaming:
            channel.unary_unary(path)(request.SerializeToString(), metadata=metadata)
        elif name:
            list(channel.unary_stream(path)(request.SerializeToString(), metadata=metadata))
        else:
            list(channel.stream_stream(path)(iter([request.SerializeToString()]), metadata=metadata))
    except grpc.RpcError as error:
        found = error_from_rpc(error)
        statuses = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}
        return found.reason if found.code in statuses else ""
    return ""


def test_every_rpc_has_a_scope_and_a_row() -> None:
    assert SCOPES.keys() == {method.name for method in SERVICE.methods} | {"ServerReflectionInfo"}
    assert table().keys() == REQUESTS.keys()
    for row, scopes in table().items():
        assert SCOPES[row.partition(",")[0]] == scopes[0], row


@pytest.mark.parametrize("row", REQUESTS)
def test_rpc_needs_exactly_the_scopes_of_the_table(channel: grpc.Channel, texts: dict[str, str], row: str) -> None:
    needed = set(table()[row])
    for scope in Scope:
        alone = refusal(channel, row, texts[scope])
        if needed == {scope}:
            assert alone == "", scope
        else:
            assert alone == Reason.SCOPE_MISSING, scope
        without = refusal(channel, row, texts[f"all but {scope}"])
        assert (without == Reason.SCOPE_MISSING) == (scope in needed), scope
    assert refusal(channel, row, None) == Reason.TOKEN_MISSING
    assert refusal(channel, row, "rst_" + "x" * 43) == Reason.TOKEN_INVALID


def test_scope_of_all_leaves_out_pickles(channel: grpc.Channel, texts: dict[str, str]) -> None:
    assert refusal(channel, "UpdateAgent, with a pickle", texts["*"]) == Reason.SCOPE_MISSING
    # The operator's setting counts for everybody.
    assert refusal(channel, "UpdateAgent, with a pickle", texts["everything"]) == Reason.PICKLE_NOT_ALLOWED


def test_unknown_rpc_is_not_answered(channel: grpc.Channel, texts: dict[str, str]) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(f"/{SERVICE.full_name}/Nothing")(b"", metadata=(("authorization", f"Bearer {texts['*']}"),))
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED  # type: ignore[attr-defined]


def test_health_needs_no_token(channel: grpc.Channel) -> None:
    assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"") == b"\x08\x01"


def sampler_metadata(token: str, *samplers: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {token}"), *(("rollserve-sampler", name) for name in samplers)]


@pytest.mark.parametrize(
    ("grants", "named", "field", "reason"),
    [
        (["status@default"], [], "", ""),
        (["status@def*"], ["default"], "default", ""),
        (["status@other"], [], "", Reason.SCOPE_MISSING),
        (["status@other"], ["other"], "", Reason.SAMPLER_NOT_FOUND),
        (["status@other"], ["other"], "other", Reason.SAMPLER_NOT_FOUND),
        (["status@other"], [], "other", Reason.SCOPE_MISSING),
        (["status@default"], [], "other", Reason.SCOPE_MISSING),
        (["status@default", "status@other"], [], "other", Reason.SAMPLER_NOT_FOUND),
        (["status"], ["default"], "other", Reason.INVALID_VALUE),
        (["status"], ["default", "default"], "", Reason.INVALID_VALUE),
        (["status@default"], ["other"], "default", Reason.SCOPE_MISSING),
    ],
)
def test_grant_counts_for_its_samplers(
    channel: grpc.Channel, tokens: Tokens, grants: list[str], named: list[str], field: str, reason: str
) -> None:
    metadata = sampler_metadata(tokens.create("somebody", *grants), *named)
    request = pb.GetSamplerRequest(sampler=field).SerializeToString()
    call = channel.unary_unary(f"/{SERVICE.full_name}/GetSampler")
    if not reason:
        call(request, metadata=metadata)
        return
    with pytest.raises(grpc.RpcError) as caught:
        call(request, metadata=metadata)
    check_error(caught.value, reason=reason)


def test_grant_for_any_sampler_lists_what_it_covers(channel: grpc.Channel, tokens: Tokens) -> None:
    for grant, expected in (("status@other", []), ("status@def*", ["default"])):
        response = channel.unary_unary(f"/{SERVICE.full_name}/ListSamplers")(
            b"", metadata=sampler_metadata(tokens.create("somebody", grant))
        )
        found = samplers_pb2.ListSamplersResponse.FromString(response)
        assert [each.sampler for each in found.samplers] == expected
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(f"/{SERVICE.full_name}/ListSamplers")(
            b"", metadata=sampler_metadata(tokens.create("somebody", "sample@other"))
        )
    check_error(caught.value, reason=Reason.SCOPE_MISSING)


def test_grants_cover_names_by_asterisks() -> None:
    (grant,) = Grant.parse("sample@team-*-x")
    assert grant.covers(Scope.SAMPLE, "team-a-x")
    assert not grant.covers(Scope.SAMPLE, "team-a-y")
    assert not grant.covers(Scope.STATUS, "team-a-x")
    assert {each.scope for each in Grant.parse("*@a")} == set(Scope) - {Scope.PICKLE}
