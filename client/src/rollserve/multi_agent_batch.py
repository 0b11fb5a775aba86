"""Episodes of environments with many agents: one EpisodeBatch for each policy, and views by agent and by step."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from rollserve.account import account_of_call
from rollserve.episode_batch import EpisodeBatch, with_spaces
from rollserve_wire.columns import MANY_COLUMNS, POLICY_COLUMNS, joined_rows, leaves_of, map_columns
from rollserve_wire.errors import InvalidArgumentError, mismatch
from rollserve_wire.representations import briefly

if TYPE_CHECKING:
    import typing_extensions

    from rollserve.account import Account
    from rollserve.rounds import Round
    from rollserve_wire.columns import Column
    from rollserve_wire.spaces import Space

__all__ = ["AgentSteps", "AnyBatch", "Batch", "MultiAgentBatch", "PolicyBatch", "check_agents", "checked_batch"]


@briefly
@dataclass(frozen=True, eq=False)
class PolicyBatch:
    """The segments of N lives of agents, with T steps, in which a policy acted.

    Attributes:
        policy: name of the policy.
        batch: the segments, by episode and agent. `policy_versions` has the versions of this policy.
        agent_positions: (N,) int64, agent of each segment: its position among the environment's agents.
        env_steps: (T,) int64, environment step of the episode in which each step was made, from 0. Of fragments, the
            step may be one of an earlier fragment, where what followed was not known.
        rewards_before: (N,), sum of the rewards that the agent got in its life before its first action; 0 for segments
            that begin within a life. `episode_returns` of the batch have it, and `returns` have not.
    """

    policy: str
    batch: EpisodeBatch
    agent_positions: np.ndarray
    env_steps: np.ndarray
    rewards_before: np.ndarray

    def __post_init__(self) -> None:
        for name, spec in POLICY_COLUMNS.items():
            length = self.batch.num_steps if spec.by_step else len(self.batch)
            if len(getattr(self, name)) != length:
                raise ValueError(f"{name}: {mismatch(f'{length} elements', len(getattr(self, name)))}")

    def take(self, segments: np.ndarray) -> PolicyBatch:
        """Return the segments at these positions, in this order, in new arrays."""
        rows = {True: self.batch.steps_of(segments), False: segments}
        columns = {name: getattr(self, name)[rows[spec.by_step]] for name, spec in POLICY_COLUMNS.items()}
        return PolicyBatch(self.policy, self.batch.take(segments), **columns)

    @classmethod
    def concatenate(cls, parts: Sequence[PolicyBatch]) -> PolicyBatch:
        """Return the segments of all parts, which are of one policy, in their order."""
        columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in POLICY_COLUMNS}
        return cls(parts[0].policy, EpisodeBatch.concatenate(*(part.batch for part in parts)), **columns)

    @property
    def is_joined(self) -> bool:
        """Whether the segments are ordered by episode, and all begin with the first step of their life."""
        return not self.batch.first_steps.any() and bool((np.diff(self.batch.episode_indices) >= 0).all())

    def joined(self) -> PolicyBatch:
        """Return the segments by episode, agent and time, where parts of one life are one segment."""
        indices = self.batch.episode_indices
        ordered = self.take(np.lexsort((np.arange(len(indices)), self.agent_positions, indices)))
        # Segments of two agents are never one, whatever steps they have.
        agents = np.stack([ordered.batch.episode_indices, ordered.agent_positions])
        known, numbers = np.unique(agents, axis=1, return_inverse=True)
        batch = dataclasses.replace(ordered.batch, episode_indices=numbers.reshape(-1).astype(np.int64)).joined()
        batch = dataclasses.replace(batch, episode_indices=known[0][batch.episode_indices])
        first = np.searchsorted(np.cumsum(ordered.batch.lengths), np.cumsum(batch.lengths) - batch.lengths, "right")
        return dataclasses.replace(
            ordered,
            batch=batch,
            agent_positions=ordered.agent_positions[first],
            rewards_before=ordered.rewards_before[first],
        )


@briefly
@dataclass(frozen=True, eq=False)
class AgentSteps:
    """An agent's part in the environment steps of a batch, with zeros where it did not act.

    Attributes:
        acted: (T,) bool, whether the agent acted in the step.
        observations: (T, *O), its observation before the step.
        actions: (T, *A), its action.
        rewards: (T,), reward of its action: the sum of what it got until it acted again.
        terminated: (T,) bool, whether its life was terminated after the action.
        truncated: (T,) bool, whether its life was truncated after the action.
        policy_versions: (T,) int64, version of the policy that acted.
    """

    acted: np.ndarray
    observations: Column
    actions: Column
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    policy_versions: np.ndarray


@dataclass(frozen=True, eq=False)
class MultiAgentBatch:
    """Parts of E episodes of an environment with many agents, or fragments of them, with T environment steps in all.

    An episode has one segment for each life of each agent: from its first observation to its end. All segments in which
    a policy acted are one EpisodeBatch; its headers `terminated`, `truncated`, `first_steps` and `lengths` describe the
    agent's life and count its own steps.

    >>> batch = rollserve.MultiAgentBatch.of(sampler.obtain_samples(10_000))  # doctest: +SKIP
    >>> batch.by_policy()["main"].returns.mean()  # doctest: +SKIP

    Attributes:
        agents: names of the environment's possible agents.
        episode_indices: (E,) int64, index of each episode; rising, except for fragments.
        first_steps: (E,) int64, number of environment steps of the episode before this part.
        lengths: (E,) int64, number of environment steps.
        terminated: (E,) bool, whether the episode ended with its last step here, and an agent was terminated then.
        truncated: (E,) bool, whether the episode ended with its last step here, and an agent was truncated then.
        agent_step_counts: (E,) int64, number of steps of all agents, also of those whose policies are not delivered.
        policies: the policies that acted. The batches of a stream have one for each version of a policy.
        global_states: (T, *S), the environment's global state before each environment step; None unless
            `EnvSpec.global_state` asks for it. It has the same rows as `joint()`.
        last_global_states: (E, *S), the global state after the last step of each part; None alike.
        account_or_none: account of the call whose whole result the batch is, in environment steps; otherwise None.
        round: round of `Sampler.stream` that the batch is; otherwise None.
    """

    agents: tuple[str, ...]
    episode_indices: np.ndarray
    first_steps: np.ndarray
    lengths: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    agent_step_counts: np.ndarray
    policies: tuple[PolicyBatch, ...]
    global_states: Column = None
    last_global_states: Column = None
    account_or_none: Account | None = None
    round: Round | Any = None

    def __post_init__(self) -> None:
        for name, spec in MANY_COLUMNS.items():
            column, length = getattr(self, name), self.num_steps if spec.by_step else len(self)
            if column is not None and len(column) != length:
                raise ValueError(f"{name}: {mismatch(f'{length} elements', len(column))}")
        if (self.global_states is None) != (self.last_global_states is None):
            raise ValueError(f"last_global_states: {mismatch('states beside global_states', 'none of one of both')}")

    def __len__(self) -> int:
        """Return E, the number of parts of episodes."""
        return len(self.episode_indices)

    def __repr__(self) -> str:
        policies = ", ".join(dict.fromkeys(part.policy for part in self.policies))
        return f"<MultiAgentBatch: {len(self)} episodes, {self.num_steps} environment steps, policies {policies}>"

    if not TYPE_CHECKING:  # type checkers know the attributes

        def __getattr__(self, name: str) -> NoReturn:
            """Raise AttributeError, which says where to find what EpisodeBatch has."""
            known = hasattr(EpisodeBatch, name) or name in EpisodeBatch.__dataclass_fields__
            hint = ": the batches of `by_policy()` and `by_agent()` have it" if known else ""
            raise AttributeError(f"'MultiAgentBatch' object has no attribute {name!r}{hint}", name=name, obj=self)

    def with_spaces(self, spaces: tuple[Space, Space]) -> MultiAgentBatch:
        """Return the batch with the spaces of its policies' agents, given the Dict spaces of all agents."""
        observations, actions = (getattr(space, "spaces", {}) for space in spaces)
        policies = []
        for part in self.policies:
            agent = self.agents[int(part.agent_positions[0])]
            described = with_spaces(part.batch, (observations[agent], actions[agent]))
            policies.append(dataclasses.replace(part, batch=described))
        return dataclasses.replace(self, policies=tuple(policies))

    @property
    def account(self) -> Account:
        """Account of the call whose whole result the batch is, in environment steps.

        Raises:
            ValueError: the batch is no whole result of a call, but a part of one, or from a file; `account_or_none` is
                None then.
        """
        return account_of_call(self.account_or_none)

    @property
    def num_steps(self) -> int:
        """T, the number of environment steps."""
        return int(self.lengths.sum())

    @property
    def num_agent_steps(self) -> int:
        """Number of steps of all agents, also of those whose policies are not delivered."""
        return int(self.agent_step_counts.sum())

    def by_policy(self) -> dict[str, EpisodeBatch]:
        """Return the segments in which each policy acted, by episode, agent and time."""
        return {part.policy: part.batch for part in self.joined().policies}

    def by_agent(self) -> dict[str, EpisodeBatch]:
        """Return the segments of each agent, by episode and time, whatever policies acted.

        Infos that only some of the policies have are gaps of the others.

        Raises:
            ValueError: policies whose infos of one name differ in shape.
        """
        segments: dict[str, list[EpisodeBatch]] = {}
        for part in self.joined().policies:
            for position, agent in enumerate(self.agents):
                of_agent = np.flatnonzero(part.agent_positions == position)
                if len(of_agent):
                    segments.setdefault(agent, []).append(part.batch.take(of_agent))
        batches = {}
        for agent in self.agents:
            if agent in segments:
                batch = EpisodeBatch.concatenate(*segments[agent])
                batches[agent] = batch.take(np.argsort(batch.episode_indices, kind="stable"))
        return batches

    def joint(self) -> dict[str, AgentSteps]:
        """Return the steps of each agent that acted, aligned to the environment steps of all episodes, (T, …).

        Rows of `global_states` are aligned alike.

        The environment steps of the episodes follow each other as in `lengths`. Where an agent did not act, `acted` is
        False and the other columns are zeros. Agents whose policies have spaces of their own have columns of their own.
        Of fragments, a step whose environment step an earlier batch has is left out; `concatenate` has both.
        """
        steps: dict[str, AgentSteps] = {}
        for part in self.policies:
            rows = self._rows_of(np.repeat(part.batch.episode_indices, part.batch.lengths), part.env_steps)
            ends = np.cumsum(part.batch.lengths) - 1
            owners = np.repeat(part.agent_positions, part.batch.lengths)
            for position in np.unique(part.agent_positions).tolist():
                of_agent = np.flatnonzero((owners == position) & (rows >= 0))
                segments = np.flatnonzero((part.agent_positions == position) & (rows[ends] >= 0))
                agent = self.agents[position]
                if agent not in steps:
                    steps[agent] = _no_steps(part.batch, self.num_steps)
                _put(steps[agent], part.batch, rows[of_agent], of_agent)
                last = rows[ends[segments]]
                steps[agent].terminated[last] = part.batch.terminated[segments]
                steps[agent].truncated[last] = part.batch.truncated[segments]
        return {agent: steps[agent] for agent in self.agents if agent in steps}

    @classmethod
    def concatenate(cls, *batches: MultiAgentBatch) -> MultiAgentBatch:
        """Return the parts of all batches of one environment, in their order; `joined` makes whole episodes of them.

        Raises:
            ValueError: no batches, of other agents, or columns that do not match.
        """
        if not batches:
            raise ValueError(f"batches: {mismatch('at least one', 'none')}")
        for batch in batches:
            if batch.agents != batches[0].agents:
                raise ValueError(f"agents: {mismatch(batches[0].agents, batch.agents)}")
        columns: dict[str, Any] = {}
        for name in MANY_COLUMNS:
            parts = [column for batch in batches if (column := getattr(batch, name)) is not None]
            if parts and len(parts) < len(batches):
                raise ValueError(f"{name}: {mismatch('states in all batches or in none', 'some without')}")
            columns[name] = np.concatenate(parts) if parts else None
        policies = tuple(part for batch in batches for part in batch.policies)
        return cls(batches[0].agents, **columns, policies=policies)

    def joined(self) -> MultiAgentBatch:
        """Return the batch with one part for each episode, and one batch for each policy."""
        parts: dict[str, list[PolicyBatch]] = {}
        for part in self.policies:
            parts.setdefault(part.policy, []).append(part)
        if all(len(each) == 1 and each[0].is_joined for each in parts.values()) and not self._continues.any():
            return self
        begins = np.flatnonzero(np.append(True, ~self._continues))
        ends = np.append(begins[1:], len(self)) - 1
        joined: dict[str, Any] = {
            name: joined_rows(spec, getattr(self, name), begins, ends) for name, spec in MANY_COLUMNS.items()
        }
        policies = tuple(PolicyBatch.concatenate(parts[policy]).joined() for policy in sorted(parts))
        return dataclasses.replace(self, **joined, policies=policies)

    def without_first_steps(self, num_steps: int) -> MultiAgentBatch:
        """Return the batch without the first environment steps of its first episode, as many as it has at most.

        `agent_step_counts` loses the agents' steps among them that are here.

        Raises:
            ValueError: a negative number, or more steps than the first episode has here.
        """
        if not 0 <= num_steps <= self.lengths[0]:
            raise ValueError(f"num_steps: {mismatch(f'a number from 0 to {self.lengths[0]}', num_steps)}")
        stop = int(self.first_steps[0]) + num_steps
        policies, num_dropped_steps = [], 0
        for part in self.policies:
            kept = []
            for position, segment in enumerate(part.batch.split()):
                steps = part.env_steps[part.batch.steps_of(np.array([position]))]
                is_first = segment.episode_indices[0] == self.episode_indices[0]
                num_dropped = int(np.count_nonzero(steps < stop)) if is_first else 0
                num_dropped_steps += num_dropped
                if num_dropped < len(steps):
                    rest = segment.without_first_steps(num_dropped)
                    before = 0.0 if num_dropped else part.rewards_before[position]
                    kept.append((rest, part.agent_positions[position], steps[num_dropped:], before))
            if kept:
                batches, agents, env_steps, rewards = zip(*kept, strict=True)
                whole = EpisodeBatch.concatenate(*batches), np.array(agents), np.concatenate(env_steps)
                policies.append(PolicyBatch(part.policy, *whole, np.array(rewards)))
        first = int(num_steps == self.lengths[0])
        columns: dict[str, Any] = {}
        for name, spec in MANY_COLUMNS.items():
            column = getattr(self, name)
            if column is not None:
                columns[name] = column[num_steps:] if spec.by_step else column[first:].copy()
        if not first:
            columns["first_steps"][0] += num_steps
            columns["lengths"][0] -= num_steps
            columns["agent_step_counts"][0] -= num_dropped_steps
        return dataclasses.replace(self, **columns, policies=tuple(policies))

    def _rows_of(self, episode_indices: np.ndarray, env_steps: np.ndarray) -> np.ndarray:
        """Return where environment steps of episodes are among all of the batch, -1 for steps that it does not have."""
        order = np.lexsort((self.first_steps, self.episode_indices))
        known = np.unique(self.episode_indices)
        width = 1 + int(max((self.first_steps + self.lengths).max(initial=0), env_steps.max(initial=0)))
        begins = np.searchsorted(known, self.episode_indices[order]) * width + self.first_steps[order]
        wanted = np.searchsorted(known, episode_indices) * width + env_steps
        found = np.maximum(np.searchsorted(begins, wanted, "right") - 1, 0)
        part = order[found]
        offsets = wanted - begins[found]
        rows: np.ndarray = (np.cumsum(self.lengths) - self.lengths)[part] + offsets
        rows[(offsets < 0) | (offsets >= self.lengths[part])] = -1
        return rows

    @property
    def _continues(self) -> np.ndarray:
        """Whether each part but the first goes on where the part before it stops, (E - 1,)."""
        same = self.episode_indices[1:] == self.episode_indices[:-1]
        continues: np.ndarray = same & (self.first_steps[1:] == (self.first_steps + self.lengths)[:-1])
        return continues


AnyBatch = EpisodeBatch | MultiAgentBatch
"""Batch of an environment with one agent, or with many."""

if TYPE_CHECKING:
    # `typing.TypeVar` has defaults since Python 3.13, and the package that has them before is no requirement.
    Batch = typing_extensions.TypeVar("Batch", bound=AnyBatch, default=EpisodeBatch)
else:
    Batch = typing.TypeVar("Batch")
"""Kind of batch that a sampler's calls return."""


def checked_batch(batch: AnyBatch, kind: type[Batch]) -> Batch:
    """Return a batch of the kind that a sampler's calls return.

    Raises:
        InvalidArgumentError: a MultiAgentBatch where the sampler's calls return an EpisodeBatch, or the reverse.
    """
    if isinstance(batch, kind):
        return batch
    check_agents(batch.agents if isinstance(batch, MultiAgentBatch) else (), kind)
    raise TypeError(kind)  # of no kind that there is


def check_agents(agents: Sequence[str], kind: type[Any]) -> None:
    """Raise InvalidArgumentError unless a sampler's calls return batches of an environment's kind.

    Args:
        agents: names of the environment's agents; none if it has one.
        kind: kind of batch that the sampler's calls return.
    """
    if agents and kind is EpisodeBatch:
        got, hint = f"agents {', '.join(agents)}", "call the methods of sampler.multi_agent"
        raise InvalidArgumentError.of("environment", expected="one with one agent", got=got, hint=hint)
    if not agents and kind is MultiAgentBatch:
        expected, hint = "one with many agents", "call the methods of the sampler itself"
        raise InvalidArgumentError.of("environment", expected=expected, got="one with one agent", hint=hint)


def _no_steps(batch: EpisodeBatch, num_steps: int) -> AgentSteps:
    """Return columns of zeros for an agent of a policy."""

    def zeros(column: np.ndarray) -> np.ndarray:
        return np.zeros((num_steps, *column.shape[1:]), column.dtype)

    return AgentSteps(
        np.zeros(num_steps, np.bool_),
        map_columns(zeros, batch.observations),
        map_columns(zeros, batch.actions),
        zeros(batch.rewards),
        np.zeros(num_steps, np.bool_),
        np.zeros(num_steps, np.bool_),
        np.zeros(num_steps, np.int64),
    )


def _put(steps: AgentSteps, batch: EpisodeBatch, rows: np.ndarray, of_batch: np.ndarray) -> None:
    """Write some steps of a batch to rows of an agent's columns."""
    steps.acted[rows] = True
    for column, values in ((steps.observations, batch.observations), (steps.actions, batch.actions)):
        sources = leaves_of(values)
        for name, array in leaves_of(column).items():
            array[rows] = sources[name][of_batch]
    steps.rewards[rows] = batch.rewards[of_batch]
    steps.policy_versions[rows] = np.repeat(batch.policy_versions, batch.lengths)[of_batch]
