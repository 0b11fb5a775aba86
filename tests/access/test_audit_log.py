"""The audit log: one line for each RPC, with what it changed."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from certificates import serving
from grpc_health.v1 import health_pb2, health_pb2_grpc
from principals import Tokens
from raw_calls import soon
from support import raises

import rollserve
from rollserve import Reason
from rollserve_server.local import LocalServer


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalServer, Path]]:
    """A server without an agent, and its audit log, to which each test adds."""
    folder = tmp_path_factory.mktemp("audited")
    with serving(folder, "--audit-log", str(folder / "audit")) as server:
        yield server, folder / "audit"


def test_each_rpc_has_a_line_at_its_end(tmp_path: Path) -> None:
    path, tokens = tmp_path / "audit", Tokens(tmp_path / "tokens.json")
    alice, bob = tokens.create("alice", "*"), tokens.create("bob", "status")
    options = (*tokens.options, "--audit-log", str(path), "--max-workers", "2")
    with serving(tmp_path, *options) as server:
        with rollserve.connect(server.address, token=alice) as sampler:
            sampler.update_agent(rollserve.RandomAgent())
            sampler.update_agent(rollserve.ConstantAgent(1))
            sampler.update_env("CartPole-v1", kwargs={"sutton_barto_reward": True})
            sampler.resize(2)
            hashes = {each.policy_version: each.agents[0].content_hash for each in sampler.agent_versions()}
            with raises(rollserve.PreconditionError):
                sampler.obtain_samples(10, policy_version=7)
            sampler.obtain_samples(10, agent=rollserve.RandomAgent())
            stream = sampler.stream_samples(2**40)
            next(stream)
            stream.close()
            assert soon(lambda: lines(path)[-1]["status"] == "CANCELLED")
        expected = raises(rollserve.AccessError, reason=Reason.SCOPE_MISSING)
        with rollserve.connect(server.address, token=bob) as sampler, expected as caught:
            sampler.resize(1)
        with grpc.insecure_channel(server.address) as channel:
            health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        found = lines(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [(line["rpc"], line["status"]) for line in found] == [
        ("UpdateAgent", "OK"),
        ("UpdateAgent", "OK"),
        ("UpdateEnv", "OK"),
        ("ResizePool", "OK"),
        ("ListAgentVersions", "OK"),
        ("ObtainSamples", "FAILED_PRECONDITION"),
        ("ObtainSamples", "OK"),
        ("ObtainSamples", "CANCELLED"),
        ("ResizePool", "PERMISSION_DENIED"),
    ]
    first, second, env, resized, _, _, with_agent, *_, last = found
    assert first["agent"]["before"] is None
    assert first["agent"]["after"] == second["agent"]["before"]
    assert second["agent"]["after"] == {"version": 2, "digest": hashes[2]}
    assert with_agent["agent"]["before"] == second["agent"]["after"]
    assert with_agent["agent"]["after"] == {"version": 3, "digest": first["agent"]["after"]["digest"]}
    assert (env["environment"]["before"]["version"], env["environment"]["after"]["version"]) == (1, 2)
    assert len({env["environment"][when]["digest"] for when in ("before", "after")}) == 2
    assert resized["workers"] == {"before": 1, "after": 2}
    assert {line["principal"] for line in found} == {"alice", "bob"}
    assert {line["sampler"] for line in found} == {"default"}
    assert (last["principal"], last["decision"], last["reason"]) == ("bob", "refused", "SCOPE_MISSING")
    assert last["request_id"] == caught.value.request_id
    assert "127.0.0.1" in last["peer"]
    assert alice not in path.read_text()


def test_refused_rpc_has_its_line_before_the_client_hears_of_it(audited: tuple[LocalServer, Path]) -> None:
    server, path = audited
    with rollserve.connect(server.address) as sampler:
        sampler.status()
        before = len(lines(path))
        for num_lines in range(before + 1, before + 201):
            with raises(rollserve.PreconditionError, reason=Reason.NO_AGENT) as caught:
                sampler.obtain_samples(10)
            found = lines(path)
            assert len(found) == num_lines  # none is left out, however often the same client is refused
            assert found[-1]["request_id"] == caught.value.request_id


def test_line_is_short_whatever_the_client_sends(audited: tuple[LocalServer, Path]) -> None:
    server, path = audited
    with (
        rollserve.connect(server.address, sampler="x" * 4000) as sampler,
        raises(rollserve.InvalidArgumentError, reason=Reason.SAMPLER_NOT_FOUND) as caught,
    ):
        sampler.status()
    text = path.read_text().splitlines()[-1]
    assert json.loads(text)["request_id"] == caught.value.request_id
    assert len(text) < 1000


def test_equal_environments_have_equal_digests(audited: tuple[LocalServer, Path]) -> None:
    server, path = audited
    with rollserve.connect(server.address) as sampler:
        for reward in (True, False, True):
            sampler.update_env("CartPole-v1", kwargs={"sutton_barto_reward": reward})
    found = lines(path)[-3:]
    first, second, third = (line["environment"]["after"]["digest"] for line in found)
    assert first == third != second
    assert {line["principal"] for line in found} == {"anonymous"}


def test_renamed_file_is_followed_by_another(audited: tuple[LocalServer, Path]) -> None:
    server, path = audited
    with rollserve.connect(server.address) as sampler:
        sampler.status()
        num_before = len(lines(path))
        renamed = path.rename(path.with_name("audit.1"))
        sampler.status()
        sampler.status()
    assert (len(lines(renamed)), len(lines(path))) == (num_before, 2)


def test_full_file_is_followed_by_another(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    with (
        serving(tmp_path, "--audit-log", str(path), "--audit-log-bytes", "4096") as server,
        rollserve.connect(server.address) as sampler,
    ):
        for _ in range(60):
            sampler.status()
    found = [*tmp_path.glob("audit*")]
    assert {path, tmp_path / "audit.1", tmp_path / "audit.2"} <= set(found)
    assert sum(len(lines(each)) for each in found) == 60
    assert all(each.stat().st_size <= 4096 and stat.S_IMODE(each.stat().st_mode) == 0o600 for each in found)


def test_standard_error_can_have_the_lines(tmp_path: Path) -> None:
    with (
        serving(tmp_path, "--audit-log", "-", "--log-json") as server,
        rollserve.connect(server.address) as sampler,
    ):
        sampler.status()
    events = lines(tmp_path / "log")
    assert [event["rpc"] for event in events if "decision" in event] == ["GetSampler"]
