"""Moments of what a call has delivered."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rollserve._codec.moments import OrderedMoments

if TYPE_CHECKING:
    from rollserve_server.sampling import MomentsFormat

__all__ = ["DeliveredMoments"]


class DeliveredMoments:
    """Moments of delivered observations and returns, merged in the order of delivery.

    Attributes:
        form: the moments that messages bring.
    """

    def __init__(self, form: MomentsFormat) -> None:
        """Start without steps."""
        self.form = form
        sizes = [math.prod(shape) for _, shape in form.leaves]
        if form.discount is not None:
            sizes.append(1)
        self._moments = [OrderedMoments(size) for size in sizes]
        self._widths = [1 + 2 * size for size in sizes]

    def add(self, moments: Sequence[bytes]) -> None:
        """Add the moments of the next message; see `Message.moments`."""
        for ordered, width, data in zip(self._moments, self._widths, moments, strict=False):
            ordered.add(np.frombuffer(data).reshape(-1, width))

    def observations(self) -> dict[str, np.ndarray]:
        """Return the count, the mean and M2 of each leaf in one array, (1 + 2 K,)."""
        return {name: ordered.total() for (name, _), ordered in zip(self.form.leaves, self._moments, strict=False)}

    def returns(self) -> np.ndarray | None:
        """Return the count, the mean and M2 of the returns; None without a discount."""
        return None if self.form.discount is None else self._moments[-1].total()
