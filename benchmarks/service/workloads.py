"""The workloads that are compared to a bare loop: an environment, an agent, and a call."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import rollserve
from benchmarks.service.agents import mlp_agent
from rollserve.agents import Agent

__all__ = ["SAMPLING", "SamplingWorkload"]


@dataclass(frozen=True)
class SamplingWorkload:
    """What is sampled.

    Attributes:
        title: what it is, in a few words.
        env: the environment, its vectorization and how many rows each worker has.
        agent: what acts.
        call: whether whole episodes are asked for, or fragments.
        num_steps: how many steps a call asks for.
        options: other options of the call.
    """

    title: str
    env: rollserve.EnvSpec
    agent: Agent
    call: Literal["samples", "fragments"]
    num_steps: int
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        """How many rows each worker has."""
        assert self.env.num_rows is not None  # noqa: S101  # all workloads say it
        return self.env.num_rows

    @property
    def settings(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
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


def _native(num_rows: int) -> SamplingWorkload:
    env = rollserve.EnvSpec("CartPole-v1", vectorization="native", num_rows=num_rows)
    title = f"CartPole-v1, MLP, {num_rows} native rows, fragments"
    return SamplingWorkload(title, env, _CARTPOLE_AGENT, "fragments", 1 << 21)


def _pong(title: str, options: Mapping[str, Any]) -> SamplingWorkload:
    env = rollserve.EnvSpec("ALE/Pong-v5", {"frameskip": 1}, _ATARI_WRAPPERS, vectorization="rows", num_rows=8)
    title = f"ALE/Pong-v5, 84x84x4 uint8, random actions, 8 rows, whole episodes, {title}"
    return SamplingWorkload(title, env, rollserve.RandomAgent(), "samples", 20_000, options)


SAMPLING = {
    "w1-native-256": _native(256),
    "w1-native-512": _native(512),
    "w1-rows": SamplingWorkload(
        "CartPole-v1, MLP, 64 rows one by one, whole episodes",
        rollserve.EnvSpec("CartPole-v1", vectorization="rows", num_rows=64),
        _CARTPOLE_AGENT,
        "samples",
        200_000,
    ),
    "w2-rows": SamplingWorkload(
        "HalfCheetah-v5, MLP, 16 rows one by one, whole episodes",
        rollserve.EnvSpec("HalfCheetah-v5", vectorization="rows", num_rows=16),
        _CHEETAH_AGENT,
        "samples",
        64_000,
    ),
    "w2-envpool": SamplingWorkload(
        "HalfCheetah-v5, MLP, 64 rows of EnvPool's, fragments",
        rollserve.EnvSpec("HalfCheetah-v5", vectorization="envpool", num_rows=64),
        _CHEETAH_AGENT,
        "fragments",
        1 << 16,
    ),
    "w3-pong": _pong("plain columns", {"frames_once": False}),
    "w3-pong-once-lz4": _pong("frames once, lz4", {"compression": "lz4"}),
}
"""By name."""
