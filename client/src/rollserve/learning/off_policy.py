"""Targets for a policy that differs from the one that acted, and estimates of its return.

V-trace: v[t] = V(s[t]) + sum over k of gamma^k (c[t] … c[t + k - 1]) rho[t + k] delta[t + k], with
delta[t] = r[t] + gamma V(s[t + 1]) - V(s[t]), rho[t] = min(rho_clip, pi / mu), c[t] = lam min(c_clip, pi / mu); and the
advantage of the policy gradient rho[t] (r[t] + gamma v[t + 1] - V(s[t])). Espeholt et al.: IMPALA, ICML 2018, equation
1, section 4.2 and remark 2.

Retrace: Q(s[t], a[t]) + sum over k of gamma^k (c[t + 1] … c[t + k]) (r[t + k] + gamma E Q(s[t + k + 1], .) -
Q(s[t + k], a[t + k])), with c[t] = lam min(1, pi / mu). Munos, Stepleton, Harutyunyan, Bellemare: Safe and efficient
off-policy reinforcement learning, NIPS 2016, equations 3 and 4.

Estimates: with rho[t] = pi(a[t] | s[t]) / mu(a[t] | s[t]), w[t] = rho[0] … rho[t], and episodes of length H:

- importance sampling: the mean of w[H - 1] G over episodes, with G the discounted return;
- weighted importance sampling: the sum of w[H - 1] G, divided by the sum of w[H - 1];
- per-decision: the mean of the sum over t of gamma^t w[t] r[t];
- weighted per-decision: the same with w[t] divided by its mean over the episodes that have a step t, as RLlib's
  `WeightedImportanceSampling` has it.

Precup, Sutton, Singh: Eligibility traces for off-policy policy evaluation, ICML 2000.

- doubly robust: the mean of V[0], with V[t] = v(s[t]) + rho[t] (r[t] + gamma V[t + 1] - q(s[t], a[t])).

Jiang, Li: Doubly robust off-policy value evaluation for reinforcement learning, ICML 2016, equation 10.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rollserve.learning.arguments import (
    check_fraction,
    check_positive,
    checked_last_values,
    checked_log_probs,
    checked_values,
    float_type,
    infos_or,
)
from rollserve.learning.returns import Advantages, shifted
from rollserve_wire.errors import mismatch
from rollserve_wire.recurrences import backward_recurrence
from rollserve_wire.representations import briefly

__all__ = ["Estimate", "PolicyEstimates", "policy_estimates", "retrace", "vtrace"]


def vtrace(
    batch: Any,
    target_log_probs: Any,
    gamma: float,
    values: Any,
    last_values: Any,
    *,
    behavior_log_probs: Any,
    lam: float,
    rho_clip: float,
    c_clip: float,
    advantage_rho_clip: float,
) -> Advantages:
    """Return V-trace targets and the advantages of the policy gradient; see `EpisodeBatch.vtrace`."""
    gamma, lam = check_fraction("gamma", gamma), check_fraction("lam", lam)
    rho_clip, c_clip = check_positive("rho_clip", rho_clip), check_positive("c_clip", c_clip)
    advantage_rho_clip = check_positive("advantage_rho_clip", advantage_rho_clip)
    own = values is None
    values = infos_or(batch, "values", values, "value")
    last_values = checked_last_values(batch, last_values, own=own)
    ratios = _ratios(batch, target_log_probs, behavior_log_probs)
    dtype = float_type(batch.rewards, values, last_values, ratios)
    rewards, values, ratios = (array.astype(dtype, copy=False) for array in (batch.rewards, values, ratios))
    deltas = np.minimum(ratios, rho_clip) * (rewards + gamma * shifted(values, last_values, batch.lengths) - values)
    factors = gamma * lam * np.minimum(ratios, c_clip)
    targets = values + backward_recurrence(factors, deltas, batch.lengths, np.zeros(len(batch.lengths), dtype))
    errors = rewards + gamma * shifted(targets, last_values, batch.lengths) - values
    return Advantages(np.minimum(ratios, advantage_rho_clip) * errors, targets)


def retrace(
    batch: Any,
    target_log_probs: Any,
    gamma: float,
    q_values: Any,
    values: Any,
    last_values: Any,
    *,
    behavior_log_probs: Any,
    lam: float,
) -> np.ndarray:
    """Return Retrace targets for the Q-values of the actions; see `EpisodeBatch.retrace`."""
    gamma, lam = check_fraction("gamma", gamma), check_fraction("lam", lam)
    q_values = checked_values("q_values", q_values, len(batch.rewards))
    values = checked_values("values", values, len(batch.rewards))
    last_values = checked_last_values(batch, last_values)
    ratios = _ratios(batch, target_log_probs, behavior_log_probs)
    dtype = float_type(batch.rewards, q_values, values, last_values, ratios)
    rewards, q_values, values, ratios = (
        array.astype(dtype, copy=False) for array in (batch.rewards, q_values, values, ratios)
    )
    deltas = rewards + gamma * shifted(values, last_values, batch.lengths) - q_values
    nothing = np.zeros(len(batch.lengths), dtype)
    # The factor of a step is the trace of the next one: after a segment there is none.
    factors = gamma * lam * shifted(np.minimum(ratios, 1), nothing, batch.lengths)
    targets: np.ndarray = q_values + backward_recurrence(factors, deltas, batch.lengths, nothing)
    return targets


def _ratios(batch: Any, target_log_probs: Any, behavior_log_probs: Any) -> np.ndarray:
    """Return how many times as probable each action is for the target policy as for the one that acted, (T,)."""
    target, behavior = checked_log_probs(batch, target_log_probs, behavior_log_probs)
    dtype = float_type(target, behavior)
    with np.errstate(over="ignore"):  # what overflows is infinite, and clipped
        ratios: np.ndarray = np.exp(target.astype(dtype, copy=False) - behavior)
    return ratios


@briefly
@dataclass(frozen=True, eq=False)
class Estimate:
    """Estimate of a policy's mean return.

    Attributes:
        value: the estimate.
        standard_error: its standard error over episodes, approximate where weights are normalized; NaN for one episode.
        by_episode: (N,) float64, contributions of the episodes, whose mean is the value.
    """

    value: float
    standard_error: float
    by_episode: np.ndarray


@briefly
@dataclass(frozen=True, eq=False)
class PolicyEstimates:
    """Estimates of the mean discounted return of a policy, from N episodes of another one.

    Attributes:
        behavior: mean return of the policy that acted.
        importance: importance sampling; without bias, with a variance that grows fast with the length of episodes.
        weighted_importance: weighted importance sampling; with a bias that vanishes with the number of episodes.
        per_decision: per-decision importance sampling; without bias.
        weighted_per_decision: per-decision importance sampling with normalized weights.
        doubly_robust: doubly robust estimate with the caller's values; None without them.
        num_effective_episodes: (sum of weights)² / sum of squared weights, from 1 to N: how many episodes of the policy
            itself the weighted estimate is worth.
    """

    behavior: Estimate
    importance: Estimate
    weighted_importance: Estimate
    per_decision: Estimate
    weighted_per_decision: Estimate
    doubly_robust: Estimate | Any
    num_effective_episodes: float


def policy_estimates(
    batch: Any,
    target_log_probs: Any,
    gamma: float,
    q_values: Any,
    values: Any,
    *,
    behavior_log_probs: Any,
) -> PolicyEstimates:
    """Return the estimates; see `EpisodeBatch.policy_estimates`."""
    gamma = check_fraction("gamma", gamma)
    if (q_values is None) != (values is None):
        missing = "q_values" if q_values is None else "values"
        raise ValueError(f"{missing}: {mismatch('values beside the others, for the doubly robust estimate', None)}")
    _check_episodes(batch)
    target, behavior = checked_log_probs(batch, target_log_probs, behavior_log_probs)
    ratios = target.astype(np.float64) - behavior
    starts = np.cumsum(batch.lengths) - batch.lengths
    ends = starts + batch.lengths - 1
    steps = np.arange(len(batch.rewards)) - np.repeat(starts, batch.lengths)
    with np.errstate(over="ignore"):
        weights = np.exp(_running_sums(ratios, starts, batch.lengths))
    discounted = batch.rewards.astype(np.float64) * gamma**steps
    returns, last_weights = np.add.reduceat(discounted, starts), weights[ends]
    mean_weights = np.bincount(steps, weights) / np.bincount(steps)
    normalized = np.divide(weights, mean_weights[steps], out=np.zeros_like(weights), where=mean_weights[steps] > 0)
    doubly_robust = None
    if q_values is not None:
        q_values, values = (
            checked_values(name, array, len(steps)).astype(np.float64)
            for name, array in (("q_values", q_values), ("values", values))
        )
        with np.errstate(over="ignore"):
            rho = np.exp(ratios)
        terms = values + rho * (batch.rewards - q_values)
        found = backward_recurrence(gamma * rho, terms, batch.lengths, np.zeros(len(starts)))
        doubly_robust = _mean(found[starts])
    return PolicyEstimates(
        behavior=_mean(returns),
        importance=_mean(last_weights * returns),
        weighted_importance=_weighted_mean(last_weights, returns),
        per_decision=_mean(np.add.reduceat(weights * discounted, starts)),
        weighted_per_decision=_mean(np.add.reduceat(normalized * discounted, starts)),
        doubly_robust=doubly_robust,
        num_effective_episodes=_num_effective(last_weights),
    )


def _check_episodes(batch: Any) -> None:
    """Raise ValueError unless the batch has whole episodes, at least one."""
    if not len(batch.lengths):
        raise ValueError(f"lengths: {mismatch('at least one episode', 'none')}")
    parts = np.flatnonzero((batch.first_steps > 0) | ~(batch.terminated | batch.truncated))
    if len(parts):
        hint = "`joined` joins consecutive fragments"
        raise ValueError(f"first_steps: {mismatch('whole episodes', f'a fragment in segment {parts[0]}', hint)}")


def _running_sums(terms: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the sums from each segment's first step on, computed for each segment alone."""
    sums = np.empty_like(terms)
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        np.cumsum(terms[start : start + length], out=sums[start : start + length])
    return sums


def _mean(values: np.ndarray) -> Estimate:
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return Estimate(float(values.mean()), float(error), values)


def _weighted_mean(weights: np.ndarray, values: np.ndarray) -> Estimate:
    """Return the mean of values by weights, and its standard error by the delta method; NaN if all weights are 0."""
    total = weights.sum()
    if not total > 0:
        return Estimate(np.nan, np.nan, np.full(len(values), np.nan))
    parts = weights / total
    value = float((parts * values).sum())
    error = float(np.sqrt((parts**2 * (values - value) ** 2).sum())) if len(values) > 1 else np.nan
    return Estimate(value, error, len(values) * parts * values)


def _num_effective(weights: np.ndarray) -> float:
    largest = weights.max()
    scaled = weights / largest if largest > 0 else weights
    return float(scaled.sum() ** 2 / (scaled**2).sum()) if largest > 0 else 0.0
