"""Checks of delivered data: samples of batches, compared with the environment and with the policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import rollserve
from benchmarks.service.results import check
from benchmarks.service.workloads.specs import SamplingSpec
from rollserve_server.envs.making import make_env

__all__ = ["check_log_probs", "check_sample"]

_TOLERANCE = 1e-4


def check_sample(sample: rollserve.EpisodeBatch, spec: SamplingSpec) -> list[str]:
    """Compare a sample with the workload's environment and policy; return what holds.

    Raises:
        CheckError: the sample differs.
    """
    checks = []
    if isinstance(spec.agent, rollserve.MlpAgent):
        checks.append(check_log_probs(sample, spec.agent))
    if spec.env.vectorization == "rows" and spec.call == "samples":
        checks.append(_check_replay(sample, spec.env))
    elif spec.env.id in _STATE_SETTERS:
        checks.append(_check_single_steps(sample, spec.env.id))
    else:
        checks.append(_check_stacks(sample))
    return checks


def check_log_probs(sample: rollserve.EpisodeBatch, agent: rollserve.MlpAgent) -> str:
    """Compare the sample's log-probabilities with what the agent's parameters give; return what holds.

    Raises:
        CheckError: the log-probabilities differ.
    """
    output = _network_output(sample, agent)
    actions = np.asarray(sample.actions)
    if agent.head == "categorical":
        logits = np.take_along_axis(output, actions[:, np.newaxis].astype(np.int64), axis=1)[:, 0]
        expected = logits - np.log(np.exp(output).sum(axis=1))
    else:
        log_std = agent.parameters["log_std"]
        densities = -0.5 * np.square((actions - output) / np.exp(log_std)) - log_std - 0.5 * np.log(2 * np.pi)
        expected = densities.sum(axis=1)
    same = np.allclose(sample.agent_infos["log_prob"], expected, _TOLERANCE, _TOLERANCE)
    check(same, "the log-probabilities differ from the policy's")
    return "the log-probabilities of a sample are the policy's"


def _network_output(sample: rollserve.EpisodeBatch, agent: rollserve.MlpAgent) -> np.ndarray:
    output = np.asarray(sample.observations, np.float64)
    num_layers = len(agent.layer_sizes) - 1
    for layer in range(num_layers):
        output = output @ agent.parameters[f"{layer}/weight"].T + agent.parameters[f"{layer}/bias"]
        output = np.tanh(output) if layer < num_layers - 1 else output
    return output


def _check_replay(sample: rollserve.EpisodeBatch, spec: rollserve.EnvSpec) -> str:
    """Replay whole episodes in a fresh environment, by their seeds and actions; they have to be equal bit for bit."""
    env = make_env(spec)
    for episode in sample.split():
        _check_episode(episode, env)
    env.close()
    return "whole episodes of a sample are equal, bit for bit, to replays of their seeds and actions"


def _check_episode(episode: rollserve.EpisodeBatch, env: Any) -> None:
    check(episode.env_seeds is not None, "an episode has no seed")
    name = f"episode {episode.episode_indices[0]}"
    observations, actions = np.asarray(episode.observations), np.asarray(episode.actions)
    observation, _ = env.reset(seed=int(episode.env_seeds[0]))  # type: ignore[index]  # checked above
    terminated = truncated = False
    for step, action in enumerate(actions):
        same = np.array_equal(observation, observations[step])
        check(same, f"{name}: the observation of step {step} differs from the replay")
        observation, reward, terminated, truncated, _ = env.step(action)
        check(reward == episode.rewards[step], f"{name}: the reward of step {step} differs from the replay")
    last_observation = np.asarray(episode.last_observations)[0]
    check(np.array_equal(observation, last_observation), f"{name}: the last observation differs from the replay")
    ends = bool(episode.terminated[0]), bool(episode.truncated[0])
    check(ends == (bool(terminated), bool(truncated)), f"{name}: the episode ends differently in the replay")


def _check_single_steps(sample: rollserve.EpisodeBatch, env_id: str) -> str:
    """Repeat each step in gymnasium's environment, from the step's own observation; equal within rounding.

    Fragments cannot be replayed from a seed, nor can episodes of rows that share one stream of random numbers.
    """
    env: Any = make_env(rollserve.EnvSpec(env_id)).unwrapped
    env.reset(seed=0)
    for segment in sample.split():
        _check_segment(segment, env, _STATE_SETTERS[env_id])
    env.close()
    return "each step of a sample is equal, within rounding, to the same step of gymnasium's environment"


def _check_segment(segment: rollserve.EpisodeBatch, env: Any, set_state: Callable[[Any, np.ndarray], None]) -> None:
    observations = np.concatenate([segment.observations, segment.last_observations])
    terminated = False
    for step, action in enumerate(np.asarray(segment.actions)):
        check(not terminated, f"step {step}: the episode goes on although gymnasium's has terminated")
        set_state(env, observations[step].astype(np.float64))
        observation, reward, terminated, _, _ = env.step(action)
        next_observation, delivered_reward = observations[step + 1], segment.rewards[step]
        near = np.allclose(observation, next_observation, _TOLERANCE, _TOLERANCE)
        check(near, f"step {step}: expected the next observation {observation}, got {next_observation}")
        near = np.isclose(reward, delivered_reward, _TOLERANCE, _TOLERANCE)
        check(near, f"step {step}: expected the reward {reward}, got {delivered_reward}")
    check(terminated == segment.terminated[0], f"terminated: expected {terminated}, got {segment.terminated[0]}")


def _check_stacks(sample: rollserve.EpisodeBatch) -> str:
    """Compare each stack of frames, the last observations included, with the stack before."""
    for segment in sample.split():
        stacks = np.concatenate([segment.observations, segment.last_observations])
        check(np.array_equal(stacks[1:, :-1], stacks[:-1, 1:]), "a stack of frames does not continue the one before")
    return "each stack of frames of a sample continues the one before"


def _set_cartpole(env: Any, observation: np.ndarray) -> None:
    env.state = observation
    env.steps_beyond_terminated = None


def _set_cheetah(env: Any, observation: np.ndarray) -> None:
    # The position along the way is not observed; neither the next observation nor the reward depends on it.
    num_positions = env.model.nq - 1
    env.set_state(np.append(0.0, observation[:num_positions]), observation[num_positions:])


_STATE_SETTERS: dict[str, Callable[[Any, np.ndarray], None]] = {
    "CartPole-v1": _set_cartpole,
    "HalfCheetah-v5": _set_cheetah,
}
"""Functions that put an environment into the state of an observation, by environment."""
