"""Callbacks: code of the operator's that sees each step of all rows, and may add infos; docs/callbacks.md."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from rollserve_server.errors import InvalidValueError, describe, show
from rollserve_wire.errors import mismatch
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from gymnasium import Env, Space
    from gymnasium.vector import VectorEnv
    from numpy.typing import ArrayLike, NDArray

    from rollserve_server.envs.leaves import Leaf

__all__ = [
    "AddedInfo",
    "Callback",
    "CallbackError",
    "CallbackSteps",
    "Callbacks",
    "columns_of_infos",
    "with_added",
]

_INFO = "callbacks"
"""Name of the info that has what callbacks add: `callbacks/CALLBACK/NAME`."""

_GROUP = "rollserve.callbacks"
_T = TypeVar("_T")


class CallbackError(Exception):
    """A callback raised an error, or returned what no info can hold."""


@dataclass(frozen=True)
class CallbackSteps:
    """A step of K rows of one worker, which were stepped together. Arrays are the callback's own.

    Attributes:
        rows: (K,) int64, the rows, rising.
        actions: (K, *A), the actions as the environment got them; by leaf for Dict and Tuple spaces.
        rewards: (K,) float64, as agents get them, with the environment's transforms.
        raw_rewards: (K,) float64, the environment's own.
        observations: (K, *O), the observations after the step, as agents get them; by leaf for Dict and Tuple spaces.
        terminated: (K,) bool, whether the step reached a terminal state.
        truncated: (K,) bool, whether the environment, or a limit of the call or the server, ended the episode.
        infos: the environments' infos: of rows that are stepped one by one a mapping for each row that has any, by its
            number; of a vector environment its mapping of columns, each with all rows.
        envs: the environments: of rows that are stepped one by one a sequence of all rows' environments, else the
            vector environment. Callbacks may look at them, and must not change them.
    """

    rows: NDArray[np.int64]
    actions: Any
    rewards: NDArray[np.float64]
    raw_rewards: NDArray[np.float64]
    observations: Any
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    infos: Mapping[Any, Any]
    envs: Sequence[Env[Any, Any]] | VectorEnv[Any, Any, Any]

    @functools.cached_property
    def ended(self) -> CallbackSteps | None:
        """The part of the rows whose episodes ended with this step; None if there are none."""
        positions = np.flatnonzero(self.terminated | self.truncated)
        if not len(positions):
            return None
        return CallbackSteps(
            self.rows[positions],
            _at(self.actions, positions),
            self.rewards[positions],
            self.raw_rewards[positions],
            _at(self.observations, positions),
            self.terminated[positions],
            self.truncated[positions],
            self.infos,
            self.envs,
        )


class Callback:
    """Base class of callbacks, whose methods do nothing. The server makes one for each group of rows.

    What a callback adds to a row's infos has to be a function of the row's episode: of what it has seen since
    `on_episode_begin`, and of no clock, no other row and no random numbers.
    """

    def __init__(self, num_rows: int, observation_space: Space[Any], action_space: Space[Any]) -> None:
        """Prepare for the episodes of M rows.

        Args:
            num_rows: M.
            observation_space: observation space of one row, as agents see it.
            action_space: the environments' own action space, of one row.
        """

    def on_episode_begin(self, rows: NDArray[np.int64], observations: Any) -> None:
        """Begin episodes of K rows, after their reset; earlier episodes of the rows are over, also if they broke off.

        Args:
            rows: (K,), the rows, rising.
            observations: (K, *O), the first observations; by leaf for Dict and Tuple spaces.
        """

    def on_step(self, steps: CallbackSteps) -> Mapping[str, ArrayLike] | None:
        """Take a step of K rows; return infos of this step, (K, …) numbers or truth values each, by name."""

    def on_episode_end(self, steps: CallbackSteps) -> Mapping[str, ArrayLike] | None:
        """Take the last step of episodes, after `on_step`; return infos of this step as it does.

        A soft horizon does not end an episode here, because no reset follows. An episode that breaks off, because its
        environment fails or nobody needs it any more, has no end.
        """


class AddedInfo(NamedTuple):
    """An info that a callback has added.

    Attributes:
        callback: name of the callback.
        name: name of the info.
        rows: (K,), the rows that have a value, rising.
        values: (K, …), the values.
    """

    callback: str
    name: str
    rows: NDArray[np.int64]
    values: np.ndarray


class Callbacks:
    """The callbacks of M rows."""

    def __init__(
        self,
        names: Sequence[str],
        num_rows: int,
        observation_space: Space[Any],
        action_space: Space[Any],
        leaves: tuple[Sequence[Leaf], Sequence[Leaf]],
    ) -> None:
        """Make the callbacks.

        Args:
            names: names of entry points of the group `rollserve.callbacks`.
            num_rows: M.
            observation_space: observation space of one row, as agents see it.
            action_space: the environments' own action space, of one row.
            leaves: leaves of both spaces.

        Raises:
            InvalidValueError: an entry point is not installed, or cannot be loaded; or a callback cannot be made.
        """
        self._observation_leaves, self._action_leaves = leaves
        self._callbacks: dict[str, Callback] = {}
        for name in names:
            try:
                self._callbacks[name] = _factory(name)(num_rows, observation_space, action_space)
            except InvalidValueError:
                raise
            except BaseException as error:
                text = f"callback {name!r} (from --callbacks) cannot be made: {describe(error)}"
                raise InvalidValueError(text, reason=Reason.ENV_REFUSED) from error

    def begin(self, rows: Sequence[int] | NDArray[np.int64], observations: Sequence[np.ndarray]) -> None:
        """Begin episodes.

        Args:
            rows: K rows, rising.
            observations: their first observations, (K, *O) for each leaf, which nobody else uses.

        Raises:
            CallbackError: a callback raised an error.
        """
        columns = _named(self._observation_leaves, observations)
        for name, callback in self._callbacks.items():
            _call(name, "on_episode_begin", functools.partial(callback.on_episode_begin, np.asarray(rows), columns))

    def step(
        self,
        rows: NDArray[np.int64],
        actions: Sequence[np.ndarray],
        rewards: NDArray[np.float64],
        raw_rewards: NDArray[np.float64],
        observations: Sequence[np.ndarray],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        infos: Mapping[Any, Any],
        envs: Sequence[Env[Any, Any]] | VectorEnv[Any, Any, Any],
    ) -> list[AddedInfo]:
        """Take a step of K rows, and return what callbacks add to its infos; see `CallbackSteps`.

        Raises:
            CallbackError: a callback raised an error, or returned what no info can hold.
        """
        if not len(rows):  # all have been reset
            return []
        named = _named(self._action_leaves, actions), _named(self._observation_leaves, observations)
        steps = CallbackSteps(rows, named[0], rewards, raw_rewards, named[1], terminated, truncated, infos, envs)
        added: list[AddedInfo] = []
        for name, callback in self._callbacks.items():
            added += _infos(name, "on_step", callback.on_step, steps)
            if steps.ended is not None:
                added += _infos(name, "on_episode_end", callback.on_episode_end, steps.ended)
        names = [(each.callback, each.name) for each in added]
        if len(set(names)) < len(names):
            callback_name, info = next(each for each in names if names.count(each) > 1)
            raise CallbackError(f"callback {callback_name!r} returned {info!r} from on_step and from on_episode_end")
        return added


def columns_of_infos(added: Sequence[AddedInfo], rows: NDArray[np.bool_]) -> dict[str, dict[str, np.ndarray]]:
    """Return infos as columns of M rows with their masks, by callback, as vector environments return infos.

    Args:
        added: the infos.
        rows: (M,), the rows whose infos count.
    """
    columns: dict[str, dict[str, np.ndarray]] = {}
    for each in added:
        column, mask = np.zeros((len(rows), *each.values.shape[1:]), each.values.dtype), np.zeros(len(rows), np.bool_)
        column[each.rows], mask[each.rows] = each.values, rows[each.rows]
        columns.setdefault(each.callback, {}).update({each.name: column, f"_{each.name}": mask})
    return columns


def with_added(infos: Mapping[Any, Any], added: Mapping[str, Any]) -> dict[Any, Any]:
    """Return an environment's infos with what callbacks add; raise CallbackError if it has an info of that name."""
    if _INFO in infos:
        raise CallbackError(f"the environment has an info {_INFO!r} of its own, where callbacks add theirs")
    return {**infos, _INFO: added}


@functools.cache
def _factory(name: str) -> Callable[[int, Space[Any], Space[Any]], Callback]:
    entries = {entry.name: entry for entry in reversed(importlib.metadata.entry_points(group=_GROUP))}
    if name not in entries:
        expected = f"one of {', '.join(map(repr, sorted(entries)))}" if entries else "an installed one (there is none)"
        hint = f"install a package with an entry point in the group {_GROUP!r}"
        text = f"callback (from --callbacks): {mismatch(expected, repr(name), hint)}"
        raise InvalidValueError(text, reason=Reason.ENV_REFUSED)
    return entries[name].load()  # type: ignore[no-any-return]


def _infos(
    callback: str, method: str, call: Callable[[CallbackSteps], Mapping[str, ArrayLike] | None], steps: CallbackSteps
) -> list[AddedInfo]:
    """Return the infos that a method returns for some rows."""

    def read() -> list[AddedInfo]:
        infos = call(steps) or {}
        return [_info(callback, f"{method}[{name!r}]", name, value, steps.rows) for name, value in infos.items()]

    return _call(callback, method, read)


def _info(callback: str, what: str, name: object, value: ArrayLike, rows: NDArray[np.int64]) -> AddedInfo:
    if not isinstance(name, str) or not name or name.startswith("_") or name != name.encode(errors="replace").decode():
        expected = "a name that is Unicode text and does not begin with '_'"
        raise CallbackError(f"callback {callback!r}: {what}: {mismatch(expected, show(name))}")
    values = np.array(value)
    if values.dtype.kind not in "biuf" or values.dtype.itemsize > 8 or values.shape[:1] != rows.shape:
        expected = f"numbers or truth values of shape ({len(rows)}, …)"
        got = f"{values.dtype} of shape {values.shape}"
        raise CallbackError(f"callback {callback!r}: {what}: {mismatch(expected, got)}")
    return AddedInfo(callback, name, rows, values)


def _call(callback: str, method: str, call: Callable[[], _T]) -> _T:
    try:
        return call()
    except CallbackError:
        raise
    except BaseException as error:
        raise CallbackError(f"callback {callback!r} raised in {method}: {describe(error)}") from error


def _named(leaves: Sequence[Leaf], columns: Sequence[np.ndarray]) -> Any:
    """Return columns by the names of their leaves; the only one as it is, if its leaf has no name."""
    if len(leaves) == 1 and not leaves[0].name:
        return columns[0]
    return {leaf.name: column for leaf, column in zip(leaves, columns, strict=True)}


def _at(columns: Any, positions: NDArray[np.intp]) -> Any:
    if isinstance(columns, Mapping):
        return {name: column[positions] for name, column in columns.items()}
    return columns[positions]
