"""Random calls of clients, made so that a reference can repeat them."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from faults.chaos.catalogue import MAX_WORKERS, NUM_ROWS

__all__ = ["KINDS", "MAX_PAUSES", "Call", "draw_call", "members_of"]

MAX_PAUSES = 100
"""Number of messages before which a slow client pauses, so that no call outlasts the run."""
KINDS = {
    "samples": 6,
    "exact": 3,
    "fragments": 5,
    "session": 4,
    "evaluation": 2,
    "population": 1,
    "blackhole": 1,
    "at once": 1,
    "status": 1,
}
"""Relative frequency of each kind of call."""
_MANY_WORKERS = math.lcm(*range(1, MAX_WORKERS + 1))


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of a client.

    Attributes:
        kind: kind of call, such as `samples`.
        number: number of steps or episodes to request; of a session, steps of each row.
        options: options on which the episodes depend.
        seed: root seed, or None for the sampler's own sequence, which sessions do not have.
        first_index: index of the first episode, if there is a seed.
        row_step_count: expected position of the rows, for fragments with a seed.
        extras: options on which the episodes do not depend, such as compression and prefetch; of a session, after how
            many steps the client takes a batch (`batch_every`), too.
        connection: index of the client's connection.
        pause_seconds: seconds that the client pauses after each of the first `MAX_PAUSES` messages or steps.
        num_messages: number of messages or steps after which the client ends the call; None to read all.
        deadline: limit on the call's seconds, or None.
        joined: whether the client joins all messages into one batch.
    """

    kind: str
    number: int
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seed: int | None = None
    first_index: int = 0
    row_step_count: int | None = None
    extras: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    connection: int = 0
    pause_seconds: float = 0.0
    num_messages: int | None = None
    deadline: float | None = None
    joined: bool = False


def draw_call(source: random.Random, num_row_steps: tuple[int, int | None], kinds: Sequence[str]) -> Call:
    """Draw a call.

    Args:
        source: source of random numbers.
        num_row_steps: seed of a row sequence, and the position of its rows, None at its beginning.
        kinds: kinds of calls to choose among.
    """
    kind = source.choices(kinds, [KINDS[each] for each in kinds])[0]
    options: dict[str, Any] = {}
    if source.random() < 0.2:
        options["max_episode_length"] = source.choice([7, 25, 60])
    if source.random() < 0.1 and kind not in ("fragments", "population", "session"):
        options["deterministic"] = True
    call = Call(kind, _number(source, kind), options, connection=source.randrange(2))
    if kind in ("samples", "exact", "fragments"):
        call = dataclasses.replace(call, **_reading(source), **_beginning(source, kind, num_row_steps))
        if kind == "fragments" and call.seed is not None:  # all calls of a row sequence have the same limit
            call = dataclasses.replace(call, options={})
        if kind == "samples" and call.seed is None and source.random() < 0.3:
            call = dataclasses.replace(call, extras={**call.extras, "prefetch": True})
    elif kind == "session":
        call = dataclasses.replace(call, seed=source.getrandbits(64), **_driving(source))
    elif kind == "evaluation":
        call = dataclasses.replace(call, extras={"return_episodes": source.random() < 0.5})
    return call


def members_of(parameters: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Scale the parameters of an agent to make a population of three."""
    return {name: np.stack([array * factor for factor in (1, -1, 0.5)]) for name, array in parameters.items()}


def _number(source: random.Random, kind: str) -> int:
    match kind:
        case "exact":
            return source.randrange(1, 30)
        case "evaluation":
            return source.randrange(1, 40)
        case "population":
            return source.randrange(1, 8)
        case "fragments":
            return _MANY_WORKERS * NUM_ROWS * round(10 ** source.uniform(0, 1.5))
        case "session":
            return round(10 ** source.uniform(0, 2.2))
        case _:
            return round(10 ** source.uniform(0.5, 3.3))


def _reading(source: random.Random) -> dict[str, Any]:
    """Draw how the client reads the call, with at most one unusual behaviour."""
    compression = source.choice([None, "lz4", "zstd", ["zstd", "lz4"]])
    extras = {"compression": compression, "frames_once": source.random() < 0.8}
    how = source.random()
    if how < 0.15:
        return {"extras": extras, "num_messages": source.randrange(4)}
    if how < 0.3:
        return {"extras": extras, "pause_seconds": source.uniform(0.05, 0.4)}
    if how < 0.35:
        return {"extras": extras, "deadline": source.uniform(0.02, 0.6)}
    return {"extras": extras, "joined": how < 0.7}


def _driving(source: random.Random) -> dict[str, Any]:
    """Draw how the client drives a session."""
    extras = {
        "fragment_length": round(10 ** source.uniform(0, 1.7)),
        "batch_every": round(10 ** source.uniform(0.3, 2)),
        "infos": source.random() < 0.5,
    }
    how = source.random()
    if how < 0.1:
        return {"extras": extras, "num_messages": source.randrange(30)}
    if how < 0.3:
        return {"extras": extras, "pause_seconds": source.uniform(0.01, 0.2)}
    return {"extras": extras}


def _beginning(source: random.Random, kind: str, num_row_steps: tuple[int, int | None]) -> dict[str, Any]:
    if source.random() < 0.5:
        return {}
    if kind == "fragments":
        seed, row_step_count = num_row_steps
        return {"seed": seed, "row_step_count": row_step_count}
    return {"seed": source.getrandbits(64), "first_index": source.choice([0, 0, 1, 13, 1 << 40])}
