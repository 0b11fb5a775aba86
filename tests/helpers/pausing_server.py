"""A server that tells on its control socket how long its event loop has paused, in processor time of its thread."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from rollserve_server.cli import main
from rollserve_server.serving import Extras, run

if TYPE_CHECKING:
    from rollserve_server.settings import Settings

_longest = 0.0


def _measured(handle: asyncio.Handle) -> None:
    global _longest
    began = time.thread_time()
    _run(handle)
    _longest = max(_longest, time.thread_time() - began)


_run: Any = asyncio.Handle._run
asyncio.Handle._run = _measured  # type: ignore[attr-defined]


async def _pause(_: str) -> str:
    """Return the longest pause since this was last asked, in seconds."""
    global _longest
    longest, _longest = _longest, 0.0
    return str(longest)


def _serve(settings: Settings) -> int:
    return run(settings, Extras(answers={"pause": _pause}))


if __name__ == "__main__":
    main(prog_name="rollserve-server", obj=_serve)
