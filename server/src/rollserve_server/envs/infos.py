"""Infos of environments as plain dicts."""

from __future__ import annotations

from typing import Any

__all__ = ["plain_dict"]


def plain_dict(infos: Any) -> dict[str, Any]:
    """Return the infos of an environment as a plain dict; raise what a mapping of another class raises."""
    return infos if type(infos) is dict else dict(infos or {})
