"""A run of the kit: cases one after the other, and what becomes of each."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rollserve_conformance.adapter import AdapterError, running_adapter
from rollserve_conformance.judging import WrongError, judge
from rollserve_conformance.recordings import recording, sending
from rollserve_conformance.server import conformance_server, secure_server

if TYPE_CHECKING:
    from rollserve_conformance.cases import Case
    from rollserve_conformance.server import ConformanceServer

__all__ = ["CaseOutcome", "line_of", "prepared_server", "run_cases"]

_END_SECONDS = 10.0
"""How long the end of a stream may take to reach the server."""


@dataclass(frozen=True)
class CaseOutcome:
    """What has become of a case.

    Attributes:
        case: its name.
        verdict: `passed`, `failed`, or `unsupported`: the client says that it lacks the feature.
        text: what is wrong, or what the client lacks.
        seconds: how long it took.
    """

    case: str
    verdict: Literal["passed", "failed", "unsupported"]
    text: str
    seconds: float


def run_cases(command: Sequence[str], cases: Sequence[Case]) -> Iterator[CaseOutcome]:
    """Run cases with an adapter; yield the outcome of each as soon as it is known.

    Args:
        command: starts the adapter. It is started again if it ends, or does not answer.
        cases: the cases.

    Raises:
        AdapterError: the adapter cannot be started.
        RuntimeError: a server cannot be started.
    """
    for secure in (False, True):
        waiting = deque(case for case in cases if case.secure == secure)
        if waiting:
            with _server(secure) as server:
                while waiting:
                    yield from _outcomes(command, waiting, server)


def _outcomes(command: Sequence[str], waiting: deque[Case], server: ConformanceServer) -> Iterator[CaseOutcome]:
    """Run cases with one process of the adapter, until none waits or the adapter does not answer."""
    with running_adapter(command) as adapter:
        while waiting:
            case, start = waiting.popleft(), time.monotonic()
            server.reset()
            _prepare(case, server)
            try:
                answer = adapter.answer(line_of(case, server), case.seconds)
            except AdapterError as error:
                yield CaseOutcome(case.name, "failed", str(error), time.monotonic() - start)
                return
            verdict, text = _judged(case, server, answer)
            yield CaseOutcome(case.name, verdict, text, time.monotonic() - start)


@contextlib.contextmanager
def prepared_server(case: Case) -> Iterator[ConformanceServer]:
    """Start a server that is ready for a case.

    Raises:
        RuntimeError: it did not start.
    """
    with _server(case.secure) as server:
        _prepare(case, server)
        yield server


def line_of(case: Case, server: ConformanceServer) -> dict[str, Any]:
    """Return what the adapter is sent for a case."""
    connect = {**server.connect, **case.connect}
    resolved = {
        name: server.others[value[1:]] if isinstance(value, str) and value.startswith("@") else value
        for name, value in connect.items()
        if value is not None
    }
    return {"case": case.name, "connect": resolved, "operations": list(case.operations)}


def _server(secure: bool) -> contextlib.AbstractContextManager[ConformanceServer]:
    return secure_server() if secure else conformance_server()


def _prepare(case: Case, server: ConformanceServer) -> None:
    for fault in case.faults:
        server.faulty.ask(fault)
    for script in case.scripts:
        server.replay(script)
    for name in case.recorded.values():
        stream = recording(name)
        server.replay({"rpc": "ObtainSamples", "needs": stream.needs, "steps": sending(stream.messages)})


def _judged(
    case: Case, server: ConformanceServer, answer: Mapping[str, Any]
) -> tuple[Literal["passed", "failed", "unsupported"], str]:
    if "unsupported" in answer:
        return "unsupported", str(answer["unsupported"])
    results = answer.get("results")
    if not isinstance(results, list):
        return "failed", f"expected results, got {str(answer)[:200]}"
    if unsupported := [str(each["unsupported"]) for each in results if "unsupported" in each]:
        return "unsupported", unsupported[0]
    deadline = time.monotonic() + _END_SECONDS
    while any(not record["status"] for record in server.records()) and time.monotonic() < deadline:
        time.sleep(0.02)
    try:
        judge(case, server, results)
    except WrongError as error:
        return "failed", str(error)
    return "passed", ""
