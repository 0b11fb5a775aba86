"""How the rows of an environment are stepped: one by one, or all at once by its own code or EnvPool's."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Protocol, TypeVar

from rollserve import EnvSpec
from rollserve_server.envs.native.native import check_step_limit, why_not_native
from rollserve_server.envs.row_specs import RowSpecs, WorkerSpecs
from rollserve_server.envs.rows import RowEnvs
from rollserve_server.envs.vector_rows import VectorEnvs
from rollserve_server.errors import InvalidValueError, at_row

if TYPE_CHECKING:
    from rollserve_server.settings import RowSettings

__all__ = ["episodes_per_row", "make_rows", "with_envpool"]


_MOST_BLOCK_EPISODES = 1 << 16
"""More would only make a block longer, and what is lost with it; with so many of each, rows hardly wait any more."""

_Rows = TypeVar("_Rows", RowEnvs, VectorEnvs)


class FreeRows(Protocol):
    """Where rows stand that nobody uses."""

    def __call__(self, kind: type[_Rows], num_rows: int, specs: WorkerSpecs) -> _Rows | None:
        """Takes rows of this kind and number that can be changed to what the specs say, if there are any."""


def with_envpool(specs: WorkerSpecs, settings: RowSettings) -> WorkerSpecs:
    """The specs, saying so themselves where the settings alone say that EnvPool steps the rows: its ids are others."""
    if isinstance(specs, EnvSpec) and specs.vectorization is None and settings.vectorization == "envpool":
        return dataclasses.replace(specs, vectorization="envpool")
    return specs


def make_rows(
    specs: WorkerSpecs, settings: RowSettings, free: FreeRows | None = None, max_episode_length: int | None = None
) -> RowEnvs | VectorEnvs:
    """The rows of a worker's environments. The caller has checked that they are allowed.

    Their kind and their number are a function of the specs, the settings and the limit alone, whatever stands free.

    Args:
        specs: what to make.
        settings: what holds where they do not say otherwise.
        free: rows that may be changed to what the specs say; None for none.
        max_episode_length: how many steps episodes may have if a call does not say; None for what the environment
            allows.

    Raises:
        NotFoundError, InvalidValueError: see `make_env`, `make_vector_env` and `set_task`; or rows that differ are to
            be stepped together, or the code that steps them together takes no limit.
    """
    if isinstance(specs, RowSpecs):
        _check_rows(specs)
        return _one_by_one(specs, len(specs.specs), free)
    vectorization = specs.vectorization or settings.vectorization
    if vectorization in ("native", "envpool") or (vectorization == "auto" and why_not_native(specs) is None):
        if vectorization != "envpool":
            check_step_limit(specs)
        try:
            return _together(specs, specs.num_rows or settings.native_rows, free, max_episode_length)
        except InvalidValueError:  # there are arguments that only rows take
            if vectorization != "auto":
                raise
    return _one_by_one(specs, specs.num_rows or settings.rows, free)


def episodes_per_row(specs: WorkerSpecs, settings: RowSettings, num_rows: int) -> int:
    """How many episodes of each row make a block, if so many rows are stepped together.

    Raises:
        InvalidValueError: a block would have too many.
    """
    own = specs.num_episodes_per_row if isinstance(specs, EnvSpec) else None
    num_episodes = own or settings.episodes_per_row
    if num_episodes * num_rows > _MOST_BLOCK_EPISODES:
        expected = f"at most {_MOST_BLOCK_EPISODES // num_rows} of {num_rows} rows"
        raise InvalidValueError.of("episodes_per_row", expected=expected, got=num_episodes)
    return num_episodes


def _one_by_one(specs: WorkerSpecs, num_rows: int, free: FreeRows | None) -> RowEnvs:
    return _changed(RowEnvs, specs, num_rows, free) or RowEnvs(specs, num_rows)


def _together(spec: EnvSpec, num_rows: int, free: FreeRows | None, max_episode_length: int | None) -> VectorEnvs:
    envs = _changed(VectorEnvs, spec, num_rows, free)
    if envs is None:
        envs = VectorEnvs(spec, num_rows)
        try:
            _check_limit(spec, num_rows, max_episode_length)
        except BaseException:
            envs.close()
            raise
    return envs


def _check_limit(spec: EnvSpec, num_rows: int, max_episode_length: int | None) -> None:
    """Sees to it that each call's rows can be made: they get the limit."""
    if max_episode_length is not None:
        try:
            VectorEnvs(spec, num_rows, max_episode_length).close()
        except InvalidValueError as error:
            text = f"'native' came, but the server has a limit of the length of episodes: {error.text}"
            raise InvalidValueError(text, field="vectorization") from error


def _changed(kind: type[_Rows], specs: WorkerSpecs, num_rows: int, free: FreeRows | None) -> _Rows | None:
    """Free rows of this kind and number, changed to what the specs say, if there are any that can be."""
    envs = None if free is None else free(kind, num_rows, specs)
    if envs is not None:
        try:
            envs.change(specs)
        except BaseException:
            envs.close()
            raise
    return envs


def _check_rows(specs: RowSpecs) -> None:
    num_rows = len(specs.specs)
    for row, spec in enumerate(specs.specs):
        with at_row(row):
            if spec.vectorization not in (None, "rows"):
                text = f"{spec.vectorization!r} came, but rows that differ are stepped one by one: 'rows' was expected"
                raise InvalidValueError(text, field="vectorization")
            if spec.num_rows not in (None, num_rows):
                raise InvalidValueError.of(
                    "row_count", expected=f"{num_rows}, the number of rows that are there", got=spec.num_rows
                )
