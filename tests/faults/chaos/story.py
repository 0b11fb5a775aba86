"""The events of a run, read from its logs: calls with their results, versions, and faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults.chaos.digests import Segment
from faults.chaos.events import read_events

__all__ = ["Beginning", "RecordedCall", "Story", "read_story"]


@dataclass(frozen=True)
class Beginning:
    """Everything that the episodes of a call depend on, like the proto of that name."""

    run: str
    seed: int
    first_index: int
    policy: int
    env: int
    row_step_count: int
    worker_count: int


@dataclass
class RecordedCall:
    """A call as its client recorded it.

    Attributes:
        client: name of the client.
        request: fields of `calls.Call`.
        beginning: beginning of the call, or None if the client did not get it.
        segments: delivered segments, in order.
        steps: digests of the steps that a session has shown, in order.
        num_bytes: size of the delivered columns.
        outcome: outcome of the call, or an empty text if the client was killed.
        end: all fields of the event at the end.
    """

    client: str
    request: Mapping[str, Any]
    beginning: Beginning | None = None
    segments: list[Segment] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    num_bytes: int = 0
    outcome: str = ""
    end: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_steps(self) -> int:
        """Number of delivered steps."""
        return sum(segment.length for segment in self.segments)

    def __str__(self) -> str:
        return f"{self.client}: {self.request['kind']} of {self.request['number']}, {self.beginning}, {self.outcome}"


@dataclass(frozen=True)
class Story:
    """Everything that happened in a run.

    Attributes:
        calls: calls of all clients, in order for each client.
        names: names in the catalogue, by run, kind (`agent` or `env`) and version.
        message_times: sorted times of messages and steps.
        main: events of the run itself, such as faults.
    """

    calls: Sequence[RecordedCall]
    names: Mapping[tuple[str, str, int], str]
    message_times: Sequence[float]
    main: Sequence[Mapping[str, Any]]


def read_story(main: Path, clients: Sequence[Path]) -> Story:
    """Read the logs of a run."""
    events = list(read_events(main))
    names = {(event["run"], event["kind"], event["version"]): event["name"] for event in events if _is_version(event)}
    calls: list[RecordedCall] = []
    times: list[float] = []
    for path in clients:
        recorded: dict[int, RecordedCall] = {}
        for event in read_events(path):
            match event["event"]:
                case "call":
                    recorded[event["call"]] = RecordedCall(path.stem, event["request"])
                case "beginning":
                    fields = {name: event[name] for name in Beginning.__annotations__}
                    recorded[event["call"]].beginning = Beginning(**fields)
                case "message":
                    call = recorded[event["call"]]
                    call.segments += [Segment(*segment) for segment in event.get("segments", [])]
                    call.num_bytes += event["num_bytes"]
                    times.append(event["time"])
                case "step":
                    recorded[event["call"]].steps.append(event["digest"])
                    times.append(event["time"])
                case "end":
                    recorded[event["call"]].outcome, recorded[event["call"]].end = event["outcome"], event
                    if event["outcome"] == "ok":
                        times.append(event["time"])
        calls += recorded.values()
    return Story(calls, names, sorted(times), events)


def _is_version(event: Mapping[str, Any]) -> bool:
    return event["event"] == "version"
