"""Environments of the workloads, as gymnasium and MPE2 make them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

__all__ = ["env_factories", "make_env"]


def make_env(workload: str) -> Any:
    """Return an environment of a workload."""
    import gymnasium  # here, because not all peers have it

    match workload:
        case "w1":
            return gymnasium.make("CartPole-v1")
        case "w2":
            # Before gymnasium 1.0 there is only v4, which differs in its arguments alone.
            return gymnasium.make("HalfCheetah-v5" if "HalfCheetah-v5" in gymnasium.registry else "HalfCheetah-v4")
        case "w3":
            import ale_py

            gymnasium.register_envs(ale_py)
            env = gymnasium.wrappers.AtariPreprocessing(gymnasium.make("ALE/Pong-v5", frameskip=1))
            return gymnasium.wrappers.FrameStackObservation(env, 4)
        case "w8":
            from mpe2 import simple_spread_v3

            return simple_spread_v3.parallel_env(max_cycles=25)
        case _:
            raise ValueError(f"workload: expected w1, w2, w3 or w8, got {workload!r}")


def env_factories(workload: str, num_envs: int) -> list[Callable[[], Any]]:
    """Return functions that each make one environment of a workload."""
    return [partial(make_env, workload)] * num_envs
