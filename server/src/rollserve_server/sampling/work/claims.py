"""Claimed episodes: written as messages, or found before the call claims them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Generic

from rollserve_server.sampling.encode.encoder import E, EncodedMessage, Encoder, MessageForm, P, write_messages
from rollserve_server.sampling.protocol import Claim, Parcel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from rollserve_server.sampling.encode.encoder import Encoding
    from rollserve_server.sampling.protocol import ColumnFormat, EarlyClaim, Message
    from rollserve_server.sampling.record.episodes import Episode

__all__ = ["ClaimWriter", "EarlyEpisodes"]

_PARCELS_BYTES = 16 << 20
"""Size of the plain messages after which no other is written for an order: an object of Ray takes about 1 ms whatever
its size, and the gateway holds a few of them. Plain size, so that compressed messages take no longer to write.
"""


class ClaimWriter(Generic[E, P]):
    """Writes claims of finished episodes as messages. A large claim takes several orders."""

    def __init__(
        self,
        finished: Mapping[int, E],
        form: MessageForm[E, P],
        new_buffer: Callable[[int], NDArray[np.uint8]],
    ) -> None:
        """Start without claims.

        Args:
            finished: the finished episodes by index; may change.
            form: how episodes become messages.
            new_buffer: makes a buffer of so many bytes for messages.
        """
        self._finished = finished
        self._form = form
        self._new_buffer = new_buffer
        self._encoder = Encoder()
        self._drafts: dict[Claim, _Draft[P]] = {}

    def write(
        self, claims: Sequence[Claim], encoding: Encoding, max_message_bytes: int
    ) -> tuple[list[Parcel], NDArray[np.uint8]]:
        """Write messages of the claims, in their order, as many as go into one buffer.

        Args:
            claims: the claims, with the workers that their episodes belong to.
            encoding: the other values that messages hold.
            max_message_bytes: size that no message may exceed.

        Returns:
            Parcels of the first claims, and the buffer.

        Raises:
            OverLimitError: a single step does not fit into a message.
        """
        parcels: list[Parcel] = []
        messages: list[EncodedMessage] = []
        num_bytes = num_raw_bytes = 0
        for claim in claims:
            if num_raw_bytes >= _PARCELS_BYTES:
                break
            draft = self._drafts.pop(claim, None) or self._begin(claim, max_message_bytes, encoding.columns)
            places: list[Message] = []
            start = draft.position
            of_claim = dataclasses.replace(encoding, worker_index=claim.worker_index)
            while draft.segments is not None and num_raw_bytes < _PARCELS_BYTES:
                message = self._form.encode(self._encoder, draft.segments, of_claim)
                places.append(message.place(num_bytes))
                messages.append(message)
                num_bytes += message.num_bytes
                num_raw_bytes += message.num_raw_bytes
                draft.advance()
            complete = draft.segments is None
            parcels.append(Parcel(claim.claim_id, tuple(places), start, draft.position, complete))
            if not complete:
                self._drafts[claim] = draft
        return parcels, write_messages(messages, self._new_buffer)

    def num_written_steps(self, episode: E) -> int:
        """Return the number of the episode's steps in messages of a claim that is not complete."""
        for claim, draft in self._drafts.items():
            if claim.start <= episode.index < claim.stop:
                index, step = draft.position
                written = episode.length if episode.index < index else step if episode.index == index else 0
                return written - (claim.first_step if episode.index == claim.start else 0)
        return 0

    def drop(self, claim: Claim) -> None:
        """Forget how much of a claim was written; it is not written any further."""
        self._drafts.pop(claim, None)

    def forget_incomplete(self) -> None:
        """Forget claims of episodes that are no longer there."""
        for claim in list(self._drafts):
            if not all(index in self._finished for index in range(claim.start, claim.stop)):
                del self._drafts[claim]

    def _begin(self, claim: Claim, max_message_bytes: int, columns: ColumnFormat) -> _Draft[P]:
        episodes = [self._finished[index] for index in range(claim.start, claim.stop)]
        fill_bytes = self._encoder.fill_bytes
        messages = self._form.cut(episodes, max_message_bytes, claim.first_step, fill_bytes, columns)
        return _Draft(messages, (claim.start, claim.first_step))


class _Draft(Generic[P]):
    """Messages of a claim that are not written yet.

    Attributes:
        segments: content of the next message; None after the last.
        position: episode index and step that the next message begins with.
    """

    def __init__(self, messages: Iterator[Sequence[P]], position: tuple[int, int]) -> None:
        self._messages = messages
        self.segments = next(messages, None)
        self.position = position

    def advance(self) -> None:
        if self.segments:
            last = self.segments[-1]
            self.position = (last.episode.index + 1, 0) if last.ends else (last.episode.index, last.stop)
        self.segments = next(self._messages, None)


class EarlyEpisodes:
    """The finished episodes at the beginning of an early claim.

    Attributes:
        num_bytes: approximate bytes of the episodes.
    """

    def __init__(self, early: EarlyClaim, finished: Mapping[int, Episode]) -> None:
        """Look for the first episodes.

        Args:
            early: the early claim.
            finished: the worker's finished episodes by index; may grow.
        """
        self.num_bytes = 0
        self._early = early
        self._finished = finished
        self._stop = early.start
        self._num_steps = 0
        self._add_finished()
        self._was_satisfied = self._is_satisfied

    @property
    def end_call(self) -> bool:
        """Whether the call ends with the episodes, so that it needs no others."""
        return self._early.num_steps is not None and self._num_steps >= self._early.num_steps

    @property
    def are_due(self) -> bool:
        """Whether the early claim is satisfied, and was not at the beginning."""
        return self._is_satisfied and not self._was_satisfied

    @property
    def claim(self) -> Claim:
        """Claim of the episodes."""
        early = self._early
        return Claim(early.claim_id, early.start, self._stop, worker_index=early.worker_index)

    def advance(self) -> bool:
        """Add the next episodes that are finished; return whether they are due."""
        self._add_finished()
        return self.are_due

    @property
    def _is_satisfied(self) -> bool:
        return self.end_call or self._stop == self._early.stop

    def _add_finished(self) -> None:
        while not self._is_satisfied and (episode := self._finished.get(self._stop)) is not None:
            self._stop += 1
            self._num_steps += episode.length
            self.num_bytes += episode.num_bytes
