"""Workloads that sample usual environments (w1, w2, w3, w10): environment, agent and call of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import rollserve
from benchmarks.service.agents import mlp_agent

__all__ = ["ITERATIONS", "SAMPLING", "SamplingSpec"]


@dataclass(frozen=True)
class SamplingSpec:
    """A workload that samples.

    Attributes:
        title: the workload in a few words.
        env: environment, with its vectorization and number of rows.
        agent: agent that acts.
        call: `samples` for whole episodes, or `fragments`.
        num_steps: number of steps of a call.
        options: further options of the call.
    """

    title: str
    env: rollserve.EnvSpec
    agent: rollserve.Agent
    call: Literal["samples", "fragments"]
    num_steps: int
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        """Number of rows of each worker."""
        assert self.env.num_rows is not None  # noqa: S101  # set in each workload below
        return self.env.num_rows

    @property
    def settings(self) -> dict[str, Any]:
        """The workload as a JSON object."""
        agent: dict[str, Any] = {"kind": "random"}
        if isinstance(self.agent, rollserve.MlpAgent):
            agent = {"kind": "mlp", "layer_sizes": self.agent.layer_sizes, "head": self.agent.head}
        return {
            "env": dataclasses.asdict(self.env),
            "agent": agent,
            "call": f"obtain_{self.call}",
            "num_steps": self.num_steps,
            "options": dict(self.options),
        }


_CARTPOLE_AGENT = mlp_agent((4, 64, 64, 2), "categorical")
_CHEETAH_AGENT = mlp_agent((17, 64, 64, 6), "diagonal_gaussian")
_ATARI_WRAPPERS = (
    rollserve.Wrapper("AtariPreprocessing"),
    rollserve.Wrapper("FrameStackObservation", {"stack_size": 4}),
)


def _native_cartpole(num_rows: int) -> SamplingSpec:
    env = rollserve.EnvSpec("CartPole-v1", vectorization="native", num_rows=num_rows)
    title = f"CartPole-v1, MLP, {num_rows} native rows, fragments"
    return SamplingSpec(title, env, _CARTPOLE_AGENT, "fragments", 1 << 21)


def _pong(columns: str, options: Mapping[str, Any]) -> SamplingSpec:
    env = rollserve.EnvSpec("ALE/Pong-v5", {"frameskip": 1}, _ATARI_WRAPPERS, vectorization="rows", num_rows=8)
    title = f"ALE/Pong-v5, 84x84x4 uint8, random actions, 8 rows, whole episodes, {columns}"
    return SamplingSpec(title, env, rollserve.RandomAgent(), "samples", 20_000, options)


def _pong_together(env: rollserve.EnvSpec, rows: str) -> SamplingSpec:
    title = f"{env.id}, 84x84x4 uint8, random actions, {env.num_rows} {rows} rows, fragments, frames once"
    # PPO's large batch in Atari, 128 x 128 steps.
    return SamplingSpec(title, env, rollserve.RandomAgent(), "fragments", 128 * 128)


def _iterations(env: rollserve.EnvSpec, agent: rollserve.MlpAgent, num_episode_steps: int = 0) -> list[SamplingSpec]:
    """Return iterations with fragments of all sizes, and one with whole episodes of at least `num_episode_steps`."""
    rows = f"{env.num_rows} native rows" if env.vectorization == "native" else f"{env.num_rows} rows one by one"
    specs = [
        SamplingSpec(
            f"{env.id}, MLP, {rows}, update + {num_steps:,} fragment steps", env, agent, "fragments", num_steps
        )
        for num_steps in (512, 2048, 8192)
    ]
    if num_episode_steps:
        title = f"{env.id}, MLP, {rows}, update + {num_episode_steps:,} steps of whole episodes"
        specs.append(SamplingSpec(title, env, agent, "samples", num_episode_steps))
    return specs


SAMPLING = {
    "w1-native-256": _native_cartpole(256),
    "w1-native-512": _native_cartpole(512),
    "w1-rows": SamplingSpec(
        "CartPole-v1, MLP, 64 rows one by one, whole episodes",
        rollserve.EnvSpec("CartPole-v1", vectorization="rows", num_rows=64),
        _CARTPOLE_AGENT,
        "samples",
        200_000,
    ),
    "w2-rows": SamplingSpec(
        "HalfCheetah-v5, MLP, 16 rows one by one, whole episodes",
        rollserve.EnvSpec("HalfCheetah-v5", vectorization="rows", num_rows=16),
        _CHEETAH_AGENT,
        "samples",
        64_000,
    ),
    "w2-envpool": SamplingSpec(
        "HalfCheetah-v5, MLP, 64 EnvPool rows, fragments",
        rollserve.EnvSpec("HalfCheetah-v5", vectorization="envpool", num_rows=64),
        _CHEETAH_AGENT,
        "fragments",
        1 << 16,
    ),
    "w3-pong": _pong("plain columns", {"frames_once": False}),
    "w3-pong-once-lz4": _pong("frames once, lz4", {"compression": "lz4"}),
    "w3-pong-native": _pong_together(rollserve.EnvSpec("ALE/Pong-v5", vectorization="native", num_rows=16), "native"),
    "w3-pong-envpool": _pong_together(rollserve.EnvSpec("Pong-v5", vectorization="envpool", num_rows=16), "EnvPool"),
}
"""Workloads of long calls by name."""

ITERATIONS = {
    "w10-cartpole-rows": _iterations(
        rollserve.EnvSpec("CartPole-v1", vectorization="rows", num_rows=32), _CARTPOLE_AGENT, 2048
    ),
    "w10-cartpole-native": _iterations(
        rollserve.EnvSpec("CartPole-v1", vectorization="native", num_rows=32), _CARTPOLE_AGENT, 2048
    ),
    # Without whole episodes: all have 1,000 steps, so that 2,048 would take as long as three episodes at least.
    "w10-cheetah-rows": _iterations(
        rollserve.EnvSpec("HalfCheetah-v5", vectorization="rows", num_rows=8), _CHEETAH_AGENT
    ),
}
"""Iterations of an on-policy trainer by workload: an update of all parameters, then a call. All of a workload have the
same environment and agent."""
