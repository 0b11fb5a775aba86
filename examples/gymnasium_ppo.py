"""Train a policy with PPO (Schulman et al., https://arxiv.org/abs/1707.06347) in PyTorch, as a loop over environments.

    python examples/gymnasium_ppo.py                       # CartPole-v1, with a server of its own
    python examples/gymnasium_ppo.py --server HOST:PORT    # the environments of a running server
    python examples/gymnasium_ppo.py --here                # the same in this process, without Rollserve

The trainer knows gymnasium alone: `main` decides where its environments run. Actions are Discrete. Needs
`rollserve[gymnasium,torch,plot]`.
"""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from torch import nn
from training_run import sampler_of

import rollserve

ROW_STEPS, NUM_EPOCHS, MINIBATCH_SIZE, LEARNING_RATE = 128, 10, 256, 1e-3
GAMMA, LAMBDA, CLIP, VALUE_WEIGHT, MAX_GRADIENT_NORM = 0.99, 0.95, 0.2, 0.5, 0.5


def perceptron(inputs: int, outputs: int, last_gain: float) -> nn.Sequential:
    """Return a perceptron with two hidden layers."""
    layers = [nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)]
    for layer, gain in zip(layers[::2], (2**0.5, 2**0.5, last_gain), strict=True):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


def train(envs: VectorEnv, num_steps: int, target: float = float("inf"), seed: int = 0) -> float:
    """Train until `num_steps` are done, or until the last 100 episodes return `target` on average; return that mean."""
    if not isinstance(envs.single_action_space, gymnasium.spaces.Discrete):
        raise TypeError(f"envs: expected Discrete actions, got {envs.single_action_space}")
    torch.manual_seed(seed)
    num_inputs = int(np.prod(envs.single_observation_space.shape))
    actor, critic = perceptron(num_inputs, int(envs.single_action_space.n), 0.01), perceptron(num_inputs, 1, 1.0)
    parameters = [*actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, LEARNING_RATE, eps=1e-5)
    envs = RecordEpisodeStatistics(envs)
    num_rows, returns = envs.num_envs, envs.return_queue
    observations = torch.zeros(ROW_STEPS, num_rows, num_inputs)
    actions = torch.zeros(ROW_STEPS, num_rows, dtype=torch.int64)
    log_probs, rewards, values, ended = torch.zeros(4, ROW_STEPS, num_rows)
    shown, _ = envs.reset(seed=seed)
    num_iterations = -(-num_steps // (ROW_STEPS * num_rows))
    for iteration in range(num_iterations):
        with torch.no_grad():
            for step in range(ROW_STEPS):
                observations[step] = torch.as_tensor(shown).reshape(num_rows, num_inputs)
                policy = torch.distributions.Categorical(logits=actor(observations[step]))
                actions[step] = policy.sample()
                log_probs[step], values[step] = policy.log_prob(actions[step]), critic(observations[step])[:, 0]
                shown, given, terminated, truncated, infos = envs.step(actions[step].numpy())
                rewards[step], ended[step] = torch.as_tensor(given), torch.as_tensor(terminated | truncated)
                for row in np.flatnonzero(truncated & ~terminated):  # which has more rewards to come
                    last = torch.as_tensor(infos["final_obs"][row], dtype=torch.float32).reshape(num_inputs)
                    rewards[step, row] += GAMMA * critic(last)[0]
            next_values = critic(torch.as_tensor(shown, dtype=torch.float32).reshape(num_rows, num_inputs))[:, 0]
        advantages, advantage = torch.zeros_like(rewards), torch.zeros(num_rows)
        for step in reversed(range(ROW_STEPS)):
            goes_on = 1 - ended[step]
            error = rewards[step] + GAMMA * goes_on * next_values - values[step]
            advantage = advantages[step] = error + GAMMA * LAMBDA * goes_on * advantage
            next_values = values[step]
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - iteration / num_iterations)
        columns = observations, actions, log_probs, advantages, advantages + values
        flat = [column.flatten(0, 1) for column in columns]
        for _ in range(NUM_EPOCHS):
            for part in torch.randperm(len(flat[0])).split(MINIBATCH_SIZE):
                seen, acted, old_log_probs, gained, targets = (column[part] for column in flat)
                policy = torch.distributions.Categorical(logits=actor(seen))
                ratios = (policy.log_prob(acted) - old_log_probs).exp()
                gained = (gained - gained.mean()) / (gained.std() + 1e-8)
                policy_loss = -torch.minimum(ratios * gained, ratios.clamp(1 - CLIP, 1 + CLIP) * gained).mean()
                value_loss = nn.functional.mse_loss(critic(seen)[:, 0], targets)
                optimizer.zero_grad()
                (policy_loss + VALUE_WEIGHT * value_loss).backward()
                nn.utils.clip_grad_norm_(parameters, MAX_GRADIENT_NORM)
                optimizer.step()
        mean = float(np.mean(returns)) if returns else float("nan")
        print(f"{(iteration + 1) * ROW_STEPS * num_rows:>9,} steps, mean return {mean:.1f}", flush=True)
        if len(returns) == 100 and mean >= target:
            break
    return mean


def main() -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(
        description="Train a policy with PPO in environments behind gymnasium's interface."
    )
    parser.add_argument("--server", metavar="HOST:PORT", help="address of a running server (default: start one)")
    parser.add_argument("--here", action="store_true", help="step CartPole-v1 in this process, without a server")
    parser.add_argument("--steps", type=int, default=200_000, help="number of steps in all (default: %(default)s)")
    parser.add_argument("--target", type=float, default=float("inf"), help="mean return at which to stop")
    parser.add_argument(
        "--out", type=Path, default=Path("run"), help="folder for the server's log (default: %(default)s)"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)  # the workers need the other cores
    with contextlib.ExitStack() as stack:
        if options.here:
            same_step = {"autoreset_mode": AutoresetMode.SAME_STEP}
            envs = gymnasium.make_vec("CartPole-v1", 8, vectorization_mode="sync", vector_kwargs=same_step)
        else:
            sampler = stack.enter_context(sampler_of(options.server, options.out))
            sampler.update_env(rollserve.EnvSpec("CartPole-v1", vectorization="rows", num_rows=4))
            envs = sampler.vector_env(autoreset="same_step")
        train(stack.enter_context(contextlib.closing(envs)), options.steps, options.target)


if __name__ == "__main__":
    main()
