"""Agents for CartPole-v1 with a chosen mean return, and so with episodes of a chosen length."""

from __future__ import annotations

import numpy as np

import rollserve

__all__ = ["MEAN_RETURNS", "agent_with_return"]

MEAN_RETURNS = (20, 200, 500)
"""Mean returns that studies compare: nearly random, half trained, and the maximum."""

_BALANCE = np.array([0.1, 0.5, 3.0, 1.5], np.float32)
"""Weights of a push towards the side that the pole falls to; followed strictly, they keep it up for ever."""
_MAX_FIRMNESS = 64.0
_MAX_TRIALS = 20
_NUM_TRIAL_STEPS = 60_000


def agent_with_return(sampler: rollserve.Sampler, target: float) -> tuple[rollserve.MlpAgent, float]:
    """Return an agent whose mean return is within 10 % of the target, found by bisection, and its mean return."""
    low, high, firmness = 0.0, _MAX_FIRMNESS, 0.0  # the random agent has a mean return of about 22
    for _ in range(_MAX_TRIALS):
        agent = _linear_agent(firmness)
        sampler.update_agent(agent)
        mean = float(sampler.obtain_samples(_NUM_TRIAL_STEPS, seed=1).returns.mean())
        if abs(mean - target) < 0.1 * target:
            break
        low, high = (firmness, high) if mean < target else (low, firmness)
        firmness = (low + high) / 2
    return agent, mean


def _linear_agent(firmness: float) -> rollserve.MlpAgent:
    """Return an agent that follows `_BALANCE` the more strictly, the firmer it is; with 0 it acts at random."""
    weight = np.stack([-firmness * _BALANCE, firmness * _BALANCE])
    return rollserve.MlpAgent({"0/weight": weight, "0/bias": np.zeros(2, np.float32)}, "categorical")
