from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn

import rollserve
from rollserve.bridges import clipped_policy_loss, to_torch
from rollserve.transforms import ClipActions
from rollserve_server.local import local_server


def network(outputs: int, last_gain: float) -> nn.Sequential:
    layers = nn.Linear(17, 64), nn.Linear(64, 64), nn.Linear(64, outputs)
    for layer, gain in zip(layers, (2**0.5, 2**0.5, last_gain), strict=True):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


def train(sampler: rollserve.Sampler, num_iterations: int, steps_per_row: int = 256) -> list[tuple[int, float]]:
    actor, critic, log_std = network(6, 0.01), network(1, 1.0), nn.Parameter(torch.zeros(6))
    parameters = [*actor.parameters(), *critic.parameters(), log_std]
    optimizer = torch.optim.Adam(parameters, lr=3e-4, eps=1e-5, fused=True)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, num_iterations)
    generator = np.random.default_rng(0)

    sampler.update_env(rollserve.EnvSpec("HalfCheetah-v5", transforms=[ClipActions()]))
    agent = rollserve.MlpAgent.from_torch(actor, "diagonal_gaussian", value=critic, log_std=log_std, normalization=True)
    options: rollserve.SamplingOptions = {"return_discount": 0.99, "return_last_values": True}
    iterations = sampler.iterations(agent, num_iterations, steps_per_row=steps_per_row, **options)
    curve: list[tuple[int, float]] = []
    for batch in iterations:
        advantages, targets = batch.advantages(0.99, 0.95)
        for columns in batch.minibatches(64, generator, num_epochs=10, advantages=advantages, targets=targets):
            part = to_torch(columns)
            policy = torch.distributions.Normal(actor(part["observations"]), log_std.exp(), validate_args=False)
            log_probs = policy.log_prob(part["actions"]).sum(1)
            policy_loss = clipped_policy_loss(log_probs, part["agent_infos"]["log_prob"], part["advantages"])
            value_loss = nn.functional.mse_loss(critic(part["observations"])[:, 0], part["targets"])
            optimizer.zero_grad()
            (policy_loss + 0.5 * value_loss).backward()
            nn.utils.clip_grad_norm_(parameters, 0.5)
            optimizer.step()
        schedule.step()
        curve.append((iterations.num_steps, iterations.mean_return))
        print(iterations, flush=True)
    return curve


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    options = ("--env", "HalfCheetah-v5", "--workers", "2", "--rows", "4", "--seed", "0")
    with local_server(*options, log="server.log") as server, rollserve.connect(server.address) as sampler:
        curve = train(sampler, num_iterations=244)
        parameters: dict[str, Any] = sampler.agent_parameters()
        np.savez("agent.npz", **parameters)
        print(f"evaluation: {sampler.evaluate(20, deterministic=True)}")

    figure = Figure(layout="constrained")
    axes = figure.subplots()
    axes.plot(*np.transpose(curve))
    axes.set(title="PPO on HalfCheetah-v5", xlabel="steps", ylabel="mean return")
    figure.savefig("halfcheetah.png")
