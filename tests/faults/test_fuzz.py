"""Fuzzed requests: the server answers them according to the contract, and serves other calls as before."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from faults.chaos.service import python_path
from faults.fuzzing.campaign import SERVER_OPTIONS, Guard, answer, fuzz
from faults.fuzzing.inputs import METHODS, Input, input_of, odd_envs
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

import rollserve
from rollserve_server.local import local_server

_NUM_INPUTS = 500


def test_fuzzed_requests_get_answers_of_the_contract(tmp_path: Path) -> None:
    """`make fuzz` sends a hundred thousand."""
    log, guard = tmp_path / "log", Guard(tmp_path)
    options = (*SERVER_OPTIONS, *guard.options, "--backend", "in-process")
    with local_server(*options, log=log, environment=python_path()) as server:
        verdict = fuzz(server.address, server.process.pid, range(_NUM_INPUTS), seed=0, guard=guard)
        assert server.process.poll() is None
    assert not verdict.problems
    assert not verdict.wrong
    assert "Traceback" not in log.read_text()
    assert guard.credentials.valid not in log.read_text()
    refusals = {"UNAUTHENTICATED TOKEN_INVALID", "PERMISSION_DENIED SCOPE_MISSING"}
    assert {*refusals, "RESOURCE_EXHAUSTED"} <= verdict.outcomes.keys()  # the last by gRPC, for too much metadata
    assert verdict.num_inputs == _NUM_INPUTS
    assert len(verdict.outcomes) > 10  # requests get beyond the first check


@pytest.mark.slow
def test_odd_environments_get_answers_of_the_contract(tmp_path: Path) -> None:
    options = (*SERVER_OPTIONS, "--backend", "in-process")
    with (
        local_server(*options, log=tmp_path / "log", environment=python_path()) as server,
        rollserve.connect(server.address) as sampler,
    ):
        reasons: dict[str, str] = {}
        for env in odd_envs():
            calls: tuple[Callable[[], object], ...] = (
                functools.partial(sampler.update_env, env),
                functools.partial(sampler.update_agent, rollserve.RandomAgent()),
                functools.partial(sampler.obtain_samples, 8),
                functools.partial(sampler.obtain_fragments, num_steps=8),
                functools.partial(sampler.evaluate, 2, env=env),
                functools.partial(sampler.render, seed=1, index=0, format="raw"),
                functools.partial(sampler.render, seed=1, index=0),
                functools.partial(sampler.call_environments, "close"),
            )
            for call in calls:
                try:
                    call()
                except rollserve.RollserveError as error:
                    reasons[f"{env}: {error}"] = error.reason
        assert reasons
        assert not [text for text, reason in reasons.items() if reason in ("", rollserve.Reason.INTERNAL)]
    assert "Traceback" not in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    "fault",
    [
        lambda context: context.abort(grpc.StatusCode.INTERNAL, "the server has a fault; its log has more"),
        lambda context: context.abort(grpc.StatusCode.INVALID_ARGUMENT, "without a reason"),
        lambda context: {}["gRPC answers UNKNOWN"],
    ],
)
def test_fuzzing_finds_answers_outside_the_contract(fault: Callable[[grpc.ServicerContext], object]) -> None:
    class Faulty(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
            return grpc.unary_unary_rpc_method_handler(lambda _, context: fault(context))

    server = grpc.server(ThreadPoolExecutor(1), handlers=[Faulty()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    method = next(method for method in METHODS if not method.server_streaming)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        _, is_wrong = answer(channel, Input(method, b""))
    server.stop(None).wait()
    assert is_wrong


def test_fuzzing_finds_requests_that_are_let_in(tmp_path: Path) -> None:
    """The server asks for no tokens."""
    guard, method = Guard(tmp_path), next(method for method in METHODS if method.name == "GetSampler")
    options = (*SERVER_OPTIONS, "--backend", "in-process")
    with (
        local_server(*options, log=tmp_path / "log", environment=python_path()) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        for number in range(40):
            credential = guard.credentials.of(0, number)
            _, is_wrong = answer(channel, Input(method, b""), credential)
            assert is_wrong == (credential.refusal in ("UNAUTHENTICATED", "PERMISSION_DENIED"))


def test_scopes_on_another_sampler_are_enough_for_rpcs_of_no_sampler_only(tmp_path: Path) -> None:
    guard = Guard(tmp_path)
    options = (*SERVER_OPTIONS, *guard.options, "--backend", "in-process")
    credential = next(
        each for each in map(functools.partial(guard.credentials.of, 0), range(10_000)) if each.is_elsewhere
    )
    with (
        local_server(*options, log=tmp_path / "log", environment=python_path()) as server,
        grpc.secure_channel(server.address, grpc.ssl_channel_credentials(guard.ca.read_bytes())) as channel,
    ):
        answers = {
            method.name: answer(channel, Input(method, b""), credential)
            for method in METHODS
            if method.name in ("ListSamplers", "GetSampler")
        }
    assert answers == {"ListSamplers": ("ok", False), "GetSampler": ("PERMISSION_DENIED SCOPE_MISSING", False)}


def test_fuzzing_inputs_cover_all_methods_and_are_reproducible() -> None:
    inputs = [input_of(3, number) for number in range(800)]
    assert inputs == [input_of(3, number) for number in range(800)]
    counts = Counter(chosen.method.name for chosen in inputs)
    assert counts.keys() == {method.name for method in METHODS}
    for name in counts:
        parsed = [_parses(chosen) for chosen in inputs if chosen.method.name == name]
        assert 0.3 < sum(parsed) / len(parsed) < 1


def _parses(chosen: Input) -> bool:
    try:
        GetMessageClass(chosen.method.input_type).FromString(chosen.data)
    except DecodeError:
        return False
    return True
