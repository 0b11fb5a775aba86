"""The example `examples/atari_ppo.py`: it trains a convolutional policy on frames, with gradients by hand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import atari_ppo
import numpy as np
import pytest
from numpy_convolutions import ConvolutionalNetwork
from numpy_ppo import advantages_of, policy_loss

import rollserve
from rollserve_server.local import LocalServer

EXAMPLE = Path(__file__).parents[2] / "examples" / "atari_ppo.py"
PONG = rollserve.EnvSpec(atari_ppo.ENV, vectorization="native", num_rows=2)
LINE = re.compile(
    r" +(?P<steps>[\d,]+) steps, mean return nan, policy (?P<policy>\S+), value (?P<value>\S+), "
    r"entropy (?P<entropy>\S+), seconds sampling \S+, seconds learning \S+, [\d,]+ steps/s"
)


def log_probs_of(logits: np.ndarray, actions: np.ndarray) -> np.ndarray:
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return log_probs[np.arange(len(actions)), actions]


@pytest.mark.slow
def test_command_trains_some_iterations(server: LocalServer, tmp_path: Path) -> None:
    options = ["--steps", "1024", "--rows", "2", "--size", "42", "--server", server.address]
    command = [sys.executable, EXAMPLE, *options, "--out", tmp_path, "--video", tmp_path / "pong.gif"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    *trained, evaluation = shown.stdout.splitlines()
    assert re.fullmatch(r"evaluation: return -2\d\.\d+ .*", evaluation)
    assert (tmp_path / "pong.gif").read_bytes().startswith(b"GIF89a")
    lines = [LINE.fullmatch(line) for line in trained]
    assert [line and line["steps"] for line in lines] == ["512", "1,024"], shown.stdout
    for line in lines:
        assert line is not None
        losses = [float(line[name]) for name in ("policy", "value", "entropy")]
        assert np.isfinite(losses).all()
        assert 0 < losses[2] <= np.log(6) + 1e-3  # of Pong's six actions


@pytest.mark.slow
def test_learner_computes_what_the_server_recorded_and_improves_the_policy(sampler: rollserve.Sampler) -> None:
    env = sampler.update_env(PONG)
    shape = env.observation_space.shape
    assert shape == (4, 84, 84)
    network = ConvolutionalNetwork.initial(shape, env.action_space.n, seed=0)
    initial = {name: value.copy() for name, value in network.parameters.items()}
    learner = atari_ppo.Learner(network, seed=0)
    sampler.update_agent(network.agent(shape))
    for iteration in range(2):
        batch = sampler.obtain_fragments(128)
        logits, values = network.forward(batch.observations)
        log_probs = batch.agent_infos["log_prob"]
        assert np.allclose(logits, batch.agent_infos["logits"], rtol=0, atol=1e-5)
        assert np.allclose(values, batch.agent_infos["value"], rtol=0, atol=1e-5)
        assert np.allclose(log_probs_of(logits, batch.actions), log_probs, rtol=0, atol=1e-5)

        last_values = network.forward(batch.last_observations)[1]
        advantages = advantages_of(batch, values, last_values, atari_ppo.DISCOUNT, atari_ppo.GAE_LAMBDA)
        advantages -= advantages.mean()
        losses = learner.learn(batch)
        assert np.isfinite([losses.policy, losses.value, losses.entropy]).all()
        ratios = np.exp(log_probs_of(network.forward(batch.observations)[0], batch.actions) - log_probs)
        assert (ratios * advantages).mean() > 0, iteration
        sampler.update_agent(network.parameters)
    assert all((network.parameters[name] != value).any() for name, value in initial.items())


def test_gradients_equal_finite_differences() -> None:
    generator = np.random.default_rng(1)
    small = ConvolutionalNetwork.initial((2, 36, 28), 3, seed=0)
    network = ConvolutionalNetwork({name: value.astype(np.float64) for name, value in small.parameters.items()})
    network.parameters["logits.weight"] *= 100
    frames = generator.integers(0, 256, (5, 2, 36, 28), np.uint8)
    actions, advantages = generator.integers(0, 3, 5), generator.standard_normal(5)
    old_log_probs = log_probs_of(network.forward(frames)[0], actions) + 0.05 * generator.standard_normal(5)

    def losses() -> tuple[float, np.ndarray, np.ndarray]:
        logits, values = network.forward(frames)
        policy = policy_loss(logits, actions, advantages, old_log_probs, clip=0.1, entropy_bonus=0.02)
        return policy.loss + float((values**2).mean()) / 2, policy.gradient, values / len(values)

    gradients = network.backward(*losses()[1:])
    assert gradients.keys() == network.parameters.keys()
    for name, gradient in gradients.items():
        parameter = network.parameters[name]
        assert gradient.shape == parameter.shape
        for place in np.abs(gradient).argsort(axis=None)[-8:].tolist():
            index = np.unravel_index(place, gradient.shape)
            value, results = parameter[index], []
            for changed in (value + 1e-6, value - 1e-6, value):
                parameter[index] = changed
                results.append(losses()[0])
            assert np.isclose(gradient[index], (results[0] - results[1]) / 2e-6, rtol=1e-4, atol=1e-8), name
