"""Agents in Python for CartPole-v1 that have passed the sandbox, and the state that rejected updates keep."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces as gym_spaces

from rollserve_server.agents import InstalledFactory, PythonSource, PythonSpec, prepare_agent
from rollserve_server.settings import AgentSettings

BOX, DISCRETE = gym_spaces.Box(-1, 1, (4,), np.float32), gym_spaces.Discrete(2)
WEIGHTS = {
    "first": np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32),
    "second": np.random.default_rng(1).standard_normal((64, 2)).astype(np.float32),
}


def prepared(
    name: str,
    kwargs: dict[str, Any] | None = None,
    parameters: dict[str, Any] | None = None,
    settings: AgentSettings | None = None,
    observation_space: gymnasium.Space[Any] = BOX,
    action_space: gymnasium.Space[Any] = DISCRETE,
) -> PythonSpec:
    source = PythonSource(InstalledFactory(name, kwargs or {}), parameters or {})
    settings = settings or AgentSettings()
    spec = prepare_agent(source, observation_space, action_space, settings)
    assert isinstance(spec, PythonSpec)
    return spec


def prepared_for_cartpole(*arguments: Any, **options: Any) -> PythonSpec:
    """Return an agent for CartPole-v1 that has passed the sandbox; pools do not try it again."""
    env = gymnasium.make("CartPole-v1")
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    return prepared(*arguments, **spaces, **options)
