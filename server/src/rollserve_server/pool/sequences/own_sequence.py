"""Own sequences: for calls that name no seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from rollserve_server.agents import DEFAULT_EXPLORATION, Exploration

__all__ = ["OwnSequence", "SequenceKind"]


class SequenceKind(NamedTuple):
    """Inputs that determine episodes, beside seed and index."""

    policy_version: int
    env_version: int
    max_episode_length: int | None
    exploration: Exploration = DEFAULT_EXPLORATION


@dataclass(eq=False)
class OwnSequence:
    """A sequence that one call after the other continues; calls at the same time have several.

    Attributes:
        seed: root seed of the sequence.
        next_index: index of the first episode that no call has got.
        kind: kind of the episodes before it; None if they are no beginning of what follows.
        is_busy: whether a call uses the sequence.
    """

    seed: int
    next_index: int = 0
    kind: SequenceKind | None = None
    is_busy: bool = False

    def first_index(self, kind: SequenceKind, unit_size: int) -> int:
        """Return the index at which the next call begins, whose episodes are of this kind and run in such units.

        A call of another kind leaves out the rest of the unit: all of the unit would run for a part of it.
        """
        return self.next_index if kind == self.kind else -(-self.next_index // unit_size) * unit_size

    def continue_at(self, next_index: int, kind: SequenceKind | None) -> None:
        """Record where a call has ended."""
        self.next_index, self.kind = next_index, kind
