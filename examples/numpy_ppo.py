"""Proximal policy optimization (Schulman et al., https://arxiv.org/abs/1707.06347) in numpy, with gradients by hand.

The learner of cartpole.py, which is the program to run. Two perceptrons, Adam, generalized advantage estimation, and
the clipped objective for a categorical policy. atari_ppo.py uses all but the perceptrons.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import rollserve


class Perceptron:
    """Hidden layers of tanh and a linear last layer, with parameters named as `rollserve.MlpAgent` expects them."""

    def __init__(self, parameters: dict[str, np.ndarray]) -> None:
        self.parameters = parameters
        self._num_layers = sum(name.endswith("/weight") for name in parameters)
        self._inputs: list[np.ndarray] = []

    @classmethod
    def initial(cls, sizes: tuple[int, ...], last_scale: float, seed: int) -> Perceptron:
        """Return a perceptron with normal weights of variance 1 / inputs; the last layer's are times `last_scale`."""
        generator = np.random.default_rng(seed)
        parameters: dict[str, np.ndarray] = {}
        for layer, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
            scale = (last_scale if layer == len(sizes) - 2 else 1.0) / np.sqrt(inputs)
            parameters[f"{layer}/weight"] = (scale * generator.standard_normal((outputs, inputs))).astype(np.float32)
            parameters[f"{layer}/bias"] = np.zeros(outputs, np.float32)
        return cls(parameters)

    def forward(self, x: np.ndarray) -> np.ndarray:
        """Return the output (B, outputs) for inputs (B, inputs), which are kept for `backward`."""
        self._inputs = []
        for layer in range(self._num_layers):
            self._inputs.append(x)
            x = x @ self.parameters[f"{layer}/weight"].T + self.parameters[f"{layer}/bias"]
            if layer < self._num_layers - 1:
                x = np.tanh(x)
        return x

    def backward(self, gradient: np.ndarray) -> dict[str, np.ndarray]:
        """Return the gradient of each parameter, from the gradient (B, outputs) of the last output of `forward`."""
        gradients: dict[str, np.ndarray] = {}
        for layer in reversed(range(self._num_layers)):
            inputs = self._inputs[layer]
            gradients[f"{layer}/weight"] = gradient.T @ inputs
            gradients[f"{layer}/bias"] = gradient.sum(axis=0)
            # The inputs are tanh of the previous layer, whose derivative is 1 - tanh².
            gradient = (gradient @ self.parameters[f"{layer}/weight"]) * (1 - inputs**2)
        return gradients


class Adam:
    """The optimizer of Kingma and Ba, https://arxiv.org/abs/1412.6980, with a limit on the gradient's norm."""

    def __init__(self, parameters: dict[str, np.ndarray], max_norm: float = 0.5) -> None:
        self._max_norm = max_norm
        self._first = {name: np.zeros_like(value) for name, value in parameters.items()}
        self._second = {name: np.zeros_like(value) for name, value in parameters.items()}
        self._num_updates = 0

    def update(self, parameters: dict[str, np.ndarray], gradients: dict[str, np.ndarray], rate: float) -> None:
        """Update the parameters in place."""
        self._num_updates += 1
        norm = np.sqrt(sum(float((gradient**2).sum()) for gradient in gradients.values()))
        scale = min(1.0, self._max_norm / (norm + 1e-8))
        for name, gradient in gradients.items():
            self._first[name] += 0.1 * (scale * gradient - self._first[name])
            self._second[name] += 0.001 * ((scale * gradient) ** 2 - self._second[name])
            first = self._first[name] / (1 - 0.9**self._num_updates)
            second = self._second[name] / (1 - 0.999**self._num_updates)
            parameters[name] -= (rate * first / (np.sqrt(second) + 1e-5)).astype(np.float32)


def advantages_of(
    batch: rollserve.EpisodeBatch, values: np.ndarray, last_values: np.ndarray, discount: float, gae_lambda: float
) -> np.ndarray:
    """Return generalized advantage estimates (T,) of a batch of episodes or fragments.

    Args:
        batch: N segments with T steps in all.
        values: (T,), value of each observation.
        last_values: (N,), value of each segment's last observation. It counts unless the segment is terminated.
        discount: gamma.
        gae_lambda: lambda.
    """
    next_values = np.empty_like(values)
    next_values[:-1] = values[1:]
    next_values[np.cumsum(batch.lengths) - 1] = np.where(batch.terminated, 0.0, last_values)
    # One row per segment, padded with 0, so that all segments are summed up at once from their ends.
    padded = np.zeros_like(batch.valids, np.float64)
    padded[batch.valids] = batch.rewards + discount * next_values - values
    for step in reversed(range(padded.shape[1] - 1)):
        padded[:, step] += discount * gae_lambda * padded[:, step + 1]
    advantages: np.ndarray = padded[batch.valids].astype(np.float32)
    return advantages


class PolicyLoss(NamedTuple):
    """The clipped objective of a minibatch as a loss, its entropy bonus included.

    Attributes:
        loss: mean over the minibatch.
        entropy: mean entropy of the policy.
        gradient: (B, actions), gradient of the loss by the logits.
    """

    loss: float
    entropy: float
    gradient: np.ndarray


def policy_loss(
    logits: np.ndarray,
    actions: np.ndarray,
    advantages: np.ndarray,
    old_log_probs: np.ndarray,
    clip: float,
    entropy_bonus: float,
) -> PolicyLoss:
    """Return the loss of logits (B, actions) for B steps."""
    log_probs = logits - logits.max(axis=1, keepdims=True)
    log_probs -= np.log(np.exp(log_probs).sum(axis=1, keepdims=True))
    probs = np.exp(log_probs)
    rows = np.arange(len(actions))
    ratios = np.exp(log_probs[rows, actions] - old_log_probs)
    entropies = -(probs * log_probs).sum(axis=1, keepdims=True)
    objectives = np.minimum(ratios * advantages, np.clip(ratios, 1 - clip, 1 + clip) * advantages)
    # The objective min(r A, clip(r) A) has no gradient where the clipped term is the smaller one.
    active = (advantages > 0) & (ratios < 1 + clip) | (advantages <= 0) & (ratios > 1 - clip)
    one_hot = np.zeros_like(probs)
    one_hot[rows, actions] = 1.0
    gradient = -(active * ratios * advantages)[:, np.newaxis] * (one_hot - probs)
    gradient += entropy_bonus * probs * (log_probs + entropies)
    entropy = float(entropies.mean())
    loss = -float(objectives.mean()) - entropy_bonus * entropy
    return PolicyLoss(loss, entropy, (gradient / len(actions)).astype(logits.dtype))


@dataclass
class Ppo:
    """A learner for Discrete actions.

    Attributes:
        observation_size: number of elements of an observation.
        num_actions: number of actions.
        hidden_sizes: sizes of the hidden layers of both networks.
        discount: discount factor, gamma.
        gae_lambda: lambda of generalized advantage estimation.
        clip: largest difference from 1 of a probability's ratio that the objective rewards.
        entropy_bonus: weight of the policy's entropy in the objective.
        learning_rate: learning rate of Adam.
        num_epochs: number of passes over a batch.
        minibatch_size: number of steps of each gradient.
        seed: seed of the initial parameters and of the minibatches.
        policy: network from observations to logits.
        value: network from observations to expected discounted returns.
    """

    observation_size: int
    num_actions: int
    hidden_sizes: tuple[int, ...] = (64, 64)
    discount: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    entropy_bonus: float = 0.01
    learning_rate: float = 2.5e-3
    num_epochs: int = 6
    minibatch_size: int = 512
    seed: int = 0
    policy: Perceptron = field(init=False)
    value: Perceptron = field(init=False)

    def __post_init__(self) -> None:
        sizes = (self.observation_size, *self.hidden_sizes)
        self.policy = Perceptron.initial((*sizes, self.num_actions), 0.01, self.seed)
        self.value = Perceptron.initial((*sizes, 1), 1.0, self.seed + 1)
        self._policy_adam = Adam(self.policy.parameters)
        self._value_adam = Adam(self.value.parameters)
        self._generator = np.random.default_rng(self.seed)

    def agent(self) -> rollserve.MlpAgent:
        """Return the policy as an agent for the server. Its parameters are the learner's own arrays."""
        return rollserve.MlpAgent(self.policy.parameters, head="categorical")

    def save(self, path: Path) -> None:
        """Write a checkpoint: the parameters of the policy."""
        arrays: dict[str, Any] = self.policy.parameters
        with path.open("wb") as file:
            np.savez(file, **arrays)

    def learn(self, batch: rollserve.EpisodeBatch, rate: float = 1.0) -> None:
        """Improve policy and value with a batch of whole episodes.

        Args:
            batch: episodes sampled with the current policy.
            rate: factor of the learning rate.
        """
        values = self.value.forward(batch.observations)[:, 0]
        last_values = self.value.forward(batch.last_observations)[:, 0]
        advantages = advantages_of(batch, values, last_values, self.discount, self.gae_lambda)
        targets = advantages + values
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        old_log_probs = batch.agent_infos["log_prob"]
        for _ in range(self.num_epochs):
            order = self._generator.permutation(batch.num_steps)
            for steps in np.array_split(order, max(batch.num_steps // self.minibatch_size, 1)):
                observations = batch.observations[steps]
                self._improve_policy(observations, batch.actions[steps], advantages[steps], old_log_probs[steps], rate)
                self._improve_value(observations, targets[steps], rate)

    def _improve_policy(
        self,
        observations: np.ndarray,
        actions: np.ndarray,
        advantages: np.ndarray,
        old_log_probs: np.ndarray,
        rate: float,
    ) -> None:
        logits = self.policy.forward(observations)
        loss = policy_loss(logits, actions, advantages, old_log_probs, self.clip, self.entropy_bonus)
        self._policy_adam.update(self.policy.parameters, self.policy.backward(loss.gradient), rate * self.learning_rate)

    def _improve_value(self, observations: np.ndarray, targets: np.ndarray, rate: float) -> None:
        errors = self.value.forward(observations)[:, 0] - targets
        gradients = self.value.backward((errors / len(targets)).astype(np.float32)[:, np.newaxis])
        self._value_adam.update(self.value.parameters, gradients, rate * self.learning_rate)
