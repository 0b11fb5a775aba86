"""The probe of a Python agent, run in a sandbox as a module."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_server.agents.action_masks import shown_values
from rollserve_server.agents.agent import PREVIOUS_ACTION, PREVIOUS_REWARD, ActionMask, InfoSpec
from rollserve_server.agents.python.policy import PolicyCalls, PolicyResult, info_spec, make_policy, misfit
from rollserve_server.agents.sandbox import NUM_PROBE_ROWS, random_masks, random_rows
from rollserve_server.agents.sandbox_child import AgentRefusedError, answer, find_batching, perturbed
from rollserve_server.envs import Leaf, leaves_of_space
from rollserve_server.errors import AgentFailedError, DomainError, NotFoundError, listed, traceback_of
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gymnasium import Space

    from rollserve_server.agents.specs import Factory


def probe(
    factory: Factory,
    observation_space: Space[Any],
    action_space: Space[Any],
    parameters: Mapping[str, np.ndarray],
    mask: ActionMask | None,
) -> dict[str, Any]:
    """Make a policy, and call it with random observations, in several numbers and orders of rows.

    Returns:
        `noise_width`; `inputs`, the names that the policy asks for; `states` and `infos`, with name, dtype and shape of
        each; `batching`, as in `Batching`.

    Raises:
        AgentRefusedError: the agent is refused.
    """
    try:
        probed = _Probe(factory, observation_space, action_space, parameters, mask)
        calls, probes = probed.calls, [probed]
        with contextlib.suppress(DomainError):  # a policy may refuse perturbed parameters
            probes.append(_Probe(factory, observation_space, action_space, perturbed(parameters), mask))
        return {
            "noise_width": calls.noise_width,
            "inputs": calls.inputs,
            "states": [(state.name, state.initial.dtype.str, state.initial.shape) for state in calls.states],
            "infos": [(info.name, info.dtype.str, info.shape) for info in probed.find_infos()],
            "batching": find_batching([each.bits for each in probes], NUM_PROBE_ROWS),
        }
    except DomainError as error:
        details = {
            "field": error.field,
            "reason": Reason.AGENT_REFUSED if isinstance(error, AgentFailedError) else error.reason,
            "not_found": isinstance(error, NotFoundError),
            "trace": traceback_of(error.__cause__) if error.__cause__ else "",
        }
        raise AgentRefusedError(error.text, **details) from error


class _Probe:
    """A policy with observations, noise and states for 80 rows.

    Attributes:
        calls: calls of the policy.
    """

    def __init__(
        self,
        factory: Factory,
        observation_space: Space[Any],
        action_space: Space[Any],
        parameters: Mapping[str, np.ndarray],
        mask: ActionMask | None,
    ) -> None:
        policy = make_policy(factory, observation_space, action_space, parameters)
        self.calls = calls = PolicyCalls(policy, observation_space, action_space, mask)
        generator = np.random.default_rng(0)
        leaves = leaves_of_space(observation_space)
        self._observations = [random_rows(leaf, generator) for leaf in leaves]
        self._mask_names = frozenset(info.name for info in mask.infos) if mask is not None else frozenset()
        if mask is not None:
            legal = random_masks(mask, generator)
            for source, leaf_mask in zip(mask.sources, mask.leaves, strict=False):
                shown, leaf = shown_values(leaf_mask, legal), leaves[source]
                self._observations[source] = shown.astype(leaf.dtype).reshape(-1, *leaf.shape)
            self._observations.append(legal)
        self._noise = generator.standard_normal((NUM_PROBE_ROWS, calls.noise_width))
        self._states = [np.repeat(state.initial[np.newaxis], NUM_PROBE_ROWS, axis=0) for state in calls.states]
        # Half of the rows go on from the states after one step.
        following = self._act(np.arange(NUM_PROBE_ROWS)).states
        previous = _random_previous(calls, leaves_of_space(action_space), generator)
        for column, values in zip(self._states, (*following, *previous), strict=True):
            column[1::2] = values[1::2]

    def find_infos(self) -> list[InfoSpec]:
        """Return the infos of the policy."""
        found = []
        for num_rows in (2, 3):
            infos = self._act(np.arange(num_rows)).infos
            found.append([info_spec(name, column) for name, column in infos.items()])
            if not self._mask_names.isdisjoint(infos):
                expected = f"names other than {listed(sorted(self._mask_names))}, which the mask has"
                raise misfit("infos", expected=expected, got=listed(infos))
        if found[0] != found[1]:
            raise AgentFailedError("dtypes or shapes of infos depend on the number of rows")
        return found[0]

    def bits(self, chosen: np.ndarray) -> Sequence[bytes]:
        """Return the bits of each chosen row's results."""
        result = self._act(chosen)
        columns = (*result.actions, *result.infos.values(), *result.states)
        return [b"".join(column[row].tobytes() for column in columns) for row in range(len(chosen))]

    def _act(self, chosen: np.ndarray) -> PolicyResult:
        observations = [column[chosen] for column in self._observations]
        return self.calls.act(observations, self._noise[chosen], [column[chosen] for column in self._states])


def _random_previous(
    calls: PolicyCalls, action_leaves: Sequence[Leaf], generator: np.random.Generator
) -> list[np.ndarray]:
    """Return random values of the states for the action and the reward before."""
    columns = [random_rows(leaf, generator) for leaf in action_leaves] if PREVIOUS_ACTION in calls.inputs else []
    return [*columns, *([generator.standard_normal(NUM_PROBE_ROWS)] if PREVIOUS_REWARD in calls.inputs else [])]


if __name__ == "__main__":
    answer(probe)
