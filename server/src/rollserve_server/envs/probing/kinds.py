"""Kinds of environments to try, as the parent names them to the child."""

from __future__ import annotations

__all__ = ["ANY", "ENVPOOL"]

ANY, ENVPOOL = b".", b"e"
"""EnvPool takes seconds to import, so the child imports it once for all probes."""
