"""Infos of vector environments, which hold columns for all rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rollserve_server.envs.leaves import Leaf

__all__ = ["final_observations", "has_infos", "info_column", "infos_of_row", "without_final"]

_FINAL_OBSERVATIONS = {"final_obs", "_final_obs"}
_NOT_INFOS = ("final_obs", "final_info")


def has_infos(infos: Mapping[str, Any]) -> bool:
    """Whether the infos of a step hold anything beside final observations."""
    return bool(infos.keys() - _FINAL_OBSERVATIONS)


def without_final(infos: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the infos of a step without final observations and final infos."""
    return {name: column for name, column in infos.items() if name.removeprefix("_") not in _NOT_INFOS}


def infos_of_row(infos: Mapping[str, Any], row: int) -> Mapping[str, Any]:
    """Return one row's infos, as its environment would return them alone.

    A row has an info unless gymnasium's mask, `_NAME`, says that it has none.
    """
    row_infos: dict[str, Any] = {}
    for name, column in infos.items():
        if name in _NOT_INFOS or name.startswith("_") or not _has_value(infos.get(f"_{name}"), row):
            continue
        row_infos[name] = infos_of_row(column, row) if isinstance(column, Mapping) else column[row]
    return row_infos


def info_column(infos: Mapping[str, Any], path: Sequence[str], rows: NDArray[Any]) -> tuple[Any, NDArray[Any]]:
    """Return the column of an info and the rows that have a value, among `rows` (M,) bool; None if there is no column.

    Args:
        infos: infos of a vector environment.
        path: name of the info, with the names of the mappings around it in front.
        rows: (M,) bool.
    """
    column: Any = infos
    for name in path:
        if not isinstance(column, Mapping) or name not in column:
            return None, rows
        mask = column.get(f"_{name}")
        column, rows = column[name], rows if mask is None else rows & mask
    return column, rows


def final_observations(final: Any, leaf: Leaf, rows: NDArray[Any]) -> Any:
    """Return a leaf's values in the final observations of rows.

    Some environments return an array of observations, others a column for each leaf.
    """
    if not leaf.path or isinstance(final, Mapping | tuple):
        column = _part(final, leaf)
        return list(column[rows]) if column.dtype.hasobject else column[rows]
    return [_part(final[row], leaf) for row in rows]


def _part(observation: Any, leaf: Leaf) -> Any:
    for step in leaf.path:
        observation = observation[step]
    return observation


def _has_value(mask: Any, row: int) -> bool:
    return mask is None or bool(mask[row])
