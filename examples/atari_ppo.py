"""Train a convolutional policy for Atari's Pong with PPO, through Rollserve's public client, numpy and onnx.

    python examples/atari_ppo.py --iterations 3            # starts a server of its own
    python examples/atari_ppo.py --server HOST:PORT        # uses a running server

Each iteration samples fragments of 84 x 84 x 4 bytes a step, learns from them, and sends the new parameters. The
network and its gradients are in numpy_convolutions.py, advantages and objective in numpy_ppo.py. Learning in numpy
takes most of the time; a learner in PyTorch makes the same calls, with a model that PyTorch exports.

Needs `rollserve[onnx]`; without `--server`, `rollserve-server[atari]`.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy_convolutions import ConvolutionalNetwork
from numpy_ppo import Adam, advantages_of, policy_loss

import rollserve
from rollserve.spaces import Box

ENV = "ALE/Pong-v5"
DISCOUNT, GAE_LAMBDA, CLIP, ENTROPY_BONUS = 0.99, 0.95, 0.1, 0.01
LEARNING_RATE, VALUE_WEIGHT, NUM_EPOCHS, MINIBATCH_SIZE = 5e-4, 0.5, 3, 256


@dataclass
class Losses:
    """Mean losses of an iteration's minibatches."""

    policy: float
    value: float
    entropy: float


class Learner:
    """PPO for a policy and a value that share their network.

    Attributes:
        network: the network, which `learn` changes.
    """

    def __init__(self, network: ConvolutionalNetwork, seed: int) -> None:
        self.network = network
        self._adam = Adam(network.parameters)
        self._generator = np.random.default_rng(seed)

    def learn(self, batch: rollserve.EpisodeBatch) -> Losses:
        """Improve policy and value with a batch that was sampled with the current parameters."""
        # The server has computed the values of all steps. The values after the fragments' last steps are missing.
        values, old_log_probs = batch.agent_infos["value"], batch.agent_infos["log_prob"]
        _, last_values = self.network.forward(batch.last_observations)
        advantages = advantages_of(batch, values, last_values, DISCOUNT, GAE_LAMBDA)
        targets = advantages + values
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        losses: list[tuple[float, float, float]] = []
        for _ in range(NUM_EPOCHS):
            order = self._generator.permutation(batch.num_steps)
            for steps in np.array_split(order, max(batch.num_steps // MINIBATCH_SIZE, 1)):
                logits, new_values = self.network.forward(batch.observations[steps])
                policy = policy_loss(
                    logits, batch.actions[steps], advantages[steps], old_log_probs[steps], CLIP, ENTROPY_BONUS
                )
                errors = new_values - targets[steps]
                gradients = self.network.backward(policy.gradient, VALUE_WEIGHT / len(steps) * errors)
                self._adam.update(self.network.parameters, gradients, LEARNING_RATE)
                losses.append((policy.loss, float((errors**2).mean()) / 2, policy.entropy))
        return Losses(*np.mean(losses, axis=0).tolist())


class Returns:
    """Returns of the episodes that ended last, whose steps come in the fragments of several batches."""

    def __init__(self, num_episodes: int = 100) -> None:
        self._ended: collections.deque[float] = collections.deque(maxlen=num_episodes)
        self._running: dict[int, float] = {}

    def add(self, batch: rollserve.EpisodeBatch) -> None:
        """Record a batch of fragments, which has the fragments of each row in order."""
        ends = batch.terminated | batch.truncated
        for row, rewards, is_end in zip(batch.row_indices.tolist(), batch.returns.tolist(), ends.tolist(), strict=True):
            rewards += self._running.pop(row, 0.0)
            if is_end:
                self._ended.append(rewards)
            else:
                self._running[row] = rewards

    def __str__(self) -> str:
        return f"{np.mean(self._ended):.1f}" if self._ended else "none yet"


def train(
    sampler: rollserve.Sampler, env: rollserve.EnvSpec, num_iterations: int, num_row_steps: int, seed: int
) -> Learner:
    """Train for some iterations, with `num_row_steps` steps of each row of environments in each."""
    updated = sampler.update_env(env)
    frames = updated.observation_space
    if not isinstance(frames, Box):
        raise TypeError(f"env: expected frames as observations, got {frames}")
    network = ConvolutionalNetwork.initial(frames.shape, updated.action_space.flat_size, seed)
    learner, returns = Learner(network, seed), Returns()

    # The first update sends the whole model.
    sampler.update_agent(network.agent(frames.shape))
    num_rows = updated.num_rows * sampler.status().num_workers
    for iteration in range(1, num_iterations + 1):
        began = time.monotonic()
        # The rows continue where the last call ended. Each frame is sent once, and the client makes the stacks.
        batch = sampler.obtain_fragments(num_rows * num_row_steps)
        sampled = time.monotonic()
        returns.add(batch)
        losses = learner.learn(batch)

        # Later updates send the parameters alone.
        sampler.update_agent(network.parameters)
        num_steps, ended = batch.num_steps, time.monotonic()
        print(
            f"iteration {iteration:>3}: {num_steps:,} steps, mean return {returns}, policy loss {losses.policy:.4f}, "
            f"value loss {losses.value:.4f}, entropy {losses.entropy:.3f}, {num_steps / (ended - began):,.0f} steps/s, "
            f"{num_steps / (sampled - began):,.0f} without learning",
            flush=True,
        )
    return learner


def main() -> int:
    """Run the example; return its exit status."""
    parser = argparse.ArgumentParser(description=f"Train a policy for {ENV} with PPO through Rollserve.")
    parser.add_argument("--server", metavar="HOST:PORT", help="address of a running server (default: start one)")
    parser.add_argument("--iterations", type=int, default=1000, help="number of iterations (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=8, help="environments of each worker (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=128, help="steps of each row and iteration (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the learner (default: %(default)s)")
    options = parser.parse_args()

    env = rollserve.EnvSpec(ENV, vectorization="native", num_rows=options.rows)
    with contextlib.ExitStack() as stack:
        address = options.server
        if address is None:
            from rollserve_server.local import local_server  # here, because a trainer needs the client alone

            log = Path(stack.enter_context(tempfile.TemporaryDirectory()), "log")
            address = stack.enter_context(local_server("--env", "CartPole-v1", log=log)).address
        sampler = stack.enter_context(rollserve.connect(address))
        train(sampler, env, options.iterations, options.steps, options.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
