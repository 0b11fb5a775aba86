"""A child process that kills the server once its event loop hangs, so that a supervisor starts another one."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator

from rollserve_server.children import BEAT_SECONDS, WATCHDOG

__all__ = ["watched"]


@contextlib.asynccontextmanager
async def watched(seconds: float) -> AsyncGenerator[None, None]:
    """Have the process killed, after a dump of its stacks, if its event loop does not run for so long during the block.

    From then on, SIGUSR2 has the stacks of all threads written to standard error, also by hand.

    Args:
        seconds: how long the loop may not run; 0 for ever.
    """
    faulthandler.register(signal.SIGUSR2, 2, all_threads=True)
    if not seconds:
        yield
        return
    end, beats = os.pipe()
    os.set_blocking(beats, False)
    try:
        command = (sys.executable, "-I", "-S", WATCHDOG, str(end), str(seconds))
        process = subprocess.Popen(command, pass_fds=[end], stdin=subprocess.DEVNULL)  # noqa: S603, ASYNC220
    finally:
        os.close(end)
    beating = asyncio.create_task(_beat(beats))
    try:
        yield
    finally:
        beating.cancel()
        os.close(beats)
        process.kill()
        process.wait()


async def _beat(descriptor: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # somebody has ended the watchdog
        while True:
            with contextlib.suppress(BlockingIOError):  # it is stopped
                os.write(descriptor, b".")
            await asyncio.sleep(BEAT_SECONDS)
