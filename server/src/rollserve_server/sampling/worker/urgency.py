"""Urgent calls: a worker that is stepping ends its slice early for them."""

from __future__ import annotations

__all__ = ["Urgency"]


class Urgency:
    """The urgent calls of one caller, which are numbered upwards and answered in this order."""

    def __init__(self) -> None:
        self._announced = self._answered = 0

    def announce(self, number: int) -> None:
        """Have slices end until a call is answered. May be called from any thread, and later than the call."""
        self._announced = max(self._announced, number)

    def answer(self, number: int) -> None:
        """Record that a call is being answered."""
        self._answered = number

    def is_waiting(self) -> bool:
        """Return whether a call waits behind the slice that runs."""
        return self._announced > self._answered

    def reset(self) -> None:
        """Forget all calls: another caller begins to number them. May be called from any thread."""
        self._announced = self._answered = 0
