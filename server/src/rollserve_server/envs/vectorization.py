"""Vectorization: rows of a worker, stepped one by one or by a vector environment."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import gymnasium

from rollserve_server.envs.hosts.host import check_hosted, is_hosted
from rollserve_server.envs.making import close_env, make_env
from rollserve_server.envs.many.many_envs import ManyEnvs
from rollserve_server.envs.native import check_native_arguments, why_not_native
from rollserve_server.envs.registry import find_env
from rollserve_server.envs.row_envs import RowEnvs
from rollserve_server.envs.row_specs import RowSpecs, WorkerSpecs
from rollserve_server.envs.transforms import Transforms
from rollserve_server.envs.vector_envs import VectorEnvs
from rollserve_server.errors import DomainError, InvalidValueError, at_row, shorten, show
from rollserve_wire.environments import EnvSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gymnasium import Space

    from rollserve_server.settings import RowSettings

__all__ = ["episodes_per_row", "make_rows", "spaces_text", "why_not_single", "with_envpool"]

_MAX_BLOCK_EPISODES = 1 << 16
"""Largest number of episodes in a block. With more, rows hardly wait any less, and a lost block costs more."""

_MAX_SHOWN = 200  # characters of a space in the text of an error
_Rows = TypeVar("_Rows", RowEnvs, VectorEnvs)


class FreeRows(Protocol):
    """A store of rows that no call uses."""

    def __call__(self, kind: type[_Rows], num_rows: int, specs: WorkerSpecs) -> _Rows | None:
        """Take rows of this kind and number that can change to the specs, or None if there are none."""


def with_envpool(specs: WorkerSpecs, settings: RowSettings) -> WorkerSpecs:
    """Return the specs with vectorization `envpool` where the settings alone say so: EnvPool has ids of its own."""
    if (
        settings.vectorization == "envpool"
        and isinstance(specs, EnvSpec)
        and specs.vectorization is None
        and specs.multi_agent is None
    ):
        return dataclasses.replace(specs, vectorization="envpool")
    return specs


def make_rows(
    specs: WorkerSpecs, settings: RowSettings, free: FreeRows | None = None, max_episode_length: int | None = None
) -> RowEnvs | VectorEnvs | ManyEnvs:
    """Make the rows of a worker. The caller has checked that the environments are allowed.

    Kind and number of rows depend on specs, settings and limit alone, not on which rows are free.

    Args:
        specs: environments.
        settings: defaults for what the specs leave open.
        free: rows that may be changed instead of making new ones; None for none.
        max_episode_length: step limit of episodes in calls that request none; None for the environment's own.

    Raises:
        NotFoundError, InvalidValueError: an environment cannot be made, see `make_env`, `make_native`, `make_envpool`
            and `set_task`; rows that differ cannot be stepped together; native code takes no step limit; or the choice
            between native code and single rows is open, and they have other spaces.
    """
    if isinstance(specs, RowSpecs):
        _check_row_specs(specs)
        return _make_one_by_one(specs, len(specs.specs), free, settings)
    if specs.multi_agent is not None:
        return ManyEnvs(specs, specs.num_rows or settings.rows, settings.callbacks)
    _check_no_global_state(specs)
    if is_hosted(specs):
        check_hosted(specs)
        return _make_one_by_one(specs, specs.num_rows or settings.rows, free, settings)
    vectorization = specs.vectorization or settings.vectorization
    is_open = vectorization == "auto"
    if vectorization in ("native", "envpool") or (is_open and why_not_native(specs) is None):
        if vectorization != "envpool":
            check_native_arguments(specs)
        num_rows = specs.num_rows or settings.native_rows
        try:
            envs = _make_vector(specs, num_rows, free, max_episode_length, settings.callbacks)
        except InvalidValueError:  # some arguments work only with rows
            if not is_open:
                raise
        else:
            if is_open:
                _check_choice(specs, envs)
            return envs
    return _make_one_by_one(specs, specs.num_rows or settings.rows, free, settings)


def episodes_per_row(specs: WorkerSpecs, settings: RowSettings, num_rows: int) -> int:
    """Return how many episodes of each row make a block, where rows are stepped together.

    Raises:
        InvalidValueError: a block would have more than 65,536 episodes.
    """
    requested = specs.num_episodes_per_row if isinstance(specs, EnvSpec) else None
    num_episodes = requested or settings.episodes_per_row
    if num_episodes * num_rows > _MAX_BLOCK_EPISODES:
        expected = f"at most {_MAX_BLOCK_EPISODES // num_rows} for {num_rows} rows"
        raise InvalidValueError.of("episodes_per_row", expected=expected, got=num_episodes)
    return num_episodes


def _make_one_by_one(specs: WorkerSpecs, num_rows: int, free: FreeRows | None, settings: RowSettings) -> RowEnvs:
    return _changed(RowEnvs, specs, num_rows, free) or RowEnvs(
        specs, num_rows, settings.callbacks, has_threads=settings.row_threads
    )


def _check_choice(spec: EnvSpec, envs: VectorEnvs) -> None:
    """Close the rows and raise InvalidValueError unless single rows have the spaces of native ones."""
    why_not = why_not_single(spec, envs.observation_space, envs.action_space)
    if why_not:
        envs.close()
        expected = "'native' or 'rows', because they are not the same environment"
        hint = f"native rows have {spaces_text(envs.observation_space, envs.action_space)}; {why_not}"
        raise InvalidValueError.of("vectorization", expected=expected, got="none", hint=hint)


def _make_vector(
    spec: EnvSpec,
    num_rows: int,
    free: FreeRows | None,
    max_episode_length: int | None,
    callbacks: Sequence[str],
) -> VectorEnvs:
    envs = _changed(VectorEnvs, spec, num_rows, free)
    if envs is None:
        envs = VectorEnvs(spec, num_rows, callbacks=callbacks)
        try:
            _check_limit(spec, num_rows, max_episode_length)
        except BaseException:
            envs.close()
            raise
    return envs


def _check_limit(spec: EnvSpec, num_rows: int, max_episode_length: int | None) -> None:
    """Check that the environment can be made with the step limit, as calls do later."""
    if max_episode_length is not None:
        try:
            VectorEnvs(spec, num_rows, max_episode_length).close()
        except InvalidValueError as error:
            expected = "'rows', because the server limits the length of episodes"
            raise InvalidValueError.of("vectorization", expected=expected, got="'native'", hint=error.text) from error


def _changed(kind: type[_Rows], specs: WorkerSpecs, num_rows: int, free: FreeRows | None) -> _Rows | None:
    """Return free rows of this kind and number, changed to the specs, or None if there are none."""
    envs = None if free is None else free(kind, num_rows, specs)
    if envs is not None:
        try:
            envs.change(specs)
        except BaseException:
            envs.close()
            raise
    return envs


def _check_no_global_state(spec: EnvSpec) -> None:
    """Raise InvalidValueError if the spec of an environment with one agent asks for a global state."""
    if spec.global_state:
        expected = "false for an environment with one agent, whose observations are all there is"
        raise InvalidValueError.of("global_state", expected=expected, got="true")


def _check_row_specs(specs: RowSpecs) -> None:
    num_rows = len(specs.specs)
    for row, spec in enumerate(specs.specs):
        with at_row(row):
            _check_no_global_state(spec)
            if is_hosted(spec):
                check_hosted(spec)
            if spec.multi_agent is not None:
                expected = "none, because rows that differ have one agent each"
                raise InvalidValueError.of("multi_agent", expected=expected, got=repr(spec.multi_agent))
            if spec.vectorization not in (None, "rows"):
                expected = "'rows', because rows that differ are stepped one by one"
                raise InvalidValueError.of("vectorization", expected=expected, got=repr(spec.vectorization))
            if spec.num_rows not in (None, num_rows):
                expected = f"{num_rows}, the number of rows with an environment"
                raise InvalidValueError.of("row_count", expected=expected, got=spec.num_rows)


def why_not_single(spec: EnvSpec, observation_space: Space[Any], action_space: Space[Any]) -> str:
    """Return why single rows are not the environment that native code steps; empty if their spaces are equal.

    Only spaces are compared. ALE's, for example, differ: its native code preprocesses screens, and single rows do not.

    Args:
        spec: environment with native code.
        observation_space: observation space of a native row, with its transforms.
        action_space: action space of a native row, with its transforms.
    """
    named = find_env(spec.id)
    if isinstance(named, str) and gymnasium.spec(named).entry_point is None:
        return f"{spec.id} has no code for single rows"
    try:
        env = make_env(spec)
    except DomainError as error:
        return f"single rows cannot be made: {error.text}"
    close_env(env)
    try:
        single = Transforms(spec.transforms, env.observation_space, env.action_space)
    except DomainError as error:
        return f"the transforms do not fit single rows: {error.text}"
    spaces = single.observation_space, single.action_space
    return "" if spaces == (observation_space, action_space) else f"single rows have {spaces_text(*spaces)}"


def spaces_text(observation_space: Space[Any], action_space: Space[Any]) -> str:
    """Return both spaces for the text of an error."""
    observations, actions = (shorten(show(space), _MAX_SHOWN) for space in (observation_space, action_space))
    return f"observations {observations} and actions {actions}"
