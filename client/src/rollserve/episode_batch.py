"""Episodes as arrays: flat columns, lengths, and the observation after each last action."""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve._codec.column_checks import as_int64, check_batch, check_header
from rollserve._codec.initial_states import later_initial_states
from rollserve.account import account_of_call
from rollserve_wire.checks import check_type, type_error
from rollserve_wire.columns import (
    COLUMNS,
    HEADERS,
    INFOS,
    PER_SEGMENT,
    PER_STEP,
    SEGMENT_COLUMNS,
    Column,
    Columns,
    ColumnSpec,
    columns_of,
    concatenate_columns,
    concatenate_infos,
    joined_rows,
    leaves_of,
    map_columns,
    original,
)
from rollserve_wire.errors import mismatch
from rollserve_wire.receipts import Receipt

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from numpy.typing import ArrayLike

    from rollserve.account import Account
    from rollserve.learning import Advantages, PolicyEstimates, Transitions
    from rollserve.mlp_agent import ActionMask
    from rollserve.rounds import Round
    from rollserve_wire.moments import RunningMoments
    from rollserve_wire.spaces import Space

__all__ = ["EpisodeBatch", "StepType", "concatenated", "derived", "episode_of", "put_together", "with_spaces"]


_RECEIPT = "receipt"
"""Column of a saved batch that holds the receipt's JSON."""
_NOT_DERIVED = ("account_or_none", "round", "receipt")
"""Fields that are of a whole batch, and not of some of its rows."""


class StepType(enum.IntEnum):
    """Position of a step in its episode."""

    FIRST = 0
    """The first of several steps."""
    MID = 1
    """Neither the first step nor the last; or the last step of a fragment whose episode goes on."""
    TERMINAL = 2
    """The last step, which reached a terminal state."""
    TIMEOUT = 3
    """The last step because of a limit, in a state that is not terminal."""


@dataclass(frozen=True, eq=False)
class EpisodeBatch:
    """N segments (episodes or fragments of episodes) with T steps in all, as flat columns.

    The rows of a segment are contiguous, and segments follow each other in the order of the headers. Batches that a
    call returns can be written to; batches of a stream are read-only. Columns of Dict and Tuple spaces, infos and
    states are mappings from the name of a leaf to its array. An info or state with gaps has a mask: a bool column named
    like it with `_` in front, which is true in the rows that have a value.

    >>> batch = sampler.obtain_samples(10_000)  # doctest: +SKIP
    >>> print(batch)  # its columns, returns and lengths  # doctest: +SKIP
    >>> print(batch.returns.mean(), batch.observations.shape)  # doctest: +SKIP

    Attributes:
        observations: (T, *O), observation before each step.
        last_observations: (N, *O), observation after the last step of each segment, of the dtype of `observations`.
        actions: (T, *A), action of each step.
        rewards: (T,), reward of each step, floats.
        lengths: (N,) int64, number of steps of each segment, at least 1.
        terminated: (N,) bool, whether the last step reached a terminal state.
        truncated: (N,) bool, whether a limit ended the episode at the last step. Both flags may be set. Neither is set
            for a fragment whose episode goes on.
        agent_infos: (T, *I) each, infos of the agent, such as `log_prob`.
        env_infos: (T, *I) each, infos of the environment's steps.
        episode_infos: (N, *I) each, infos of the environment's resets.
        policy_versions: (N,) int64, version that acted; 0 if unknown.
        episode_indices: (N,) int64, index of the episode; by default the position in the batch.
        first_steps: (N,) int64, number of steps of the episode before the segment, including earlier calls; 0 by
            default.
        env_seeds: (N,) int64, seed that the environment was reset with; or None. Native rows have the seed of their
            block, with which the server makes the whole block again, but none of its episodes alone.
        worker_indices: (N,) int64, worker that the episode is bound to, in batches of `obtain_exact_episodes` and
            `obtain_fragments`, and in all batches after an update of agents or environments per worker or per row;
            otherwise None.
        row_indices: (N,) int64, row that each segment ran in, from 0, over the rows of all workers in the order of
            their indices, in batches of `obtain_fragments`; otherwise None.
        initial_states: (N, *H) each, recurrent states before the first step of each segment, by their names. Where an
            episode was cut, they are the states after the step before. With the option `return_states`, agent_infos
            `state/NAME` hold the states before every step.
        last_values: (N,), value of each last observation by the version that acted, 0 where the segment terminated, of
            the dtype of `agent_infos["value"]`; with the option `return_last_values`, otherwise None.
        last_states: (N, *H) each, recurrent states after the last step of each segment, by their names; with the option
            `return_last_states`, otherwise empty.
        returns_before: (N,) floats, sum of the raw rewards of the segment's episode before it, including earlier calls;
            by default 0 at an episode's start, and otherwise NaN, as servers deliver it that do not know it.
        discounted_returns_before: (N,) floats, discounted return R[t] = `return_discount` * R[t - 1] + reward[t] of the
            segment's episode after the step before it, including earlier calls; NaN if unknown. With the option
            `return_discount`, otherwise None.
        raw_rewards: (T,), reward of each step as the environment returned it, where transforms change rewards;
            otherwise None.
        env_actions: (T, *A), action of each step as the environment got it, where transforms change actions; otherwise
            None.
        observation_space, action_space: spaces of the environment's version, in batches of calls with the option
            `return_spaces`; otherwise None. Files and `to_list` do not hold them.
        account_or_none: account of the call whose whole result the batch is; otherwise None.
        round: round of `Sampler.stream`, or rounds of a session, that the batch is, with version and position;
            otherwise None.
        receipt: what verifies the batch, from `Sampler.with_receipt` or from a file; otherwise None. Files hold it.

    Headers of other integer types become int64.

    Raises:
        ValueError: a column that is not an array, or whose length or dtype does not fit; the message begins with its
            name.
    """

    observations: Column
    last_observations: Column
    actions: Column
    rewards: np.ndarray
    lengths: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    agent_infos: Mapping[str, np.ndarray] = field(default_factory=dict)
    env_infos: Mapping[str, np.ndarray] = field(default_factory=dict)
    episode_infos: Mapping[str, np.ndarray] = field(default_factory=dict)
    policy_versions: np.ndarray = None  # type: ignore[assignment]  # __post_init__ sets it
    episode_indices: np.ndarray = None  # type: ignore[assignment]
    first_steps: np.ndarray = None  # type: ignore[assignment]
    env_seeds: Column = None
    worker_indices: Column = None
    row_indices: Column = None
    initial_states: Mapping[str, np.ndarray] = field(default_factory=dict)
    last_values: Column = None
    last_states: Mapping[str, np.ndarray] = field(default_factory=dict)
    returns_before: np.ndarray = None  # type: ignore[assignment]  # __post_init__ sets it
    discounted_returns_before: Column = None
    raw_rewards: Column = None
    env_actions: Column = None
    observation_space: Space | Any = None
    action_space: Space | Any = None
    account_or_none: Account | None = None
    round: Round | Any = None
    receipt: Receipt | None = None

    def __post_init__(self) -> None:
        check_header("lengths", self.lengths, "iu", None)
        for name, spec in HEADERS.items():
            if getattr(self, name) is None and spec.default is not None:
                object.__setattr__(self, name, spec.default(self))
        check_batch(self)
        for name, spec in HEADERS.items():
            header = getattr(self, name)
            if header is not None and spec.dtypes == "iu":
                object.__setattr__(self, name, as_int64(name, header))

    def __len__(self) -> int:
        """Return N, the number of segments."""
        return len(self.lengths)

    def __repr__(self) -> str:
        from rollserve._codec.batch_tables import batch_line

        return batch_line(self)

    def __str__(self) -> str:
        from rollserve._codec.batch_tables import batch_table

        return batch_table(self)

    def _repr_html_(self) -> str:
        from rollserve._codec.batch_tables import batch_html

        return batch_html(self)

    @property
    def account(self) -> Account:
        """Account of the call whose whole result the batch is.

        Raises:
            ValueError: the batch is no whole result of a call, but a part of one, or from a file; `account_or_none` is
                None then.
        """
        return account_of_call(self.account_or_none)

    @property
    def num_steps(self) -> int:
        """T, the number of steps of all segments."""
        return len(self.rewards)

    @property
    def returns(self) -> np.ndarray:
        """Sum of the rewards of each segment, (N,), with the transforms of the environment."""
        return self._sums(self.rewards)

    @property
    def raw_returns(self) -> np.ndarray:
        """Sum of the environment's own rewards of each segment, (N,), without transforms."""
        return self._sums(original(self, "rewards"))

    @property
    def episode_returns(self) -> np.ndarray:
        """Sum of the raw rewards of each segment's episode up to the segment's last step, (N,); NaN if unknown.

        Where `terminated` or `truncated` is set, it is the return of the whole episode, also if fragments of it were
        delivered by earlier calls.
        """
        sums: np.ndarray = self.returns_before + self.raw_returns
        return sums

    @property
    def episode_lengths(self) -> np.ndarray:
        """Number of steps of each segment's episode up to the segment's last step, (N,) int64."""
        lengths: np.ndarray = self.first_steps + self.lengths
        return lengths

    @property
    def step_types(self) -> np.ndarray:
        """`StepType` of each step, (T,) uint8.

        A step that ends an episode is TERMINAL or TIMEOUT even if it is the episode's first, and TERMINAL if both flags
        are set.
        """
        types = np.full(self.num_steps, StepType.MID, np.uint8)
        ends = self._starts + self.lengths - 1
        types[self._starts[self.first_steps == 0]] = StepType.FIRST
        types[ends[self.truncated]] = StepType.TIMEOUT
        types[ends[self.terminated]] = StepType.TERMINAL
        return types

    @property
    def next_observations(self) -> Column:
        """Observation after each step, (T, *O), in new arrays."""
        ends = self._starts + self.lengths - 1
        last = leaves_of(self.last_observations)
        following = {}
        for name, observations in leaves_of(self.observations).items():
            following[name] = np.empty_like(observations)
            following[name][:-1] = observations[1:]
            following[name][ends] = last[name]
        return columns_of(following)

    @property
    def valids(self) -> np.ndarray:
        """Positions of a padded column that hold a step, (N, longest length) bool."""
        longest = self.lengths.max(initial=0)
        return np.arange(longest) < self.lengths[:, np.newaxis]

    def padded(self, name: str) -> Column:
        """Return a column of steps as (N, longest length, *shape), with zeros after the end of each segment.

        Args:
            name: `observations`, `next_observations`, `actions`, `rewards`, `step_types`, `agent_infos` or `env_infos`;
                `raw_rewards` or `env_actions`, if the batch has them.

        Raises:
            ValueError: a name that is not one of these.
        """
        delivered = (name for name in PER_STEP if getattr(self, name) is not None)
        known = [*delivered, "next_observations", "step_types"]
        if name not in known:
            raise ValueError(f"name: {mismatch('one of ' + ', '.join(known), repr(name))}")
        valids = self.valids

        def pad(array: np.ndarray) -> np.ndarray:
            padded = np.zeros((*valids.shape, *array.shape[1:]), array.dtype)
            padded[valids] = array
            return padded

        return map_columns(pad, getattr(self, name))

    def flat_observations(
        self,
        name: str = "observations",
        *,
        observation_space: Space | None = None,
        action_mask: ActionMask | None = None,
    ) -> np.ndarray:
        """Return observations as vectors, (T, S) float32: what the server gives a network, without normalization.

        Leaves follow each other as `gymnasium.spaces.flatten` orders them, integers of Discrete and MultiDiscrete
        leaves are one-hot, and the leaves that are the action mask are left out.

        >>> values = critic(torch.from_numpy(batch.flat_observations()))  # doctest: +SKIP
        >>> last_values = critic(torch.from_numpy(batch.flat_observations("last_observations")))  # doctest: +SKIP

        Args:
            name: `observations`, `next_observations`, or `last_observations`, which are (N, S).
            observation_space: space of the observations; by default the batch's own, with the option `return_spaces`.
                Only integers need it.
            action_mask: the agent's action mask, if one of the leaves is its source.

        Raises:
            ValueError: another name, integers without a space, texts, or leaves that differ from the space's.
        """
        from rollserve import learning

        known = "observations", "next_observations", "last_observations"
        if name not in known:
            raise ValueError(f"name: {mismatch('one of ' + ', '.join(known), repr(name))}")
        space = self.observation_space if observation_space is None else observation_space
        mask = None if action_mask is None else action_mask.observation
        return learning.flat_values(name, getattr(self, name), space, without=mask)

    def as_rows(self) -> dict[str, Column]:
        """Return the columns of R rows with T steps each, (T, R, …), in new arrays, as on-policy learners use them.

        The rows are in ascending order of `row_indices`. A row's episodes follow each other: `next_observations` are
        the true observations after each step, also where an episode ends, so that the value of a step's next state is
        their value unless `terminated` is set, and no advantage crosses a step with `terminated` or `truncated`.

        >>> rows = sampler.obtain_fragments(128 * num_rows).as_rows()  # doctest: +SKIP
        >>> rows["rewards"].shape  # doctest: +SKIP
        (128, 8)

        Returns:
            `observations` and `next_observations` (T, R, *O), `actions` (T, R, *A), `rewards`, `terminated` and
            `truncated` (T, R), `agent_infos` and `env_infos` (T, R, *I) each, `raw_rewards` and `env_actions` if the
            batch has them; and `initial_states` (R, *H) each, the recurrent states before each row's first step. If the
            batch has `last_values`, also `next_values` (T, R), the agent's value after each step, which is 0 where
            `terminated` is set.

        Raises:
            ValueError: a batch of another call than `obtain_fragments`, rows with different numbers of steps, or a row
                whose segments do not follow each other.
        """
        from rollserve._codec.row_layout import columns_by_row

        return columns_by_row(self)

    def advantages(
        self, gamma: float, lam: float, values: ArrayLike | None = None, last_values: ArrayLike | None = None
    ) -> Advantages:
        """Return generalized advantage estimates, and the sums of advantages and values as targets for the values.

        A[t] = delta[t] + gamma lam A[t + 1], with delta[t] = r[t] + gamma V(s[t + 1]) - V(s[t]) (Schulman et al. 2016).
        The value after a segment's last step is 0 if the segment terminated, also if it was truncated at the same
        step, and else its last value: where a limit ended the episode, and where a fragment's episode goes on. No
        advantage crosses the end of a segment; `joined` joins the messages of a stream first.

        All segments are computed side by side, step by step from their ends, and segments of more than 256 steps as
        blocks of 256, so that both many short segments and a single long one are fast. A segment's numbers depend on
        that segment alone, to the last bit.

        >>> batch = sampler.obtain_fragments(1024, return_last_values=True)  # doctest: +SKIP
        >>> advantages, value_targets = batch.advantages(0.99, 0.95)  # doctest: +SKIP

        Args:
            gamma: the discount, from 0 to 1.
            lam: lambda, from 0 to 1; 1 for returns minus values, 0 for errors of one step.
            values: (T,), value of each observation; by default `agent_infos["value"]`.
            last_values: (N,), value of each last observation; by default the batch's `last_values`, if `values` are its
                own, too. Not needed if all segments terminated; values of terminated segments are not used.

        Returns:
            (T,) each, of the widest float of rewards, values and last values.

        Raises:
            TypeError: an argument of the wrong type.
            ValueError: a number out of range, missing values, or values of another shape.
        """
        from rollserve import learning

        return learning.advantages(self, gamma, lam, values, last_values)

    def discounted_returns(self, gamma: float, last_values: ArrayLike | None = None) -> np.ndarray:
        """Return the discounted sum of its segment's rewards from each step on, (T,).

        G[t] = r[t] + gamma G[t + 1]. After the last step it is the last value, unless the segment terminated; without
        last values it is 0, so that only rewards of the batch count, as in `returns`.

        Args:
            gamma: the discount, from 0 to 1.
            last_values: (N,), value of each last observation; or None.

        Raises:
            TypeError: an argument of the wrong type.
            ValueError: a number out of range, or values of another shape.
        """
        from rollserve import learning

        return learning.discounted_returns(self, gamma, last_values)

    def scaled_rewards(
        self, return_moments: RunningMoments, *, epsilon: float = 1e-8, clip: float = 10.0
    ) -> np.ndarray:
        """Return rewards / √(variance + epsilon), clipped to ±clip, (T,): scaled by the spread of discounted returns.

        The rewards of the batch stay as they are. The result is what the VecNormalize of Stable-Baselines3 makes of
        them with the same variance.

        >>> rewards = batch.scaled_rewards(returns.moments)  # doctest: +SKIP

        Args:
            return_moments: moments of returns: of `rollserve.RunningReturns`, or merged from `account.return_moments`.
            epsilon: number that is added to the variance; positive.
            clip: bound of the result; positive, may be infinite.

        Raises:
            TypeError: an argument of the wrong type.
            ValueError: a number out of range, or moments of something else.
        """
        from rollserve import learning

        return learning.scaled_rewards(self, return_moments, epsilon, clip)

    def with_scaled_rewards(
        self, return_moments: RunningMoments, *, epsilon: float = 1e-8, clip: float = 10.0
    ) -> EpisodeBatch:
        """Return the batch with scaled rewards, and the environment's own in `raw_rewards`; see `scaled_rewards`.

        Advantages and targets of the result are of scaled rewards; `raw_returns` and `episode_returns` do not change.

        >>> advantages, targets = batch.with_scaled_rewards(returns.moments).advantages(0.99, 0.95)
        ... # doctest: +SKIP
        """
        scaled = self.scaled_rewards(return_moments, epsilon=epsilon, clip=clip)
        return dataclasses.replace(self, rewards=scaled, raw_rewards=original(self, "rewards"))

    def n_step_returns(
        self, n: int, gamma: float, values: ArrayLike | None = None, last_values: ArrayLike | None = None
    ) -> np.ndarray:
        """Return n discounted rewards from each step on plus the discounted value after them, (T,).

        r[t] + … + gamma^(n - 1) r[t + n - 1] + gamma^n V(s[t + n]). Where its segment ends earlier, a return has fewer
        rewards, and the last value after them unless the segment terminated.

        Args:
            n: number of rewards, at least 1.
            gamma: the discount, from 0 to 1.
            values: (T,), value of each observation; by default `agent_infos["value"]`.
            last_values: (N,), value of each last observation; the default and the rest as in `advantages`.

        Raises:
            TypeError: an argument of the wrong type.
            ValueError: a number out of range, missing values, or values of another shape.
        """
        from rollserve import learning

        return learning.n_step_returns(self, n, gamma, values, last_values)

    def vtrace(
        self,
        target_log_probs: ArrayLike,
        gamma: float,
        values: ArrayLike | None = None,
        last_values: ArrayLike | None = None,
        *,
        behavior_log_probs: ArrayLike | None = None,
        lam: float = 1.0,
        rho_clip: float = 1.0,
        c_clip: float = 1.0,
        advantage_rho_clip: float = 1.0,
    ) -> Advantages:
        """Return V-trace targets for the values, and advantages for the policy gradient, as IMPALA uses them.

        v[t] = V(s[t]) + rho[t] delta[t] + gamma c[t] (v[t + 1] - V(s[t + 1])), where rho[t] and c[t] are pi / mu, how
        many times as probable the action is for the target policy as for the one that acted, clipped. The advantages
        are rho[t] (r[t] + gamma v[t + 1] - V(s[t])) (Espeholt et al. 2018). Segments end as in `advantages`.

        Args:
            target_log_probs: (T,), log-probability of each action for the policy that learns.
            gamma: the discount, from 0 to 1.
            values: (T,), value of each observation; by default `agent_infos["value"]`.
            last_values: (N,), value of each last observation; the default and the rest as in `advantages`.
            behavior_log_probs: (T,), log-probability of each action for the policy that acted; by default
                `agent_infos["log_prob"]`.
            lam: factor of c[t], from 0 to 1.
            rho_clip: bound of rho[t] in the targets; infinite for none.
            c_clip: bound of c[t] before `lam`; infinite for none.
            advantage_rho_clip: bound of rho[t] in the advantages; infinite for none.

        Raises:
            TypeError: an argument of the wrong type.
            ValueError: a number out of range, missing values, or values of another shape.
        """
        from rollserve import learning

        return learning.vtrace(
            self,
            target_log_probs,
            gamma,
            values,
            last_values,
            behavior_log_probs=behavior_log_probs,
            lam=lam,
            rho_clip=rho_clip,
            c_clip=c_clip,
            advantage_rho_clip=advantage_rho_clip,
        )

    def retrace(
        self,
        target_log_probs: ArrayLike,
        gamma: float,
        q_values: ArrayLike,
        values: ArrayLike,
        last_values: ArrayLike | None = None,
        *,
        behavior_log_probs: ArrayLike | None = None,
        lam: float = 1.0,
    ) -> np.ndarray:
        """Return Retrace targets for the Q-values of the actions, (T,).

        Y[t] = r[t] + gamma V(s[t + 1]) + gamma c[t + 1] (Y[t + 1] - Q(s[t + 1], a[t + 1])), where V is the mean of Q
        over the target policy's actions, and c = lam min(1, pi / mu) (Munos et al. 2016). Segments end as in
        `advantages`.

        Args:
            target_log_probs: (T,), log-probability of each action for the target policy.
            gamma: the discount, from 0 to 1.
            q_values: (T,), Q-value of each observation and action.
            values: (T,), mean of the Q-values of each observation over the target policy's actions.
            last_values: (N,), the same mean for each last observation; not needed if all segments terminated.
            behavior_log_probs: (T,), log-probability of each action for the policy that acted; by default
                `agent_infos["log_prob"]`.
            lam: factor of c, from 0 to 1.

        Raises:
            TypeError: an argument of the wrong type.
            ValueError: a number out of range, missing values, or values of another shape.
        """
        from rollserve import learning

        return learning.retrace(
            self,
            target_log_probs,
            gamma,
            q_values,
            values,
            last_values,
            behavior_log_probs=behavior_log_probs,
            lam=lam,
        )

    def policy_estimates(
        self,
        target_log_probs: ArrayLike,
        gamma: float,
        q_values: ArrayLike | None = None,
        values: ArrayLike | None = None,
        *,
        behavior_log_probs: ArrayLike | None = None,
    ) -> PolicyEstimates:
        """Return estimates of the mean return of another policy, from the batch's whole episodes.

        They are importance sampling, weighted, per-decision, weighted per-decision (Precup et al. 2000) and, with the
        caller's values, doubly robust (Jiang and Li 2016). Episodes that a limit ended count as ended: nothing follows
        their last reward.

        >>> found = batch.policy_estimates(target_log_probs, gamma=0.99)  # doctest: +SKIP
        >>> found.per_decision.value, found.per_decision.standard_error  # doctest: +SKIP

        Args:
            target_log_probs: (T,), log-probability of each action for the policy whose return is estimated.
            gamma: the discount, from 0 to 1.
            q_values: (T,), an estimate of that policy's Q-value of each observation and action; or None.
            values: (T,), the mean of these Q-values over the policy's actions, for each observation; or None.
            behavior_log_probs: (T,), log-probability of each action for the policy that acted; by default
                `agent_infos["log_prob"]`.

        Raises:
            TypeError: an argument of the wrong type.
            ValueError: a number out of range, fragments, missing values, or values of another shape.
        """
        from rollserve import learning

        return learning.policy_estimates(
            self, target_log_probs, gamma, q_values, values, behavior_log_probs=behavior_log_probs
        )

    def minibatches(
        self, size: int, generator: np.random.Generator, num_epochs: int = 1, **columns: Columns
    ) -> Iterator[dict[str, Column]]:
        """Return an iterator over all steps in random order, in minibatches, once for each epoch.

        >>> for part in batch.minibatches(256, generator, num_epochs=4, advantages=advantages):  # doctest: +SKIP
        ...     update(part["observations"], part["actions"], part["advantages"])

        Args:
            size: number of steps of a minibatch. An epoch's last minibatch is smaller if the size does not divide T.
            generator: draws another order for each epoch.
            num_epochs: number of epochs.
            **columns: (T, …) each, the caller's own columns, such as advantages.

        Returns:
            Minibatches of M steps: `observations`, `actions`, `rewards`, `agent_infos`, `env_infos` and the caller's
            own columns, each (M, …) in new arrays; and `steps`, (M,) int64, their rows in the batch.

        Raises:
            TypeError: an argument of the wrong type.
            ValueError: a number below 1, or a column with another number of rows or a name that is taken.
        """
        from rollserve import learning

        return learning.minibatches(self, size, generator, num_epochs, columns)

    def shuffle(self, generator: np.random.Generator, **columns: Columns) -> dict[str, Column]:
        """Return the columns of all steps in random order, as one minibatch of `minibatches`.

        Args:
            generator: draws the order.
            **columns: (T, …) each, the caller's own columns, such as advantages.

        Raises:
            TypeError: an argument of the wrong type.
            ValueError: a column with another number of rows or a name that is taken.
        """
        from rollserve import learning

        return learning.shuffled(self, generator, columns)

    def sequences(
        self, length: int, burn_in: int = 0, stride: int | None = None, **columns: Columns
    ) -> dict[str, Column]:
        """Return S sequences of steps, for recurrent networks, with zeros after the end of each.

        The steps to learn from are `length` steps of a segment, or fewer at its end, and begin every `stride` steps.
        Up to `burn_in` steps of the same segment precede them, to bring the network's state up to date. With the
        default stride, each step is learned from once.

        >>> found = batch.sequences(80, burn_in=40, stride=40)  # doctest: +SKIP
        >>> outputs = network(found["observations"], found["initial_states"]["h"])  # doctest: +SKIP
        >>> loss = (losses(outputs) * found["learned"]).sum() / found["learned"].sum()  # doctest: +SKIP

        Args:
            length: number of steps to learn from.
            burn_in: number of steps before them, fewer at the beginning of a segment.
            stride: distance between the first steps to learn from, from 1 to `length`; by default `length`.
            **columns: (T, …) each, the caller's own columns, such as advantages.

        Returns:
            With L = burn_in + length: `observations`, `actions`, `rewards`, `agent_infos`, `env_infos` and the caller's
            own columns, each (S, L, …). `valids`, (S, L) bool, positions that hold a step; `learned`, (S, L) bool,
            those without burn-in; `lengths`, (S,) int64, number of steps with burn-in; `steps`, (S,) int64, row of the
            first step in the batch; `last_observations`, (S, *O), the observations after the last steps; `terminated`
            and `truncated`, (S,) bool, whether the episode ended there; and `initial_states`, (S, *H) each, the
            recurrent states before the first steps. A state that the batch lacks is 0, and false in a mask `_NAME`:
            the option `return_states` delivers the states of all steps.

        Raises:
            TypeError: an argument of the wrong type.
            ValueError: a number out of range, or a column with another number of rows or a name that is taken.
        """
        from rollserve import learning

        return learning.sequences(self, length, burn_in, stride, columns)

    def transitions(self, n: int = 1, gamma: float | None = None) -> Transitions:
        """Return a transition for each step, in the order of the steps.

        The observation after a segment's last step is its last observation, so that each step has one, also where a
        fragment's episode goes on. Observations, actions and infos are the batch's own arrays.

        Args:
            n: number of steps of a transition. Transitions near the end of a segment have fewer.
            gamma: the discount of the rewards, from 0 to 1; not needed for one step.

        Raises:
            TypeError: an argument of the wrong type.
            ValueError: a number out of range, or no discount for several steps.
        """
        from rollserve import learning

        return learning.transitions(self, n, gamma)

    def take(self, segments: ArrayLike | slice) -> EpisodeBatch:
        """Return some of the segments, in the given order, copied into new arrays; a slice shares the batch's arrays.

        >>> best = batch.take(np.argsort(batch.returns)[-10:])  # doctest: +SKIP

        Args:
            segments: (M,) integers, positions of segments in the batch, where one may occur several times; or a slice
                without a step.

        Raises:
            ValueError: positions of another shape or dtype, or out of range.
        """
        from rollserve import learning

        if isinstance(segments, slice):
            start, stop, step = segments.indices(len(self))
            if step != 1:
                raise ValueError(f"segments: {mismatch('a slice without a step', segments)}")
            stop = max(start, stop)
            begin, end = (int(self._starts[i]) if i < len(self) else self.num_steps for i in (start, stop))
            return derived(self, self._slices(slice(begin, end), slice(start, stop)))
        return derived(self, learning.take_segments(self, segments))

    def cut(self, length: int) -> EpisodeBatch:
        """Return the batch with each segment cut into fragments of `length` steps; the last of each may be shorter.

        With a length of 1, each segment is a transition. Columns of steps are shared. Recurrent states at the cuts are
        those in the agent's infos `state/NAME`, and gaps without them; the values of last observations at the cuts are
        the agent's info `value`, and without it `last_values` is None.

        Raises:
            TypeError: a length that is not an integer.
            ValueError: a length below 1.
        """
        from rollserve import learning

        return derived(self, learning.cut_segments(self, length))

    def split(self) -> list[EpisodeBatch]:
        """Return one batch for each segment, whose arrays are views of this batch's arrays."""
        return [
            EpisodeBatch(**self._slices(slice(start, start + length), slice(position, position + 1)))
            for position, (start, length) in enumerate(zip(self._starts, self.lengths, strict=True))
        ]

    def steps_of(self, segments: np.ndarray) -> np.ndarray:
        """Return the rows of the steps of the segments at these positions, one segment behind the other."""
        from rollserve import learning

        return learning.rows_of(self._starts[segments], self.lengths[segments])

    @classmethod
    def concatenate(cls, *batches: EpisodeBatch) -> EpisodeBatch:
        """Return the segments of all batches, in their order, copied into new arrays.

        Infos that a batch lacks become gaps. Raw rewards and actions of the environment that only some batches have
        are the rewards and actions of the others. Seeds, worker indices and last values are None if one of the batches
        has none. Spaces are kept if all batches have the same objects. Account and receipt are None: write batches with
        receipts one by one, for example with `to_minari(append=True)`.

        >>> batch = rollserve.EpisodeBatch.concatenate(*stream).joined()  # doctest: +SKIP

        Raises:
            TypeError: a batch of another class, such as of an environment with many agents.
            ValueError: no batches, or columns that do not match; the message begins with the column's name.
        """
        if not batches:
            raise ValueError(f"batches: {mismatch('at least one', 'none')}")
        for position, batch in enumerate(batches):
            expected = "an EpisodeBatch (MultiAgentBatch.concatenate joins batches of many agents)"
            check_type(f"batches[{position}]", batch, EpisodeBatch, expected)
        columns: dict[str, Any] = {}
        for name, spec in COLUMNS.items():
            try:
                columns[name] = _concatenate(spec, batches)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        for name in ("observation_space", "action_space"):
            space = getattr(batches[0], name)
            columns[name] = space if all(getattr(batch, name) is space for batch in batches) else None
        return cls(**columns)

    def joined(self) -> EpisodeBatch:
        """Return the batch with consecutive segments of one episode joined into one segment.

        A segment is joined to the one before it if both have the same episode index and policy version, if it begins
        with the step after the other's last, and if the other did not end the episode.
        """
        continues = (
            (self.episode_indices[1:] == self.episode_indices[:-1])
            & (self.policy_versions[1:] == self.policy_versions[:-1])
            & (self.first_steps[1:] == self.first_steps[:-1] + self.lengths[:-1])
            & ~(self.terminated | self.truncated)[:-1]
        )
        if not continues.any():
            return self
        begins = np.flatnonzero(np.append(True, ~continues))
        ends = np.append(begins[1:], len(self)) - 1
        replaced: dict[str, Any] = {
            name: joined_rows(spec, getattr(self, name), begins, ends) for name, spec in PER_SEGMENT.items()
        }
        return dataclasses.replace(self, **replaced)

    def without_terminations(self) -> EpisodeBatch:
        """Return the batch with terminated episodes marked as truncated ones. All other arrays are shared.

        A learner then continues the value after the end of each episode, as RLlib's `no_done_at_end` has it: for tasks
        without a terminal state, whose environment reports a limit, or a reset for convenience, as `terminated`.
        Episodes still end, so that nothing is carried from one to the next. The value needs `last_values` for all.

        >>> advantages, targets = batch.without_terminations().advantages(0.99, 0.95, values, last_values)
        ... # doctest: +SKIP
        """
        return dataclasses.replace(
            self, terminated=np.zeros_like(self.terminated), truncated=self.terminated | self.truncated
        )

    def without_first_steps(self, num_steps: int) -> EpisodeBatch:
        """Return the batch without its first steps. A segment that loses some of its steps begins later in its episode.

        The recurrent state of such a segment is a gap, unless agent_infos hold the states of every step.

        Raises:
            ValueError: a negative number, or more steps than the batch has.
        """
        if not 0 <= num_steps <= self.num_steps:
            raise ValueError(f"num_steps: {mismatch(f'a number from 0 to {self.num_steps}', num_steps)}")
        ends = np.cumsum(self.lengths)
        num_dropped = int(np.searchsorted(ends, num_steps, side="right"))
        columns = self._slices(slice(num_steps, None), slice(num_dropped, None))
        cut = num_steps - (int(ends[num_dropped - 1]) if num_dropped else 0)
        if cut:
            for name in ("lengths", "first_steps", "returns_before"):
                columns[name] = columns[name].copy()
            columns["lengths"][0] -= cut
            columns["first_steps"][0] += cut
            rewards = original(self, "rewards")[num_steps - cut : num_steps]
            # One by one, as the server adds rewards up.
            columns["returns_before"][0] = np.add.accumulate(np.append(columns["returns_before"][0], rewards))[-1]
            if self.discounted_returns_before is not None:
                columns["discounted_returns_before"] = columns["discounted_returns_before"].copy()
                columns["discounted_returns_before"][0] = np.nan  # a batch does not know the discount
            columns["initial_states"] = later_initial_states(columns["initial_states"], columns["agent_infos"])
        return EpisodeBatch(**columns)

    def to_torch(self, device: Any = None, *, dtype: Any = None) -> dict[str, Any]:
        """Return the columns as tensors of PyTorch that share their memory; see `rollserve.bridges.to_torch`."""
        from rollserve import bridges

        tensors: dict[str, Any] = bridges.to_torch(self, device, dtype=dtype)
        return tensors

    def to_jax(self) -> dict[str, Any]:
        """Return the columns as arrays of JAX; see `rollserve.bridges.to_jax`."""
        from rollserve import bridges

        arrays: dict[str, Any] = bridges.to_jax(self)
        return arrays

    def to_tensordict(
        self, values: ArrayLike | None = None, last_values: ArrayLike | None = None, *, device: Any = None
    ) -> Any:
        """Return a TensorDict with the keys of TorchRL; see `rollserve.bridges.to_tensordict`."""
        from rollserve import bridges

        return bridges.to_tensordict(self, values, last_values, device=device)

    def to_sample_batch(self) -> Any:
        """Return a SampleBatch of RLlib; see `rollserve.bridges.to_sample_batch`."""
        from rollserve import bridges

        return bridges.to_sample_batch(self)

    def to_rllib_episodes(self) -> list[Any]:
        """Return a SingleAgentEpisode of RLlib for each segment; see `rollserve.bridges.to_rllib_episodes`."""
        from rollserve import bridges

        return bridges.to_rllib_episodes(self)

    def to_pandas(self, *, next_observations: bool = False) -> Any:
        """Return a DataFrame of pandas with a row for each step; see `rollserve.bridges.to_pandas`."""
        from rollserve import bridges

        return bridges.to_pandas(self, next_observations=next_observations)

    def to_arrow(self, *, next_observations: bool = False) -> Any:
        """Return a table of Apache Arrow with a row for each step; see `rollserve.bridges.to_arrow`."""
        from rollserve import bridges

        return bridges.to_arrow(self, next_observations=next_observations)

    def to_list(self) -> list[dict[str, Any]]:
        """Return one dict for each segment, with its columns of steps as arrays and the values of its headers."""
        rows = []
        for batch in self.split():
            row: dict[str, Any] = {name: getattr(batch, name) for name in PER_STEP}
            for name in SEGMENT_COLUMNS:
                row[name] = map_columns(lambda array: array[0], getattr(batch, name))
            for name, spec in HEADERS.items():
                header = getattr(batch, name)
                row[name] = None if header is None else header[0] if spec.dtypes == "f" else header[0].item()
            rows.append(row)
        return rows

    @classmethod
    def from_list(cls, rows: Iterable[Mapping[str, Any]]) -> EpisodeBatch:
        """Return the batch for the rows that `to_list` returns. Only `terminated` and `truncated` are required headers.

        Raises:
            ValueError: no rows, a row with an unknown or a missing column, or columns that do not match.
        """
        batches = []
        for position, row in enumerate(rows):
            if unknown := ", ".join(sorted(row.keys() - COLUMNS.keys())):
                raise ValueError(f"rows[{position}]: {mismatch('no unknown columns', unknown)}")
            required = {name for name, spec in COLUMNS.items() if spec.is_required} - {"lengths"}
            if missing := ", ".join(sorted(required - row.keys())):
                raise ValueError(f"rows[{position}]: {mismatch(f'columns named {missing}', 'none')}")
            columns = {name: row[name] for name in PER_STEP if name in row}
            for name in SEGMENT_COLUMNS:
                columns[name] = map_columns(lambda array: np.asarray(array)[np.newaxis], row.get(name, {}))
            for name in HEADERS:
                columns[name] = None if row.get(name) is None else np.array([row[name]])
            columns["lengths"] = np.array([len(row["rewards"])])
            columns["episode_indices"] = np.array([row.get("episode_indices", position)])
            batches.append(cls(**columns))
        return cls.concatenate(*batches)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all columns and the receipt, but not the account, to a file that `load` and `numpy.load` read.

        The file has exactly this name; no ending is added.

        Raises:
            OSError: a file that cannot be written.
        """
        from rollserve._codec.column_files import save_columns

        columns = {name: getattr(self, name) for name in COLUMNS}
        if self.receipt is not None:
            columns[_RECEIPT] = np.frombuffer(self.receipt.to_json().encode(), np.uint8)
        save_columns(path, columns)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> EpisodeBatch:
        """Read a batch from a file that `save` wrote.

        Raises:
            ValueError: a file that does not hold a batch; the message says why.
            OSError: a file that cannot be read.
        """
        from rollserve._codec.column_files import UNREADABLE_ERRORS, load_columns

        with open(path, "rb") as file:
            try:
                columns = load_columns(file)
                receipt = columns.pop(_RECEIPT, None)
                return cls(
                    **columns, receipt=None if receipt is None else Receipt.from_json(receipt.tobytes().decode())
                )
            except UNREADABLE_ERRORS as error:
                raise ValueError(f"{path}: not a saved batch: {error}") from None

    def to_minari(
        self,
        dataset_id: str,
        *,
        root: str | os.PathLike[str] | None = None,
        env: Any = None,
        append: bool = False,
        **metadata: Any,
    ) -> Path:
        """Write whole episodes as a Minari dataset, which `minari.load_dataset` loads; return its folder.

        Minari gets the environment's own rewards and actions, all infos (the agent's as `agent/NAME`) and the seeds,
        without JPEG, so that images stay as they are. Seeds of native rows are left out: they make blocks, not
        episodes. Policy versions and episode indices are attributes of the
        episodes, `rollserve_policy_versions` and `rollserve_episode_indices`.

        >>> batch.to_minari("cartpole/random-v0", env="CartPole-v1", author="…")  # doctest: +SKIP

        Args:
            dataset_id: Minari's id, such as `cartpole/random-v0`.
            root: folder of all datasets; by default Minari's own, which `MINARI_DATASETS_PATH` names.
            env: id, specification or object of gymnasium's environment, for `recover_environment`, and for the spaces
                if the batch has none.
            append: whether to add to a dataset that exists.
            **metadata: Minari's metadata, such as `author={"…"}`, `algorithm_name` or `description`.

        Raises:
            ImportError: Minari or h5py is not installed.
            ValueError: a malformed id or one of no environment, a dataset that exists, segments that are no whole
                episodes, no spaces, an info whose name begins another one's, or an addition of episodes with seeds to a
                dataset without, and the reverse.
            OSError: a folder that cannot be written.
        """
        from rollserve._formats.minari_writer import write_minari

        receipt = None if self.receipt is None else self.receipt.to_json()
        return write_minari(self, dataset_id, root=root, env=env, metadata=metadata, receipt=receipt, append=append)

    def replay(
        self,
        segment: int,
        make_env: Callable[[], Any],
        *,
        reset_options: Mapping[str, Any] | None = None,
        compare_observations: bool = True,
    ) -> Iterator[np.ndarray]:
        """Yield the pictures of an episode, which is replayed in an environment of its own and compared on the way.

        The environment is reset with the episode's seed and takes the recorded actions; episodes of native rows differ,
        because they have the seed of their block. There is a picture after the
        reset and one after each step, one more than the episode has steps.

        >>> frames = batch.replay(0, lambda: gym.make("CartPole-v1", render_mode="rgb_array"))  # doctest: +SKIP
        >>> rollserve.data.write_video("episode.mp4", frames)  # doctest: +SKIP

        Args:
            segment: position of the episode in the batch, or of one of its fragments.
            make_env: makes the environment, with `render_mode="rgb_array"` and the wrappers of the sampler's. It is
                closed at the end.
            reset_options: options of the reset.
            compare_observations: whether observations have to be equal; not where transforms have changed them.

        Yields:
            Pictures (height, width, 3) uint8.

        Raises:
            IndexError: no such segment.
            TypeError: an environment in place of a function that makes it.
            ValueError: a segment that is no whole episode with a seed, an environment that renders no arrays, or an
                episode that differs from the recorded one, where it differs.
        """
        from rollserve_wire.replays import replayed_frames

        whole = episode_of(self, segment)
        if not callable(make_env):
            raise type_error("make_env", "a function that makes the environment, such as a lambda", make_env)
        options = None if reset_options is None else dict(reset_options)
        return replayed_frames(make_env, whole, options, observations=compare_observations)

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Write all columns and the receipt, but not the account, to a file of Parquet, with a row for each step.

        The columns are the same as in `to_arrow`. The last row of a segment also holds what a segment has once, such as
        `last_observations`; other rows are null there.

        Raises:
            ImportError: pyarrow is not installed.
            ValueError: a batch without segments, or a column of complex numbers.
            OSError: a file that cannot be written.
        """
        from rollserve._formats.parquet import write_parquet

        write_parquet(self, path, receipt=None if self.receipt is None else self.receipt.to_json())

    def to_rllib_json(
        self, path: str | os.PathLike[str], *, compress: Iterable[str] = (), append: bool = False
    ) -> None:
        """Write a file that RLlib's `JsonReader` reads: a sample batch for each segment, by RLlib's names of columns.

        Infos of environments, recurrent states and the receipt have no place there and are left out.

        Args:
            path: the file.
            compress: names of columns to pack, such as `obs` and `new_obs`; needs lz4.
            append: whether to add to a file that exists.

        Raises:
            ImportError: lz4 is needed and not installed.
            TypeError: `compress` is no sequence of names.
            ValueError: a name that is no column, an info of the agent with gaps or with the name of a column, or a
                batch without segments.
            OSError: a file that cannot be written.
        """
        from rollserve._formats.rllib_json import write_rllib_json

        write_rllib_json(self, path, compress=compress, append=append)

    @functools.cached_property
    def _starts(self) -> np.ndarray:
        """Row of the first step of each segment, (N,)."""
        starts: np.ndarray = np.cumsum(self.lengths) - self.lengths
        return starts

    def _sums(self, rewards: np.ndarray) -> np.ndarray:
        """Return the sum of each segment, (N,)."""
        sums: np.ndarray = np.add.reduceat(rewards, self._starts) if len(self) else rewards[:0]
        return sums

    def _slices(self, steps: slice, segments: slice) -> dict[str, Any]:
        """Return views of all columns for a range of segments and the range of their steps."""
        columns: dict[str, Any] = {}
        for names, rows in ((PER_STEP, steps), (PER_SEGMENT, segments)):
            for name in names:
                column = getattr(self, name)
                if isinstance(column, np.ndarray):
                    columns[name] = column[rows]
                else:
                    columns[name] = None if column is None else {leaf: each[rows] for leaf, each in column.items()}
        columns["observation_space"], columns["action_space"] = self.observation_space, self.action_space
        return columns


def concatenated(batches: Sequence[EpisodeBatch]) -> EpisodeBatch:
    """Return the segments of all batches; a single batch as it is, which `EpisodeBatch.concatenate` would copy."""
    return batches[0] if len(batches) == 1 else EpisodeBatch.concatenate(*batches)


def derived(batch: EpisodeBatch, fields: Mapping[str, Any]) -> EpisodeBatch:
    """Return a batch of rows of another batch, with its spaces, without checking their columns again.

    Args:
        batch: the other batch.
        fields: all columns and headers.
    """
    spaces = {"observation_space": batch.observation_space, "action_space": batch.action_space}
    made = EpisodeBatch.__new__(EpisodeBatch)
    vars(made).update({**dict.fromkeys(_NOT_DERIVED), **fields, **spaces})
    return made


def put_together(batch: EpisodeBatch) -> EpisodeBatch:
    """Return a batch with the consecutive fragments of each episode as one segment, with the version of the first."""
    if batch.env_seeds is None or not batch.first_steps.any():
        return batch
    batch = batch.take(np.lexsort((batch.first_steps, batch.env_seeds, batch.episode_indices)))
    episodes = np.stack([batch.episode_indices, batch.env_seeds])
    begins = np.append(True, (episodes[:, 1:] != episodes[:, :-1]).any(axis=0))
    versions = batch.policy_versions[begins][np.cumsum(begins) - 1]
    return dataclasses.replace(batch, policy_versions=versions).joined()


def episode_of(batch: EpisodeBatch, segment: int) -> EpisodeBatch:
    """Return the episode that has a segment, as far as the batch does; raise IndexError for no segment's position."""
    from rollserve_wire.replays import checked_segment

    position = checked_segment(batch, segment)
    if batch.env_seeds is None or not batch.first_steps.any():
        return batch.take([position])
    names = "episode_indices", "env_seeds"
    its = np.all([(column := getattr(batch, name)) == column[position] for name in names], axis=0)
    return put_together(batch.take(np.flatnonzero(its))).take([0])


def with_spaces(batch: EpisodeBatch, spaces: tuple[Space, Space]) -> EpisodeBatch:
    """Return a batch with the spaces of observations and of actions, without checking its columns again."""
    described = copy.copy(batch)
    vars(described).update(observation_space=spaces[0], action_space=spaces[1])
    return described


def _concatenate(spec: ColumnSpec, batches: Sequence[EpisodeBatch]) -> Any:
    """Return one column of all batches, concatenated."""
    parts = [getattr(batch, spec.name) for batch in batches]
    if spec.name in INFOS:
        return concatenate_infos(parts, [batch.num_steps if spec.by_step else len(batch) for batch in batches])
    if spec.original_of and any(part is not None for part in parts):
        parts = [original(batch, spec.original_of) for batch in batches]
    return None if any(part is None for part in parts) else concatenate_columns(parts)
