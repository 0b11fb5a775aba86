"""gymnasium's `AsyncVectorEnv`, driven in its own process: `python -m …async_vector_env ENV_ID NUM_ROWS`."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any

import ale_py
import gymnasium
from gymnasium.vector import AsyncVectorEnv

from benchmarks.shared.commands import answer_commands

__all__: list[str] = []


def main() -> None:
    """Answer commands until the end of standard input."""
    env_id, num_rows = sys.argv[1], int(sys.argv[2])
    gymnasium.register_envs(ale_py)
    with contextlib.closing(AsyncVectorEnv([lambda: gymnasium.make(env_id)] * num_rows)) as envs:
        envs.reset(seed=0)
        actions = envs.action_space.sample()

        def drive(num_steps: int) -> dict[str, Any]:
            latencies = []
            for _ in range(num_steps):
                began = time.perf_counter()
                envs.step(actions)
                latencies.append(time.perf_counter() - began)
            return {"latencies": latencies}

        answer_commands({"drive": drive})


if __name__ == "__main__":
    main()
