"""Scopes: the table of docs/access.md, RPC by RPC and scope by scope."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest
from scope_table import EVERYTHING, METHODS, PAGE, REQUESTS, SERVICE, Asker, asking, table_of
from support import check_error

from rollserve import Reason
from rollserve_server.identity import Grant, Scope
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1 import samplers_pb2


@pytest.fixture(scope="module")
def asker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    with asking(tmp_path_factory.mktemp("asking")) as asker:
        yield asker


@pytest.fixture
def channel(asker: Asker) -> grpc.Channel:
    return asker.channel


def test_every_rpc_has_a_row() -> None:
    table = table_of(PAGE.read_text())
    assert table.keys() == REQUESTS.keys()
    rpcs = METHODS.keys() | {"ServerReflectionInfo"}
    assert {row.partition(",")[0] for row in table} == rpcs


@pytest.mark.parametrize("row", REQUESTS)
def test_rpc_needs_exactly_the_scopes_of_the_table(asker: Asker, row: str) -> None:
    scopes = table_of(PAGE.read_text())[row]
    assert asker.scopes(row) == scopes
    assert scopes
    assert asker.refusal(row, None) == Reason.TOKEN_MISSING
    assert asker.refusal(row, "rst_" + "x" * 43) == Reason.TOKEN_INVALID


@pytest.mark.parametrize("row", [row for row in REQUESTS if "pickle" in row])
def test_scope_of_all_leaves_out_pickles(asker: Asker, row: str) -> None:
    assert asker.refusal(row, asker.text("*")) == Reason.SCOPE_MISSING
    # The operator's setting counts for everybody.
    assert asker.refusal(row, asker.text(EVERYTHING)) == Reason.PICKLE_NOT_ALLOWED


def test_unknown_rpc_is_not_answered(asker: Asker) -> None:
    call = asker.channel.unary_unary(f"/{SERVICE.full_name}/Nothing")
    with pytest.raises(grpc.RpcError) as caught:
        call(b"", metadata=(("authorization", f"Bearer {asker.text('*')}"),))
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
    asker: Asker, grants: list[str], named: list[str], field: str, reason: str
) -> None:
    metadata = sampler_metadata(asker.tokens.create("somebody", *grants), *named)
    request = pb.GetSamplerRequest(sampler=field).SerializeToString()
    call = asker.channel.unary_unary(f"/{SERVICE.full_name}/GetSampler")
    if not reason:
        call(request, metadata=metadata)
        return
    with pytest.raises(grpc.RpcError) as caught:
        call(request, metadata=metadata)
    check_error(caught.value, reason=reason)


def test_grant_for_any_sampler_lists_what_it_covers(asker: Asker) -> None:
    channel, tokens = asker.channel, asker.tokens
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
    assert {each.scope for each in Grant.parse("*@a")} == set(Scope) - {
        Scope.PICKLE,
        Scope.SERVER_ADMIN,
        Scope.ENV_SERVE,
    }
