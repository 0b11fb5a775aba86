"""The names of a sampler's actors in its namespace of Ray. Knows Ray, as `ray_backend` does."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterable
from typing import Any

import ray
import ray.util

__all__ = ["JOURNAL", "WorkerNames", "end_actors", "named_actors"]

JOURNAL = "journal"
_WORKER = re.compile(r"worker-(\d+)-(\d+)-(\d+)")


class WorkerNames:
    """Names workers: no two of a sampler have the same, even if one takes the place of another."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def new(self, worker_index: int, epoch: int) -> str:
        """A name for the worker that is being made for a place, by the server of an epoch."""
        return f"worker-{worker_index}-{epoch}-{next(self._numbers)}"

    def find(self, num_workers: int) -> tuple[dict[int, Any], list[Any]]:
        """The workers that are there.

        Args:
            num_workers: how many places there are.

        Returns:
            For each place that has one, the last that was made for it; and all others.
        """
        found: dict[int, tuple[tuple[int, int], Any]] = {}
        others = []
        for name, actor in named_actors():
            match = _WORKER.fullmatch(name)
            if match is None:
                continue
            index, *age = map(int, match.groups())
            known = found.get(index)
            if index >= num_workers or (known and known[0] > (*age,)):
                others.append(actor)
                continue
            if known:
                others.append(known[1])
            found[index] = (age[0], age[1]), actor
        return {index: actor for index, (_, actor) in found.items()}, others


def named_actors() -> list[tuple[str, Any]]:
    """The actors of the namespace that this process is in, with their names."""
    actors = []
    for name in ray.util.list_named_actors():
        with contextlib.suppress(ValueError):  # it has ended meanwhile
            actors.append((str(name), ray.get_actor(str(name))))
    return actors


def end_actors(actors: Iterable[Any]) -> None:
    """Ends them without asking."""
    for actor in actors:
        ray.kill(actor)
