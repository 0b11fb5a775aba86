"""Limits of one sampler, as a plain value."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Quota"]


@dataclass(frozen=True)
class Quota:
    """Limits of a sampler; 0 for none.

    Attributes:
        num_workers: number of workers.
        num_rows: number of rows of all workers together, for a call.
        result_bytes: bytes of results that may be on their way from the workers to clients.
        num_calls: number of calls that sample at the same time.
        steps_per_second: steps per second of all calls together.
    """

    num_workers: int = 0
    num_rows: int = 0
    result_bytes: int = 0
    num_calls: int = 0
    steps_per_second: float = 0.0
