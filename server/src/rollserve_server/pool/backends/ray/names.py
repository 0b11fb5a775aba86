"""Names of a sampler's actors in its Ray namespace. The next server finds the actors by their names."""

from __future__ import annotations

import contextlib
import itertools
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import ray
import ray.util

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "JOURNAL_FORMAT",
    "WorkerNames",
    "end_actors",
    "journal_name",
    "other_journals",
    "workers_in_namespace",
]

JOURNAL_FORMAT = 6
"""Number of the journal's format.

A journal outlives its server, so the next server may be of another version. Raise this number by hand with every change
of what server and journal exchange: the methods of `JournalActor`, and the layout of `SamplerState`, `Entry` and all
classes within them, as `pool/state/codec.py` writes them. A server refuses a journal of another format, which it could
not read.
"""
# Names had no tag up to format 4, and the journal's name had no number in format 1.
_JOURNAL = re.compile(r"journal(?:-(\d+))?(?:-([0-9a-f]{32}))?")
_WORKER = re.compile(r"worker-(\d+)-(\d+)-(\d+)(?:-([0-9a-f]{32}))?")


def journal_name(tag: str, *, is_created: bool = False) -> str:
    """Return the name of the actor that keeps the journal of the sampler with a tag.

    Names of journals of samplers that clients have created differ, so that a server that starts with its first sampler
    does not take them for journals of other servers' samplers.
    """
    return f"{'created-' if is_created else ''}journal-{JOURNAL_FORMAT}-{tag}"


class OtherJournal(NamedTuple):
    """A journal that a server cannot use.

    Attributes:
        format: number of its format.
        is_foreign: whether it belongs to a sampler with another secret.
        actor: the actor that keeps it.
    """

    format: int
    is_foreign: bool
    actor: Any


class WorkerNames:
    """Names for workers. No two workers of a sampler have the same name, even if one replaces the other."""

    def __init__(self, tag: str) -> None:
        """Start with the first number.

        Args:
            tag: tag of the sampler.
        """
        self._tag = tag
        self._numbers = itertools.count(1)

    def new(self, worker_index: int, epoch: int) -> str:
        """Return a name for a new worker.

        Args:
            worker_index: index of the worker's slot.
            epoch: epoch of the server that creates the worker.
        """
        return f"worker-{worker_index}-{epoch}-{next(self._numbers)}-{self._tag}"

    def find(self, num_workers: int) -> tuple[dict[int, Any], list[Any]]:
        """Find the workers in the namespace.

        Args:
            num_workers: number of slots.

        Returns:
            The newest worker of each slot that has one, and all other workers, including those of older formats.
        """
        found: dict[int, tuple[tuple[int, int], Any]] = {}
        others = []
        for match, actor in _matching(_WORKER):
            *numbers, tag = match.groups()
            if tag not in (None, self._tag):
                continue
            index, *age = map(int, numbers)
            known = found.get(index)
            if tag is None or index >= num_workers or (known and known[0] > (*age,)):
                others.append(actor)
                continue
            if known:
                others.append(known[1])
            found[index] = (age[0], age[1]), actor
        return {index: actor for index, (_, actor) in found.items()}, others


def workers_in_namespace(tag: str) -> list[Any]:
    """Return all workers of the sampler with a tag."""
    return [actor for match, actor in _matching(_WORKER) if match[4] == tag]


def other_journals(tag: str) -> list[OtherJournal]:
    """Return the journals in the namespace that are not the one of the sampler with a tag."""
    return [
        OtherJournal(int(match[1] or 1), match[2] not in (None, tag), actor)
        for match, actor in _matching(_JOURNAL)
        if match[0] != journal_name(tag)
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
