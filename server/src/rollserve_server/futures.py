"""Futures that nobody waits for, in `pool` and `gateway`."""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["ignore_result"]


def ignore_result(future: asyncio.Future[Any]) -> None:
    """Retrieve the error of a done future that nobody waits for; asyncio would log it otherwise."""
    if not future.cancelled():
        future.exception()
