"""The probe of an EnvPool environment, run as a script: exits with 0 unless the environment ends the process.

Standard input is a tuple in Python's syntax: an id of EnvPool, and arguments.
"""

from __future__ import annotations

import ast
import contextlib
import sys
from typing import Any

_NUM_STEPS = 64


def probe(env_id: str, arguments: dict[str, Any]) -> None:
    """Make two rows, and step them with random actions."""
    import envpool
    import numpy as np

    pool: Any = envpool.make_gymnasium(env_id, num_envs=2, num_threads=1, seed=[0, 1], **arguments)
    pool.reset()
    space = pool.action_space
    space.seed(0)
    for _ in range(_NUM_STEPS):
        pool.step(np.stack([space.sample() for _ in range(2)]))


if __name__ == "__main__":
    with contextlib.suppress(Exception):  # the process that makes the environment gets the same exception
        probe(*ast.literal_eval(sys.stdin.read()))
