"""Names of a sampler's actors in its Ray namespace. The next server finds the actors by their names."""

from __future__ import annotations

import contextlib
import itertools
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import ray
import ray.util

from rollserve_server.pool.backends.ray.identity import journal_name
from rollserve_server.sampling import ORDERS_FORMAT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "FoundWorker",
    "WorkerNames",
    "end_actors",
    "journals",
    "other_journals",
    "workers_in_namespace",
]

_JOURNAL = re.compile(r"journal(?:-(\d{1,9}))?(?:-([0-9a-f]{32})(?:-\d+)?)?")
"""Names of journals of first samplers. Up to format 6, which kept no records of
`protos/rollserve/v1/saved_sampler.proto`, names had the number of the format, up to format 4 no tag, and in format 1 no
number either."""
_WORKER = re.compile(r"worker-(\d+)-(\d+)-(\d+)(?:-([0-9a-f]{32})(?:-([^~]+)(?:~(\d{1,9}))?)?)?")
"""Names of workers: index of the slot, epoch, number, tag, version of the server, and the format of orders, which
servers before 0.4.0 left out."""


def journals(tag: str, *, is_created: bool = False) -> list[str]:
    """Return the names of the actors that keep the journal of the sampler with a tag, the present one last.

    Several are there while a server replaces the one that a server of another version has left.
    """
    pattern = re.compile(re.escape(journal_name(tag, is_created=is_created)) + r"(?:-(\d+))?")
    found = filter(None, map(pattern.fullmatch, ray.util.list_named_actors()))
    return [match[0] for match in sorted(found, key=lambda match: int(match[1] or 0))]


class OtherJournal(NamedTuple):
    """A journal that a server cannot use.

    Attributes:
        name: name of its actor.
        is_foreign: whether it belongs to a sampler with another secret.
        actor: the actor that keeps it.
    """

    name: str
    is_foreign: bool
    actor: Any


class FoundWorker(NamedTuple):
    """A worker that this server can use.

    Attributes:
        actor: the worker's actor.
        is_outdated: whether a server of another version has made it.
    """

    actor: Any
    is_outdated: bool


class WorkerNames:
    """Names for workers. No two workers of a sampler have the same name, even if one replaces the other."""

    def __init__(self, tag: str, software: str) -> None:
        """Start with the first number.

        Args:
            tag: tag of the sampler.
            software: version of this server.
        """
        self._tag = tag
        self._software = software
        self._numbers = itertools.count(1)

    def new(self, worker_index: int, epoch: int) -> str:
        """Return a name for a new worker.

        Args:
            worker_index: index of the worker's slot.
            epoch: epoch of the server that creates the worker.
        """
        number = next(self._numbers)
        return f"worker-{worker_index}-{epoch}-{number}-{self._tag}-{self._software}~{ORDERS_FORMAT}"

    def find(self, num_workers: int) -> tuple[dict[int, FoundWorker], list[Any]]:
        """Find the workers in the namespace.

        Args:
            num_workers: number of slots.

        Returns:
            The newest worker of each slot that understands this server's orders, and all other workers.
        """
        found: dict[int, tuple[tuple[int, int], FoundWorker]] = {}
        others = []
        for match, actor in _matching(_WORKER):
            *numbers, tag, software, orders_format = match.groups()
            if tag not in (None, self._tag):
                continue
            index, *age = map(int, numbers)
            known = found.get(index)
            is_usable = orders_format == str(ORDERS_FORMAT) and index < num_workers
            if not is_usable or (known and known[0] > (*age,)):
                others.append(actor)
                continue
            if known:
                others.append(known[1].actor)
            found[index] = (age[0], age[1]), FoundWorker(actor, software != self._software)
        return {index: worker for index, (_, worker) in found.items()}, others


def workers_in_namespace(tag: str) -> list[Any]:
    """Return all workers of the sampler with a tag."""
    return [actor for match, actor in _matching(_WORKER) if match[4] == tag]


def other_journals(tag: str) -> list[OtherJournal]:
    """Return the journals in the namespace that are not of the sampler with a tag."""
    return [
        OtherJournal(match[0], match[2] not in (None, tag), actor)
        for match, actor in _matching(_JOURNAL)
        if match[1] is not None or match[2] != tag
    ]


def _matching(pattern: re.Pattern[str]) -> Iterator[tuple[re.Match[str], Any]]:
    """Yield the actors of this process's namespace whose names match a pattern."""
    for name in map(str, ray.util.list_named_actors()):
        if (match := pattern.fullmatch(name)) is not None:
            with contextlib.suppress(ValueError):  # the actor has just ended
                yield match, ray.get_actor(name)


def end_actors(actors: Iterable[Any]) -> None:
    """End actors at once."""
    for actor in actors:
        ray.kill(actor)
