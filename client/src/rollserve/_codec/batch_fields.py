"""Names of the fields of an episode batch, by their kinds."""

from __future__ import annotations

__all__ = [
    "END_FIELDS",
    "FIELDS",
    "FLOAT_HEADERS",
    "HEADERS",
    "INFOS",
    "INTEGER_HEADERS",
    "OPTIONAL_COLUMNS",
    "OPTIONAL_HEADERS",
    "REQUIRED",
    "SEGMENT_COLUMNS",
    "STEP_COLUMNS",
]

OPTIONAL_COLUMNS = {"raw_rewards": "rewards", "env_actions": "actions"}
"""Columns that can be None, and the columns whose values they have then."""

STEP_COLUMNS = ("observations", "actions", "rewards", "agent_infos", "env_infos", *OPTIONAL_COLUMNS)
"""Fields with a row for each step."""

SEGMENT_COLUMNS = ("last_observations", "episode_infos", "initial_states", "last_states")
"""Fields with a row for each segment, beside the headers."""

INTEGER_HEADERS = ("lengths", "policy_versions", "episode_indices", "first_steps")
"""Headers of integers that every batch has."""

OPTIONAL_HEADERS = ("env_seeds", "worker_indices", "row_indices")
"""Headers of integers that can be None."""

FLOAT_HEADERS = ("last_values", "returns_before", "discounted_returns_before")
"""Headers of floats; all but `returns_before` can be None."""

END_FIELDS = ("terminated", "truncated", "last_observations", "last_values", "last_states")
"""Fields that a segment joined of several ones has from the last of them; others have them from the first."""

HEADERS = (
    "lengths",
    "terminated",
    "truncated",
    "policy_versions",
    "episode_indices",
    "first_steps",
    *OPTIONAL_HEADERS,
    *FLOAT_HEADERS,
)
"""Fields with a number or a truth value for each segment."""

FIELDS = (*STEP_COLUMNS, *SEGMENT_COLUMNS, *HEADERS)
"""Fields of a batch, except the account."""

INFOS = ("agent_infos", "env_infos", "episode_infos", "initial_states", "last_states")
"""Fields that are mappings, whose arrays can have gaps."""

REQUIRED = ("observations", "last_observations", "actions", "rewards", "terminated", "truncated")
"""Fields that every row of `EpisodeBatch.from_list` has."""
