"""What clients ask for: drawn at random, and such that a reference can be asked for the same."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
from faults.chaos.catalogue import MOST_WORKERS, NUM_ROWS

__all__ = ["MOST_PAUSES", "Call", "draw_call", "members_of"]

MOST_PAUSES = 100
"""A call of many messages would outlast the run."""

_KINDS = {
    "samples": 6,
    "exact": 3,
    "fragments": 5,
    "evaluation": 2,
    "population": 1,
    "blackhole": 1,
    "at once": 1,
    "status": 1,
}
"""With how often each comes."""
_MANY_WORKERS = math.lcm(*range(1, MOST_WORKERS + 1))


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of a client.

    Attributes:
        kind: one of the kinds.
        number: how many steps, or episodes, it asks for.
        options: those that its episodes are a function of.
        seed: the root seed, or None for the sampler's own sequence.
        first_index: of the first episode, with a seed.
        row_step_count: of fragments with a seed, where the rows are to stand.
        extras: options that change nothing of what comes: how it is sent, and whether workers go on.
        connection: which of the client's connections it takes.
        pause_seconds: how long the client takes for each message, up to `MOST_PAUSES` of them.
        num_messages: after how many messages the client ends the call; None for at its end.
        deadline: seconds that it may take in all, or None.
        joined: whether the client takes what comes as one batch.
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


def draw_call(source: random.Random, num_row_steps: tuple[int, int | None]) -> Call:
    """A call.

    Args:
        source: what it is drawn from.
        num_row_steps: a seed of fragments, and where its rows stand: None for at the beginning.
    """
    kind = source.choices(list(_KINDS), list(_KINDS.values()))[0]
    options: dict[str, Any] = {}
    if source.random() < 0.2:
        options["max_episode_length"] = source.choice([7, 25, 60])
    if source.random() < 0.1 and kind not in ("fragments", "population"):
        options["deterministic"] = True
    call = Call(kind, _number(source, kind), options, connection=source.randrange(2))
    if kind in ("samples", "exact", "fragments"):
        call = dataclasses.replace(call, **_how_it_is_taken(source), **_where_it_begins(source, kind, num_row_steps))
        if kind == "fragments" and call.seed is not None:  # a sequence has one limit
            call = dataclasses.replace(call, options={})
        if kind == "samples" and call.seed is None and source.random() < 0.3:
            call = dataclasses.replace(call, extras={**call.extras, "prefetch": True})
    elif kind == "evaluation":
        call = dataclasses.replace(call, extras={"return_episodes": source.random() < 0.5})
    return call


def members_of(parameters: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A population of three that are like an agent."""
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
        case _:
            return round(10 ** source.uniform(0.5, 3.3))


def _how_it_is_taken(source: random.Random) -> dict[str, Any]:
    """Ways to take what comes, of which at most one is odd."""
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


def _where_it_begins(source: random.Random, kind: str, num_row_steps: tuple[int, int | None]) -> dict[str, Any]:
    if source.random() < 0.5:
        return {}
    if kind == "fragments":
        seed, row_step_count = num_row_steps
        return {"seed": seed, "row_step_count": row_step_count}
    return {"seed": source.getrandbits(64), "first_index": source.choice([0, 0, 1, 13, 1 << 40])}
