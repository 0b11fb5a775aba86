"""Action masks of rows, which agents get beside observations. The code that steps rows keeps them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_server.agents import is_without_choice, legal_values
from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from rollserve_server.agents import ActionMask, Agent, LeafMask
    from rollserve_server.envs import VectorEnvs

__all__ = ["MaskInput", "mask_input"]


def mask_input(agent: Agent, num_rows: int) -> MaskInput | None:
    """Return the masks of an agent's rows; None if the agent has none."""
    return None if agent.mask is None else MaskInput(agent.mask, num_rows)


class MaskInput:
    """The action masks of the present observations of M rows.

    Attributes:
        failures: what is wrong with the masks at the last `column`, by row.
    """

    def __init__(self, mask: ActionMask, num_rows: int) -> None:
        """Begin without masks."""
        self.failures: Mapping[int, str] = {}
        self._mask = mask
        self._legal = np.zeros((num_rows, mask.size), np.bool_)
        # Which rows have shown a mask, and what is wrong with masks, by row.
        self._is_shown = np.zeros(num_rows, np.bool_)
        self._unread: dict[int, str] = {}
        self._name = "/".join(mask.info)

    def column(self, observations: Sequence[np.ndarray]) -> np.ndarray:
        """Return the legal actions (M, S) bool; rows without a valid mask have only legal ones, and `failures`."""
        if self._mask.sources:
            self._clear()
            for leaf, source in zip(self._mask.leaves, self._mask.sources, strict=True):
                self._read_column(leaf, observations[source])
        empty = is_without_choice(self._legal, self._mask)
        if not empty.any():
            if self.failures:
                self.failures = {}
            return self._legal
        self.failures = {row: f"action mask: {self._text(row)}" for row in np.flatnonzero(empty).tolist()}
        legal = self._legal.copy()
        legal[empty] = True
        return legal

    def read_rows(self, infos: Iterable[tuple[int, Mapping[Any, Any]]]) -> None:
        """Take the masks from the infos of a step; rows that are missing have none."""
        if self._mask.sources:
            return
        self._clear()
        for row, info in infos:
            self.read_row(row, info)

    def read_row(self, row: int, info: Mapping[Any, Any]) -> None:
        """Take a row's mask from an info of its environment."""
        if self._mask.sources:
            return
        self._is_shown[row] = True
        self._unread.pop(row, None)
        for leaf in self._mask.leaves:
            if text := self._read_leaf(leaf, row, info):
                self._refuse(row, text)
                return

    def read_vector(self, envs: VectorEnvs, infos: Mapping[str, Any]) -> None:
        """Take the masks of all rows from the infos of a vector environment's reset or step."""
        if self._mask.sources:
            return
        self._clear()
        shown = [envs.shown_info(infos, (*self._mask.info, *map(str, leaf.path))) for leaf in self._mask.leaves]
        if all(isinstance(column, np.ndarray) and column.dtype.kind in "biuf" for column, _ in shown):
            for leaf, (column, present) in zip(self._mask.leaves, shown, strict=True):
                self._read_column(leaf, column, present)
            return
        self.read_rows(envs.shown_infos(infos, self._mask.info[0]))

    def read_recorded(self, infos: Sequence[tuple[np.ndarray, NDArray[np.bool_]] | None]) -> None:
        """Take the masks of all rows from recorded infos; values of leaves that have none are all legal.

        Args:
            infos: for each leaf of the mask, infos (M, *I) and the rows that have one, (M,); None if no row has one.
        """
        self._clear()
        for leaf, recorded in zip(self._mask.leaves, infos, strict=True):
            legal = self._legal[:, leaf.columns]
            good = np.zeros(len(legal), np.bool_)
            if recorded is not None and math.prod(recorded[0].shape[1:]) == leaf.num_shown:
                values, present = recorded
                good = legal_values(leaf, values.reshape(len(legal), -1), legal) & present
            legal[~good] = True

    def _clear(self) -> None:
        # A new array, because the last one is an info that may not be written yet.
        self._legal = np.zeros_like(self._legal)
        self._is_shown[:] = False
        self._unread = {}

    def _refuse(self, row: int, text: str) -> None:
        """Leave a row without legal actions, with the reason."""
        self._legal[row] = False
        self._unread.setdefault(row, text)

    def _read_leaf(self, leaf: LeafMask, row: int, info: Mapping[Any, Any]) -> str:
        """Take a leaf's mask of one row; return what is wrong with it, if anything."""
        legal = self._legal[row : row + 1, leaf.columns]
        value: Any = info
        try:
            for name in (*self._mask.info, *leaf.path):
                value = value[name]
        except (KeyError, TypeError, IndexError):
            return self._missing(leaf)
        if value is None and leaf.path:  # as `sample(mask)` of gymnasium's Dict and Tuple spaces takes it
            legal[...] = True
            return ""
        try:
            array = _flat(value)
        # Reading a value runs the environment's code, which may raise anything.
        except BaseException:
            return mismatch(f"an array of {leaf.num_shown} {_numbers(leaf)}{_of(leaf)}", type(value).__name__)
        if leaf.is_binary:
            array = array.ravel()
        if array.shape != (leaf.num_shown,) or array.dtype.kind not in "biuf":
            return mismatch(_expected_shape(leaf), f"{array.dtype} of shape {array.shape}")
        is_valid = legal_values(leaf, array[np.newaxis], legal)[0]
        return "" if is_valid else mismatch(f"{_numbers(leaf)}{_of(leaf)}", _first_other(leaf, array))

    def _read_column(self, leaf: LeafMask, column: np.ndarray, present: NDArray[np.bool_] | None = None) -> None:
        """Take a leaf's mask of the rows that are present (M,), or of all, from a column (M, *numbers)."""
        rows = np.ones(len(column), np.bool_) if present is None else present
        if leaf.is_binary:
            column = column.reshape(len(column), -1)
        if column.shape[1:] != (leaf.num_shown,):
            text = mismatch(_expected_shape(leaf), f"{column.dtype} of shape {column.shape[1:]}")
            for row in np.flatnonzero(rows).tolist():
                self._refuse(row, text)
            return
        self._is_shown |= rows
        good = legal_values(leaf, column, self._legal[:, leaf.columns]) & rows
        for row in np.flatnonzero(~good).tolist():
            text = mismatch(f"{_numbers(leaf)}{_of(leaf)}", _first_other(leaf, column[row]))
            self._refuse(row, text if rows[row] else self._missing(leaf))

    def _text(self, row: int) -> str:
        """Return what is wrong with a row's mask, which leaves no choice."""
        if row in self._unread:
            return self._unread[row]
        if not self._is_shown[row]:
            return self._missing(self._mask.leaves[0])
        num_elements = sum(len(leaf.counts) for leaf in self._mask.leaves)
        part = "action" if num_elements == 1 else "value of each element"
        return mismatch(f"at least one legal {part}", self._legal[row].astype(np.int8))

    def _missing(self, leaf: LeafMask) -> str:
        entry = f" with an entry {leaf.name!r}" if leaf.name else ""
        return mismatch(f"an info {self._name!r}{entry} with each observation of the environment", "none")


def _flat(value: Any) -> np.ndarray:
    """Return a mask as one array, from an array for each element if it is a list or tuple of such."""
    if isinstance(value, list | tuple) and value and not np.isscalar(value[0]):
        return np.concatenate([np.ravel(part) for part in value])
    return np.asarray(value)


def _numbers(leaf: LeafMask) -> str:
    return "zeros, ones and twos" if leaf.is_binary else "zeros and ones"


def _of(leaf: LeafMask) -> str:
    return f" for {leaf.name!r}" if leaf.name else ""


def _expected_shape(leaf: LeafMask) -> str:
    return f"numbers of shape {(leaf.num_shown,)}{_of(leaf)}"


def _first_other(leaf: LeafMask, shown: np.ndarray) -> Any:
    """Return the first number of a mask that masks do not have, or else their dtype."""
    others = shown[~np.isin(shown, (0, 1, 2) if leaf.is_binary else (0, 1))]
    return others[0] if len(others) else shown.dtype
