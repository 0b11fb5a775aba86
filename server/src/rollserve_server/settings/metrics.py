"""Settings of the records of ended episodes, for `GetMetrics` and Prometheus."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Annotated

from pydantic import BeforeValidator, Field, field_validator

from rollserve_server.settings.groups import Group, parse_json

__all__ = ["MetricsSettings"]

_POSITIVE = [float(f"{digit}e{power}") for power in range(-1, 5) for digit in (1, 2, 5)]
_RETURN_BOUNDS = (*(-bound for bound in reversed(_POSITIVE)), 0.0, *_POSITIVE)
"""Returns have any scale and both signs."""


class MetricsSettings(Group):
    """Settings of the records of ended episodes."""

    episode_records: int = Field(
        default=10_000,
        ge=1,
        le=10_000_000,
        description="Number of ended episodes that are kept for GetMetrics, about 70 bytes each; the oldest ones are "
        "overwritten.",
    )
    return_buckets: Annotated[tuple[float, ...] | None, BeforeValidator(parse_json)] = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="Upper bounds of the buckets of the histogram of returns, rising, as JSON: [0, 100, 200]. Without "
        "it, 1, 2 and 5 times powers of ten, from -50000 to 50000.",
    )

    @field_validator("return_buckets")
    @classmethod
    def _check_return_buckets(cls, value: Sequence[float] | None) -> Sequence[float] | None:
        if any(low >= high for low, high in itertools.pairwise(value or ())):
            raise ValueError("expected rising numbers")
        return value

    @property
    def return_bounds(self) -> Sequence[float]:
        """Upper bounds of the buckets of the histogram of returns."""
        return self.return_buckets or _RETURN_BOUNDS
