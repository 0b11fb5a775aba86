"""Phases of an update and of a sampling call, from the client's moments and the server's events.

The phases of a call follow each other, and their sum is the time of the call:

| phase | from | until |
|---|---|---|
| client | the client's method is called | the request is handed to gRPC |
| intake | | the gateway has received the request |
| admission | | the call begins, after the update of its agent if it has one; updates have no admission |
| orders | | the first order leaves for a worker; the first agent, in an update |
| Ray | | the last message with a batch is handed to gRPC, less worker and encode; all workers have the agent |
| worker | time of the worker that reports last, spent on steps | |
| encode | time of that worker, spent on writing messages | |
| send | the last message with a batch is handed to gRPC | the client has it; has the answer, in an update |
| settle | the client waits for the account and the end of the stream; the update is complete | |
| join | the client reads and copies what it received, after the last message with a batch | |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["CALL_PHASES", "UPDATE_PHASES", "call_phases", "update_phases"]

CALL_PHASES = ("client", "intake", "admission", "orders", "ray", "worker", "encode", "send", "settle", "join")
UPDATE_PHASES = ("client", "intake", "orders", "ray", "settle", "send")

Moments = Mapping[str, Any]
"""Moments of a call, as `MarkedSampler.timed` returns them."""
Event = Mapping[str, Any]
"""Event of the server, as `traced_server` describes them."""


def call_phases(what: str, calls: Sequence[Moments], events: Sequence[Event]) -> dict[str, float]:
    """Return the median of each phase of sampling calls, in seconds, by names that begin with what they are."""
    return _medians(what, CALL_PHASES, [_of_call(call, _during(call, events)) for call in calls])


def update_phases(updates: Sequence[Moments], events: Sequence[Event]) -> dict[str, float]:
    """Return the median of each phase of updates, in seconds, by name."""
    return _medians("update", UPDATE_PHASES, [_of_update(update, _during(update, events)) for update in updates])


def _of_call(call: Moments, events: Sequence[Event]) -> list[float]:
    received, admitted = _first(events, "received"), _first(events, "admitted")
    ordered = [event for event in events if event["name"] == "ordered"]
    written = max(event["time"] for event in events if event["name"] == "written" and event["is_batch"])
    sampling_seconds, encoding_seconds = _last_worker(events, written)
    receipts = call["receipts"]
    last = max(number for number, (_, _, is_batch) in enumerate(receipts) if is_batch)
    arrived = receipts[last][1]
    settling = sum(went_on - waited for waited, went_on, _ in receipts[last + 1 :])
    return [
        call["sent"] - call["began"],
        received - call["sent"],
        admitted - received,
        ordered[0]["time"] - admitted,
        written - ordered[0]["time"] - sampling_seconds - encoding_seconds,
        sampling_seconds,
        encoding_seconds,
        arrived - written,
        settling,
        call["ended"] - arrived - settling,
    ]


def _last_worker(events: Sequence[Event], until: float) -> tuple[float, float]:
    """Return the seconds of steps and of writing of the worker whose report is the last before a time."""
    workers = {event["order"]: event["worker"] for event in events if event["name"] == "ordered"}
    reports = [event for event in events if event["name"] == "reported" and event["order"] in workers]
    reports = [event for event in reports if event["time"] <= until]
    last = workers[reports[-1]["order"]]
    own = [event for event in reports if workers[event["order"]] == last]
    return sum(event["sampling_seconds"] for event in own), sum(event["encoding_seconds"] for event in own)


def _of_update(update: Moments, events: Sequence[Event]) -> list[float]:
    received, updated = _first(events, "received"), _first(events, "updated")
    asked = _first(events, "asked")
    answered = max(event["time"] for event in events if event["name"] == "answered")
    return [
        update["sent"] - update["began"],
        received - update["sent"],
        asked - received,
        answered - asked,
        updated - answered,
        update["ended"] - updated,
    ]


def _during(moments: Moments, events: Sequence[Event]) -> list[Event]:
    return [event for event in events if moments["began"] <= event["time"] <= moments["ended"]]


def _first(events: Sequence[Event], name: str) -> float:
    return next(float(event["time"]) for event in events if event["name"] == name)


def _medians(what: str, phases: Sequence[str], rows: Sequence[Sequence[float]]) -> dict[str, float]:
    medians = np.median(rows, axis=0)
    return {f"{what}_{phase}_seconds": float(value) for phase, value in zip(phases, medians, strict=True)}
