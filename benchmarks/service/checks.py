"""Whether what was moved is what it should be: samples of batches, held against environments and policies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import rollserve
from benchmarks.service.results import check
from benchmarks.service.workloads import SamplingWorkload
from rollserve_server.envs.making import make_env

__all__ = ["check_log_probs", "check_sample"]

_TOLERANCE = 1e-4


def check_sample(sample: rollserve.EpisodeBatch, workload: SamplingWorkload) -> list[str]:
    """Holds a sample against the workload's environment and policy; returns what was found to hold.

    Raises:
        CheckError: something is not as it should be.
    """
    found = []
    if isinstance(workload.agent, rollserve.MlpAgent):
        found.append(check_log_probs(sample, workload.agent))
    if workload.env.vectorization == "rows":
        found.append(_check_replay(sample, workload.env))
    else:
        found.append(_check_single_steps(sample, workload.env.id))
    return found


def check_log_probs(sample: rollserve.EpisodeBatch, agent: rollserve.MlpAgent) -> str:
    """The log-probabilities are those of the actions, by the agent's parameters.

    Raises:
        CheckError: they are not.
    """
    output = np.asarray(sample.observations, np.float64)
    num_layers = len(agent.layer_sizes) - 1
    for layer in range(num_layers):
        output = output @ agent.parameters[f"{layer}/weight"].T + agent.parameters[f"{layer}/bias"]
        output = np.tanh(output) if layer < num_layers - 1 else output
    actions = np.asarray(sample.actions)
    if agent.head == "categorical":
        of_actions = np.take_along_axis(output, actions[:, np.newaxis].astype(np.int64), axis=1)[:, 0]
        expected = of_actions - np.log(np.exp(output).sum(axis=1))
    else:
        log_std = agent.parameters["log_std"]
        densities = -0.5 * np.square((actions - output) / np.exp(log_std)) - log_std - 0.5 * np.log(2 * np.pi)
        expected = densities.sum(axis=1)
    came = sample.agent_infos["log_prob"]
    check(np.allclose(came, expected, _TOLERANCE, _TOLERANCE), "log-probabilities are not those of the actions")
    return "log-probabilities of a sample are those that the policy gives to its actions"


def _check_replay(sample: rollserve.EpisodeBatch, spec: rollserve.EnvSpec) -> str:
    """The actions lead a fresh environment, with the same seed, through the same episode, to the last bit."""
    env = make_env(spec)
    for episode in sample.split():
        check(episode.env_seeds is not None, "an episode came without its seed")
        observation, _ = env.reset(seed=int(episode.env_seeds[0]))  # type: ignore[index]  # as was checked
        terminated = truncated = False
        for step, action in enumerate(np.asarray(episode.actions)):
            same = np.array_equal(observation, np.asarray(episode.observations)[step])
            check(same, f"step {step} of episode {episode.episode_indices[0]} is another than that of its seed")
            observation, reward, terminated, truncated, _ = env.step(action)
            check(reward == episode.rewards[step], f"the reward of step {step} is another than that of its seed")
        ends = (observation, terminated, truncated)
        came = (np.asarray(episode.last_observations)[0], episode.terminated[0], episode.truncated[0])
        check(all(map(np.array_equal, ends, came)), "an episode ends otherwise than that of its seed")
    env.close()
    return "whole episodes of a sample are, to the last bit, those of their seeds and actions in a fresh environment"


def _check_single_steps(sample: rollserve.EpisodeBatch, env_id: str) -> str:
    """Each step leads to where gymnasium's environment goes from there, but for rounding, and ends where that ends.

    Rows that are stepped together share a stream of random numbers, so that none can be replayed by itself.
    """
    env: Any = make_env(rollserve.EnvSpec(env_id)).unwrapped
    env.reset(seed=0)
    for segment in sample.split():
        observations = np.concatenate([segment.observations, segment.last_observations])
        terminated = False
        for step, action in enumerate(np.asarray(segment.actions)):
            check(not terminated, "an episode goes on after its end")
            _STATE_SETTERS[env_id](env, observations[step].astype(np.float64))
            observation, reward, terminated, _, _ = env.step(action)
            near = np.allclose(observation, observations[step + 1], _TOLERANCE, _TOLERANCE)
            check(near, f"step {step} leads from {observations[step]} to {observations[step + 1]}, not {observation}")
            near = np.isclose(reward, segment.rewards[step], _TOLERANCE, _TOLERANCE)
            check(near, f"the reward of step {step} is {segment.rewards[step]}, not {reward}")
        check(terminated == segment.terminated[0], "an episode is told to end otherwise than it does")
    env.close()
    return "each step of a sample leads to where gymnasium's environment goes from there"


def _set_cartpole(env: Any, observation: np.ndarray) -> None:
    env.state = observation
    env.steps_beyond_terminated = None


def _set_cheetah(env: Any, observation: np.ndarray) -> None:
    """Where it stands along its way is not observed, and makes no difference."""
    num_positions = env.model.nq - 1
    env.set_state(np.append(0.0, observation[:num_positions]), observation[num_positions:])


_STATE_SETTERS: dict[str, Callable[[Any, np.ndarray], None]] = {
    "CartPole-v1": _set_cartpole,
    "HalfCheetah-v5": _set_cheetah,
}
"""By environment, what brings it to where an observation was made."""
