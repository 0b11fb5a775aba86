"""Values of observations, by an agent whose rows do not depend on each other."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.agents import VALUE
from rollserve_server.errors import AgentFailedError
from rollserve_server.sampling.collect.acting import act
from rollserve_server.sampling.collect.inputs import mask_input

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from rollserve_server.agents import Agent, PolicyAgents

__all__ = ["Evaluator", "evaluators_of"]


class Evaluator:
    """Evaluates observations: what an agent's info `value` would be if it acted on them, whatever its noise is.

    Attributes:
        mask_infos: names of the environment's infos that have the action mask, one for each leaf with a mask; empty if
            there is none, or if it is part of the observations.
    """

    def __init__(self, agent: Agent, num_rows: int) -> None:
        """Evaluate with an agent that was built for `num_rows` rows that do not act together."""
        self._agent = agent
        self._num_rows = num_rows
        self._mask = mask_input(agent, num_rows)
        self.mask_infos: tuple[str, ...] = ()
        if agent.mask is not None and not agent.mask.sources:
            self.mask_infos = tuple("/".join(map(str, (*agent.mask.info, *leaf.path))) for leaf in agent.mask.leaves)
        (self._dtype,) = (info.dtype for info in agent.infos if info.name == VALUE.name)
        self._noise = np.zeros((num_rows, agent.noise_width))
        if agent.factors is not None:
            self._noise[:, 0] = agent.factors[0]

    def __call__(
        self,
        observations: Sequence[np.ndarray],
        states: Sequence[np.ndarray],
        episode_indices: Sequence[int],
        masks: Sequence[tuple[np.ndarray, NDArray[np.bool_]] | None] = (),
    ) -> np.ndarray:
        """Return the values (S,) of observations.

        Args:
            observations: for each leaf of the observation space (S, *O).
            states: for each of the agent's recurrent states (S, *H), the state before it would act.
            episode_indices: index of the episode that each observation belongs to.
            masks: for each of `mask_infos`, the infos that came with the observations (S, *I), and which are there
                (S,); None if none is. Where there is none, or an empty one, as at the end of an episode, all values are
                legal.

        Raises:
            AgentFailedError: the agent raised an error, or its output for an observation is invalid. The error names
                the episode.
        """
        num_values = len(episode_indices)
        values = np.empty(num_values, self._dtype)
        for start in range(0, num_values, self._num_rows):
            count = min(self._num_rows, num_values - start)
            rows = start + np.minimum(np.arange(self._num_rows), count - 1)  # the last one is repeated

            def located(error: AgentFailedError, first: int = start) -> AgentFailedError:
                index = episode_indices[first + error.row]
                return AgentFailedError(f"the value after a segment of episode {index}: {error.message}", 0, index)

            columns = [column[rows] for column in observations]
            if self._mask is not None:
                if masks:
                    self._mask.read_recorded([each and (each[0][rows], each[1][rows]) for each in masks])
                columns.append(self._mask.column(columns))
            _, infos = act(
                self._agent,
                None,
                columns,
                self._noise,
                [column[rows] for column in states],
                functools.partial(range, count),
                located,
            )
            values[start : start + count] = infos[VALUE.name][:count]
        return values


def evaluators_of(agents: PolicyAgents) -> Callable[[str, int], Evaluator]:
    """Return a function that returns the evaluator of a policy's version, made once it is needed."""

    @functools.cache
    def evaluator_of(name: str, version: int) -> Evaluator:
        policy = agents.policies[agents.names.index((name, version))]
        return Evaluator(policy.agent, policy.num_places)

    return evaluator_of
