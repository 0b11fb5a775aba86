"""Names of a sampler's actors in its Ray namespace. The next server finds the actors by their names."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterable
from typing import Any

import ray
import ray.util

__all__ = ["JOURNAL", "JOURNAL_FORMAT", "WorkerNames", "end_actors", "named_actors", "other_journals"]

JOURNAL_FORMAT = 4
"""Number of the journal's format.

A journal outlives its server, so the next server may be of another version. Raise this number by hand with every change
of what server and journal exchange as pickles: the methods of `JournalActor`, and the layout of `SamplerState`, `Entry`
and all classes within them. A server refuses a journal of another format, which it could not read.
"""
JOURNAL = f"journal-{JOURNAL_FORMAT}"
"""Name of the journal's actor."""
_JOURNAL = re.compile(r"journal(?:-(\d+))?")  # the name had no number in format 1
_WORKER = re.compile(r"worker-(\d+)-(\d+)-(\d+)")


class WorkerNames:
    """Names for workers. No two workers of a sampler have the same name, even if one replaces the other."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def new(self, worker_index: int, epoch: int) -> str:
        """Return a name for a new worker.

        Args:
            worker_index: index of the worker's slot.
            epoch: epoch of the server that creates the worker.
        """
        return f"worker-{worker_index}-{epoch}-{next(self._numbers)}"

    def find(self, num_workers: int) -> tuple[dict[int, Any], list[Any]]:
        """Find the workers in the namespace.

        Args:
            num_workers: number of slots.

        Returns:
            The newest worker of each slot that has one, and all other workers.
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


def other_journals() -> dict[int, Any]:
    """Return the journals of other formats in the namespace, by format."""
    journals = {}
    for name, actor in named_actors():
        match = _JOURNAL.fullmatch(name)
        if match is not None and name != JOURNAL:
            journals[int(match[1] or 1)] = actor
    return journals


def named_actors() -> list[tuple[str, Any]]:
    """Return the actors of this process's namespace with their names."""
    actors = []
    for name in ray.util.list_named_actors():
        with contextlib.suppress(ValueError):  # the actor has just ended
            actors.append((str(name), ray.get_actor(str(name))))
    return actors


def end_actors(actors: Iterable[Any]) -> None:
    """End actors at once."""
    for actor in actors:
        ray.kill(actor)
