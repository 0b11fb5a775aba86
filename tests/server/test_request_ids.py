"""Errors name their request as the server's log does."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

import rollserve
from rollserve_server.local import LocalServer, local_server
from rollserve_wire.v1.sampler_service_pb2 import GetSamplerRequest
from rollserve_wire.v1.sampler_service_pb2_grpc import SamplerServiceStub

LIGHT = ("--env", "CartPole-v1", "--backend", "in-process", "--workers", "1", "--rows", "2", "--log-json")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server") / "log"


@pytest.fixture(scope="module")
def server(log: Path) -> Iterator[LocalServer]:
    with local_server(*LIGHT, log=log) as running:
        yield running


def refusals(log: Path, rpc: str) -> list[dict[str, str]]:
    """Return the log's events of refused calls."""
    events = [json.loads(line) for line in log.read_text().splitlines()]
    return [event for event in events if event["event"] == "call refused" and event["rpc"] == rpc]


def test_error_names_its_request_in_the_log(server: LocalServer, log: Path) -> None:
    with rollserve.connect(server.address) as sampler:
        errors = []
        for _ in range(2):
            with pytest.raises(rollserve.PreconditionError) as caught:
                sampler.obtain_samples(10)
            errors.append(caught.value)
    first, second = refusals(log, "ObtainSamples")
    assert [first["request_id"], second["request_id"]] == [error.request_id for error in errors]
    assert first["request_id"] != second["request_id"]
    assert len(first["request_id"]) == 16
    assert "127.0.0.1" in first["peer"]
    assert pickle.loads(pickle.dumps(errors[0])).request_id == errors[0].request_id


def test_status_details_and_metadata_name_the_request(server: LocalServer, log: Path) -> None:
    with grpc.insecure_channel(server.address) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            SamplerServiceStub(channel).GetSampler(GetSamplerRequest(sampler="other"))
        metadata = dict(caught.value.trailing_metadata())  # type: ignore[attr-defined]
    (event,) = refusals(log, "GetSampler")
    assert metadata["rollserve-request-id"] == event["request_id"]
    info = error_details_pb2.RequestInfo()
    details = status_pb2.Status.FromString(metadata["grpc-status-details-bin"]).details
    assert sum(detail.Unpack(info) for detail in details) == 1
    assert info.request_id == event["request_id"]


def test_errors_of_the_client_name_no_request() -> None:
    error = rollserve.CancelledError("cancelled", code=grpc.StatusCode.CANCELLED)
    assert (error.code, error.request_id) == (grpc.StatusCode.CANCELLED, "")
