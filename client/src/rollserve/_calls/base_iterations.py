"""Common part of the iterations of both samplers: everything except the waiting."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from rollserve.mlp_agent import MlpAgent
from rollserve_wire.checks import check_count, check_integer, check_type, type_error
from rollserve_wire.columns import original
from rollserve_wire.errors import PreconditionError, mismatch
from rollserve_wire.moments import MEAN, RunningMoments

if TYPE_CHECKING:
    from rollserve.agents import Agent, AgentUpdate
    from rollserve.episode_batch import EpisodeBatch
    from rollserve.options import SamplingOptions
    from rollserve_wire.spaces import Space

__all__ = ["BaseIterations", "IterationParts"]

_NUM_RETURNS = 100
"""Number of episodes whose returns count for `mean_return`."""
_OBSERVATIONS, _RETURNS = "observations/", "returns/"
_COUNTS, _LAST = ("num_steps", "num_episodes"), "episode_returns"


class IterationParts(NamedTuple):
    """Parts that iterations are made of.

    Attributes:
        agent: the agent, or a function that returns its updates.
        num_iterations: number of iterations.
        steps_per_row: number of steps of each row in an iteration.
        max_policy_lag: number of updates between the version that acts and the one that the trainer has then.
        state: state of earlier iterations; None for the first ones.
        options: options of sampling.
        status: the sampler's method, and so are the next two.
        update_agent: sends the first update.
        stream: opens the stream of rounds.
    """

    agent: Agent | Callable[[], AgentUpdate]
    num_iterations: int
    steps_per_row: int
    max_policy_lag: int
    state: Mapping[str, np.ndarray] | None
    options: SamplingOptions
    status: Callable[..., Any]
    update_agent: Callable[..., Any]
    stream: Callable[..., Any]


class BaseIterations:
    """Updates of the agent, normalization and progress of an on-policy trainer; `Iterations` lists its attributes."""

    def __init__(self, parts: IterationParts) -> None:
        if not callable(parts.agent) and not isinstance(getattr(parts.agent, "parameters", None), Mapping):
            raise type_error(
                "trained_agent", "an agent with parameters, or a function that returns updates", parts.agent
            )
        check_count("num_iterations", parts.num_iterations)
        check_count("steps_per_row", parts.steps_per_row)
        check_integer("max_policy_lag", parts.max_policy_lag, 32, signed=False)
        self.num_iterations, self.num_steps, self.num_episodes = parts.num_iterations, 0, 0
        self.observation_moments, self.return_moments = RunningMoments(), RunningMoments()
        self._parts = parts
        self._returns = deque[float](maxlen=_NUM_RETURNS)
        self._num_done = 0
        self._is_learned = False  # whether the trainer has learned from a batch since the last update
        self._normalizes = False
        self._formula: dict[str, float] = {}
        self._mask: str | None = None
        self._space: Space | None = None
        self._sent: dict[int, RunningMoments] = {}  # moments that versions normalize by
        if parts.state is not None:
            self._restore(parts.state)
        self._first_step, self._began = self.num_steps, time.monotonic()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self}>"

    def __str__(self) -> str:
        rate = (self.num_steps - self._first_step) / (time.monotonic() - self._began)
        place = f"iteration {self._num_done} of {self.num_iterations}, {self.num_steps:,} steps"
        mean_return = f"mean return {self.mean_return:.1f}" if self._returns else "no episode ended"
        return f"{place}, {mean_return}, {rate:,.0f} steps/s"

    @property
    def mean_return(self) -> float:
        """Mean return of the last 100 episodes that have ended, of the environment's own rewards; NaN without any."""
        return float(np.mean(self._returns)) if self._returns else float("nan")

    def state(self) -> dict[str, np.ndarray]:
        """Return moments and progress as arrays, such as for `numpy.savez`; with the parameters, a checkpoint.

        Returns:
            `RunningMoments.state()` of both moments, below `observations/` and `returns/`; `num_steps`, `num_episodes`,
            and `episode_returns` of the last 100 episodes that have ended.
        """
        return {
            **{f"{_OBSERVATIONS}{name}": array for name, array in self.observation_moments.state().items()},
            **{f"{_RETURNS}{name}": array for name, array in self.return_moments.state().items()},
            **{name: np.array(getattr(self, name)) for name in _COUNTS},
            _LAST: np.array(self._returns, np.float64),
        }

    def _restore(self, state: Mapping[str, np.ndarray]) -> None:
        check_type("state", state, Mapping, "the state of iterations")
        if missing := [name for name in (*_COUNTS, _LAST) if name not in state]:
            raise ValueError(f"state: {mismatch(f'an array {missing[0]!r}', 'none of that name')}")
        self.num_steps, self.num_episodes = (int(state[name]) for name in _COUNTS)
        self._returns.extend(state[_LAST].tolist())
        self.observation_moments, self.return_moments = (
            RunningMoments.from_state(
                {name.removeprefix(begin): state[name] for name in state if name.startswith(begin)}
            )
            for begin in (_OBSERVATIONS, _RETURNS)
        )

    def _update(self) -> AgentUpdate:
        """Return the next update: the whole agent at first, then its parameters; with the present moments."""
        agent = self._parts.agent
        update: Any = agent() if callable(agent) else agent if not self._sent else agent.parameters  # type: ignore[union-attr]
        parameters: Any = update if isinstance(update, Mapping) else getattr(update, "parameters", {})
        self._normalizes = MEAN in parameters
        if isinstance(update, MlpAgent):
            self._formula = {"epsilon": update.normalization_epsilon, "clip": update.normalization_clip}
            self._mask = None if update.action_mask is None else update.action_mask.observation
        if self._normalizes and self.observation_moments.count:
            moments = self.observation_moments.parameters(self._space, without=self._mask)
            for name, moment in moments.items():  # whoever saves the agent's parameters saves the whole agent
                if isinstance(own := parameters.get(name), np.ndarray) and own.flags.writeable:
                    own[...] = moment
            parameters = {**parameters, **moments}
            update = parameters if isinstance(update, Mapping) else dataclasses.replace(update, parameters=parameters)
        return cast("AgentUpdate", update)

    def _open(self, num_rows: int) -> Any:
        """Return the stream of rounds."""
        parts, num_steps = self._parts, self._parts.steps_per_row * num_rows
        own: Any = {"observation_moments": True, "return_spaces": True} if self._normalizes else {}
        return parts.stream(
            fragment_length=parts.steps_per_row,
            total_num_steps=num_steps * parts.num_iterations,
            max_policy_lag=parts.max_policy_lag,
            max_steps_per_version=num_steps * (1 + parts.max_policy_lag),
            **{**parts.options, **own},
        )

    def _note_version(self, version: int) -> None:
        """Record what a version normalizes by."""
        self._sent[version] = RunningMoments.from_state(self.observation_moments.state())
        self._is_learned = False

    def _taken(self, batch: EpisodeBatch) -> EpisodeBatch:
        """Return a round's batch as the trainer learns from it."""
        sampled = batch.round
        assert sampled is not None  # noqa: S101  # the stream has set it
        version = sampled.policy_version
        for old in [each for each in self._sent if each < version]:
            del self._sent[old]
        if version not in self._sent:
            text = mismatch("one that these iterations have sent", version)
            raise PreconditionError(f"policy_version: {text}", code="FAILED_PRECONDITION", field="policy_version")
        self._is_learned = True
        self._num_done += 1
        self.num_steps += batch.num_steps
        returns = batch.episode_returns[batch.terminated | batch.truncated]
        self.num_episodes += len(returns)
        self._returns.extend(returns.tolist())
        changed: dict[str, Any] = {}
        if self._normalizes:
            normalized = self._sent[version].normalized
            for name in ("observations", "last_observations"):
                column = getattr(batch, name)
                changed[name] = normalized(column, observation_space=batch.observation_space, **self._formula)
            if sampled.observation_moments is not None:
                self.observation_moments.merge(sampled.observation_moments)
        if sampled.return_moments is not None:
            self.return_moments.merge(sampled.return_moments)
            rewards = batch.scaled_rewards(self.return_moments)
            changed |= {"rewards": rewards.astype(np.float32), "raw_rewards": original(batch, "rewards")}
        return dataclasses.replace(batch, **changed) if changed else batch
