"""Heads for continuous actions, with normal distributions."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.agents.agent import FLOAT32, LOG_PROB, InfoSpec, NoiseKind
from rollserve_server.agents.heads.head import Choice, SampledHead

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gymnasium import spaces

    from rollserve_server.agents.specs.heads import HeadSettings

__all__ = ["DiagonalGaussianHead", "SquashedGaussianHead"]

_HALF_LOG_2_PI = 0.5 * math.log(2 * math.pi)


class _GaussianHead(SampledHead):
    """Independent normal distributions, with a constant log_std or one that the network predicts.

    Where the dtype of actions is narrower than float32, `log_prob` is of the rounded action, which is executed.
    """

    def __init__(
        self, space: spaces.Box, log_std: np.ndarray | None, settings: HeadSettings, noise_scale: float
    ) -> None:
        """Prepare the distributions.

        Args:
            space: action space.
            log_std: constant log_std, (size,); None if the network predicts it.
            settings: bounds of log_std.
            noise_scale: factor of the standard deviations.
        """
        self._space = space
        self.noise_width = size = math.prod(space.shape)
        self.noise_kind = NoiseKind("normal", size)
        self.inputs = _moments(size)[: 2 if log_std is None else 1]
        self.infos = (LOG_PROB, *_moments(*space.shape))
        self._low, self._high = np.float32(settings.min_log_std), np.float32(settings.max_log_std)
        self._has_bounds = bool(np.isfinite([self._low, self._high]).any())
        self._scale = np.float32(noise_scale)
        self._rounds = space.dtype.itemsize < FLOAT32.itemsize
        self._log_std = None if log_std is None else self._clipped(log_std)
        self._repeated_log_std = np.empty((0, size), np.float32)  # for the rows of the last action
        log_normalizer = size * (_HALF_LOG_2_PI + math.log(noise_scale))
        if self._log_std is not None:
            self._std = self._scale * np.exp(self._log_std)
            log_normalizer += self._log_std.sum()
        self._log_normalizer = np.float32(log_normalizer)

    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        """Draw standard normal numbers."""
        generator.standard_normal(out=noise)

    def act(self, outputs: Sequence[np.ndarray], noise: np.ndarray, factors: np.ndarray | None = None) -> Choice:
        """Sample actions; `factors` scale the standard deviations."""
        mean, log_std = outputs[0], self._log_stds(outputs)
        deviations, std = noise.astype(np.float32), self._stds(log_std, factors)
        samples = mean + std * deviations
        actions = self._actions(samples)
        if self._rounds:
            samples = self._samples(actions)
            deviations = (samples - mean) / self._stds(log_std.astype(np.float64), factors)
        log_prob = self._log_prob(samples, self._log_density(deviations, log_std, factors))
        return [actions], self._infos(log_prob.astype(np.float32, copy=False), mean, log_std)

    def act_best(self, outputs: Sequence[np.ndarray]) -> Choice:
        """Choose the actions that belong to the means."""
        mean, log_std = outputs[0], self._log_stds(outputs)
        return [self._actions(mean)], self._infos(np.zeros(len(mean), np.float32), mean, log_std)

    @abstractmethod
    def _actions(self, samples: np.ndarray) -> np.ndarray:
        """Return the actions (M, *A) for samples (M, size)."""

    @abstractmethod
    def _samples(self, actions: np.ndarray) -> np.ndarray:
        """Return the samples (M, size), float64, that the actions (M, *A) belong to."""

    def _log_prob(self, samples: np.ndarray, log_density: np.ndarray) -> np.ndarray:
        """Return the log-probabilities (M,) of actions; may overwrite the log-densities of their samples."""
        return log_density

    def _log_stds(self, outputs: Sequence[np.ndarray]) -> np.ndarray:
        """Return log_std within its bounds, (M, size)."""
        if self._log_std is None:
            return self._clipped(outputs[1])
        if self._repeated_log_std.shape != outputs[0].shape:
            self._repeated_log_std = np.broadcast_to(self._log_std, outputs[0].shape)
        return self._repeated_log_std

    def _stds(self, log_std: np.ndarray, factors: np.ndarray | None) -> np.ndarray:
        """Return the standard deviations, (M, size) or (size,), in the dtype of `log_std`, scaled by `factors` (M,)."""
        is_known = self._log_std is not None and log_std.dtype == np.float32
        std: np.ndarray = self._std if is_known else self._scale * np.exp(log_std)
        return std if factors is None else factors[:, np.newaxis] * std

    def _log_density(self, deviations: np.ndarray, log_std: np.ndarray, factors: np.ndarray | None) -> np.ndarray:
        """Return the log-densities (M,) of samples that are so many standard deviations from the mean, (M, size)."""
        log_density: np.ndarray = np.add.reduce(np.square(deviations), axis=1)
        log_density *= np.float32(-0.5)
        log_density -= self._log_normalizer
        if self._log_std is None:
            log_density -= log_std.sum(axis=1)
        if factors is not None:
            log_density -= np.float32(self.noise_width) * np.log(factors)
        return log_density

    def _infos(self, log_prob: np.ndarray, mean: np.ndarray, log_std: np.ndarray) -> dict[str, np.ndarray]:
        shape = (len(mean), *self._space.shape)
        return {"log_prob": log_prob, "mean": mean.reshape(shape), "log_std": log_std.reshape(shape)}

    def _clipped(self, log_std: np.ndarray) -> np.ndarray:
        return np.minimum(np.maximum(log_std, self._low), self._high) if self._has_bounds else log_std


class DiagonalGaussianHead(_GaussianHead):
    """Independent normal distributions."""

    def _actions(self, samples: np.ndarray) -> np.ndarray:
        return samples.reshape(-1, *self._space.shape).astype(self._space.dtype, copy=False)

    def _samples(self, actions: np.ndarray) -> np.ndarray:
        return actions.reshape(len(actions), -1).astype(np.float64)


class SquashedGaussianHead(_GaussianHead):
    """Independent normal distributions, squashed into the action space's bounds by tanh.

    The infos `mean` and `log_std` are those before tanh. Actions that are rounded stay between the bounds, because a
    bound has no density.
    """

    def __init__(
        self, space: spaces.Box, log_std: np.ndarray | None, settings: HeadSettings, noise_scale: float
    ) -> None:
        super().__init__(space, log_std, settings, noise_scale)
        low, high = (bound.ravel().astype(np.float64) for bound in (space.low, space.high))
        self._exact_centre, self._exact_half_width = (high + low) / 2, (high - low) / 2
        self._centre, self._half_width = (
            self._exact_centre.astype(np.float32),
            self._exact_half_width.astype(np.float32),
        )
        self._inner_low, self._inner_high = np.nextafter(space.low, space.high), np.nextafter(space.high, space.low)
        self._log_half_width = np.float32(np.log((high - low) / 2).sum())

    def _actions(self, samples: np.ndarray) -> np.ndarray:
        space = self._space
        values = (self._centre + self._half_width * np.tanh(samples)).reshape(-1, *space.shape)
        actions: np.ndarray = np.clip(values, space.low, space.high).astype(space.dtype, copy=False)
        return np.clip(actions, self._inner_low, self._inner_high) if self._rounds else actions

    def _samples(self, actions: np.ndarray) -> np.ndarray:
        values = actions.reshape(len(actions), -1).astype(np.float64)
        samples: np.ndarray = np.arctanh((values - self._exact_centre) / self._exact_half_width)
        return samples

    def _log_prob(self, samples: np.ndarray, log_density: np.ndarray) -> np.ndarray:
        # The log of tanh's derivative, 1 - tanh², without cancellation where |samples| is large.
        log_slope = 2 * (np.float32(math.log(2)) - samples - np.logaddexp(np.float32(0), -2 * samples))
        log_density -= log_slope.sum(axis=1)
        log_density -= self._log_half_width
        return log_density


def _moments(*shape: int) -> tuple[InfoSpec, InfoSpec]:
    return InfoSpec("mean", FLOAT32, shape), InfoSpec("log_std", FLOAT32, shape)
