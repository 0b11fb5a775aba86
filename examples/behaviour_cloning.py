"""Behaviour cloning on CartPole from a recorded dataset, with Minari and numpy alone.

    rollserve record 127.0.0.1:50051 cartpole/expert-v0 --episodes 100 --deterministic
    MINARI_DATASETS_PATH=/path/of/the/server's/--data-dir python examples/behaviour_cloning.py cartpole/expert-v0

Fits a logistic regression from observations to actions by Newton's method, and prints the mean return of its actions.

Needs `rollserve[data]` and gymnasium.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import minari
import numpy as np

if TYPE_CHECKING:
    import gymnasium

NUM_ITERATIONS, NUM_EPISODES, RIDGE = 20, 10, 1e-3


def fit(inputs: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """Return the weights of the logistic regression of actions, 0 or 1, on inputs with a constant behind them."""
    inputs = np.column_stack([inputs, np.ones(len(inputs))])
    weights = np.zeros(inputs.shape[1])
    for _ in range(NUM_ITERATIONS):
        ones = 1 / (1 + np.exp(-np.clip(inputs @ weights, -30, 30)))
        gradient = inputs.T @ (actions - ones) - RIDGE * weights
        hessian = (inputs * (ones * (1 - ones))[:, np.newaxis]).T @ inputs + RIDGE * np.eye(len(weights))
        weights += np.linalg.solve(hessian, gradient)
    return weights


def mean_return(env: gymnasium.Env, weights: np.ndarray) -> float:
    """Return the mean return of the cloned policy."""
    total = 0.0
    for seed in range(NUM_EPISODES):
        observation, _ = env.reset(seed=seed)
        ended = False
        while not ended:
            observation, reward, terminated, truncated, _ = env.step(int(observation @ weights[:-1] + weights[-1] > 0))
            total += float(reward)
            ended = terminated or truncated
    return total / NUM_EPISODES


def main() -> None:
    """Clone the behaviour in the dataset that the command line names."""
    parser = argparse.ArgumentParser(description="Clone the behaviour in a recorded dataset of CartPole.")
    parser.add_argument("dataset", metavar="ID", help="id in the folder MINARI_DATASETS_PATH, as cartpole/expert-v0")
    dataset = minari.load_dataset(parser.parse_args().dataset)
    episodes = list(dataset.iterate_episodes())
    inputs = np.concatenate([episode.observations[:-1] for episode in episodes])
    actions = np.concatenate([episode.actions for episode in episodes])
    weights = fit(inputs, actions)
    recorded = np.mean([episode.rewards.sum() for episode in episodes])
    with dataset.recover_environment() as env:
        cloned = mean_return(env, weights)
        print(f"{len(episodes)} episodes, {len(inputs)} steps, return recorded {recorded:.1f}, cloned {cloned:.1f}")


if __name__ == "__main__":
    main()
