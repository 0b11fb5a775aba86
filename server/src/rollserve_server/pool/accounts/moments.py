"""Moments of what a call has delivered."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rollserve_wire.moments import OrderedMoments

if TYPE_CHECKING:
    from rollserve_server.sampling import MomentsFormat

__all__ = ["DeliveredMoments", "FormMoments"]


class FormMoments(NamedTuple):
    """The moments that a `MomentsFormat` asks for.

    Attributes:
        form: the format.
        observations: the count, the mean and M2 of each leaf in one array, (1 + 2 K,).
        returns: the count, the mean and M2 of the returns; None without a discount.
    """

    form: MomentsFormat
    observations: dict[str, np.ndarray]
    returns: np.ndarray | None


class DeliveredMoments:
    """Moments of delivered observations and returns, merged in the order of delivery."""

    def __init__(self, forms: Sequence[MomentsFormat]) -> None:
        """Start without steps; messages bring the moments of these formats."""
        self._forms = forms
        sizes = [size for form in forms for size in _sizes(form)]
        self._moments = [OrderedMoments(size) for size in sizes]
        self._widths = [1 + 2 * size for size in sizes]

    def add(self, moments: Sequence[bytes]) -> None:
        """Add the moments of the next message; see `Message.moments`."""
        for ordered, width, data in zip(self._moments, self._widths, moments, strict=False):
            ordered.add(np.frombuffer(data).reshape(-1, width))

    def totals(self) -> list[FormMoments]:
        """Return the moments of all that was added, for each format."""
        found, totals = [], iter([ordered.total() for ordered in self._moments])
        for form in self._forms:
            observations = {name: next(totals) for name, _ in form.leaves}
            found.append(FormMoments(form, observations, None if form.discount is None else next(totals)))
        return found


def _sizes(form: MomentsFormat) -> list[int]:
    """Return the number of elements of each of a format's moments, in the order of `Message.moments`."""
    return [math.prod(shape) for _, shape in form.leaves] + [1] * (form.discount is not None)
