"""Heads that draw from normal distributions."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.agents.agent import FLOAT32, LOG_PROB, InfoSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gymnasium import spaces

    from rollserve_server.agents.specs import HeadSettings

__all__ = ["DiagonalGaussianHead", "SquashedGaussianHead"]

_HALF_LOG_2_PI = 0.5 * math.log(2 * math.pi)


class _Normal:
    """Independent normal distributions, whose deviations are the same always or come with each output."""

    def __init__(
        self, space: spaces.Box, log_std: np.ndarray | None, settings: HeadSettings, noise_scale: float
    ) -> None:
        """Of actions of a space.

        Args:
            space: of the actions.
            log_std: (size,); None if it comes with each output.
            settings: its limits.
            noise_scale: what the deviation is multiplied by.
        """
        self.shape = space.shape
        self.size = math.prod(space.shape)
        self._low, self._high = np.float32(settings.min_log_std), np.float32(settings.max_log_std)
        self._has_limits = bool(np.isfinite([self._low, self._high]).any())
        self._scale = np.float32(noise_scale)
        self._log_std = None if log_std is None else self._limited(log_std)
        log_normalizer = self.size * (_HALF_LOG_2_PI + math.log(noise_scale))
        if self._log_std is not None:
            self._std = self._scale * np.exp(self._log_std)
            log_normalizer += self._log_std.sum()
        self._log_normalizer = np.float32(log_normalizer)

    @property
    def inputs(self) -> tuple[InfoSpec, ...]:
        """See Head."""
        return _parameters(self.size)[: 2 if self._log_std is None else 1]

    @property
    def infos(self) -> tuple[InfoSpec, ...]:
        """Those of its parameters."""
        return _parameters(*self.shape)

    def log_std(self, outputs: Sequence[np.ndarray]) -> np.ndarray:
        """(M, size), within its limits."""
        if self._log_std is None:
            return self._limited(outputs[1])
        return np.broadcast_to(self._log_std, outputs[0].shape)

    def draw(
        self, mean: np.ndarray, log_std: np.ndarray, noise: np.ndarray, factors: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Numbers (M, size), and the logarithms of their densities, (M,)."""
        deviations = noise.astype(np.float32)
        log_density = np.float32(-0.5) * np.square(deviations).sum(axis=1)
        log_density -= self._log_normalizer
        if self._log_std is not None:
            std = self._std
        else:
            std = self._scale * np.exp(log_std)
            log_density -= log_std.sum(axis=1)
        if factors is not None:
            std = factors[:, np.newaxis] * std
            log_density -= np.float32(self.size) * np.log(factors)
        return mean + std * deviations, log_density

    def told(self, log_prob: np.ndarray, mean: np.ndarray, log_std: np.ndarray) -> dict[str, np.ndarray]:
        """The infos."""
        shape = (len(mean), *self.shape)
        return {"log_prob": log_prob, "mean": mean.reshape(shape), "log_std": log_std.reshape(shape)}

    def _limited(self, log_std: np.ndarray) -> np.ndarray:
        return np.minimum(np.maximum(log_std, self._low), self._high) if self._has_limits else log_std


class _GaussianHead(ABC):
    """What both heads have in common."""

    factors: np.ndarray | None = None

    def __init__(
        self, space: spaces.Box, log_std: np.ndarray | None, settings: HeadSettings, noise_scale: float
    ) -> None:
        """See `build_head`."""
        self._space = space
        self._normal = normal = _Normal(space, log_std, settings, noise_scale)
        self.noise_width = normal.size
        self.inputs = normal.inputs
        self.infos = (LOG_PROB, *normal.infos)

    def draw_noise(self, generator: np.random.Generator, noise: np.ndarray) -> None:
        """Standard normal numbers."""
        generator.standard_normal(out=noise)

    def act_best(self, outputs: Sequence[np.ndarray]) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
        """What is made of the means."""
        mean, log_std = outputs[0], self._normal.log_std(outputs)
        return [self._actions(mean)], self._normal.told(np.zeros(len(mean), np.float32), mean, log_std)

    @abstractmethod
    def _actions(self, values: np.ndarray) -> np.ndarray:
        """What is done, (M, *A), if these numbers (M, size) are drawn."""


class DiagonalGaussianHead(_GaussianHead):
    """Draws from independent normal distributions."""

    def act(
        self, outputs: Sequence[np.ndarray], noise: np.ndarray, factors: np.ndarray | None = None
    ) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
        """Actions, their log-densities, and the parameters of their distribution."""
        mean, log_std = outputs[0], self._normal.log_std(outputs)
        values, log_density = self._normal.draw(mean, log_std, noise, factors)
        return [self._actions(values)], self._normal.told(log_density, mean, log_std)

    def _actions(self, values: np.ndarray) -> np.ndarray:
        return values.reshape(-1, *self._space.shape).astype(self._space.dtype, copy=False)


class SquashedGaussianHead(_GaussianHead):
    """Draws from independent normal distributions, and takes the numbers into the space's bounds by tanh."""

    def __init__(
        self, space: spaces.Box, log_std: np.ndarray | None, settings: HeadSettings, noise_scale: float
    ) -> None:
        """See `build_head`."""
        super().__init__(space, log_std, settings, noise_scale)
        low, high = (bound.ravel().astype(np.float64) for bound in (space.low, space.high))
        self._centre, self._half_width = (((high + low) / 2).astype(np.float32), ((high - low) / 2).astype(np.float32))
        self._log_half_width = np.float32(np.log((high - low) / 2).sum())

    def act(
        self, outputs: Sequence[np.ndarray], noise: np.ndarray, factors: np.ndarray | None = None
    ) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
        """Actions, their log-densities, and the parameters of the distribution before tanh."""
        mean, log_std = outputs[0], self._normal.log_std(outputs)
        before, log_prob = self._normal.draw(mean, log_std, noise, factors)
        # The logarithm of the derivative of tanh, 1 - tanh², without its cancellation where |before| is large.
        log_slope = 2 * (np.float32(math.log(2)) - before - np.logaddexp(np.float32(0), -2 * before))
        log_prob -= log_slope.sum(axis=1)
        log_prob -= self._log_half_width
        return [self._actions(before)], self._normal.told(log_prob, mean, log_std)

    def _actions(self, values: np.ndarray) -> np.ndarray:
        space = self._space
        values = (self._centre + self._half_width * np.tanh(values)).reshape(-1, *space.shape)
        actions: np.ndarray = np.clip(values, space.low, space.high).astype(space.dtype, copy=False)
        return actions


def _parameters(*shape: int) -> tuple[InfoSpec, InfoSpec]:
    return InfoSpec("mean", FLOAT32, shape), InfoSpec("log_std", FLOAT32, shape)
