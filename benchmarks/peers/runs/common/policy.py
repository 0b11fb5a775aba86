"""The policy of plain loops: a multilayer perceptron in numpy."""

from __future__ import annotations

import math

import numpy as np

__all__ = ["HIDDEN_SIZES", "MlpPolicy"]

HIDDEN_SIZES = (64, 64)
"""Sizes of the hidden layers, for all peers."""
_NUM_NOISE_STEPS = 64


class MlpPolicy:
    """A policy in float32, categorical or Gaussian with standard deviation 1. Noise is drawn for 64 steps at once."""

    def __init__(self, num_rows: int, num_inputs: int, num_outputs: int, *, categorical: bool) -> None:
        self._generator = np.random.default_rng(0)
        self._categorical = categorical
        sizes = (num_inputs, *HIDDEN_SIZES, num_outputs)
        scales = [1 / math.sqrt(size) for size in sizes[:-2]] + [0.01]
        self._weights = [
            (scale * self._generator.standard_normal((inputs, outputs))).astype(np.float32)
            for scale, inputs, outputs in zip(scales, sizes[:-1], sizes[1:], strict=True)
        ]
        self._biases = [np.zeros(size, np.float32) for size in sizes[1:]]
        self._input = np.empty((num_rows, num_inputs), np.float32)
        self._layers = [np.empty((num_rows, size), np.float32) for size in sizes[1:]]
        self._noise = np.empty((_NUM_NOISE_STEPS, num_rows, 1 if categorical else num_outputs), np.float32)
        self._step = _NUM_NOISE_STEPS

    def act(self, observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return an action for each row, drawn from the network's output, and the log-probabilities."""
        self._input[...] = observations
        layer = self._input
        for weight, bias, out in zip(self._weights, self._biases, self._layers, strict=True):
            np.matmul(layer, weight, out=out)
            np.add(out, bias, out=out)
            layer = out if out is self._layers[-1] else np.tanh(out, out=out)
        noise = self._next_noise()
        return _categorical_actions(layer, noise) if self._categorical else _gaussian_actions(layer, noise)

    def _next_noise(self) -> np.ndarray:
        if self._step == _NUM_NOISE_STEPS:
            draw = self._generator.random if self._categorical else self._generator.standard_normal
            draw(dtype=np.float32, out=self._noise)
            self._step = 0
        noise: np.ndarray = self._noise[self._step]
        self._step += 1
        return noise


def _categorical_actions(logits: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    log_probs = logits - logits.max(axis=1, keepdims=True)
    log_probs -= np.log(np.exp(log_probs).sum(axis=1, keepdims=True))
    actions = (np.cumsum(np.exp(log_probs), axis=1)[:, :-1] <= noise).sum(axis=1)
    return actions, np.take_along_axis(log_probs, actions[:, np.newaxis], axis=1)[:, 0]


def _gaussian_actions(means: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    log_probs = np.float32(-0.5) * np.square(noise).sum(axis=1)
    log_probs -= np.float32(0.5 * noise.shape[1] * math.log(2 * math.pi))
    return means + noise, log_probs
