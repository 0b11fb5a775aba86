"""Train a policy with PPO (Schulman et al., https://arxiv.org/abs/1707.06347) in PyTorch, through Rollserve's client.

    python examples/ppo_torch.py                                     # CartPole-v1, with a server of its own
    python examples/ppo_torch.py --env HalfCheetah-v5 --steps 1000000
    python examples/ppo_torch.py --env ALE/Pong-v5 --steps 10000000 --server HOST:PORT
    python examples/ppo_torch.py --resume                            # goes on with the checkpoint in `run`

Each iteration sends the new parameters, and gets equally many steps of each row of environments; of continuous actions,
observations are normalized and rewards are scaled. The folder of `--out` has the newest checkpoint and the learning
curve. Needs `rollserve[torch,plot]`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn
from training_run import TrainingRun, parser_of, sampler_of

import rollserve
from rollserve.bridges import clipped_policy_loss, module_parameters, to_torch
from rollserve.spaces import Box, Discrete, Space


@dataclasses.dataclass(frozen=True)
class Settings:
    """What differs between kinds of environments; `settings_of` chooses."""

    num_rows: int = 8  # of all workers
    row_steps: int = 128  # of each row in an iteration
    minibatch_size: int = 256
    num_epochs: int = 10
    learning_rate: float = 1e-3  # at the start; it falls to zero
    gamma: float = 0.99
    lam: float = 0.95
    clip: float = 0.2  # of the ratio of probabilities
    entropy_bonus: float = 0.0
    value_weight: float = 0.5
    max_gradient_norm: float = 0.5
    max_policy_lag: int = 1  # with 1, the next batch is sampled while the trainer learns
    wrappers: tuple[rollserve.Wrapper, ...] = ()
    vectorization: rollserve.Vectorization = "rows"


def settings_of(env: str) -> Settings:
    """Return settings that are usual for an environment."""
    if env.startswith("ALE/"):
        return Settings(num_epochs=4, learning_rate=2.5e-4, clip=0.1, entropy_bonus=0.01, vectorization="native")
    if env == "CartPole-v1":
        return Settings()
    wrappers = (rollserve.Wrapper("ClipAction"),)
    # 320 steps of the optimizer change the policy so much that HalfCheetah takes 1.6 times the steps with a lag of 1.
    return Settings(row_steps=256, minibatch_size=64, learning_rate=3e-4, max_policy_lag=0, wrappers=wrappers)


def spec_of(env: str, settings: Settings, num_rows: int) -> rollserve.EnvSpec:
    """Return the specification of an environment with `num_rows` rows on each worker."""
    wrappers, vectorization = settings.wrappers, settings.vectorization
    return rollserve.EnvSpec(env, wrappers=wrappers, vectorization=vectorization, num_rows=num_rows)


def layer(inputs: int, outputs: int, gain: float = 2**0.5) -> nn.Linear:
    """Return a linear layer with orthogonal weights, and biases of 0."""
    linear = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    return linear


def perceptron(inputs: int, outputs: int, last_gain: float) -> nn.Sequential:
    """Return a perceptron with two hidden layers."""
    return nn.Sequential(layer(inputs, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, outputs, last_gain))


class Images(nn.Module):
    """The convolutions of Mnih et al. 2015, for stacks of frames of uint8."""

    def __init__(self, num_frames: int) -> None:
        super().__init__()
        convolutions = nn.Conv2d(num_frames, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3, 1)
        activated = [module for each in convolutions for module in (each, nn.ReLU())]
        self.layers = nn.Sequential(*activated, nn.Flatten(), layer(64 * 7 * 7, 512), nn.ReLU())

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.layers(observation.float() / 255)
        return features


class ActorCritic(nn.Module):
    """A policy and its value: two perceptrons, or two layers on the same convolutions."""

    body: nn.Module
    actor: nn.Module
    critic: nn.Module

    def __init__(self, observation_space: Space, action_space: Space) -> None:
        super().__init__()
        self.is_discrete = isinstance(action_space, Discrete)
        outputs = action_space.flat_size
        if isinstance(observation_space, Box) and len(observation_space.shape) == 3:
            self.body = Images(observation_space.shape[0])
            self.actor, self.critic = layer(512, outputs, 0.01), layer(512, 1, 1.0)
        else:
            size = observation_space.flat_size
            self.body = nn.Identity()
            self.actor, self.critic = perceptron(size, outputs, 0.01), perceptron(size, 1, 1.0)
        if not self.is_discrete:
            self.log_std = nn.Parameter(torch.zeros(outputs))

    def forward(self, observation: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the outputs by their roles, as `rollserve.OnnxAgent` has them."""
        features = self.body(observation)
        outputs, value = self.actor(features), self.critic(features)
        if self.is_discrete:
            return {"logits": outputs, "value": value}
        return {"mean": outputs, "log_std": self.log_std.expand_as(outputs), "value": value}

    def evaluate(
        self, observations: torch.Tensor, actions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return log-probabilities of actions, entropies and values, (M,) each."""
        found = self(observations)
        if self.is_discrete:
            discrete = torch.distributions.Categorical(logits=found["logits"], validate_args=False)
            return discrete.log_prob(actions), discrete.entropy(), found["value"][:, 0]
        normal = torch.distributions.Normal(found["mean"], found["log_std"].exp(), validate_args=False)
        return normal.log_prob(actions).sum(1), normal.entropy().sum(1), found["value"][:, 0]

    def agent(self, observation_space: Space) -> rollserve.Agent:
        """Return the agent for the server: a plain MLP where that is enough, because the server runs it faster."""
        if isinstance(self.body, Images):
            return rollserve.OnnxAgent.from_torch(self, observation_space, "categorical")
        if self.is_discrete:
            return rollserve.MlpAgent.from_torch(self.actor, "categorical", value=self.critic)
        return rollserve.MlpAgent.from_torch(
            self.actor, "diagonal_gaussian", value=self.critic, log_std=self.log_std, normalization=True
        )


class Ppo:
    """The learner: a model, its optimizer, what one batch changes, and how far the iterations are."""

    def __init__(self, model: ActorCritic, settings: Settings, seed: int) -> None:
        self.model, self.settings = model, settings
        self.optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate, eps=1e-5, fused=True)
        self.generator = np.random.default_rng(seed)
        self.progress: dict[str, np.ndarray] | None = None

    def save(self, path: Path) -> None:
        """Write a checkpoint."""
        progress = {name: torch.from_numpy(array) for name, array in (self.progress or {}).items()}
        saved = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "progress": progress}
        torch.save(saved, path)

    def load(self, path: Path) -> None:
        """Go on where a checkpoint was written."""
        saved = torch.load(path)
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.progress = {name: tensor.numpy() for name, tensor in saved["progress"].items()}

    def learn(self, batch: rollserve.EpisodeBatch, rate: float) -> dict[str, float]:
        """Improve the model with a batch; return the means of losses."""
        settings, model = self.settings, self.model
        for group in self.optimizer.param_groups:
            group["lr"] = rate * settings.learning_rate
        advantages, targets = (each.astype(np.float32) for each in batch.advantages(settings.gamma, settings.lam))
        losses = []
        parts = batch.minibatches(
            settings.minibatch_size, self.generator, settings.num_epochs, advantages=advantages, targets=targets
        )
        for part in map(to_torch, parts):
            log_probs, entropies, values = model.evaluate(part["observations"], part["actions"])
            old_log_probs = part["agent_infos"]["log_prob"]
            policy_loss = clipped_policy_loss(log_probs, old_log_probs, part["advantages"], clip=settings.clip)
            value_loss, entropy = nn.functional.mse_loss(values, part["targets"]), entropies.mean()
            self.optimizer.zero_grad()
            (policy_loss + settings.value_weight * value_loss - settings.entropy_bonus * entropy).backward()
            nn.utils.clip_grad_norm_(model.parameters(), settings.max_gradient_norm)
            self.optimizer.step()
            losses.append(torch.stack([policy_loss, value_loss, entropy]).detach())
        return dict(zip(("policy", "value", "entropy"), torch.stack(losses).mean(0).tolist(), strict=True))


def train(
    sampler: rollserve.Sampler,
    learner: Ppo,
    num_steps: int,
    done: int = 0,
    target: float = float("inf"),
    report: Callable[..., None] = lambda *_, **__: None,
) -> None:
    """Train until `num_steps` are done, or until the last 100 episodes return `target` on average.

    `done` steps of them were made by earlier runs. `report` gets the number of steps, the mean return and figures after
    each iteration.
    """
    settings, model = learner.settings, learner.model
    agent = model.agent(sampler.status().observation_space)
    if not isinstance(agent, rollserve.MlpAgent):  # whose parameters are the modules' own memory
        sampler.update_agent(agent)
    with sampler.iterations(
        agent if isinstance(agent, rollserve.MlpAgent) else lambda: module_parameters(model),
        -(-(num_steps - done) // (settings.num_rows * settings.row_steps)),
        steps_per_row=settings.row_steps,
        max_policy_lag=settings.max_policy_lag,
        state=learner.progress,
        return_last_values=True,
        return_discount=None if model.is_discrete else settings.gamma,
    ) as iterations:
        for batch in iterations:
            losses = learner.learn(batch, rate=max(0.0, 1 - iterations.num_steps / num_steps))
            learner.progress = iterations.state()
            report(iterations.num_steps, iterations.mean_return, episodes=iterations.num_episodes, **losses)
            if iterations.num_episodes >= 100 and iterations.mean_return >= target:
                break


def main() -> None:
    """Run the example."""
    options = parser_of("Train a policy with PPO through Rollserve.", "CartPole-v1", 200_000).parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)  # the workers need the other cores
    with sampler_of(options.server, options.out) as sampler:
        settings, num_workers = settings_of(options.env), sampler.status().num_workers
        num_rows = max(1, settings.num_rows // num_workers)  # of each worker
        spaces = sampler.update_env(spec_of(options.env, settings, num_rows))
        settings = dataclasses.replace(settings, num_rows=num_rows * num_workers)
        learner = Ppo(ActorCritic(spaces.observation_space, spaces.action_space), settings, options.seed)
        run = TrainingRun(options, f"PPO learns {options.env} through Rollserve", learner.save)
        if options.resume:
            learner.load(run.checkpoint)
        train(sampler, learner, options.steps, run.num_steps, options.target, run.report)
        run.save()
        print(f"evaluation: {sampler.evaluate(20, deterministic=True)}")


if __name__ == "__main__":
    main()
