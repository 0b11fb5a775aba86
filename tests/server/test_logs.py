"""The server's log: JSON alone where it is asked for, times, and the events of RPCs."""

from __future__ import annotations

import datetime
import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from raw_calls import soon
from support import raises, server_environment

import rollserve
from rollserve_server.local import LocalServer, local_server

LIGHT = ("--env", "CartPole-v1", "--backend", "in-process", "--workers", "2", "--rows", "2")
KOLKATA = {"TZ": "Asia/Kolkata"}
PHASES = ("queued", "paused", "waiting", "sending", "environment", "policy", "recording", "encoding", "idle")


def events(log: Path, name: str = "") -> list[dict[str, Any]]:
    """Return the events of a log, each of which has to be a JSON object, or the ones of a name."""
    found = [json.loads(line) for line in log.read_text().splitlines()]
    return [event for event in found if name in ("", event["event"])]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs") / "log"


@pytest.fixture(scope="module")
def server(log: Path) -> Iterator[LocalServer]:
    options = (*LIGHT, "--log-json", "--log-level", "DEBUG", "--allow-module", "sample_envs")
    with local_server(*options, log=log, environment=server_environment() | KOLKATA) as running:
        with rollserve.connect(running.address) as sampler:
            sampler.update_agent(rollserve.RandomAgent())
        yield running


def test_call_has_one_event_with_its_figures(server: LocalServer, log: Path) -> None:
    num_before = len(events(log, "call ended"))
    with rollserve.connect(server.address) as sampler:
        batch = sampler.obtain_samples(500)
    assert soon(lambda: "ObtainSamples" in {event["rpc"] for event in events(log, "call ended")[num_before:]})
    (event,) = (event for event in events(log, "call ended")[num_before:] if event["rpc"] == "ObtainSamples")
    assert (event["level"], event["sampler"], event["status"]) == ("DEBUG", "default", "OK")
    assert re.fullmatch("[0-9a-f]{16}", event["request_id"])
    account = batch.account
    assert (event["steps"], event["episodes"]) == (account.num_steps, account.num_episodes)
    assert event["simulated_steps"] == account.num_simulated_steps
    assert event["bytes"] > 0
    assert event["seconds"] >= account.elapsed_seconds > 0
    seconds = {phase: event[f"{phase}_seconds"] for phase in PHASES}
    assert min(seconds.values()) >= 0
    assert seconds["environment"] > 0
    assert seconds["waiting"] == pytest.approx(account.waiting_seconds, abs=1e-5)


def test_call_whose_client_leaves_has_an_event(server: LocalServer, log: Path) -> None:
    with rollserve.connect(server.address) as sampler:
        stream = sampler.stream_samples(2**40)
        next(stream)
        stream.close()
    assert soon(lambda: "CANCELLED" in {event["status"] for event in events(log, "call ended")})


def test_lines_of_a_call_name_its_request(server: LocalServer, log: Path) -> None:
    with rollserve.connect(server.address, shared=True) as sampler:
        env = rollserve.EnvSpec("sample_envs:FailsForSomeSeeds")
        assert sampler.evaluate(64, env=env, skip_failed_episodes=True).account.num_failed_episodes > 0
        with raises(rollserve.PreconditionError) as caught:
            sampler.evaluate(2, policy_version=99)
    assert soon(lambda: "Evaluate" in {event["rpc"] for event in events(log, "call ended")})
    failures, (refused,) = events(log, "environment failed"), events(log, "call refused")
    ended = {event["request_id"]: event["rpc"] for event in events(log, "call ended")}
    assert failures
    assert {ended[event["request_id"]] for event in failures} == {"Evaluate"}
    assert refused["request_id"] == caught.value.request_id
    assert refused["seconds"] > 0
    assert refused["request_id"] not in ended  # the error is told once


def test_all_lines_are_json_up_to_the_last_ones_of_a_crash(tmp_path: Path) -> None:
    log, environment = tmp_path / "log", {**server_environment(), "GRPC_VERBOSITY": "debug", "GRPC_TRACE": "http"}
    options = ("--env", "sample_envs:Talkative", *LIGHT[2:], "--log-json")
    with (
        local_server(*options, log=log, environment=environment) as server,
        rollserve.connect(server.address) as sampler,
    ):
        sampler.status()
        server.process.send_signal(signal.SIGSEGV)
        assert server.process.wait(30) == -signal.SIGSEGV
    assert soon(lambda: any("Extension modules" in event.get("text", "") for event in events(log, "output")))
    output = [event["text"] for event in events(log, "output")]
    assert {"\x1b[31mhello\x1b[0m from the environment", "a complaint"} <= set(output)
    assert "Fatal Python error: Segmentation fault" in output
    assert any("chttp2" in text for text in output)  # gRPC's own


def test_times_have_milliseconds_and_a_zone(server: LocalServer, log: Path, tmp_path: Path) -> None:
    before = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=1)
    expected = raises(RuntimeError, match="before it was ready")
    with expected, local_server("--env", "Nothing-v0", *LIGHT[2:], log=tmp_path / "log", environment=KOLKATA):
        pass
    of_lines = " ".join((tmp_path / "log").read_text().splitlines()[0].split()[:2])
    for text, separator in ((of_lines, " "), (events(log)[0]["time"], "T")):
        assert re.fullmatch(rf"\d{{4}}-\d\d-\d\d{separator}\d\d:\d\d:\d\d\.\d{{3}}\+05:30", text)
    assert before < datetime.datetime.fromisoformat(of_lines) < datetime.datetime.now(datetime.UTC)
