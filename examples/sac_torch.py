"""Train a policy with SAC (Haarnoja et al., https://arxiv.org/abs/1812.05905) in PyTorch, through Rollserve's client.

    python examples/sac_torch.py                                     # Pendulum-v1, with a server of its own
    python examples/sac_torch.py --env HalfCheetah-v5 --steps 300000 --server HOST:PORT
    python examples/sac_torch.py --resume                            # goes on with the checkpoint in `run`

While the learner learns from the replay buffer, the server samples the next steps: a thread waits for them. The folder
of `--out` has the newest checkpoint and the learning curve. Needs `rollserve[torch,plot]`.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn
from training_run import Returns, TrainingRun, finish, parser_of, sampler_of

import rollserve
from rollserve.bridges import to_torch
from rollserve.spaces import Box

if TYPE_CHECKING:
    from rollserve.spaces import Space


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the learner; most are those of the paper."""

    num_rows: int = 4  # of all workers
    row_steps: int = 16  # of each row in an iteration
    updates_per_step: float = 1.0
    random_steps: int = 1000  # by a random agent, at first
    buffer_size: int = 1_000_000
    batch_size: int = 256
    learning_rate: float = 1e-3
    gamma: float = 0.99
    tau: float = 0.005  # how far the target critics move with each update
    hidden_size: int = 256


def perceptron(inputs: int, outputs: int, hidden_size: int) -> nn.Sequential:
    """Return a perceptron with two hidden layers."""
    hidden = (nn.Linear(inputs, hidden_size), nn.ReLU(), nn.Linear(hidden_size, hidden_size), nn.ReLU())
    return nn.Sequential(*hidden, nn.Linear(hidden_size, outputs))


class Actor(nn.Module):
    """A Gaussian whose samples tanh maps into the bounds of the action space, as the server's `squashed_gaussian`."""

    MIN_LOG_STD, MAX_LOG_STD = -20.0, 2.0
    center: torch.Tensor
    half_width: torch.Tensor

    def __init__(self, observation_size: int, action_space: Space, hidden_size: int) -> None:
        super().__init__()
        if not isinstance(action_space, Box):
            raise TypeError(f"action_space: expected a Box, got {action_space}")
        self.layers = perceptron(observation_size, 2 * action_space.flat_size, hidden_size)
        low, high = (
            torch.from_numpy(np.broadcast_to(bound, action_space.shape).astype(np.float32).copy())
            for bound in (action_space.low, action_space.high)
        )
        self.register_buffer("center", (high + low) / 2)
        self.register_buffer("half_width", (high - low) / 2)

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return drawn actions (M, A), and their log-probabilities (M,)."""
        mean, log_std = self.layers(observations).chunk(2, dim=1)
        policy = torch.distributions.Normal(mean, log_std.clamp(self.MIN_LOG_STD, self.MAX_LOG_STD).exp())
        drawn = policy.rsample()
        # log(1 - tanh²(x)), in a form that does not lose digits for large x.
        log_slope = 2 * (math.log(2) - drawn - nn.functional.softplus(-2 * drawn))
        log_probs = policy.log_prob(drawn) - log_slope - self.half_width.log()
        return self.center + self.half_width * drawn.tanh(), log_probs.sum(1)

    def agent(self) -> rollserve.MlpAgent:
        """Return the agent for the server, whose parameters are the layers' own memory."""
        return rollserve.MlpAgent.from_torch(
            self.layers, "squashed_gaussian", min_log_std=self.MIN_LOG_STD, max_log_std=self.MAX_LOG_STD
        )


class Critics(nn.Module):
    """Two Q-functions; the smaller one counts."""

    def __init__(self, inputs: int, hidden_size: int) -> None:
        super().__init__()
        self.functions = nn.ModuleList(perceptron(inputs, 1, hidden_size) for _ in range(2))

    def forward(self, observations: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Return both Q-values, (2, M)."""
        inputs = torch.cat([observations, actions], dim=1)
        return torch.stack([function(inputs)[:, 0] for function in self.functions])


class Sac:
    """The learner: actor, critics, entropy weight, and their optimizers."""

    def __init__(self, observation_space: Space, action_space: Space, settings: Settings, seed: int) -> None:
        self.settings, size = settings, observation_space.flat_size
        self.actor = Actor(size, action_space, settings.hidden_size)
        self.critics = Critics(size + action_space.flat_size, settings.hidden_size)
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.log_alpha = torch.zeros((), requires_grad=True)
        self.entropy_target = -float(action_space.flat_size)
        groups = [self.actor.parameters(), self.critics.parameters(), [self.log_alpha]]
        self.optimizers = [torch.optim.Adam(group, lr=settings.learning_rate) for group in groups]
        self.buffer = rollserve.ReplayBuffer(settings.buffer_size)
        self.generator = np.random.default_rng(seed)

    def learn(self, num_updates: int) -> dict[str, float]:
        """Make some updates with transitions from the buffer; return the means of what is minimized, and alpha."""
        found = [self._update(self.buffer.sample(self.settings.batch_size, self.generator)) for _ in range(num_updates)]
        return dict(zip(("critic_loss", "actor_loss", "alpha"), np.mean(found, axis=0).tolist(), strict=True))

    def _update(self, drawn: rollserve.Transitions) -> list[float]:
        part, settings, alpha = to_torch(drawn), self.settings, self.log_alpha.detach().exp()
        observations, following = part["observations"].float(), part["next_observations"].float()
        with torch.no_grad():
            actions, log_probs = self.actor(following)
            values = self.targets(following, actions).amin(0) - alpha * log_probs
            # After a time limit the next observation has a value, too; after a terminal state it has none.
            q_targets = part["rewards"].float() + settings.gamma * ~part["terminated"] * values
        critic_loss = nn.functional.mse_loss(
            self.critics(observations, part["actions"].float()), q_targets.expand(2, -1)
        )
        self._step(1, critic_loss)
        actions, log_probs = self.actor(observations)
        actor_loss = (alpha * log_probs - self.critics(observations, actions).amin(0)).mean()
        self._step(0, actor_loss)
        self._step(2, -self.log_alpha * (log_probs.detach().mean() + self.entropy_target))
        with torch.no_grad():
            for target, source in zip(self.targets.parameters(), self.critics.parameters(), strict=True):
                target.lerp_(source, settings.tau)
        return [critic_loss.item(), actor_loss.item(), alpha.item()]

    def _step(self, number: int, loss: torch.Tensor) -> None:
        self.optimizers[number].zero_grad()
        loss.backward()
        self.optimizers[number].step()

    def save(self, path: Path) -> None:
        """Write a checkpoint, with the replay buffer."""
        torch.save([vars(self), torch.get_rng_state()], path)

    def load(self, path: Path) -> None:
        """Go on where a checkpoint was written."""
        state, random_state = torch.load(path, weights_only=False)  # a file of one's own: it has whole objects
        vars(self).update(state)
        torch.set_rng_state(random_state)


def train(
    sampler: rollserve.Sampler,
    learner: Sac,
    num_steps: int,
    done: int = 0,
    target: float = float("inf"),
    report: Callable[..., None] = lambda *_, **__: None,
) -> int:
    """Train until `num_steps` are done, or until the last 100 episodes return `target` on average.

    `done` steps of them were made by earlier runs. `report` gets the number of steps, the mean return and the losses
    after each iteration. Returns the number of steps that are done.
    """
    settings, returns, agent = learner.settings, Returns(sampler), learner.actor.agent()
    steps_per_call = settings.num_rows * settings.row_steps
    if not done:
        sampler.update_agent(rollserve.RandomAgent())
        learner.buffer.add(sampler.obtain_fragments(-(-settings.random_steps // settings.num_rows) * settings.num_rows))
        done = len(learner.buffer)
    sampler.update_agent(agent)
    with ThreadPoolExecutor(1) as executor:
        coming = executor.submit(sampler.obtain_fragments, steps_per_call)
        while done < num_steps and not returns.reached(target):
            batch = coming.result()
            sampler.update_agent(agent.parameters)
            coming = executor.submit(sampler.obtain_fragments, steps_per_call)
            learner.buffer.add(batch)
            done += batch.num_steps
            losses = learner.learn(round(settings.updates_per_step * batch.num_steps))
            report(done, returns.update(), **losses)
    return done


def main() -> None:
    """Run the example."""
    parser = parser_of("Train a policy with SAC through Rollserve.", "Pendulum-v1", 20_000)
    parser.add_argument("--updates", type=float, default=1.0, help="updates for each step (default: %(default)s)")
    parser.add_argument("--camera", help="camera of the video, such as MuJoCo's `track`")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)  # the workers need the other cores
    with sampler_of(options.server, options.out, options.env) as sampler:
        num_workers = sampler.status().num_workers
        num_rows = max(1, Settings.num_rows // num_workers)  # of each worker
        spaces = sampler.update_env(rollserve.EnvSpec(options.env, vectorization="rows", num_rows=num_rows))
        settings = Settings(num_rows=num_rows * num_workers, updates_per_step=options.updates)
        learner = Sac(spaces.observation_space, spaces.action_space, settings, options.seed)
        run = TrainingRun(options, f"SAC learns {options.env} through Rollserve", learner.save)
        if options.resume:
            learner.load(run.checkpoint)
        train(sampler, learner, options.steps, run.num_steps, options.target, run.report)
        run.save()
        if options.camera:
            sampler.update_env(rollserve.EnvChange(kwargs={"camera_name": options.camera}))
        finish(sampler, options.video)


if __name__ == "__main__":
    main()
