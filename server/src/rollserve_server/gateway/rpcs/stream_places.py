"""Places for streams that last as long as their clients like: bounded in all, and for each client."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from rollserve import Reason
from rollserve_server.errors import OverLimitError

__all__ = ["StreamPlaces"]


class StreamPlaces:
    """A bounded number of places for streams, and a bounded number of them for each client."""

    def __init__(self, what: str, max_in_all: int, max_of_client: int) -> None:
        """Start with all places free.

        Args:
            what: the streams, for messages.
            max_in_all: number of places.
            max_of_client: number of places of one client.
        """
        self._what = what
        self._max_in_all = max_in_all
        self._max_of_client = max_of_client
        self._num_taken: Counter[str] = Counter()

    @contextlib.contextmanager
    def held_by(self, client: str) -> Iterator[None]:
        """Give a client's stream a place for the block.

        Raises:
            OverLimitError: there is none, for all clients together, or for this one.
        """
        num_of_client, num_in_all = self._num_taken[client], self._num_taken.total()
        if num_of_client >= self._max_of_client or num_in_all >= self._max_in_all:
            raise OverLimitError.of(
                "",
                expected=f"at most {self._max_of_client} {self._what} of a client and {self._max_in_all} in all",
                got=f"{num_of_client} and {num_in_all} beside this one",
                reason=Reason.TOO_MANY_CALLS,
            )
        self._num_taken[client] += 1
        try:
            yield
        finally:
            self._num_taken[client] -= 1
            if not self._num_taken[client]:
                del self._num_taken[client]
