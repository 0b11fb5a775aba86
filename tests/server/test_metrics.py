"""Metrics for Prometheus, read as Prometheus reads them."""

from __future__ import annotations

import base64
import json
import re
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from certificates import Certificates
from principals import Tokens
from prometheus_client.parser import text_string_to_metric_families
from ray_clusters import free_port
from support import raises, server_environment

import rollserve
from rollserve_server.local import LocalServer, local_server
from rollserve_server.metrics import known_metrics

DAY = 86400
LIGHT = ("--env", "CartPole-v1", "--backend", "in-process", "--workers", "2", "--rows", "2")


class Metrics:
    """The metrics of a server, by name and labels.

    Args:
        address: where they are.
        before: metrics of an earlier time, from which on counts are shown.
    """

    def __init__(self, address: str, before: Metrics | None = None) -> None:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as response:
            text = response.read().decode()
        self.names = {family.name for family in text_string_to_metric_families(text)}
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        self._values = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}
        self._before = {} if before is None else before._values

    def value(self, name: str, **labels: str) -> float:
        key = f"rollserve_{name}", frozenset(labels.items())
        is_count = name.endswith(("_total", "_bucket", "_count", "_sum"))
        return self._values.get(key, 0.0) - (self._before.get(key, 0.0) if is_count else 0.0)


class Server:
    """A server whose sampler is as it was at the start, and its metrics since then."""

    def __init__(self, running: LocalServer, metrics_address: str) -> None:
        running.reset()
        self.address = running.address
        self._metrics_address = metrics_address
        self._before = Metrics(metrics_address)

    def metrics(self) -> Metrics:
        return Metrics(self._metrics_address, self._before)


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[LocalServer, str]]:
    """A server for all tests of this file, and the address of its metrics."""
    address = f"127.0.0.1:{free_port()}"
    options = ("--metrics-listen", address, "--return-buckets", "[-5, 15.5, 20, 1e3]", "--allow-module", "sample_envs")
    with local_server(*LIGHT, *options, environment=server_environment()) as server:
        yield server, address


@pytest.fixture
def server(running: tuple[LocalServer, str]) -> Server:
    return Server(*running)


def test_metrics_agree_with_status_and_account(server: Server) -> None:
    with rollserve.connect(server.address) as sampler:
        sampler.update_agent(rollserve.RandomAgent())
        account = sampler.obtain_samples(200, seed=1).account
        evaluation = sampler.evaluate(4).account
        status = sampler.status()
    shown = server.metrics()
    of_default = {"sampler": "default"}
    assert shown.value("policy_version", **of_default) == 1
    assert shown.value("environment_version", **of_default) == 1
    assert shown.value("policy_updated_timestamp_seconds", **of_default) > 1.7e9
    assert shown.value("workers", **of_default, health="healthy") == 2
    assert shown.value("simulated_steps_total", **of_default) == status.counters.num_simulated_steps
    assert shown.value("delivered_steps_total", **of_default) == account.num_steps
    assert shown.value("delivered_episodes_total", **of_default) == account.num_episodes
    assert shown.value("calls_total", **of_default, outcome="completed") == 1
    steps = {
        fate: shown.value("call_steps_total", **of_default, rpc="ObtainSamples", fate=fate)
        for fate in ("delivered", "kept", "superseded", "cancelled", "lost", "idle", "discarded")
    }
    assert steps["delivered"] == account.num_steps
    assert steps["kept"] == account.num_kept_steps
    assert sum(steps.values()) == account.num_carried_steps + account.num_simulated_steps
    assert shown.value("call_steps_total", **of_default, rpc="Evaluate", fate="idle") == evaluation.num_idle_steps
    seconds = [
        shown.value("worker_seconds_total", **of_default, rpc="ObtainSamples", phase=phase)
        for phase in ("environment", "policy", "recording", "encoding", "idle")
    ]
    assert min(seconds) >= 0
    np.testing.assert_allclose(sum(seconds), 2 * account.elapsed_seconds, rtol=1e-6)
    workers = [shown.value("worker_steps_total", **of_default, worker=index) for index in "01"]
    assert workers == [worker.num_simulated_steps for worker in status.workers]


def test_steps_that_are_not_finite_are_counted(server: Server) -> None:
    with rollserve.connect(server.address) as sampler:
        sampler.update_env("sample_envs:NoNumbers")
        sampler.update_agent(rollserve.RandomAgent())
        account = sampler.obtain_samples(20).account
    assert account.num_non_finite_steps > 0
    assert server.metrics().value("non_finite_steps_total", sampler="default") == account.num_non_finite_steps


def test_histograms_have_returns_and_lengths_of_ended_episodes(server: Server) -> None:
    with rollserve.connect(server.address) as sampler:
        sampler.update_agent(rollserve.RandomAgent())
        batch = sampler.obtain_samples(2000, seed=1)
        evaluation = sampler.evaluate(4)
    shown = server.metrics()
    labels = {"sampler": "default", "calls": "samples"}
    for name, values in (("return", batch.returns), ("length", batch.lengths)):
        assert shown.value(f"episode_{name}_bucket", **labels, le="+Inf") == len(batch)
        assert shown.value(f"episode_{name}_bucket", **labels, le="20.0") == (values <= 20).sum()
        assert 0 < (values <= 20).sum() < len(batch)
        for statistic in ("mean", "min", "max"):
            recent = shown.value("recent_episodes", sampler="default", value=name, statistic=statistic)
            assert recent == getattr(values[-100:], statistic)()
    assert shown.value("episode_length_sum", **labels) == batch.num_steps
    assert shown.value("episode_length_sum", sampler="default", calls="evaluation") == evaluation.lengths.sum()


def test_buckets_of_returns_are_a_setting(server: Server) -> None:
    with rollserve.connect(server.address) as sampler:
        sampler.update_agent(rollserve.RandomAgent())
        batch = sampler.obtain_samples(500, seed=1)
    shown, labels = server.metrics(), {"sampler": "default", "calls": "samples"}
    limits = ("-5.0", "15.5", "20.0", "1000.0", "+Inf")
    counts = {le: shown.value("episode_return_bucket", **labels, le=le) for le in limits}
    assert counts == {le: (batch.returns <= float(le)).sum() for le in limits}
    assert 0 < counts["15.5"] < counts["20.0"] < counts["1000.0"] == len(batch)


def test_compressed_bytes_are_counted_beside_raw_ones(server: Server) -> None:
    with rollserve.connect(server.address, compression="zstd") as sampler:
        sampler.update_agent(rollserve.ConstantAgent(0))
        sampler.obtain_samples(5000)
        message_bytes = sampler.status().counters.message_bytes
    shown = server.metrics()
    assert shown.value("delivered_bytes_total", sampler="default") == message_bytes
    assert shown.value("delivered_raw_bytes_total", sampler="default") > 1.1 * message_bytes


def test_rpcs_are_counted_by_status_and_reason(server: Server) -> None:
    with rollserve.connect(server.address) as sampler:
        with raises(rollserve.PreconditionError, reason="NO_AGENT"):
            sampler.obtain_samples(10)
        sampler.update_agent(rollserve.RandomAgent())
        with sampler.stream_samples(10**9) as stream:
            next(stream)
            during = server.metrics()
        sampler.status()
    assert during.value("open_rpcs", rpc="ObtainSamples") == 1
    assert during.value("running_calls", sampler="default") == 1
    assert during.value("queued_calls", sampler="default") == 0
    shown = server.metrics()
    count = {
        status: shown.value("rpc_seconds_count", rpc="ObtainSamples", status=status)
        for status in ("FAILED_PRECONDITION", "CANCELLED", "OK")
    }
    assert count == {"FAILED_PRECONDITION": 1, "CANCELLED": 1, "OK": 0}
    assert shown.value("rpc_errors_total", rpc="ObtainSamples", reason="NO_AGENT") == 1
    assert shown.value("rpc_seconds_count", rpc="GetSampler", status="OK") == 1
    assert shown.value("open_rpcs", rpc="ObtainSamples") == 0
    assert shown.value("calls_total", sampler="default", outcome="cancelled") == 1


def test_reference_has_every_metric(server: Server) -> None:
    with rollserve.connect(server.address) as sampler:
        sampler.update_agent(rollserve.RandomAgent())
        sampler.obtain_samples(10)
    listed = {family.name for family in known_metrics()}  # of docs/site/server_pages.py
    assert server.metrics().names == listed


def test_expiries_of_tokens_and_keys_are_shown_and_logged(tmp_path: Path) -> None:
    """Tokens that have expired are done with; of keys, the last one counts, and a certificate is as good as a date."""
    tokens = Tokens(tmp_path / "tokens.json")
    for name, days in {"eve": 1e-9, "alice": 20.0, "bob": 40.0, "carol": None}.items():
        tokens.create(name, "status", days=days)
    authority = Certificates(tmp_path / "certificates").authority.own.cert.decode()
    key = {"kty": "OKP", "crv": "Ed25519", "x": base64.urlsafe_b64encode(bytes(31) + b"\x01").decode().rstrip("=")}
    soon = {**key, "kid": "soon", "x5c": ["".join(authority.splitlines()[1:-1])]}  # by tomorrow
    later = {**key, "kid": "later", "exp": time.time() + 25 * DAY}
    keys, address, log = tmp_path / "keys.json", f"127.0.0.1:{free_port()}", tmp_path / "log"
    keys.write_text(json.dumps({"keys": [soon, later]}))
    signed = ("--jwt-jwks", str(keys), "--jwt-issuer", "issuer", "--jwt-audience", "audience")
    with local_server(*LIGHT, *tokens.options, *signed, "--metrics-listen", address, log=log):

        def days_left(file: str) -> float:
            return (Metrics(address).value("certificate_expiry_seconds", file=file) - time.time()) / DAY

        assert days_left("token_hashes") == pytest.approx(20, abs=0.1)
        assert days_left("jwt_jwks") == pytest.approx(25, abs=0.1)
        lines = [line.split(" WARNING ")[1] for line in log.read_text().splitlines() if "expires" in line]
        assert [re.sub(r"\(.*| expires=.*", "", line) for line in lines] == [
            "token expires soon token_hashes='alice ",
            "key expires soon jwt_jwks='the last one'",
        ]
        tokens.revoke("alice")
        assert days_left("token_hashes") == pytest.approx(40, abs=0.1)
        for odd in (None, "soon", 1e300, [], {}):  # of no known expiry: as good as for ever
            keys.write_text(json.dumps({"keys": [soon, {**later, "exp": odd, "x5c": odd}]}))
            assert Metrics(address).value("certificate_expiry_seconds", file="jwt_jwks") == 0
