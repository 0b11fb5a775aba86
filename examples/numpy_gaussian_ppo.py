"""The learner of numpy_ppo.py for Box actions: a Gaussian policy, with observations and rewards on a running scale.

The scales are those of the VecNormalize of Stable-Baselines3: observations have mean 0 and variance 1, and rewards are
divided by the standard deviation of the discounted return. Mean and variance are parameters of the agent, so that it
acts on what it has learned from.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field

import numpy as np
from numpy_ppo import Adam, Ppo

import rollserve


@dataclass
class GaussianPpo(Ppo):
    """A learner for Box actions; `num_actions` is their number of elements.

    Attributes:
        moments: moments of the observations, of which the agent has mean and variance.
        returns: moments of the discounted returns.
    """

    entropy_bonus: float = 0.0
    learning_rate: float = 3e-4
    num_epochs: int = 10
    minibatch_size: int = 256
    moments: rollserve.RunningMoments = field(init=False, default_factory=rollserve.RunningMoments)
    returns: rollserve.RunningReturns = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.returns = rollserve.RunningReturns(self.discount)
        size = self.observation_size
        self.policy.parameters["log_std"] = np.zeros(self.num_actions, np.float32)
        self._policy_adam = Adam(self.policy.parameters)
        self.policy.parameters |= {"observation/mean": np.zeros(size), "observation/variance": np.ones(size)}

    def agent(self) -> rollserve.MlpAgent:
        """Return the policy as an agent for the server."""
        return rollserve.MlpAgent(self.policy.parameters, head="diagonal_gaussian")

    def learn(self, batch: rollserve.EpisodeBatch, rate: float = 1.0) -> None:
        """Improve policy and value with a batch of fragments, then the scales."""
        self.returns.add(batch)
        scaled = dataclasses.replace(
            batch.with_scaled_rewards(self.returns.moments),
            observations=self.moments.normalized(batch.observations),
            last_observations=self.moments.normalized(batch.last_observations),
        )
        super().learn(scaled, rate)
        self.moments.add(batch.observations)
        self.policy.parameters |= self.moments.parameters()

    def _improve_policy(
        self,
        observations: np.ndarray,
        actions: np.ndarray,
        advantages: np.ndarray,
        old_log_probs: np.ndarray,
        rate: float,
    ) -> None:
        log_std = self.policy.parameters["log_std"]
        scaled = (actions - self.policy.forward(observations)) / np.exp(log_std)
        log_probs = -(scaled**2 / 2 + log_std + math.log(2 * math.pi) / 2).sum(axis=1)
        ratios = np.exp(log_probs - old_log_probs)
        # The objective min(r A, clip(r) A) has no gradient where the clipped term is the smaller one.
        active = (advantages > 0) & (ratios < 1 + self.clip) | (advantages <= 0) & (ratios > 1 - self.clip)
        weights = -(active * ratios * advantages / len(actions)).astype(np.float32)[:, np.newaxis]
        gradients = self.policy.backward(weights * scaled / np.exp(log_std))
        # The entropy of a Gaussian grows by 1 with the logarithm of each standard deviation.
        gradients["log_std"] = (weights * (scaled**2 - 1)).sum(axis=0) - np.float32(self.entropy_bonus)
        self._policy_adam.update(self.policy.parameters, gradients, rate * self.learning_rate)
