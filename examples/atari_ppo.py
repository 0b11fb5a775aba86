"""Train a convolutional policy for Atari's Pong with PPO, through Rollserve's public client, numpy and onnx.

    python examples/atari_ppo.py                           # starts a server of its own
    python examples/atari_ppo.py --size 42                 # from smaller frames, several times as fast
    python examples/atari_ppo.py --server HOST:PORT        # uses a running server
    python examples/atari_ppo.py --resume                  # goes on with the checkpoint in `run`

Each iteration samples fragments of four frames a step, learns from them, and sends the new parameters. The network and
its gradients are in numpy_convolutions.py, advantages and objective in numpy_ppo.py. Learning in numpy takes most of
the time; a learner in PyTorch makes the same calls, with a model that PyTorch exports.

Needs `rollserve[onnx,plot]`; without `--server`, `rollserve-server[atari]`.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass

import numpy as np
from numpy_convolutions import ConvolutionalNetwork
from numpy_ppo import Adam, advantages_of, policy_loss
from training_run import Returns, TrainingRun, finish, parser_of, sampler_of

import rollserve
from rollserve.spaces import Box

ENV = "ALE/Pong-v5"
ROW_STEPS = 128
"""Steps of each row of environments in an iteration."""
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


def train(
    sampler: rollserve.Sampler,
    learner: Learner,
    agent: rollserve.OnnxAgent,
    run: TrainingRun,
    num_steps: int,
    target: float,
) -> None:
    """Train for a number of steps, or until the last 100 episodes return `target` on average."""
    returns = Returns(sampler)
    # The first update sends the whole model.
    sampler.update_agent(agent)
    while run.num_steps < num_steps and not returns.reached(target):
        began = time.monotonic()
        # The rows continue where the last call ended. Each frame is sent once, and the client makes the stacks.
        batch = sampler.obtain_fragments(steps_per_row=ROW_STEPS)
        sampled = time.monotonic()
        losses = learner.learn(batch)

        # Later updates send the parameters alone.
        sampler.update_agent(learner.network.parameters)
        seconds = {"seconds_sampling": sampled - began, "seconds_learning": time.monotonic() - sampled}
        run.report(run.num_steps + batch.num_steps, returns.update(), **dataclasses.asdict(losses), **seconds)


def main() -> None:
    """Run the example."""
    parser = parser_of("Train a policy for a game of Atari with PPO through Rollserve.", ENV, 10_000_000)
    parser.add_argument("--rows", type=int, default=16, help="environments of each worker (default: %(default)s)")
    parser.add_argument("--size", type=int, default=84, help="pixels of a frame's side (default: %(default)s)")
    options = parser.parse_args()
    kwargs = {"img_height": options.size, "img_width": options.size, "repeat_action_probability": 0.0}
    with sampler_of(options.server, options.out) as sampler:
        env = sampler.update_env(rollserve.EnvSpec(options.env, kwargs, vectorization="native", num_rows=options.rows))
        frames = env.observation_space
        if not isinstance(frames, Box):
            raise TypeError(f"env: expected frames as observations, got {frames}")
        network = ConvolutionalNetwork.initial(frames.shape, env.action_space.flat_size, options.seed)
        if options.resume:
            network.load(options.out / "checkpoint")
        learner = Learner(network, options.seed)
        run = TrainingRun(options, f"PPO learns {options.env} through Rollserve", network.save)
        train(sampler, learner, network.agent(frames.shape), run, options.steps, options.target)
        run.save()
        # The same frames, of rows that are stepped one by one: a server renders no native rows.
        wrappers = [
            rollserve.Wrapper("AtariPreprocessing", {"screen_size": options.size}),
            rollserve.Wrapper("FrameStackObservation", {"stack_size": 4}),
        ]
        kwargs = {"frameskip": 1, "repeat_action_probability": 0.0}
        sampler.update_env(rollserve.EnvSpec(options.env, kwargs, wrappers, vectorization="rows", num_rows=4))
        finish(sampler, options.video, num_episodes=8)


if __name__ == "__main__":
    main()
