"""The part that the loops share that record fragments of rows with one agent each."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from typing_extensions import override

from rollserve_server.agents import PolicyAgents
from rollserve_server.sampling.collect.inputs import mask_input
from rollserve_server.sampling.collect.recurrent_states import RecurrentStates
from rollserve_server.sampling.fragments.collector import FragmentCollector
from rollserve_server.sampling.fragments.running_returns import RunningReturns

if TYPE_CHECKING:
    from rollserve_server.agents import Agent, NoiseKind
    from rollserve_server.envs import RowEnvs, VectorEnvs
    from rollserve_server.sampling.collect.inputs import MaskInput
    from rollserve_server.sampling.collect.noise import BlockNoise, RowNoise
    from rollserve_server.sampling.protocol.fragments import RowSequenceSpec, RowState

__all__ = ["AgentFragmentCollector"]


class AgentFragmentCollector(FragmentCollector):
    """Records fragments of rows with one agent each."""

    _envs: RowEnvs | VectorEnvs
    _noise: RowNoise | BlockNoise

    def __init__(
        self,
        sequence: RowSequenceSpec,
        envs: RowEnvs | VectorEnvs,
        states: Sequence[RowState],
        num_retries: int,
        memory_bytes: int,
    ) -> None:
        """Begin with rows that have to be restored; see `FragmentCollector`."""
        super().__init__(sequence, envs, envs.action_leaves, states, num_retries, memory_bytes)
        self._running_returns = RunningReturns(len(states), sequence.return_discount)
        self._envs = envs
        self._agent: Agent
        self._noise_kind: NoiseKind | None = None
        self._recurrent_states = RecurrentStates(len(states), None)
        self._mask: MaskInput | None = None
        # For each row: the recurrent state to begin with; empty once there is an agent.
        self._initial_states = [state.recurrent_state for state in states]

    @override
    def set_agent(self, agent: Agent | PolicyAgents) -> None:
        assert not isinstance(agent, PolicyAgents)  # noqa: S101  # the pool has checked that they fit
        self._agent = agent
        previous = self._initial_states or self._recurrent_states.copies()
        self._recurrent_states = RecurrentStates(self.num_rows, agent, previous)
        self._initial_states = []
        self._mask = mask_input(agent, self.num_rows)
        if self._mask is not None:
            self._read_masks(self._mask)
        if agent.noise_kind is None or agent.noise_kind != self._noise_kind:
            self._begin_noise(agent)
        else:  # the rows' noise stays where it is: to begin it again takes 10 µs a row, or more in long episodes
            self._noise.agent = agent
        self._noise_kind = agent.noise_kind

    @abstractmethod
    def _begin_noise(self, agent: Agent) -> None:
        """Let each row's noise, as the agent draws it, begin before the row's next step."""

    @abstractmethod
    def _read_masks(self, mask: MaskInput) -> None:
        """Let a new agent's masks be those of the present observations."""
