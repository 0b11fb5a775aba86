"""Train a policy with IMPALA (Espeholt et al., https://arxiv.org/abs/1802.01561) in numpy, through Rollserve's client.

    python examples/impala_numpy.py                                  # CartPole-v1, with a server of its own
    python examples/impala_numpy.py --env LunarLander-v3 --steps 2000000 --server HOST:PORT
    python examples/impala_numpy.py --resume                         # goes on with the checkpoint in `run`

The server samples the next batch while the learner learns from the last one: its policy is one update older than the
learner's, which V-trace accounts for. The folder of `--out` has the newest checkpoint and the learning curve. Networks
and optimizer are in numpy_ppo.py, with gradients by hand; V-trace is a method of the batch.

Needs `rollserve[plot]`; without `--server`, `rollserve-server`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

# One thread is fastest for matrices this small. numpy reads the variable when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from numpy_ppo import Adam, Perceptron
from training_run import Returns, TrainingRun, finish, parser_of, sampler_of

import rollserve


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the learner."""

    num_rows: int = 32  # of all workers
    row_steps: int = 32  # of each row in an iteration
    minibatch_size: int = 256
    learning_rate: float = 2e-3  # at the start; it falls to zero
    gamma: float = 0.99
    entropy_bonus: float = 0.005
    hidden_sizes: tuple[int, ...] = (64, 64)


class Impala:
    """The learner: a policy for Discrete actions, a value, and what one batch changes."""

    def __init__(self, observation_size: int, num_actions: int, settings: Settings, seed: int) -> None:
        self.settings, sizes = settings, (observation_size, *settings.hidden_sizes)
        self.policy = Perceptron.initial((*sizes, num_actions), 0.01, seed)
        self.value = Perceptron.initial((*sizes, 1), 1.0, seed + 1)
        self._adams = [Adam(network.parameters) for network in (self.policy, self.value)]
        self._generator = np.random.default_rng(seed)

    def agent(self) -> rollserve.MlpAgent:
        """Return the present policy for the server, in arrays of its own: the learner goes on while they are sent."""
        return rollserve.MlpAgent({name: array.copy() for name, array in self.policy.parameters.items()}, "categorical")

    def learn(self, batch: rollserve.EpisodeBatch, rate: float) -> dict[str, float]:
        """Improve policy and value with a batch of an older policy.

        Returns:
            The means of losses and entropy, and how much more probable the actions are for the newer policy.
        """
        log_probs = log_softmax(self.policy.forward(batch.observations))[np.arange(batch.num_steps), batch.actions]
        values = self.value.forward(batch.observations)[:, 0]
        last_values = self.value.forward(batch.last_observations)[:, 0]
        advantages, targets = batch.vtrace(log_probs, self.settings.gamma, values, last_values)
        advantages /= advantages.std() + 1e-8  # so that one learning rate suits all scales of rewards
        parts = batch.minibatches(self.settings.minibatch_size, self._generator, advantages=advantages, targets=targets)
        found = [self._improve(part, rate * self.settings.learning_rate) for part in parts]
        ratio = np.exp(log_probs - batch.agent_infos["log_prob"]).mean()
        means = dict(zip(("policy_loss", "value_loss", "entropy"), np.mean(found, axis=0).tolist(), strict=True))
        return means | {"ratio": float(ratio)}

    def _improve(self, part: dict[str, np.ndarray], rate: float) -> tuple[float, float, float]:
        """Make a step of both optimizers with a minibatch."""
        size, rows = len(part["actions"]), np.arange(len(part["actions"]))
        log_probs = log_softmax(self.policy.forward(part["observations"]))
        probs = np.exp(log_probs)
        entropies = -(probs * log_probs).sum(axis=1, keepdims=True)
        chosen = np.zeros_like(probs)
        chosen[rows, part["actions"]] = 1.0
        # Of -A log π(a) - bonus · H(π), by the logits.
        gradient = part["advantages"][:, np.newaxis] * (probs - chosen)
        gradient += self.settings.entropy_bonus * probs * (log_probs + entropies)
        gradients = self.policy.backward((gradient / size).astype(np.float32))
        self._adams[0].update(self.policy.parameters, gradients, rate)
        errors = self.value.forward(part["observations"])[:, 0] - part["targets"]
        gradients = self.value.backward((errors / size).astype(np.float32)[:, np.newaxis])
        self._adams[1].update(self.value.parameters, gradients, rate)
        policy_loss = -(part["advantages"] * log_probs[rows, part["actions"]]).mean()
        return float(policy_loss), float((errors**2).mean()), float(entropies.mean())

    def save(self, path: Path) -> None:
        """Write a checkpoint: the parameters of both networks. The optimizers begin anew."""
        arrays: dict[str, Any] = self._parameters()
        with path.open("wb") as file:
            np.savez(file, **arrays)

    def load(self, path: Path) -> None:
        """Go on with the parameters of a checkpoint."""
        with np.load(path) as saved:
            for name, array in self._parameters().items():
                array[...] = saved[name]

    def _parameters(self) -> dict[str, np.ndarray]:
        networks = {"policy": self.policy, "value": self.value}
        return {f"{name}/{key}": array for name, each in networks.items() for key, array in each.parameters.items()}


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return the log-probabilities (M, actions) of logits."""
    shifted: np.ndarray = logits - logits.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted


def train(
    sampler: rollserve.Sampler,
    learner: Impala,
    num_steps: int,
    done: int = 0,
    target: float = float("inf"),
    report: Callable[..., None] = lambda *_, **__: None,
) -> int:
    """Train until `num_steps` are done, or until the last 100 episodes return `target` on average.

    `done` steps of them were made by earlier runs. `report` gets the number of steps, the mean return and the losses
    after each iteration. Returns the number of steps that are done.
    """
    returns, steps_per_call = Returns(sampler), learner.settings.num_rows * learner.settings.row_steps
    sampler.update_agent(learner.agent())
    with ThreadPoolExecutor(1) as executor:
        coming = executor.submit(sampler.obtain_fragments, steps_per_call)
        while done < num_steps and not returns.reached(target):
            batch = coming.result()
            # Sent with the call: the next batch is of the policy before this batch's update.
            coming = executor.submit(sampler.obtain_fragments, steps_per_call, agent=learner.agent().parameters)
            done += batch.num_steps
            figures = learner.learn(batch, rate=max(0.0, 1 - done / num_steps))
            report(done, returns.update(), **figures)
        coming.result()
    sampler.update_agent(learner.agent().parameters)
    return done


def main() -> None:
    """Run the example."""
    options = parser_of("Train a policy with IMPALA through Rollserve.", "CartPole-v1", 500_000).parse_args()
    with sampler_of(options.server, options.out, options.env) as sampler:
        num_workers = sampler.status().num_workers
        num_rows = max(1, Settings.num_rows // num_workers)  # of each worker
        spaces = sampler.update_env(rollserve.EnvSpec(options.env, num_rows=num_rows))
        settings = Settings(num_rows=num_rows * num_workers)
        learner = Impala(spaces.observation_space.flat_size, spaces.action_space.flat_size, settings, options.seed)
        run = TrainingRun(options, f"IMPALA learns {options.env} through Rollserve", learner.save)
        if options.resume:
            learner.load(run.checkpoint)
        train(sampler, learner, options.steps, run.num_steps, options.target, run.report)
        run.save()
        finish(sampler, options.video)


if __name__ == "__main__":
    main()
