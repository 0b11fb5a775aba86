"""RLlib's names of columns, old and new ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rollserve._formats.sources import check_numbers
from rollserve._formats.step_tables import StepTable, begins_of, flags_of, single_values
from rollserve_wire.columns import exact_dtype
from rollserve_wire.errors import mismatch

__all__ = ["AGENTS", "AGENT_NAMES", "IGNORED", "KNOWN", "exact_array", "is_ignored", "missing_of", "table_of"]

AGENT_NAMES = {"action_logp": "log_prob", "vf_preds": "value"}
"""RLlib's names of the agent's infos that have another name here."""

AGENTS = ("agent_id", "agent_index")
"""Columns that tell apart the agents of one policy, whose steps are segments of their own."""
IGNORED = (*AGENTS, "module_id", "obs_flat", "seq_lens", "unroll_id")
"""Columns that have no counterpart in a batch."""
_IGNORED_PREFIXES = ("prev_", "state_in_", "state_out_")
_OBSERVATIONS, _AFTER = ("obs",), ("new_obs", "next_obs")
_TERMINATED, _TRUNCATED, _DONES = ("terminateds", "terminated"), ("truncateds", "truncated"), ("dones", "done")
KNOWN = {
    *(*_OBSERVATIONS, *_AFTER, *_TERMINATED, *_TRUNCATED, *_DONES, *IGNORED),
    *("actions", "rewards", "eps_id", "t", "infos"),
}
"""Names of columns that are no infos of the agent."""


def is_ignored(name: str) -> bool:
    """Whether a column has no counterpart in a batch, and tells no segments apart."""
    return (name in IGNORED and name not in AGENTS) or name.startswith(_IGNORED_PREFIXES)


def table_of(columns: Mapping[str, Any], dones: str | None, begins: np.ndarray | None = None) -> StepTable:
    """Return the table of steps that columns by RLlib's names are.

    Args:
        columns: arrays with a row for each step, or nested dicts of them.
        dones: `terminated` or `truncated`, what the column `dones` of old files stands for, which merges both.
        begins: (T,) bool, further steps that segments begin with.

    Raises:
        ValueError: missing columns, `dones` without knowing what it stands for, or columns of objects.
    """
    rewards = single_values("rewards", _first(columns, ("rewards",)))
    terminated, truncated = _flags(columns, dones, len(rewards))
    episodes, steps = (_integers(name, columns) for name in ("eps_id", "t"))
    after = next((columns[name] for name in _AFTER if name in columns), None)
    labels = (_labels(name, columns, len(rewards)) for name in AGENTS)
    all_begins = begins_of(terminated | truncated, episodes, *labels)
    if steps is not None:
        all_begins[1:] |= steps[1:] != steps[:-1] + 1
    if begins is not None:
        all_begins |= begins
    return StepTable(
        leaves(_OBSERVATIONS[0], _first(columns, _OBSERVATIONS)),
        None if after is None else leaves(_AFTER[0], after),
        leaves("actions", _first(columns, ("actions",))),
        rewards,
        terminated,
        truncated,
        all_begins,
        steps=steps,
        episodes=episodes,
        agent_infos=_agent_infos(columns),
        env_infos=_env_infos(columns, len(rewards)),
    )


def missing_of(names: Mapping[str, Any], dones: str | None) -> dict[str, str]:
    """Return what a file with columns of these names lacks, by the field of a batch."""
    missing = {"env_seeds": "None", "policy_versions": "0, unknown"}
    if not any(name in names for name in _AFTER):
        missing["last_observations"] = "NaN or 0, and false in the episode info `last_observation_known`"
    if "t" not in names:
        missing["first_steps"] = "0: the file does not number the steps of an episode"
    if "eps_id" not in names:
        missing["episode_indices"] = "numbered from 0 in each part of the file"
    if not any(name in names for name in _TRUNCATED):
        missing["truncated"] = f"`dones` stands for {dones}" if dones else "false"
    return missing


def leaves(name: str, value: Any, path: str = "") -> dict[str, np.ndarray]:
    """Return arrays by leaf of an array or nested dicts of arrays."""
    if isinstance(value, Mapping):
        found: dict[str, np.ndarray] = {}
        for key, child in value.items():
            found |= leaves(name, child, f"{path}/{key}" if path else str(key))
        return found
    try:
        array = np.asarray(value)
    except ValueError as error:  # rows of different shapes
        raise ValueError(f"{name}: {mismatch('rows of one shape', error)}") from None
    return {path: check_numbers(f"{name}/{path}" if path else name, array)}


def exact_array(name: str, value: Any, array: np.ndarray) -> np.ndarray:
    """Return the array that numpy made of nested lists, or one in which integers keep their digits.

    numpy makes float64 of integers beyond int64 beside smaller ones, and of integers beside floats.

    Raises:
        ValueError: integers beyond 2**53 that no dtype holds with the other numbers.
    """
    if array.dtype.kind != "f" or not (np.abs(array) >= 1 << 53).any():
        return array
    numbers = list(_numbers(value))
    large = [number for number in numbers if isinstance(number, int) and abs(number) > 1 << 53]
    if not large:
        return array
    if any(isinstance(number, float) for number in numbers) or not 0 <= min(numbers) <= max(numbers) < 1 << 64:
        expected = "numbers that one dtype can hold"
        raise ValueError(f"{name}: {mismatch(expected, f'the integer {large[0]} beside floats or negative numbers')}")
    return np.asarray(value, np.uint64)


def _numbers(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for each in value:
            yield from _numbers(each)
    else:
        yield value


def _first(columns: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    for name in names:
        if name in columns:
            return columns[name]
    raise ValueError(f"{names[0]}: {mismatch('a column', f'columns {sorted(columns)}')}")


def _flags(columns: Mapping[str, Any], dones: str | None, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return both flags of each step, (T,) bool."""
    found: dict[str, np.ndarray] = {}
    for names in (_TERMINATED, _TRUNCATED, _DONES):
        for name in names:
            if name in columns:
                found[names[0]] = flags_of(name, columns[name], num_steps)
    none = np.zeros(num_steps, np.bool_)
    if _TERMINATED[0] not in found and _DONES[0] in found:
        if dones is None:
            hint = (
                "`dones` merges both; `dones='terminated'` or `dones='truncated'` says what it stands for in this file"
            )
            raise ValueError(f"terminateds: {mismatch('columns `terminateds` and `truncateds`', '`dones`', hint)}")
        if dones == "terminated":
            return found["dones"], found.get("truncateds", none)
        if "truncateds" in found:
            hint = "`dones='terminated'` keeps both"
            raise ValueError(f"dones: {mismatch('no column `truncateds` beside truncations', 'one', hint)}")
        return none, found["dones"]
    if _TERMINATED[0] not in found:
        raise ValueError(f"terminateds: {mismatch('a column', f'columns {sorted(columns)}')}")
    return found["terminateds"], found.get("truncateds", none)


def _integers(name: str, columns: Mapping[str, Any]) -> np.ndarray | None:
    if name not in columns:
        return None
    array = np.asarray(columns[name])
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise ValueError(f"{name}: {mismatch('integers (T,)', f'{array.dtype} of shape {array.shape}')}")
    if array.dtype == np.uint64 and array.size and array.max() >= 1 << 63:
        raise ValueError(f"{name}: {mismatch('integers of 64 bits with sign', array.max())}")
    return array


def _labels(name: str, columns: Mapping[str, Any], num_steps: int) -> np.ndarray | None:
    """Return what tells apart agents, (T,) numbers or texts; None if there is no such column."""
    if name not in columns:
        return None
    labels = np.asarray(columns[name])
    if labels.dtype.kind not in "biuU" or labels.shape != (num_steps,):
        got = f"{labels.dtype} of shape {labels.shape}"
        raise ValueError(f"{name}: {mismatch(f'{num_steps} integers or texts', got)}")
    return labels


def _agent_infos(columns: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return all other columns: what the policy put out, by the names of this package."""
    infos: dict[str, np.ndarray] = {}
    for name, value in columns.items():
        if name not in KNOWN and not name.startswith(_IGNORED_PREFIXES):
            for path, array in leaves(name, value).items():
                own = AGENT_NAMES.get(name, name)
                infos[f"{own}/{path}" if path else own] = array
    return infos


def _env_infos(columns: Mapping[str, Any], num_steps: int) -> dict[str, np.ndarray]:
    """Return the numbers among the infos, one dict for each step, with masks where some steps lack one."""
    rows = columns.get("infos")
    if rows is None:
        return {}
    if len(rows) != num_steps or not all(isinstance(row, Mapping) for row in rows):
        raise ValueError(f"infos: {mismatch('a dict for each step', 'others', '`infos=False` leaves them out')}")
    infos: dict[str, np.ndarray] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        valids = np.array([name in row for row in rows])
        hint = "`infos=False` leaves all infos out"
        values = [exact_array(f"infos/{name}", row[name], np.asarray(row[name])) for row in rows if name in row]
        if len({value.shape for value in values}) != 1 or any(value.dtype.kind not in "biuf" for value in values):
            raise ValueError(f"infos/{name}: {mismatch('numbers of one shape', 'others', hint)}")
        try:
            column = np.stack(values, dtype=exact_dtype(values), casting="unsafe")
        except ValueError as error:
            raise ValueError(f"infos/{name}: {error}") from None
        infos[name] = np.zeros((num_steps, *column.shape[1:]), column.dtype)
        infos[name][valids] = column
        if not valids.all():
            infos[f"_{name}"] = valids
    return infos
