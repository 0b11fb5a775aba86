"""A watchdog of its parent: `watchdog.py DESCRIPTOR SECONDS` kills a parent that writes nothing for so many seconds.

The descriptor is the end of a pipe, to which the event loop of the parent writes. A process of its own also sees a
parent that is stopped, or whose threads all wait for one. The parent's handler of SIGUSR2 writes the stacks of its
threads first. Time counts only while this process runs: what suspends both, such as a laptop's sleep, `docker pause` or
Ctrl-Z, kills nothing.

Run as a script with nothing else loaded, so that it takes little memory.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time

__all__ = ["BEAT_SECONDS", "WATCHDOG"]

WATCHDOG = __file__
"""The script."""
BEAT_SECONDS = 1.0
"""How often the parent writes, and the watchdog looks."""
_DUMP_SECONDS = 2.0
"""How long the parent may take to write its stacks."""


def _watch(descriptor: int, seconds: float) -> None:
    parent, silent, looked = os.getppid(), 0.0, time.monotonic()
    while True:
        ready, _, _ = select.select([descriptor], [], [], BEAT_SECONDS)
        now = time.monotonic()
        silent += min(now - looked, 2 * BEAT_SECONDS)
        looked = now
        if ready:
            silent = 0.0
        if os.getppid() != parent or (ready and not os.read(descriptor, 1 << 16)):  # the parent has ended
            return
        if silent > seconds:
            _kill(parent, seconds)


def _kill(parent: int, seconds: float) -> None:
    import datetime  # which a parent that does not hang need not hold

    moment = datetime.datetime.now().astimezone().isoformat(" ", "milliseconds")
    sys.stderr.write(f"{moment} ERROR   killed: the event loop has not run for {seconds:g} s\n")
    sys.stderr.flush()
    with contextlib.suppress(ProcessLookupError):
        os.kill(parent, signal.SIGUSR2)
        time.sleep(_DUMP_SECONDS)
        os.kill(parent, signal.SIGKILL)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the parent, which then ends
    _watch(int(sys.argv[1]), float(sys.argv[2]))
