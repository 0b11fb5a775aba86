"""Upper bounds for the size of messages, known before the messages are written."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from rollserve_server.errors import OverLimitError
from rollserve_server.sampling.protocol.orders import PLAIN
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from rollserve_server.sampling.protocol.orders import ColumnFormat
    from rollserve_server.sampling.record.columns import ColumnKey

__all__ = ["FILL_BYTES", "STATE_PREFIX", "Sizes"]

FILL_BYTES = 2 << 20
"""Size that messages are filled up to: of 1 to 4 MiB, it takes the least CPU time through gRPC on both sides."""

STATE_PREFIX = "state/"
"""Text in front of the name of a recurrent state that is written for each step, as one of the agent's infos."""

_MIN_STEPS = 16
"""Number of steps that messages have room for where `max_message_bytes` allows it, however large a step is: otherwise
each message would hold a last observation beside very few others.
"""

_HEADER_BYTES = 64
"""Upper bound for a column's type, shape and lengths without its name, and for all headers of a segment."""

_NUM_HEADERS = 10

_VALUE_BYTES = 8
"""Upper bound for a value."""


class Sizes(NamedTuple):
    """Upper bounds for the bytes of a message: a constant part, and parts for each segment and each step."""

    message: int
    segment: int
    step: int

    @classmethod
    def of(cls, keys: Iterable[ColumnKey], columns: ColumnFormat = PLAIN) -> Sizes:
        """Return the sizes of messages with these columns.

        Args:
            keys: keys of the columns.
            columns: how they may be written.
        """
        message, segment, step = _HEADER_BYTES * (_NUM_HEADERS + 1), _HEADER_BYTES, 0
        if columns.last_values:
            message, segment = message + _HEADER_BYTES, segment + _VALUE_BYTES
        for group, key in keys:
            in_segments = int(group in ("observations", "episode_infos", "states"))
            in_segments += group == "states" and columns.last_states
            in_steps = group != "episode_infos" and (group != "states" or columns.all_states)
            has_mask = group in ("env_infos", "episode_infos")
            num_columns = 1 + in_segments + has_mask
            prefix = len(STATE_PREFIX) * (group == "states")
            header = _HEADER_BYTES + 10 * len(key.shape) + prefix + len(key.name.encode()) + 1
            row = key.dtype.itemsize * math.prod(key.shape)
            message += header * num_columns
            segment += (row + has_mask) * in_segments
            step += (row + has_mask) * in_steps
        return cls(message, segment, step)

    def room(self, limit: int, fill_bytes: int) -> int:
        """Return the bytes that a message has for segments and steps.

        Args:
            limit: size that the message may not exceed.
            fill_bytes: preferred size, exceeded where steps are very large.

        Raises:
            OverLimitError: a single step does not fit into `limit`.
        """
        smallest = sum(self)
        if smallest > limit:
            expected = f"at least {smallest}, the size of a message with a single step"
            raise OverLimitError.of(
                "options.max_message_bytes", expected=expected, got=limit, reason=Reason.MESSAGE_TOO_SMALL
            )
        return min(limit, max(fill_bytes, smallest + _MIN_STEPS * self.step)) - self.message
