"""Warnings that a server sends while a call runs, as warnings of Python."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollserve_wire.v1.episode_batch_pb2 import Progress

__all__ = ["warn_of"]


def warn_of(progress: Progress) -> None:
    """Issue the warning of a progress message, if it has one, as a RuntimeWarning."""
    if progress.warning:
        warnings.warn(progress.warning, RuntimeWarning, stacklevel=2)
