"""Own sequences: for calls that name no seed."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollserve_server.sampling import SequenceSpec

__all__ = ["OwnSequence", "content_of"]


@dataclass(eq=False)
class OwnSequence:
    """A sequence that one call after the other continues; calls at the same time have several.

    Attributes:
        seed: root seed of the sequence.
        next_index: index of the first episode that no call has got.
        spec: spec of the episodes before it, as of `content_of`; None if they are no beginning of what follows.
        is_busy: whether a call uses the sequence.
    """

    seed: int
    next_index: int = 0
    spec: SequenceSpec | None = None
    is_busy: bool = False

    def first_index(self, spec: SequenceSpec, unit_size: int) -> int:
        """Return the index at which the next call begins, whose episodes have this spec and run in such units.

        A call with another spec leaves out the rest of the unit: all of the unit would run for a part of it.
        """
        return self.next_index if content_of(spec) == self.spec else -(-self.next_index // unit_size) * unit_size

    def continue_at(self, next_index: int, spec: SequenceSpec | None) -> None:
        """Record where a call has ended."""
        self.next_index, self.spec = next_index, spec and content_of(spec)


def content_of(spec: SequenceSpec) -> SequenceSpec:
    """Return a spec without the name of the work, so that equal specs have equal episodes."""
    return dataclasses.replace(spec, work_id=0)
