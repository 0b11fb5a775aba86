"""Traces, log events and metrics for OpenTelemetry, as a collector gets them."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from charges import lay
from collector import Collector, ReceivedSpan, collecting
from commands import run_server_command
from opentelemetry.sdk.trace import TracerProvider
from raw_calls import soon
from ray_clusters import free_port
from support import raises, server_environment

import rollserve
from rollserve_server.local import LocalServer, local_server
from rollserve_wire.v1 import agent_versions_pb2
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1.sampler_service_pb2_grpc import SamplerServiceStub

LIGHT = ("--env", "CartPole-v1", "--backend", "in-process", "--workers", "2", "--vectorization", "rows", "--rows", "2")
AT_ONCE = {"OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_BLRP_SCHEDULE_DELAY": "50", "OTEL_METRIC_EXPORT_INTERVAL": "100"}
PHASES = ("environment", "policy", "recording", "encoding")


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tracing")


@pytest.fixture(scope="module")
def server(collector: Collector, folder: Path) -> Iterator[LocalServer]:
    log = folder / "log"
    options = (*LIGHT, "--otlp-endpoint", collector.endpoint, "--step-seconds", "1", "--straggler-factor", "0")
    options += ("--allow-module", "sample_envs", "--allow-path", str(folder))
    with local_server(*options, log=log, environment=server_environment() | AT_ONCE) as running:
        with rollserve.connect(running.address) as sampler:
            sampler.update_agent(rollserve.RandomAgent())
        yield running
    assert "Traceback" not in log.read_text()


class Caller:
    """A client whose calls are part of a trace of its own."""

    def __init__(self, server: LocalServer, *, sampled: bool = True) -> None:
        self.trace_id, self.span_id = secrets.token_hex(16), secrets.token_hex(8)
        self._metadata = (("traceparent", f"00-{self.trace_id}-{self.span_id}-{sampled:02d}"),)
        self._address = server.address

    def obtain(self, **request: object) -> None:
        with grpc.insecure_channel(self._address) as channel:
            call = SamplerServiceStub(channel).ObtainSamples
            for _ in call(pb.ObtainSamplesRequest(**request), metadata=self._metadata):  # type: ignore[arg-type]
                pass

    def evaluate(self, env: str) -> None:
        with grpc.insecure_channel(self._address) as channel:
            request = pb.EvaluateRequest(episode_count=4)
            request.options.environment.id = env
            for _ in SamplerServiceStub(channel).Evaluate(request, metadata=self._metadata):
                pass


def named(spans: list[ReceivedSpan], name: str) -> list[ReceivedSpan]:
    return [span for span in spans if span.name == name]


def test_call_continues_the_trace_of_its_client(server: LocalServer, collector: Collector) -> None:
    caller = Caller(server)
    caller.obtain(step_count=5000)
    spans = collector.trace(caller.trace_id)
    (rpc,), (admission,), (call,) = (named(spans, name) for name in ("ObtainSamples", "admission", "call"))
    orders, works = named(spans, "order"), named(spans, "work")
    assert rpc.parent_id == caller.span_id
    assert len(spans) == 3 + len(orders) + len(works)
    assert admission.is_within(rpc)
    assert call.is_within(rpc)
    assert admission.end <= call.start
    assert orders
    assert all(order.is_within(call) for order in orders)
    assert len(works) == len(orders)
    assert all(sum(work.is_within(order) for order in orders) == 1 for work in works)
    assert not any(span.has_failed for span in spans)


def test_spans_say_what_was_done(server: LocalServer, collector: Collector) -> None:
    caller = Caller(server)
    caller.obtain(step_count=5000)
    spans = collector.trace(caller.trace_id)
    (rpc,), (call,) = named(spans, "ObtainSamples"), named(spans, "call")
    assert rpc.resource["service.name"] == "rollserve-server"
    assert rpc.attributes["rpc.response.status_code"] == "OK"
    assert rpc.attributes["rollserve.sampler"] == "default"
    assert len(rpc.attributes["rollserve.request_id"]) == 16
    assert call.attributes["rollserve.call_kind"] == "samples"
    assert call.attributes["rollserve.policy_version"] == 1
    assert call.attributes["rollserve.delivered_steps"] >= 5000
    orders = named(spans, "order")
    assert {order.attributes["rollserve.worker"] for order in orders} == {0, 1}
    assert call.attributes["rollserve.orders"] == len(orders)
    num_steps = sum(order.attributes["rollserve.steps"] for order in orders)
    assert num_steps == call.attributes["rollserve.simulated_steps"] > 0
    for work in named(spans, "work"):
        seconds = [work.attributes[f"rollserve.{phase}_seconds"] for phase in PHASES]
        assert min(seconds) >= 0
        assert sum(seconds) == pytest.approx(work.seconds, abs=1e-5) or sum(seconds) > work.seconds
    for phase in PHASES:
        assert sum(work.attributes[f"rollserve.{phase}_seconds"] for work in named(spans, "work")) > 0


def test_evaluation_has_a_span_for_its_preparation(server: LocalServer, collector: Collector) -> None:
    caller = Caller(server)
    caller.evaluate("CartPole-v0")
    spans = collector.trace(caller.trace_id)
    (rpc,), (preparation,), (call,) = (named(spans, name) for name in ("Evaluate", "preparation", "call"))
    assert preparation.is_within(rpc)
    assert preparation.end <= call.start
    assert preparation.seconds > 0.01
    assert call.attributes["rollserve.call_kind"] == "evaluation"


def test_span_of_an_error_has_its_status(server: LocalServer, collector: Collector) -> None:
    caller = Caller(server)
    with pytest.raises(grpc.RpcError) as caught:
        caller.obtain(step_count=10, sampler="other")
    (rpc,) = collector.trace(caller.trace_id)
    metadata = dict(caught.value.trailing_metadata())  # type: ignore[attr-defined]
    assert rpc.attributes["rpc.response.status_code"] == "NOT_FOUND"
    assert rpc.attributes["rollserve.request_id"] == metadata["rollserve-request-id"]
    assert rpc.attributes["error.type"] == metadata["rollserve-reason"]
    assert rpc.has_failed
    assert rpc.error == metadata["rollserve-reason"]


def test_order_of_a_lost_worker_has_failed(server: LocalServer, collector: Collector, folder: Path) -> None:
    before = len(collector.roots())
    with rollserve.connect(server.address) as sampler:
        lay(folder, "step")
        env = rollserve.EnvSpec("sample_envs:Hanging", {"folder": str(folder)})
        assert sampler.evaluate(50, env=env).account.retry_reasons.keys() == {"worker_hung"}
    assert soon(lambda: bool(named(collector.roots()[before:], "Evaluate")))
    (rpc,) = named(collector.roots()[before:], "Evaluate")
    spans = collector.trace(rpc.trace_id)
    failed = [span for span in spans if span.has_failed]
    assert [span.name for span in failed] == ["order"] * len(failed)
    assert {span.error for span in failed} == {"WORKER_HUNG"}
    assert rpc.attributes["rpc.response.status_code"] == "OK"


def test_client_decides_whether_its_trace_is_recorded(server: LocalServer, collector: Collector) -> None:
    unsampled, sampled = Caller(server, sampled=False), Caller(server)
    unsampled.obtain(step_count=10)
    sampled.obtain(step_count=10)
    assert collector.trace(sampled.trace_id)
    assert unsampled.trace_id not in {rpc.trace_id for rpc in collector.roots()}


@pytest.mark.parametrize("sent", ["", "00-0-0-01", f"00-{'0' * 32}-{'1' * 16}-01", "x" * 55])
def test_malformed_traceparent_begins_another_trace(server: LocalServer, collector: Collector, sent: str) -> None:
    before = len(collector.roots())
    with grpc.insecure_channel(server.address) as channel:
        request = agent_versions_pb2.ListAgentVersionsRequest()
        SamplerServiceStub(channel).ListAgentVersions(request, metadata=(("traceparent", sent),))
    assert soon(lambda: len(collector.roots()) > before)
    assert collector.roots()[-1].parent_id == ""


def test_python_client_sends_the_span_of_its_program(server: LocalServer, collector: Collector) -> None:
    async def obtain() -> None:
        async with rollserve.aconnect(server.address, shared=True) as sampler:
            await sampler.obtain_samples(10)

    tracer = TracerProvider().get_tracer("trainer")
    with rollserve.connect(server.address, shared=True) as sampler:
        for call in (lambda: sampler.obtain_samples(10), lambda: asyncio.run(obtain())):
            with tracer.start_as_current_span("iteration") as span:
                call()
            context = span.get_span_context()
            (rpc,) = named(collector.trace(f"{context.trace_id:032x}"), "ObtainSamples")
            assert rpc.parent_id == f"{context.span_id:016x}"
        before = len(collector.roots())
        sampler.obtain_samples(10)
        assert soon(lambda: len(collector.roots()) > before)
        assert collector.roots()[-1].parent_id == ""


def test_collector_gets_events_and_metrics_where_the_server_sends_them(tmp_path: Path) -> None:
    with collecting() as own:
        options = (*LIGHT, "--otlp-endpoint", own.endpoint, "--log-level", "DEBUG")
        options += tuple(f"--otlp-signals={signal}" for signal in ("traces", "logs", "metrics"))
        before = time.time()
        with (
            local_server(*options, log=tmp_path / "log", environment=AT_ONCE) as server,
            rollserve.connect(server.address) as sampler,
        ):
            sampler.update_agent(rollserve.RandomAgent())
            sampler.obtain_samples(100)
            account = sampler.obtain_samples(100).account
            num_steps = sampler.status().counters.num_steps
        ended = [event for event in own.events if event.text == "call ended"]
    texts = [event.text for event in own.events]
    assert texts[0] == "starting backend"
    assert texts[-1] == "ended"  # the last events are sent when the server ends
    event = next(event for event in reversed(ended) if event.attributes["rpc"] == "ObtainSamples")
    assert event.severity == "DEBUG"
    assert event.attributes["steps"] == account.num_steps
    assert event.resource["service.name"] == "rollserve-server"
    assert before < event.seconds < time.time()
    (root,) = (
        root for root in own.roots() if root.attributes["rollserve.request_id"] == event.attributes["request_id"]
    )
    assert event.trace_id == root.trace_id
    (steps,) = own.metrics["rollserve_delivered_steps"].sum.data_points
    assert steps.as_double == num_steps
    assert {(pair.key, pair.value.string_value) for pair in steps.attributes} == {("sampler", "default")}
    assert own.metrics["rollserve_policy_version"].gauge.data_points[0].as_double == 1
    seconds = {
        tuple(pair.value.string_value for pair in point.attributes): point
        for point in own.metrics["rollserve_rpc_seconds"].histogram.data_points
    }
    calls = seconds["ObtainSamples", "OK"]
    assert calls.count == sum(calls.bucket_counts) == 2
    assert len(calls.bucket_counts) == len(calls.explicit_bounds) + 1
    assert calls.sum > 0


def test_ratio_of_zero_leaves_traces_that_clients_ask_for(collector: Collector, tmp_path: Path) -> None:
    options = (*LIGHT, "--otlp-endpoint", collector.endpoint, "--trace-ratio", "0")
    before = len(collector.roots())
    with local_server(*options, log=tmp_path / "log", environment=AT_ONCE) as server:
        with rollserve.connect(server.address) as sampler:
            sampler.update_agent(rollserve.RandomAgent())
        caller = Caller(server)
        caller.obtain(step_count=10)
    assert collector.trace(caller.trace_id)  # the last spans are sent when the server ends
    assert [rpc.trace_id for rpc in collector.roots()[before:]] == [caller.trace_id]


def test_server_serves_and_ends_without_its_collector(tmp_path: Path) -> None:
    options = (*LIGHT, "--otlp-endpoint", f"http://127.0.0.1:{free_port()}", "--grace-seconds", "0")
    with local_server(*options, log=tmp_path / "log", environment=AT_ONCE) as server:
        with rollserve.connect(server.address) as sampler:
            sampler.update_agent(rollserve.RandomAgent())
            assert sampler.obtain_samples(100).num_steps >= 100
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 15


@pytest.fixture
def without_opentelemetry(tmp_path: Path) -> dict[str, str]:
    """Variables of a process in which importing OpenTelemetry leaves a file `imported`, and fails."""
    package = tmp_path / "modules" / "opentelemetry"
    package.mkdir(parents=True)
    code = f"open({str(tmp_path / 'imported')!r}, 'w').close()\nraise ImportError('no OpenTelemetry')\n"
    (package / "__init__.py").write_text(code)
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(package.parent), os.environ.get("PYTHONPATH")]))}


def test_nothing_is_imported_by_default(without_opentelemetry: dict[str, str], tmp_path: Path) -> None:
    with (
        local_server(*LIGHT, log=tmp_path / "log", environment=without_opentelemetry) as server,
        rollserve.connect(server.address) as sampler,
    ):
        sampler.update_agent(rollserve.RandomAgent())
        sampler.obtain_samples(100)
        sampler.evaluate(2)
    assert not (tmp_path / "imported").exists()


def test_endpoint_is_refused_at_start_without_opentelemetry(
    without_opentelemetry: dict[str, str], tmp_path: Path
) -> None:
    options = (*LIGHT, "--otlp-endpoint", "http://127.0.0.1:4317")
    with (
        raises(RuntimeError, match="before it was ready"),
        local_server(*options, log=tmp_path / "log", environment=without_opentelemetry),
    ):
        pass
    text = (tmp_path / "log").read_text()
    assert "otlp_endpoint: expected none" in text
    assert "pip install 'rollserve-server[tracing]'" in text


@pytest.mark.parametrize("endpoint", ["127.0.0.1:4317", "http://127.0.0.1:4317/v1/traces"])
def test_malformed_endpoint_is_refused(endpoint: str) -> None:
    refused = run_server_command(*LIGHT, "--otlp-endpoint", endpoint)
    assert refused.exit_code == 1
    assert "expected http://HOST:PORT or https://HOST:PORT" in refused.stderr
