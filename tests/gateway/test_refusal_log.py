"""Calls that end with an error: the log, complete for a few and bounded for many, and what errors hold."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

import rollserve
from rollserve import Reason
from rollserve_server.errors import NotFoundError, WorkerLostError
from rollserve_server.gateway.rpcs.statuses import RefusalLog, abort
from rollserve_server.identity import Principal
from rollserve_server.local import local_server

LIGHT = ("--env", "CartPole-v1", "--backend", "in-process", "--workers", "1", "--rows", "2", "--log-json")


def test_client_that_is_refused_all_the_time_does_not_fill_the_log(tmp_path: Path) -> None:
    log, num_refused, began = tmp_path / "log", 0, time.monotonic()
    with (
        local_server(*LIGHT, log=log) as server,
        rollserve.connect(server.address, sampler="other") as other,
        rollserve.connect(server.address) as sampler,
    ):
        while time.monotonic() < began + 2.5 or num_refused < 100:
            with pytest.raises(rollserve.RollserveError):
                other.status()
            num_refused += 1
            time.sleep(0.01)  # hundreds of refusals show as much as thousands, which would take all of a core
        with pytest.raises(rollserve.PreconditionError):
            sampler.obtain_samples(10)  # another reason, which has lines of its own
        time.sleep(1.5)
        max_lines = 10 + time.monotonic() - began
    events = [json.loads(line) for line in log.read_text().splitlines()]
    lines = [event for event in events if event["event"] == "call refused"]
    refused = [line for line in lines if line["reason"] == Reason.SAMPLER_NOT_FOUND]
    assert 11 <= len(refused) <= max_lines
    assert len(refused) + sum(line.get("suppressed", 0) for line in refused) == num_refused
    assert [line["reason"] for line in lines if line not in refused] == [Reason.NO_AGENT]


@dataclass
class Refused:
    charged_to: tuple[str, ...]
    name: str = "GetSampler"
    connection: str = "ipv4:192.0.2.1:1000"
    request_id: str = "0"
    principal: Principal | None = None
    sees_all: bool = False
    shown_sampler: str = "default"
    began: float = 0.0


async def test_many_peers_do_not_fill_log_or_memory(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rollserve_server")
    log, error = RefusalLog(), NotFoundError("none", reason=Reason.SAMPLER_NOT_FOUND)
    for number in range(5000):
        log.add(Refused((str(number),)), error, "NOT_FOUND", error.reason)
    assert len(caplog.records) == 1010
    await asyncio.sleep(1.2)
    assert len(caplog.records) == 1011
    assert caplog.records[-1].suppressed == 5000 - 1010 - 1  # type: ignore[attr-defined]


class AbortedError(Exception):
    """The error that gRPC raises to end a call, and keeps for a while."""


class Ending:
    """The context of a call that ends."""

    async def abort(self, *_: object) -> NoReturn:
        raise AbortedError


async def aborted(error: Exception) -> AbortedError:
    """End a call with an error, and return what gRPC keeps of it."""
    try:
        await abort(Ending(), error, Refused(("client",)), RefusalLog())
    except AbortedError as kept:
        return kept
    raise AssertionError("abort raises")


async def test_call_goes_on_though_another_one_ends_with_the_error_that_it_has_caught() -> None:
    error, may_go_on = WorkerLostError("worker 0 is lost", 0), asyncio.Event()

    async def go_on() -> str:
        try:
            raise error
        except WorkerLostError:
            pass
        await may_go_on.wait()
        return "went on"

    going_on = asyncio.create_task(go_on())
    await asyncio.sleep(0)
    await aborted(error)
    may_go_on.set()
    assert await asyncio.wait_for(going_on, 10) == "went on"


async def test_ended_call_keeps_no_variables_of_what_has_failed() -> None:
    found: list[weakref.ref[Refused]] = []

    def read(request: Refused) -> NoReturn:
        found.append(weakref.ref(request))
        raise ValueError("malformed")

    def fail() -> NoReturn:
        try:
            read(Refused(("a large request",)))
        except ValueError as error:
            raise NotFoundError("none", reason=Reason.SAMPLER_NOT_FOUND) from error

    try:
        fail()
    except NotFoundError as error:
        kept = await aborted(error)
    assert kept.__context__ is not None
    assert found[0]() is None
