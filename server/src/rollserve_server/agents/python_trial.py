"""Tries an agent in Python in a process of its own; see `trial.py`."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_server.agents.python_calls import PolicyCalls, described_info
from rollserve_server.agents.python_loading import AGENT_REFUSED, make_policy
from rollserve_server.agents.trial import RefusedError, answer, find_batching
from rollserve_server.agents.trying import NUM_TRIED_ROWS, random_values
from rollserve_server.envs import leaves_of_space
from rollserve_server.errors import AgentFailedError, DomainError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gymnasium import Space

    from rollserve_server.agents.agent import InfoSpec
    from rollserve_server.agents.python_calls import PolicyResult
    from rollserve_server.agents.python_specs import Factory


def try_out(
    factory: Factory, observation_space: Space[Any], action_space: Space[Any], parameters: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """Makes the agent, and has it act on random observations, in several numbers and orders.

    Returns:
        `noise_width`; `states` and `infos`, of each the name, type and shape; and `batching`, as of Batching.

    Raises:
        RefusedError: it is of no use.
    """
    try:
        policy = make_policy(factory, observation_space, action_space, parameters)
        calls = PolicyCalls(policy, observation_space, action_space)
        trial = _Trial(calls, observation_space)
        return {
            "noise_width": calls.noise_width,
            "states": [(state.name, state.initial.dtype.str, state.initial.shape) for state in calls.states],
            "infos": [(info.name, info.dtype.str, info.shape) for info in trial.find_infos()],
            "batching": trial.find_batching(),
        }
    except DomainError as error:
        details = {
            "field": error.field,
            "reason": AGENT_REFUSED if isinstance(error, AgentFailedError) else error.reason,
            "not_found": isinstance(error, NotFoundError),
            "trace": _trace(error.__cause__),
        }
        raise RefusedError(error.text, **details) from error


class _Trial:
    """Has an agent act in rows out of many."""

    def __init__(self, calls: PolicyCalls, observation_space: Space[Any]) -> None:
        self._calls = calls
        generator = np.random.default_rng(0)
        self._observations = [random_values(leaf, generator) for leaf in leaves_of_space(observation_space)]
        self._noise = generator.standard_normal((NUM_TRIED_ROWS, calls.noise_width))
        self._states = [np.repeat(state.initial[np.newaxis], NUM_TRIED_ROWS, axis=0) for state in calls.states]
        # Every other row has made a step.
        for column, following in zip(self._states, self._act(np.arange(NUM_TRIED_ROWS)).states, strict=True):
            column[1::2] = following[1::2]

    def find_infos(self) -> list[InfoSpec]:
        """What it tells of each action."""
        found = []
        for num_rows in (2, 3):
            infos = self._act(np.arange(num_rows)).infos
            found.append([described_info(name, column) for name, column in infos.items()])
        if found[0] != found[1]:
            raise AgentFailedError("the types or shapes of its infos depend on the number of rows")
        return found[0]

    def find_batching(self) -> tuple[int, int]:
        """In which numbers of rows a row's bits depend on nothing else."""
        return find_batching(self._bits, NUM_TRIED_ROWS)

    def _bits(self, chosen: np.ndarray) -> Sequence[bytes]:
        """The bits of each chosen row's results."""
        result = self._act(chosen)
        columns = (*result.actions, *result.infos.values(), *result.states)
        return [b"".join(column[row].tobytes() for column in columns) for row in range(len(chosen))]

    def _act(self, chosen: np.ndarray) -> PolicyResult:
        observations = [column[chosen] for column in self._observations]
        return self._calls.act(observations, self._noise[chosen], [column[chosen] for column in self._states])


def _trace(error: BaseException | None) -> str:
    """Where the agent's code failed, for the server's log."""
    return "" if error is None else "".join(traceback.format_tb(error.__traceback__))


if __name__ == "__main__":
    answer(try_out)
