"""The batches of a stream as one, each copied once: where it belongs, as soon as it has come."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from rollserve._codec.columns import columns_of, is_mask, leaves_of, mask_name, without_full_masks
from rollserve.episode_batch import EpisodeBatch
from rollserve.episode_buffer import EpisodeBuffer
from rollserve.errors import malformed_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rollserve.account import Account
    from rollserve.episode_buffer import ArrayKey

__all__ = ["Joining", "join_batches"]

_FIELDS = tuple(field.name for field in dataclasses.fields(EpisodeBatch) if field.name != "account")
_INFOS = ("agent_infos", "env_infos", "episode_infos", "initial_states")


class Joining:
    """Makes the batches of a stream one of whole episodes or fragments. To be used in a `with` block.

    As long as all have the same columns of the same types, which is nearly always, none of them is held. Where they
    have not, what came before the change is made one batch, and those are joined at the end.
    """

    def __init__(self, num_steps: int = 0, out: EpisodeBuffer | None = None) -> None:
        """Begins without batches.

        Args:
            num_steps: how many steps are expected; 0 if that is not known.
            out: what to read them into, instead of new arrays.

        Raises:
            ValueError: another call is using the buffer.
        """
        self._stack = contextlib.ExitStack()
        self._keeps_buffer = out is not None
        self._buffer = EpisodeBuffer() if out is None else out
        self._stack.enter_context(self._buffer.lent(num_steps))
        self._parts: list[EpisodeBatch] = []
        self._holds_messages = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def add(self, batch: EpisodeBatch) -> None:
        """Copies a batch behind the others."""
        if not _has_usual_masks(batch):
            self._end_part()
            self._parts.append(copy.deepcopy(batch))  # it may be a view of what does not last
            self._holds_messages = True
            return
        arrays = _arrays(batch)
        if not self._buffer.add(arrays):
            self._end_part()
            self._buffer.add(arrays)

    def join(self, account: Account) -> EpisodeBatch:
        """The whole, with the account. To be called once; raises as `join_batches` does."""
        self._end_part()
        if len(self._parts) != 1 or self._holds_messages:
            return join_batches(self._parts, account)
        return _with_account(_without_full_masks(self._parts[0]).joined(), account)

    def _end_part(self) -> None:
        """Makes what the buffer holds a part of the whole, and goes on with a new one."""
        if len(self._buffer):
            arrays = self._buffer.views() if self._keeps_buffer else self._buffer.take()
            self._parts.append(_batch(arrays))
            self._buffer, self._keeps_buffer = EpisodeBuffer(), False


def join_batches(batches: Sequence[EpisodeBatch], account: Account) -> EpisodeBatch:
    """All batches of a stream as one of whole episodes or fragments, in arrays of its own, with the account.

    Where an environment's info of one name has several shapes, it is kept of those batches that have the first one, and
    the other values are added to the account's dropped infos.

    Raises:
        ServerError: the batches do not fit together, or the account tells of more or less than came.
    """
    dropped_infos = Counter(account.dropped_infos)
    try:
        batch = EpisodeBatch.concatenate(*_with_one_shape(batches, dropped_infos)).joined()
    except ValueError as error:
        raise malformed_error(str(error)) from error
    return _with_account(batch, dataclasses.replace(account, dropped_infos=dict(dropped_infos)))


def _with_account(batch: EpisodeBatch, account: Account) -> EpisodeBatch:
    num_episodes = int((batch.terminated | batch.truncated).sum())
    if (num_episodes, batch.num_steps) != (account.num_episodes, account.num_steps):
        came = f"{num_episodes} episodes ended in {batch.num_steps} steps that came"
        raise malformed_error(f"{came}, the account tells of {account.num_episodes} in {account.num_steps}")
    whole = copy.copy(batch)  # not to be checked once more
    object.__setattr__(whole, "account", account)
    return whole


def _with_one_shape(batches: Sequence[EpisodeBatch], dropped_infos: Counter[str]) -> Iterator[EpisodeBatch]:
    """The batches without the infos of environments whose shape is another than that of the first of their name.

    A server does not mix shapes within a message, so that which values are kept does not depend on how the episodes are
    spread over messages.
    """
    shapes: dict[tuple[str, str], tuple[int, ...]] = {}
    for batch in batches:
        kept: dict[str, Any] = {"env_infos": {}, "episode_infos": {}}
        for group, infos in kept.items():
            given = getattr(batch, group)
            for name, column in given.items():
                mask = given.get(mask_name(name))
                owner = name[1:] if is_mask(name, given) else name
                shape = given[owner].shape[1:]
                if shapes.setdefault((group, owner), shape) == shape:
                    infos[name] = column
                elif owner == name:
                    dropped_infos[name] += len(column) if mask is None else int(mask.sum())
        yield dataclasses.replace(batch, **kept)


def _arrays(batch: EpisodeBatch) -> dict[ArrayKey, np.ndarray]:
    """The arrays of a batch, but for headers that it has not."""
    return {
        (name, leaf): array
        for name in _FIELDS
        if (columns := getattr(batch, name)) is not None
        for leaf, array in leaves_of(columns).items()
    }


def _batch(arrays: Mapping[ArrayKey, np.ndarray]) -> EpisodeBatch:
    """The inverse of `_arrays`."""
    fields: dict[str, dict[str, np.ndarray]] = {}
    for (name, leaf), array in arrays.items():
        fields.setdefault(name, {})[leaf] = array
    columns: dict[str, Any] = {name: columns_of(leaves) for name, leaves in fields.items() if name not in _INFOS}
    columns |= {name: fields.get(name, {}) for name in _INFOS}
    return EpisodeBatch(**columns)


def _without_full_masks(batch: EpisodeBatch) -> EpisodeBatch:
    """The batch without the masks of infos that have no gaps."""
    kept: dict[str, Any] = {}
    for group in _INFOS:
        kept[group] = without_full_masks(getattr(batch, group))
    if all(len(infos) == len(getattr(batch, group)) for group, infos in kept.items()):
        return batch
    return dataclasses.replace(batch, **kept)


def _has_usual_masks(batch: EpisodeBatch) -> bool:
    """Whether no mask has a mask, and all are truth values."""
    for group in _INFOS:
        infos = getattr(batch, group)
        for name, column in infos.items():
            if is_mask(name, infos) and (is_mask(name[1:], infos) or column.ndim != 1 or column.dtype != np.bool_):
                return False
    return True
