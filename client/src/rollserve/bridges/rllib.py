"""Batches as RLlib's sample batches and episodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollserve.bridges.trees import nested, step_positions
from rollserve.learning.transitions import transitions
from rollserve_wire.columns import columns_of, leaves_of, mask_name
from rollserve_wire.extras import load

__all__ = ["to_rllib_episodes", "to_sample_batch"]

_EXTRA = "rllib"


def to_sample_batch(batch: Any) -> Any:
    """Return a batch as a `SampleBatch` of RLlib with T rows.

    >>> sample_batch = batch.to_sample_batch()  # doctest: +SKIP
    >>> sample_batch["obs"], sample_batch["action_logp"], sample_batch["vf_preds"]  # doctest: +SKIP

    Args:
        batch: an `EpisodeBatch`.

    Returns:
        `obs`, `actions` and `rewards`, the batch's own arrays; `new_obs`, `terminateds` and `truncateds` of each step;
        `eps_id`, `unroll_id` (the segment) and `t` (the step of the episode); and of the agent's infos, where it has
        them, `action_logp`, `vf_preds` and `action_dist_inputs`: logits, or means followed by log_std. Other infos keep
        their names. Dict and Tuple spaces are nested dicts.

    Raises:
        ImportError: RLlib is not installed.
    """
    samples = load("ray.rllib.policy.sample_batch", _EXTRA)
    found = transitions(batch, 1, None)
    segments, steps = step_positions(batch)
    return samples.SampleBatch(
        {
            "obs": _nested(batch.observations),
            "new_obs": _nested(found.next_observations),
            "actions": _nested(batch.actions),
            "rewards": batch.rewards,
            "terminateds": found.terminated,
            "truncateds": found.truncated,
            "eps_id": batch.episode_indices[segments],
            "unroll_id": segments,
            "t": steps,
            **_model_outputs(batch),
        }
    )


def to_rllib_episodes(batch: Any) -> list[Any]:
    """Return a batch as one `SingleAgentEpisode` of RLlib for each segment, for its connectors and learners.

    >>> algorithm.learner_group.update(episodes=batch.to_rllib_episodes())  # doctest: +SKIP

    Args:
        batch: an `EpisodeBatch`.

    Returns:
        Episodes in the order of the segments, with arrays for lists, as after `to_numpy()`. Actions, rewards and extra
        outputs of the model are views of the batch; the observations, which have one more, are copied. `id_` has the
        episode's index, and `t_started` the number of steps before the segment, so that the fragments of an episode
        belong together.

    Raises:
        ImportError: RLlib is not installed.
    """
    episode_type = load("ray.rllib.env.single_agent_episode", _EXTRA).SingleAgentEpisode
    buffer = load("ray.rllib.env.utils.infinite_lookback_buffer", _EXTRA).InfiniteLookbackBuffer
    outputs = _model_outputs(batch)
    ends = np.cumsum(batch.lengths)
    episodes = []
    for segment, (length, end) in enumerate(zip(batch.lengths.tolist(), ends.tolist(), strict=True)):
        steps = slice(end - length, end)
        episodes.append(
            episode_type(
                id_=str(batch.episode_indices[segment]),
                observations=buffer(_observations(batch, segment, steps)),
                actions=buffer(_nested(columns_of({n: a[steps] for n, a in leaves_of(batch.actions).items()}))),
                rewards=buffer(batch.rewards[steps]),
                infos=[{} for _ in range(length + 1)],
                extra_model_outputs={name: buffer(array[steps]) for name, array in outputs.items()},
                terminated=bool(batch.terminated[segment]),
                truncated=bool(batch.truncated[segment]),
                t_started=int(batch.first_steps[segment]),
                len_lookback_buffer=0,
            )
        )
    return episodes


def _observations(batch: Any, segment: int, steps: slice) -> Any:
    """Return the observations of a segment with the last one behind them, (length + 1, *O)."""
    last = leaves_of(batch.last_observations)
    joined = {
        name: np.concatenate([array[steps], last[name][segment, np.newaxis]])
        for name, array in leaves_of(batch.observations).items()
    }
    return _nested(columns_of(joined))


def _model_outputs(batch: Any) -> dict[str, np.ndarray]:
    """Return the agent's infos by RLlib's names."""
    infos = {
        name: array
        for name, array in batch.agent_infos.items()
        if mask_name(name) not in batch.agent_infos and not name.startswith("_")
    }
    found = {}
    for name, known in (("log_prob", "action_logp"), ("value", "vf_preds"), ("logits", "action_dist_inputs")):
        if name in infos:
            found[known] = infos.pop(name)
    if "mean" in infos and "log_std" in infos:
        flat = [infos.pop(name).reshape(len(batch.rewards), -1) for name in ("mean", "log_std")]
        found["action_dist_inputs"] = np.concatenate(flat, axis=1)
    return found | infos


def _nested(columns: Any) -> Any:
    return columns if isinstance(columns, np.ndarray) else nested(columns)
