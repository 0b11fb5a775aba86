"""A server whose event loop tests can stop for a while, and that tells on its control socket how long it has paused.

Pauses are in processor time of its thread.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Any

from rollserve_server.cli import main
from rollserve_server.serving import Extras, ReadSettings, run

if TYPE_CHECKING:
    from rollserve_server.settings import Settings

_longest = 0.0


def _measured(handle: asyncio.Handle) -> None:
    global _longest
    began = time.thread_time()
    _run(handle)
    _longest = max(_longest, time.thread_time() - began)


_run: Any = asyncio.Handle._run
asyncio.Handle._run = _measured  # type: ignore[method-assign]


async def _pause(_: str) -> str:
    """Return the longest pause since this was last asked, in seconds."""
    global _longest
    longest, _longest = _longest, 0.0
    return str(longest)


async def _stand_still(arguments: str) -> str:
    """Stand still until a file exists; for the event loop, so many seconds more have passed then."""
    seconds, path = arguments.split(" ", 1)
    loop: Any = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + float(seconds)
    while not os.path.exists(path):  # noqa: ASYNC240  # nothing else may run
        time.sleep(0.01)  # noqa: ASYNC251
    return ""


def _serve(settings: Settings, read: ReadSettings) -> int:
    return run(settings, read, Extras(answers={"pause": _pause, "stand_still": _stand_still}))


if __name__ == "__main__":
    main(prog_name="rollserve-server", obj=_serve)
