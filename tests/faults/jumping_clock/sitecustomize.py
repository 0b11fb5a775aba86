"""Gives Python processes that find this when they start a clock that jumps forwards and backwards by a day."""

import itertools
import time

_DAY = 86400.0
_true_time = time.time
_jumps = itertools.cycle((_DAY, -_DAY, 0.0))


def _time() -> float:
    return _true_time() + next(_jumps)


time.time = _time
time.time_ns = lambda: int(_time() * 1e9)
