"""Sends inputs to a gateway, and judges its answers."""

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
from faults.chaos.catalogue import ENVS, agent
from faults.chaos.digests import segments_of
from faults.fuzzing.inputs import Input, input_of
from google.rpc import error_details_pb2, status_pb2

import rollserve

__all__ = ["MOST_GROWTH_BYTES", "SERVER_OPTIONS", "Verdict", "answer", "fuzz", "save"]

SERVER_OPTIONS = (
    *("--env", "CartPole-v1", "--vectorization", "rows", "--rows", "4", "--workers", "2", "--seed", "1"),
    *("--allow-module", "faults.chaos.environments", "--max-request-bytes", str(4 << 20)),
    *("--max-model-bytes", str(1 << 20), "--worker-buffer-bytes", str(8 << 20), "--call-window-bytes", str(2 << 20)),
    *("--max-kept-agent-bytes", str(16 << 20), "--shared-memory-bytes", str(64 << 20), "--log-level", "WARNING"),
)
MOST_GROWTH_BYTES = 512 << 20
"""What the server may take more at any time than after its first calls; environments may have had thousands of rows."""
_NUM_AT_ONCE = 8
_NUM_BETWEEN_CHECKS = 200
_DEADLINE_SECONDS = 0.4
"""Of each input: what is valid by chance may ask for anything."""
_MOST_MESSAGES = 20
_GOOD_SECONDS = 60.0
_HARMLESS = {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
"""What this client itself makes."""


@dataclass
class Verdict:
    """What came of the inputs.

    Attributes:
        num_inputs: how many there were.
        outcomes: how often each answer came: `ok`, or a status and a reason.
        wrong: by the number of the input, answers that should not have come.
        problems: what else is wrong.
        longest_good_seconds: what a good call in between took at most.
        growth_bytes: what the server took more than before, after each good call.
    """

    num_inputs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: dict[int, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    longest_good_seconds: float = 0.0
    growth_bytes: list[int] = field(default_factory=list)


def fuzz(address: str, pid: int, numbers: Iterable[int], seed: int) -> Verdict:
    """Sends the inputs of some numbers.

    Args:
        address: of the gateway.
        pid: its process.
        numbers: which inputs.
        seed: of which family of them.
    """
    verdict = Verdict()
    with (
        rollserve.connect(address, timeout=_GOOD_SECONDS) as sampler,
        concurrent.futures.ThreadPoolExecutor(_NUM_AT_ONCE) as executor,
        grpc.insecure_channel(address) as channel,
    ):
        expected = _good_call(sampler)
        before = psutil.Process(pid).memory_info().rss
        for some in _in_parts(numbers, _NUM_BETWEEN_CHECKS):
            inputs = {number: input_of(seed, number) for number in some}
            answers = executor.map(lambda each: answer(channel, each), inputs.values())
            for number, (outcome, is_wrong) in zip(inputs, answers, strict=True):
                verdict.outcomes[outcome] += 1
                if is_wrong:
                    verdict.wrong[number] = f"{inputs[number].method.name}: {outcome}"
            verdict.num_inputs += len(inputs)
            began = time.monotonic()
            try:
                same = _good_call(sampler) == expected
            except rollserve.RollserveError as error:
                verdict.problems.append(f"a good call behind input {some[-1]} fails: {error.code.name} {error}")
                break
            verdict.longest_good_seconds = max(verdict.longest_good_seconds, time.monotonic() - began)
            if not same:
                verdict.problems.append(f"a good call behind input {some[-1]} brings something else")
            verdict.growth_bytes.append(psutil.Process(pid).memory_info().rss - before)
        if max(verdict.growth_bytes, default=0) > MOST_GROWTH_BYTES:
            verdict.problems.append(f"the server took {max(verdict.growth_bytes)} bytes more than before")
    return verdict


def save(folder: Path, seed: int, numbers: Iterable[int]) -> None:
    """Writes inputs to files, to be looked at."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        chosen = input_of(seed, number)
        (folder / f"{chosen.method.name}-{seed}-{number}").write_bytes(chosen.data)


def _good_call(sampler: rollserve.Sampler) -> list[str]:
    """What always comes, whatever others have sent: digests of episodes."""
    sampler.update_env(ENVS["cart"].spec)
    sampler.update_agent(agent("mlp 1"))
    sampler.evaluate(2)
    return [segment.digest for segment in segments_of(sampler.obtain_samples(100, seed=1))]


def answer(channel: grpc.Channel, chosen: Input) -> tuple[str, bool]:
    """How a gateway answers an input, and whether it should not."""
    method = channel.unary_stream if chosen.method.server_streaming else channel.unary_unary
    call = method(chosen.path)  # bytes as they are
    try:
        response = call(chosen.data, timeout=_DEADLINE_SECONDS)
        if chosen.method.server_streaming:
            for _ in itertools.islice(response, _MOST_MESSAGES):
                pass
            response.cancel()
    except grpc.RpcError as error:
        reason = dict(error.trailing_metadata() or ()).get("rollserve-reason", "")
        return f"{error.code().name} {reason}".rstrip(), bool(_complaint(error, reason))
    return "ok", False


def _complaint(error: grpc.RpcError, reason: str) -> str:
    """What is wrong with an error; empty if it is as the contract says."""
    code, text = error.code(), error.details() or ""
    if code in _HARMLESS:
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
