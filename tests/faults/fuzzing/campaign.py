"""A campaign of fuzzing: send inputs to a server, check its answers, and check that it still serves valid calls."""

from __future__ import annotations

import concurrent.futures
import itertools
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import psutil
from certificates import Certificates
from faults.chaos.catalogue import ENVS, agent
from faults.chaos.digests import segments_of
from faults.fuzzing.credentials import Credential, Credentials
from faults.fuzzing.inputs import Input, input_of
from faults.fuzzing.signed_tokens import SignedTokens
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2
from principals import Tokens

import rollserve

__all__ = ["MAX_GROWTH_BYTES", "SERVER_OPTIONS", "Guard", "Verdict", "answer", "fuzz", "save"]

SERVER_OPTIONS = (
    *("--env", "CartPole-v1", "--vectorization", "rows", "--rows", "4", "--workers", "2", "--seed", "1"),
    *("--allow-module", "faults.chaos.environments", "--allow-module", "sample_envs"),
    *("--max-request-bytes", str(4 << 20), "--step-seconds", "5", "--reset-seconds", "20"),
    *("--max-model-bytes", str(1 << 20), "--worker-buffer-bytes", str(8 << 20), "--call-window-bytes", str(2 << 20)),
    *("--max-kept-agent-bytes", str(16 << 20), "--shared-memory-bytes", str(64 << 20), "--log-level", "WARNING"),
)
MAX_GROWTH_BYTES = 512 << 20
"""Largest growth of the server since its first calls; inputs may have made environments with thousands of rows."""
_NUM_AT_ONCE = 8
_NUM_BETWEEN_CHECKS = 200
_DEADLINE_SECONDS = 0.4  # of each input: one that is valid by chance may request any number of steps
_DEADLINES = {"UpdateEnv": 2.0, "RenderEpisode": 2.0}
"""Longer deadlines, in seconds, of requests that make environments in a process of their own."""
_MAX_MESSAGES = 20
_VALID_SECONDS = 60.0  # timeout of valid calls
_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"]
_TRANSPORT = "RESOURCE_EXHAUSTED"
"""Status of gRPC itself for too much metadata."""
_OF_THE_SERVER = ("ListSamplers", "ServerReflectionInfo")
"""RPCs of no sampler: whoever has their scope on any sampler may call them."""
_OWN_STATUSES = {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
"""Statuses that the fuzzing client causes itself."""


class Guard:
    """A server's certificates and tokens, and its folder of datasets.

    Attributes:
        options: options of the server.
        credentials: metadata of requests.
        ca: file with the authority.
    """

    def __init__(self, folder: Path) -> None:
        certificates, tokens = Certificates(folder / "certificates"), Tokens(folder / "tokens.json")
        signed = SignedTokens(folder / "keys.json")
        data = folder / "data"
        data.mkdir()
        self.options = (*certificates.server, *tokens.options, *signed.options, "--data-dir", str(data))
        self.credentials = Credentials(tokens, signed)
        self.ca = certificates.path("ca")


@dataclass
class Verdict:
    """Findings of a campaign.

    Attributes:
        num_inputs: number of inputs.
        outcomes: number of answers of each kind: `ok`, or a status and a reason.
        wrong: answers outside the contract, by the number of the input.
        problems: other problems.
        longest_valid_seconds: longest duration of a valid call between inputs.
        growth_bytes: growth of the server's resident memory, after each valid call.
    """

    num_inputs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: dict[int, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    longest_valid_seconds: float = 0.0
    growth_bytes: list[int] = field(default_factory=list)


def fuzz(address: str, pid: int, numbers: Iterable[int], seed: int, guard: Guard) -> Verdict:
    """Send inputs, and make a valid call after each 200 of them.

    Args:
        address: address of the server, `host:port`.
        pid: process id of the server.
        numbers: numbers of the inputs.
        seed: seed of the inputs.
        guard: certificates and tokens of the server.
    """
    verdict, credentials = Verdict(), guard.credentials
    with (
        rollserve.connect(address, timeout=_VALID_SECONDS, ca=guard.ca, token=credentials.valid) as sampler,
        concurrent.futures.ThreadPoolExecutor(_NUM_AT_ONCE) as executor,
        grpc.secure_channel(address, grpc.ssl_channel_credentials(guard.ca.read_bytes())) as channel,
    ):
        expected = _valid_call(sampler)
        before = psutil.Process(pid).memory_info().rss
        for some in _in_parts(numbers, _NUM_BETWEEN_CHECKS):
            inputs = {number: input_of(seed, number) for number in some}
            answers = executor.map(lambda item: answer(channel, item[1], credentials.of(seed, item[0])), inputs.items())
            for number, (outcome, is_wrong) in zip(inputs, answers, strict=True):
                verdict.outcomes[outcome] += 1
                if is_wrong:
                    verdict.wrong[number] = f"{inputs[number].method.name}: {outcome}"
            verdict.num_inputs += len(inputs)
            began = time.monotonic()
            try:
                same = _valid_call(sampler) == expected
            except rollserve.RollserveError as error:
                verdict.problems.append(f"a valid call after input {some[-1]} fails: {error.code.name} {error}")
                break
            verdict.longest_valid_seconds = max(verdict.longest_valid_seconds, time.monotonic() - began)
            if not same:
                verdict.problems.append(f"a valid call after input {some[-1]} delivers other data")
            verdict.growth_bytes.append(psutil.Process(pid).memory_info().rss - before)
        if max(verdict.growth_bytes, default=0) > MAX_GROWTH_BYTES:
            verdict.problems.append(
                f"the server grew by {max(verdict.growth_bytes)} bytes, expected at most {MAX_GROWTH_BYTES}"
            )
    return verdict


def save(folder: Path, seed: int, numbers: Iterable[int]) -> None:
    """Write inputs to files."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        chosen = input_of(seed, number)
        (folder / f"{chosen.method.name}-{seed}-{number}").write_bytes(chosen.data)


def _valid_call(sampler: rollserve.Sampler) -> list[str]:
    """Set up the sampler and sample; returns digests of the episodes, which are always the same."""
    sampler.update_env(ENVS["cart"].spec)
    sampler.update_agent(agent("mlp 1"))
    sampler.evaluate(2)
    return [segment.digest for segment in segments_of(sampler.obtain_samples(100, seed=1))]


def answer(
    channel: grpc.Channel,
    chosen: Input,
    credential: Credential = Credential((), ""),  # noqa: B008  # frozen
) -> tuple[str, bool]:
    """Send an input; returns the answer, and whether it breaks the contract."""
    refusal = credential.refusal
    if chosen.method.containing_service.full_name == _HEALTH.full_name and refusal != _TRANSPORT:
        refusal = ""  # health asks nobody
    if chosen.method.name in _OF_THE_SERVER and credential.is_elsewhere:
        refusal = ""
    method = channel.unary_stream if chosen.method.server_streaming else channel.unary_unary
    call = method(chosen.path)  # no serializer: the input is bytes
    try:
        seconds = _DEADLINES.get(chosen.method.name, _DEADLINE_SECONDS)
        response = call(chosen.data, timeout=seconds, metadata=credential.metadata)
        if chosen.method.server_streaming:
            for _ in itertools.islice(response, _MAX_MESSAGES):
                pass
            response.cancel()
    except grpc.RpcError as error:
        reason = dict(error.trailing_metadata() or ()).get("rollserve-reason", "")
        is_let_in = error.code().name != refusal and error.code() not in _OWN_STATUSES and bool(refusal)
        is_wrong = is_let_in or (bool(_complaint(error, reason)) and not refusal == error.code().name == _TRANSPORT)
        return f"{error.code().name} {reason}".rstrip(), is_wrong
    return f"ok{' without a right to it' if refusal else ''}", bool(refusal)


def _complaint(error: grpc.RpcError, reason: str) -> str:
    """Return what is wrong with an error, or an empty text if it keeps the contract."""
    code, text = error.code(), error.details() or ""
    if code in _OWN_STATUSES:
        return ""
    if code is grpc.StatusCode.INTERNAL and reason != "ENV_FAILED":
        return "a fault of the server"
    if not reason:
        return "an error without a reason"
    details = dict(error.trailing_metadata()).get("grpc-status-details-bin", b"")
    info = error_details_pb2.ErrorInfo()
    status = status_pb2.Status.FromString(details)
    if not status.details or not status.details[0].Unpack(info) or info.reason != reason:
        return "an error without its details"
    return "a traceback" if "Traceback" in text else ""


def _in_parts(numbers: Iterable[int], size: int) -> Iterator[Sequence[int]]:
    rest = iter(numbers)
    while part := list(itertools.islice(rest, size)):
        yield part
