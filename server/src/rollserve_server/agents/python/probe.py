"""Tries an agent in Python in a process of its own; see `sandbox.py`."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve import Reason
from rollserve_server.agents.python.calls import PolicyCalls, described_info
from rollserve_server.agents.python.loading import make_policy
from rollserve_server.agents.sandbox.child import RefusedError, answer, changed, find_batching
from rollserve_server.agents.sandbox.run import NUM_PROBE_ROWS, random_values
from rollserve_server.envs import leaves_of_space
from rollserve_server.errors import AgentFailedError, DomainError, NotFoundError, traceback_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gymnasium import Space

    from rollserve_server.agents.agent import InfoSpec
    from rollserve_server.agents.python.calls import PolicyResult
    from rollserve_server.agents.python.specs import Factory


def probe(
    factory: Factory, observation_space: Space[Any], action_space: Space[Any], parameters: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """Makes the agent, and has it act on random observations, in several numbers and orders.

    Returns:
        `noise_width`; `states` and `infos`, of each the name, type and shape; and `batching`, as of Batching.

    Raises:
        RefusedError: it is of no use.
    """
    try:
        tried = _Probe(factory, observation_space, action_space, parameters)
        calls, probes = tried.calls, [tried]
        with contextlib.suppress(DomainError):  # it need not take any numbers
            probes.append(_Probe(factory, observation_space, action_space, changed(parameters)))
        return {
            "noise_width": calls.noise_width,
            "states": [(state.name, state.initial.dtype.str, state.initial.shape) for state in calls.states],
            "infos": [(info.name, info.dtype.str, info.shape) for info in tried.find_infos()],
            "batching": find_batching(lambda rows: _bits(probes, rows), NUM_PROBE_ROWS),
        }
    except DomainError as error:
        details = {
            "field": error.field,
            "reason": Reason.AGENT_REFUSED if isinstance(error, AgentFailedError) else error.reason,
            "not_found": isinstance(error, NotFoundError),
            "trace": traceback_of(error.__cause__) if error.__cause__ else "",
        }
        raise RefusedError(error.text, **details) from error


class _Probe:
    """Has an agent act in rows out of many.

    Attributes:
        calls: of the agent.
    """

    def __init__(
        self,
        factory: Factory,
        observation_space: Space[Any],
        action_space: Space[Any],
        parameters: Mapping[str, np.ndarray],
    ) -> None:
        policy = make_policy(factory, observation_space, action_space, parameters)
        self.calls = calls = PolicyCalls(policy, observation_space, action_space)
        generator = np.random.default_rng(0)
        self._observations = [random_values(leaf, generator) for leaf in leaves_of_space(observation_space)]
        self._noise = generator.standard_normal((NUM_PROBE_ROWS, calls.noise_width))
        self._states = [np.repeat(state.initial[np.newaxis], NUM_PROBE_ROWS, axis=0) for state in calls.states]
        # Every other row has made a step.
        for column, following in zip(self._states, self._act(np.arange(NUM_PROBE_ROWS)).states, strict=True):
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

    def bits(self, chosen: np.ndarray) -> Sequence[bytes]:
        """The bits of each chosen row's results."""
        result = self._act(chosen)
        columns = (*result.actions, *result.infos.values(), *result.states)
        return [b"".join(column[row].tobytes() for column in columns) for row in range(len(chosen))]

    def _act(self, chosen: np.ndarray) -> PolicyResult:
        observations = [column[chosen] for column in self._observations]
        return self.calls.act(observations, self._noise[chosen], [column[chosen] for column in self._states])


def _bits(probes: Sequence[_Probe], chosen: np.ndarray) -> Sequence[bytes]:
    """The bits of each chosen row's results with all parameters that are tried, of which the first have to work."""
    first, *others = probes
    results = [first.bits(chosen)]
    for tried in others:
        with contextlib.suppress(AgentFailedError):
            results.append(tried.bits(chosen))
    return [b"".join(row) for row in zip(*results, strict=True)]


if __name__ == "__main__":
    answer(probe)
