"""A system clock that jumps by a day, for all Python processes with this folder in `PYTHONPATH`."""

import itertools
import time

_DAY = 86400.0
_true_time = time.time
_jumps = itertools.cycle((_DAY, -_DAY, 0.0))


def _time() -> float:
    return _true_time() + next(_jumps)


time.time = _time
time.time_ns = lambda: int(_time() * 1e9)
