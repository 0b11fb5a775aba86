"""Joining of a stream's batches into one batch, where each step is copied once."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from rollserve.episode_batch import EpisodeBatch, with_spaces
from rollserve.episode_buffer import EpisodeBuffer
from rollserve.multi_agent_batch import MultiAgentBatch
from rollserve_wire.columns import (
    COLUMNS,
    ENV_INFOS,
    INFOS,
    columns_of,
    exact_dtype,
    is_mask,
    leaves_of,
    mask_name,
    without_full_masks,
)
from rollserve_wire.errors import InvalidArgumentError, malformed_error, mismatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rollserve.account import Account
    from rollserve.episode_buffer import ArrayKey
    from rollserve.multi_agent_batch import AnyBatch
    from rollserve.rounds import Round
    from rollserve_wire.spaces import Space

__all__ = ["Joining", "join_batches", "join_parts"]


class Joining:
    """The batches of a stream, joined into one batch of whole episodes or fragments in a `with` block.

    As long as all batches have columns of the same names and types, which is nearly always, each is copied into the
    buffer and then dropped. When the columns change, the batches so far become one part, and the parts are joined last.
    """

    def __init__(self, num_steps: int = 0, out: EpisodeBuffer | None = None) -> None:
        """Start without batches.

        Args:
            num_steps: number of expected steps; 0 if unknown.
            out: buffer to read into, instead of new arrays.

        Raises:
            ValueError: another call uses the buffer.
        """
        self._stack = contextlib.ExitStack()
        self._keeps_buffer = out is not None
        self._buffer = EpisodeBuffer() if out is None else out
        self._stack.enter_context(self._buffer.lent(num_steps))
        self._parts: list[EpisodeBatch] = []
        self._of_many: list[MultiAgentBatch] = []
        self._holds_messages = False
        self._spaces: tuple[Space, Space] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def add(self, batch: AnyBatch) -> None:
        """Append a copy of a batch, or a batch of many agents, whose arrays stay as they are until the end.

        Raises:
            InvalidArgumentError: a batch of many agents, and a buffer of the caller's.
        """
        if isinstance(batch, MultiAgentBatch):
            if self._keeps_buffer:
                expected = "none for an environment with many agents"
                raise InvalidArgumentError.of("out", expected=expected, got="an EpisodeBuffer")
            self._of_many.append(batch)
            return
        if batch.observation_space is not None and batch.action_space is not None:
            self._spaces = batch.observation_space, batch.action_space
        if not _has_usual_masks(batch):
            self._end_part()
            self._parts.append(copy.deepcopy(batch))  # the batch may be a view of memory that is reused
            self._holds_messages = True
            return
        arrays = _arrays(batch)
        if not self._buffer.add(arrays):
            self._end_part()
            self._buffer.add(arrays)

    def join(self, account: Account, before: tuple[int, int] = (0, 0)) -> AnyBatch:
        """Return the whole batch with the account. May be called once; takes and raises what `join_batches` does."""
        if self._of_many:
            return _joined_of_many(self._of_many, account, before)
        self._end_part()
        if len(self._parts) != 1 or self._holds_messages:
            whole = join_batches(self._parts, account, before)
        else:
            whole = _with_account(_without_full_masks(self._parts[0]).joined(), account, before)
        return whole if self._spaces is None else with_spaces(whole, self._spaces)

    def join_round(self, ended: Round) -> AnyBatch:
        """Return the whole batch of a round. May be called once.

        Raises:
            ServerError: batches that do not fit together, or a round of other numbers of episodes or steps.
        """
        if self._of_many:
            joined = _concatenated(self._of_many)
            _check_round(joined, ended)
            return dataclasses.replace(joined, round=ended)
        self._end_part()
        if len(self._parts) != 1 or self._holds_messages:
            batch = join_parts(self._parts, Counter())
        else:
            batch = _without_full_masks(self._parts[0]).joined()
        _check_round(batch, ended)
        rows = batch.episode_indices % ended.num_rows if ended.num_rows else None
        whole = _unchecked({**vars(batch), "row_indices": rows, "round": ended})
        return whole if self._spaces is None else with_spaces(whole, self._spaces)

    def _end_part(self) -> None:
        """Make the content of the buffer a part, and continue with another buffer."""
        if len(self._buffer):
            arrays = self._buffer.views() if self._keeps_buffer else self._buffer.take()
            self._parts.append(_batch(arrays))
            self._buffer, self._keeps_buffer = EpisodeBuffer(), False


def join_batches(batches: Sequence[EpisodeBatch], account: Account, before: tuple[int, int] = (0, 0)) -> EpisodeBatch:
    """Join the batches of a stream into one batch of whole episodes or fragments, in new arrays, with the account.

    If an info of the environment has several shapes, the batches that have the first shape keep it, and the other
    values count as dropped infos in the account.

    Args:
        batches: the batches.
        account: account of the whole stream.
        before: numbers of episodes that ended, and of steps, in batches of the stream that were read before these.

    Raises:
        ServerError: batches that do not fit together, or an account of other numbers of episodes or steps.
    """
    dropped_infos = Counter(account.dropped_infos)
    batch = join_parts(batches, dropped_infos)
    return _with_account(batch, dataclasses.replace(account, dropped_infos=dict(dropped_infos)), before)


def join_parts(batches: Sequence[EpisodeBatch], dropped_infos: Counter[str]) -> EpisodeBatch:
    """Return the batches as one, and count the infos that it lacks; raises as `join_batches`."""
    try:
        return EpisodeBatch.concatenate(*_with_one_shape(batches, dropped_infos)).joined()
    except ValueError as error:
        raise malformed_error(str(error)) from None


def _joined_of_many(batches: Sequence[MultiAgentBatch], account: Account, before: tuple[int, int]) -> MultiAgentBatch:
    """Return the batches as one, in new arrays, with the account; raises as `join_batches`."""
    batch = _concatenated(batches)
    _check_account(batch, account, before)
    return dataclasses.replace(batch, account_or_none=account)


def _concatenated(batches: Sequence[MultiAgentBatch]) -> MultiAgentBatch:
    try:
        return MultiAgentBatch.concatenate(*batches).joined()
    except ValueError as error:
        raise malformed_error(str(error)) from None


def _check_round(batch: AnyBatch, ended: Round) -> None:
    """Raise ServerError unless a batch has as many episodes and steps as its round."""
    num_episodes = int((batch.terminated | batch.truncated).sum())
    if (num_episodes, batch.num_steps) != (ended.num_episodes, ended.num_steps):
        expected = f"{ended.num_episodes} episodes that end in {ended.num_steps} steps, as the round says"
        raise malformed_error(mismatch(expected, f"{num_episodes} in {batch.num_steps}"))


def _with_account(batch: EpisodeBatch, account: Account, before: tuple[int, int]) -> EpisodeBatch:
    _check_account(batch, account, before)
    return _unchecked({**vars(batch), "account_or_none": account})


def _check_account(batch: AnyBatch, account: Account, before: tuple[int, int]) -> None:
    """Raise ServerError unless a batch has as many episodes and steps as the account says."""
    num_episodes = before[0] + int((batch.terminated | batch.truncated).sum())
    num_steps = before[1] + batch.num_steps
    if (num_episodes, num_steps) != (account.num_episodes, account.num_steps):
        expected = f"{account.num_episodes} episodes that end in {account.num_steps} steps, as the account says"
        raise malformed_error(mismatch(expected, f"{num_episodes} in {num_steps}"))


def _with_one_shape(batches: Sequence[EpisodeBatch], dropped_infos: Counter[str]) -> Iterator[EpisodeBatch]:
    """Yield the batches without the environment's infos whose shape is not the first one of their name.

    A server does not mix shapes within a message, so which values are kept does not depend on how episodes are spread
    over messages. Infos whose integers no dtype holds beside the other numbers are left out of all batches.
    """
    shapes: dict[tuple[str, str], tuple[int, ...]] = _inexact(batches)
    for previous, batch in zip((None, *batches), batches, strict=False):
        first_rows = {"env_infos": 0, "episode_infos": int(previous is not None and _continues(batch, previous))}
        kept: dict[str, Any] = {group: {} for group in ENV_INFOS}
        for group, kept_infos in kept.items():
            infos = getattr(batch, group)
            for name, column in infos.items():
                mask = infos.get(mask_name(name))
                owner = name[1:] if is_mask(name, infos) else name
                shape = infos[owner].shape[1:]
                if shapes.setdefault((group, owner), shape) == shape:
                    kept_infos[name] = column
                elif owner == name:
                    first = first_rows[group]
                    dropped_infos[name] += len(column) - first if mask is None else int(mask[first:].sum())
        yield dataclasses.replace(batch, **kept)


def _inexact(batches: Sequence[EpisodeBatch]) -> dict[tuple[str, str], Any]:
    """Return infos whose numbers no dtype holds, with a shape that no column has."""
    found: dict[tuple[str, str], Any] = {}
    for group in ENV_INFOS:
        for name in dict.fromkeys(name for batch in batches for name in getattr(batch, group)):
            try:
                exact_dtype([getattr(batch, group)[name] for batch in batches if name in getattr(batch, group)])
            except ValueError:
                found[group, name] = None
    return found


def _continues(batch: EpisodeBatch, previous: EpisodeBatch) -> bool:
    """Whether the first segment of a batch will be joined to the last segment of the one before."""
    return bool(
        batch.episode_indices[0] == previous.episode_indices[-1]
        and batch.first_steps[0] == previous.first_steps[-1] + previous.lengths[-1]
        and not (previous.terminated[-1] or previous.truncated[-1])
    )


def _arrays(batch: EpisodeBatch) -> dict[ArrayKey, np.ndarray]:
    """Return the arrays of a batch, except for headers that are None."""
    return {
        (name, leaf): array
        for name in COLUMNS
        if (columns := getattr(batch, name)) is not None
        for leaf, array in leaves_of(columns).items()
    }


def _batch(arrays: Mapping[ArrayKey, np.ndarray]) -> EpisodeBatch:
    """Return the batch of arrays: the inverse of `_arrays`."""
    fields: dict[str, dict[str, np.ndarray]] = {}
    for (name, leaf), array in arrays.items():
        fields.setdefault(name, {})[leaf] = array
    columns: dict[str, Any] = {name: columns_of(leaves) for name, leaves in fields.items() if name not in INFOS}
    columns |= {name: fields.get(name, {}) for name in INFOS}
    return _unchecked(dict.fromkeys((*COLUMNS, "account_or_none")) | columns)


def _unchecked(columns: Mapping[str, Any]) -> EpisodeBatch:
    """Return a batch of columns that have been checked as parts of other batches."""
    batch = object.__new__(EpisodeBatch)
    vars(batch).update(columns)
    return batch


def _without_full_masks(batch: EpisodeBatch) -> EpisodeBatch:
    """Return the batch without the masks of infos that have no gaps."""
    kept: dict[str, Any] = {}
    for group in INFOS:
        kept[group] = without_full_masks(getattr(batch, group))
    if all(len(infos) == len(getattr(batch, group)) for group, infos in kept.items()):
        return batch
    return dataclasses.replace(batch, **kept)


def _has_usual_masks(batch: EpisodeBatch) -> bool:
    """Whether no mask has a mask itself, and all masks hold one truth value for each row."""
    for group in INFOS:
        infos = getattr(batch, group)
        for name, column in infos.items():
            if is_mask(name, infos) and (is_mask(name[1:], infos) or column.ndim != 1 or column.dtype != np.bool_):
                return False
    return True
