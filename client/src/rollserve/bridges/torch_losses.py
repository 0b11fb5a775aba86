"""Losses of learners in PyTorch that PyTorch does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["clipped_policy_loss"]


def clipped_policy_loss(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, *, clip: float = 0.2, normalize: bool = True
) -> Tensor:
    """Return PPO's loss of a policy: minus the mean of min(r A, clamp(r, 1 - clip, 1 + clip) A).

    r is the ratio of an action's probability to the one by which it was chosen. Schulman et al.: Proximal policy
    optimization algorithms, 2017, equation 7. PPO's other two terms are `torch.nn.functional.mse_loss(values, targets)`
    and the mean of a distribution's `entropy()`.

    >>> loss = clipped_policy_loss(log_probs, part["agent_infos"]["log_prob"], part["advantages"])  # doctest: +SKIP

    Args:
        log_probs: (M,), log-probabilities of the actions by the policy that learns.
        old_log_probs: (M,), by the policy that acted.
        advantages: (M,).
        clip: largest difference from 1 of a ratio that is rewarded.
        normalize: whether the advantages get mean 0 and standard deviation 1 first.

    Returns:
        A scalar.
    """
    if normalize:
        deviation, mean = advantages.std(), advantages.mean()
        advantages = (advantages - mean) / (deviation + 1e-8)
    ratios = (log_probs - old_log_probs).exp()
    return -(ratios * advantages).minimum(ratios.clamp(1 - clip, 1 + clip) * advantages).mean()
