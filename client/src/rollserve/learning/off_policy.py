"""Targets for a policy that differs from the one that acted.

V-trace: v[t] = V(s[t]) + sum over k of gamma^k (c[t] … c[t + k - 1]) rho[t + k] delta[t + k], with
delta[t] = r[t] + gamma V(s[t + 1]) - V(s[t]), rho[t] = min(rho_clip, pi / mu), c[t] = lam min(c_clip, pi / mu); and the
advantage of the policy gradient rho[t] (r[t] + gamma v[t + 1] - V(s[t])). Espeholt et al.: IMPALA, ICML 2018, equation
1, section 4.2 and remark 2.

Retrace: Q(s[t], a[t]) + sum over k of gamma^k (c[t + 1] … c[t + k]) (r[t + k] + gamma E Q(s[t + k + 1], .) -
Q(s[t + k], a[t + k])), with c[t] = lam min(1, pi / mu). Munos, Stepleton, Harutyunyan, Bellemare: Safe and efficient
off-policy reinforcement learning, NIPS 2016, equations 3 and 4.
"""

from __future__ import annotations

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
from rollserve_wire.recurrences import backward_recurrence

__all__ = ["retrace", "vtrace"]


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
