"""Agents and environments of the run, by name."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

import rollserve
from rollserve.agents import Agent
from rollserve.spaces import Box, Discrete

__all__ = ["AGENTS", "ENVS", "ENV_MODULE", "MAX_WORKERS", "NUM_ROWS", "PROFILES", "Environment", "agent", "parameters"]

ENV_MODULE = "faults.chaos.environments"
NUM_ROWS = 4  # of each worker, in every environment
MAX_WORKERS = 4


@dataclass(frozen=True)
class Environment:
    """An environment of the run.

    Attributes:
        spec: specification, with faults.
        family: key of the agents in `AGENTS` that fit.
        reference: specification without faults, whose episodes are the same.
    """

    spec: rollserve.EnvSpec
    family: str
    reference: rollserve.EnvSpec


def _env(family: str, spec: rollserve.EnvSpec, reference: rollserve.EnvSpec | None = None) -> Environment:
    return Environment(spec, family, reference or spec)


def _rows(env_id: str, kwargs: Mapping[str, object] | None = None, *wrappers: rollserve.Wrapper) -> rollserve.EnvSpec:
    return rollserve.EnvSpec(env_id, kwargs or {}, wrappers, vectorization="rows", num_rows=NUM_ROWS)


def _temperamental(**faults: int) -> Environment:
    spec = _rows(f"{ENV_MODULE}:Temperamental", faults)
    return _env("cart", spec, _rows(spec.id))


ENVS: Mapping[str, Environment] = {
    "cart": _env("cart", _rows("CartPole-v1")),
    "short": _env("cart", _rows("CartPole-v1", {"max_episode_steps": 30})),
    "blocks": _env(
        "cart",
        rollserve.EnvSpec("CartPole-v1", vectorization="native", num_rows=NUM_ROWS, num_episodes_per_row=2),
    ),
    "slow": _temperamental(slow=200),
    "dies": _temperamental(dies=1500),
    "raises": _temperamental(raises=400),
    "hangs": _temperamental(hangs=1500),
    "hosted": _env("cart", rollserve.EnvSpec("profile:hosted"), _rows("CartPole-v1")),
    "hosted raises": _env("cart", rollserve.EnvSpec("profile:hosted-raises"), _rows(f"{ENV_MODULE}:Temperamental")),
    "screens": _env("screens", _rows(f"{ENV_MODULE}:Screens")),
    "stacks": _env(
        "stacks",
        _rows(f"{ENV_MODULE}:Screens", None, rollserve.Wrapper("FrameStackObservation", {"stack_size": 4})),
    ),
}

PROFILES: Mapping[str, Mapping[str, object]] = {
    "hosted": {"env": "CartPole-v1", "python": sys.executable, "rows": NUM_ROWS},
    "hosted-raises": {
        "env": f"{ENV_MODULE}:Temperamental",
        "env_kwargs": {"raises": 400, "dies": 1500},
        "python": sys.executable,
        "rows": NUM_ROWS,
    },
}
"""Profiles of environments in hosts, by name."""

_CART = Box(np.float32(-1), np.float32(1), (4,), np.dtype(np.float32)), Discrete(2)

AGENTS: Mapping[str, tuple[str, ...]] = {
    "cart": ("mlp 1", "mlp 2", "value 1", "gru 1", "gru 2", "random", "constant"),
    "screens": ("random", "constant"),
    "stacks": ("random", "constant"),
}
"""Names of the agents that fit each family of environments."""


@functools.cache
def agent(name: str) -> Agent:
    """Return the agent with this name."""
    kind, _, seed = name.partition(" ")
    match kind:
        case "mlp":
            return rollserve.MlpAgent.initial(*_CART, hidden_sizes=(16, 16), seed=int(seed))
        case "value":
            return rollserve.MlpAgent.initial(*_CART, hidden_sizes=(32,), value="separate", seed=int(seed))
        case "gru":
            return rollserve.MlpAgent.initial(*_CART, hidden_sizes=(8,), core="gru", core_size=6, seed=int(seed))
        case "constant":
            return rollserve.ConstantAgent(1)
        case _:
            return rollserve.RandomAgent()


def parameters(name: str) -> Mapping[str, np.ndarray] | None:
    """Return the parameters of the agent with this name, or None if it has none."""
    known = agent(name)
    return known.parameters if isinstance(known, rollserve.MlpAgent) else None
