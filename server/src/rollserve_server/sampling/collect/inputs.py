"""What agents get beside the observations of rows: action masks. The code that steps rows keeps them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve.errors import mismatch
from rollserve_server.agents import is_without_choice

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from rollserve_server.agents import ActionMask, Agent
    from rollserve_server.envs import VectorEnvs

__all__ = ["MaskInput", "mask_input"]

_ONES = "zeros and ones"


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
        # What is wrong with the rows' infos, by row; rows that are not read have none.
        self._unread: dict[int, str] = {}
        self._name = "/".join(mask.info)

    def column(self, observations: Sequence[np.ndarray]) -> np.ndarray:
        """Return the legal actions (M, S) bool; rows without a valid mask have only legal ones, and `failures`."""
        if self._mask.leaf is not None:
            self._read_column(observations[self._mask.leaf], np.ones(len(self._legal), np.bool_))
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
        if self._mask.leaf is not None:
            return
        self._clear()
        for row, info in infos:
            self.read_row(row, info)

    def read_row(self, row: int, info: Mapping[Any, Any]) -> None:
        """Take a row's mask from an info of its environment."""
        if self._mask.leaf is not None:
            return
        self._legal[row] = False
        value: Any = info
        try:
            for name in self._mask.info:
                value = value[name]
        except (KeyError, TypeError, IndexError):
            self._unread[row] = self._missing()
            return
        try:
            array = _flat(value)
        # Reading a value runs the environment's code, which may raise anything.
        except BaseException:
            self._unread[row] = mismatch(f"an array of {self._mask.size} {_ONES}", type(value).__name__)
            return
        expected = (self._mask.size,)
        if array.shape != expected or array.dtype.kind not in "biuf":
            got = f"{array.dtype} of shape {array.shape}"
            self._unread[row] = mismatch(f"numbers of shape {expected}", got)
        elif not _is_binary(array).all():
            self._unread[row] = mismatch(_ONES, array[~_is_binary(array)][0])
        else:
            self._unread[row] = ""
            self._legal[row] = array != 0

    def read_vector(self, envs: VectorEnvs, infos: Mapping[str, Any]) -> None:
        """Take the masks of all rows from the infos of a vector environment's reset or step."""
        if self._mask.leaf is not None:
            return
        self._clear()
        column, present = envs.shown_info(infos, self._mask.info)
        if isinstance(column, np.ndarray) and column.dtype.kind in "biuf" and column.ndim > 1:
            self._read_column(column, present)
        elif column is not None:
            for row in np.flatnonzero(present).tolist():
                value: Any = column[row]
                for name in reversed(self._mask.info):
                    value = {name: value}
                self.read_row(row, value)

    def read_recorded(self, values: np.ndarray, present: NDArray[np.bool_]) -> None:
        """Take the masks of all rows from recorded infos (M, *I); rows that are not present (M,) have none."""
        self._read_column(values, present)

    def _clear(self) -> None:
        # A new array, because the last one is an info that may not be written yet.
        self._legal = np.zeros_like(self._legal)
        self._unread = {}

    def _read_column(self, column: np.ndarray, present: NDArray[np.bool_]) -> None:
        """Take the masks of rows (M,) from a column (M, S) of numbers."""
        self._clear()
        expected = (self._mask.size,)
        if column.shape[1:] != expected:
            text = mismatch(f"numbers of shape {expected}", f"{column.dtype} of shape {column.shape[1:]}")
            self._unread = dict.fromkeys(np.flatnonzero(present).tolist(), text)
            return
        np.not_equal(column, 0, out=self._legal)
        good = present if column.dtype == np.bool_ else present & _is_binary(column).all(axis=1)
        if good.all():
            return
        self._legal[~good] = False
        for row in np.flatnonzero(present & ~good).tolist():
            self._unread[row] = mismatch(_ONES, column[row][~_is_binary(column[row])][0])

    def _text(self, row: int) -> str:
        """Return what is wrong with a row's mask, which leaves no choice."""
        if self._mask.leaf is None and row not in self._unread and not self._legal[row].any():
            return self._missing()
        part = "action" if len(self._mask.counts) == 1 else "value of each element"
        return self._unread.get(row) or mismatch(f"at least one legal {part}", self._legal[row].astype(np.int8))

    def _missing(self) -> str:
        return mismatch(f"an info {self._name!r} with each observation of the environment", "none")


def _flat(value: Any) -> np.ndarray:
    """Return a mask as one array, from an array for each element if it is a list or tuple of such."""
    if isinstance(value, list | tuple) and value and not np.isscalar(value[0]):
        return np.concatenate([np.ravel(part) for part in value])
    return np.asarray(value)


def _is_binary(values: np.ndarray) -> NDArray[np.bool_]:
    binary: NDArray[np.bool_] = (values == 0) | (values == 1)
    return binary
