import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn

import rollserve
from rollserve.bridges import to_torch
from rollserve.transforms import ClipActions
from rollserve_server.local import local_server


def network(outputs: int, last_gain: float) -> nn.Sequential:
    layers = nn.Linear(17, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)
    for layer, gain in zip(layers[::2], (2**0.5, 2**0.5, last_gain), strict=True):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


def train(sampler: rollserve.Sampler, num_iterations: int, steps_per_row: int = 256) -> list[list[float]]:
    actor, critic, log_std = network(6, 0.01), network(1, 1.0), nn.Parameter(torch.zeros(6))
    parameters = [*actor.parameters(), *critic.parameters(), log_std]
    optimizer = torch.optim.Adam(parameters, lr=3e-4, eps=1e-5)
    generator = np.random.default_rng(0)

    sampler.update_env(rollserve.EnvSpec("HalfCheetah-v5", transforms=[ClipActions()]))
    agent = rollserve.MlpAgent.from_torch(actor, "diagonal_gaussian", value=critic, log_std=log_std, normalization=True)
    sampler.update_agent(agent)

    moments, returns = rollserve.RunningMoments(), rollserve.RunningMoments()
    curve = []
    for iteration in range(num_iterations):
        batch = sampler.obtain_fragments(
            steps_per_row=steps_per_row, observation_moments=True, return_discount=0.99, return_last_values=True
        )
        returns.merge(batch.account.return_moments)
        advantages, targets = batch.with_scaled_rewards(returns).advantages(0.99, 0.95)
        columns = {"inputs": moments.normalized(batch.observations), "advantages": advantages, "targets": targets}

        for part in batch.minibatches(64, generator, num_epochs=10, **columns):
            part = to_torch(part, dtype=torch.float32)
            policy = torch.distributions.Normal(actor(part["inputs"]), log_std.exp())
            ratios = (policy.log_prob(part["actions"]).sum(1) - part["agent_infos"]["log_prob"]).exp()
            gains = (part["advantages"] - part["advantages"].mean()) / (part["advantages"].std() + 1e-8)
            policy_loss = -torch.min(ratios * gains, ratios.clamp(0.8, 1.2) * gains).mean()
            value_loss = (critic(part["inputs"])[:, 0] - part["targets"]).square().mean()
            optimizer.zero_grad()
            (policy_loss + 0.5 * value_loss).backward()
            nn.utils.clip_grad_norm_(parameters, 0.5)
            optimizer.step()

        moments.merge(batch.account.observation_moments)
        sampler.update_agent(agent.parameters, observation_moments=moments)
        ended = batch.terminated | batch.truncated
        if ended.any():
            curve.append([moments.count, batch.episode_returns[ended].mean()])
            print(f"{moments.count:>9,} steps, mean return {curve[-1][1]:.0f}", flush=True)
        optimizer.param_groups[0]["lr"] = 3e-4 * (1 - (iteration + 1) / num_iterations)
    return curve


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    options = ("--env", "HalfCheetah-v5", "--workers", "2", "--rows", "4", "--seed", "0")
    with local_server(*options, log="server.log") as server, rollserve.connect(server.address) as sampler:
        curve = train(sampler, num_iterations=488)
        print(sampler.evaluate(20, deterministic=True))

    figure = Figure(layout="constrained")
    axes = figure.subplots()
    axes.plot(*np.transpose(curve))
    axes.set(title="PPO on HalfCheetah-v5", xlabel="steps", ylabel="mean return")
    figure.savefig("halfcheetah.png")
