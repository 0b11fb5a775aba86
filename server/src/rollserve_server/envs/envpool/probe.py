"""Tries an environment of EnvPool's in a process of its own, which ends with 0 unless the environment ends it.

The standard input is a tuple as Python writes it: an id of EnvPool's, and arguments.
"""

from __future__ import annotations

import ast
import contextlib
import sys
from typing import Any

_NUM_STEPS = 64


def probe(env_id: str, arguments: dict[str, Any]) -> None:
    """Makes two rows, and steps them at random."""
    import envpool
    import numpy as np

    pool: Any = envpool.make_gymnasium(env_id, num_envs=2, num_threads=1, seed=[0, 1], **arguments)
    pool.reset()
    space = pool.action_space
    space.seed(0)
    for _ in range(_NUM_STEPS):
        pool.step(np.stack([space.sample() for _ in range(2)]))


if __name__ == "__main__":
    with contextlib.suppress(Exception):  # whoever makes the environment gets the same one
        probe(*ast.literal_eval(sys.stdin.read()))
