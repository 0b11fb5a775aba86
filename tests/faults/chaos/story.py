"""What the logs tell of a run: each call with what came of it, and which versions there were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults.chaos.digests import Segment
from faults.chaos.events import read_events

__all__ = ["Beginning", "Story", "ToldCall", "read_story"]


@dataclass(frozen=True)
class Beginning:
    """What a call's episodes are a function of, as of the proto of that name."""

    run: str
    seed: int
    first_index: int
    policy: int
    env: int
    row_step_count: int
    worker_count: int


@dataclass
class ToldCall:
    """A call, as its client took it down.

    Attributes:
        client: whose it is.
        request: as of `calls.Call`.
        beginning: None if the client never learned it.
        segments: what came, in its order.
        num_bytes: how much that was.
        outcome: how it ended; empty if its client did first.
        end: more of its end.
    """

    client: str
    request: Mapping[str, Any]
    beginning: Beginning | None = None
    segments: list[Segment] = field(default_factory=list)
    num_bytes: int = 0
    outcome: str = ""
    end: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_steps(self) -> int:
        """Steps that came."""
        return sum(segment.length for segment in self.segments)

    def __str__(self) -> str:
        return f"{self.client}: {self.request['kind']} of {self.request['number']}, {self.beginning}, {self.outcome}"


@dataclass(frozen=True)
class Story:
    """What happened.

    Attributes:
        calls: of all clients, each client's in their order.
        names: by run, kind (`agent` or `env`) and version, what of the catalogue that was.
        message_times: when clients got something, in order.
        main: the events of the run itself.
    """

    calls: Sequence[ToldCall]
    names: Mapping[tuple[str, str, int], str]
    message_times: Sequence[float]
    main: Sequence[Mapping[str, Any]]


def read_story(main: Path, clients: Sequence[Path]) -> Story:
    """Reads the logs of a run."""
    events = list(read_events(main))
    names = {(event["run"], event["kind"], event["version"]): event["name"] for event in events if _is_version(event)}
    calls: list[ToldCall] = []
    times: list[float] = []
    for path in clients:
        told: dict[int, ToldCall] = {}
        for event in read_events(path):
            match event["event"]:
                case "call":
                    told[event["call"]] = ToldCall(path.stem, event["request"])
                case "beginning":
                    fields = {name: event[name] for name in Beginning.__annotations__}
                    told[event["call"]].beginning = Beginning(**fields)
                case "message":
                    call = told[event["call"]]
                    call.segments += [Segment(*segment) for segment in event.get("segments", [])]
                    call.num_bytes += event["num_bytes"]
                    times.append(event["time"])
                case "end":
                    told[event["call"]].outcome, told[event["call"]].end = event["outcome"], event
                    if event["outcome"] == "ok":
                        times.append(event["time"])
        calls += told.values()
    return Story(calls, names, sorted(times), events)


def _is_version(event: Mapping[str, Any]) -> bool:
    return event["event"] == "version"
